//! The programs that benchmarks start: where they are, and how they get there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The root of the repository.
pub(crate) fn root() -> anyhow::Result<PathBuf> {
    fs::canonicalize(ROOT).with_context(|| format!("{ROOT} does not exist"))
}

/// A directory of a benchmark for configurations and logs, beside the build of this program.
pub(crate) fn working_directory(name: &str) -> anyhow::Result<PathBuf> {
    let executable = std::env::current_exe()?;
    let target = executable.ancestors().nth(2).context("this program lies in no target directory")?;
    Ok(target.join(name))
}

/// Builds the release binary of the repository and returns its path, so that no older build is measured in its place.
///
/// Only cargo knows the path: it depends on `CARGO_TARGET_DIR` and on cargo's configuration.
pub(crate) fn build_tidegate() -> anyhow::Result<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--release", "--package", "tidegate", "--bin", "tidegate"]);
    command.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = command.output().context("cannot start cargo")?;
    ensure!(output.status.success(), "the build of Tidegate failed ({})", output.status);
    executable(&String::from_utf8_lossy(&output.stdout)).context("cargo did not report a binary of Tidegate")
}

/// The binary in cargo's messages, one JSON object per line.
fn executable(messages: &str) -> Option<PathBuf> {
    let path = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_binary = message["reason"] == "compiler-artifact" && message["target"]["name"] == "tidegate";
        is_binary.then(|| message["executable"].as_str().map(PathBuf::from))?
    };
    messages.lines().find_map(path)
}

/// Installs the programs for the comparison, unless all of `programs` are there. `envoy` is the path of its binary, if it is needed.
pub(crate) fn install_missing(programs: &[&str], envoy: Option<&Path>) -> anyhow::Result<()> {
    let missing = programs.iter().copied().filter(|program| find(program).is_none());
    let missing: Vec<_> = missing.chain(envoy.filter(|path| !path.is_file()).map(|_| "envoy")).collect();
    if missing.is_empty() {
        return Ok(());
    }
    println!("missing: {}; `cargo xtask setup --peers` installs them", missing.join(", "));
    run_cargo(&["xtask", "setup", "--peers"])
}

/// The path of an installed program.
pub(crate) fn installed(program: &str) -> anyhow::Result<PathBuf> {
    find(program).with_context(|| format!("{program} is still missing; install it and try again"))
}

/// In the path, or where Debian keeps servers, which users do not have in theirs.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    places.map(|place| place.join(program)).find(|file| file.is_file())
}

/// The first line that the program prints about its version.
pub(crate) fn version(program: &Path, argument: &str) -> String {
    let Ok(output) = Command::new(program).arg(argument).output() else {
        return "not found".to_owned();
    };
    // Some print it to standard output, some to standard error.
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    text.lines().find(|line| !line.trim().is_empty()).unwrap_or("unknown version").trim().to_owned()
}

/// Runs cargo in the root of the repository.
pub(crate) fn run_cargo(arguments: &[&str]) -> anyhow::Result<()> {
    let status = cargo().args(arguments).status().context("cannot start cargo")?;
    if !status.success() {
        bail!("`cargo {}` failed ({status})", arguments.join(" "));
    }
    Ok(())
}

fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(ROOT);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_is_found_where_cargo_says_that_it_is() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"tidegate_core"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"tidegate"},"executable":"/elsewhere/release/tidegate"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages), Some(PathBuf::from("/elsewhere/release/tidegate")));
        assert_eq!(executable("not JSON"), None);
    }
}
