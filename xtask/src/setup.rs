//! What the tests need beside Rust and a C compiler.

use std::process::{Command, Stdio};

use anyhow::bail;

use crate::run;

/// A program, and the Debian package that brings it.
struct Tool {
    program: &'static str,
    package: &'static str,
}

const TOOLS: [Tool; 1] = [Tool { program: "redis-server", package: "redis-server" }];

/// Installs what is missing where we know how, and says what is missing where we do not.
fn install(missing: &[&str]) -> anyhow::Result<()> {
    if !answers("apt-get") {
        bail!("the tests need {}; install it with your package manager and try again", missing.join(", "));
    }
    let apt = |arguments: &[&str]| {
        let mut command = if is_root() { Command::new("apt-get") } else { Command::new("sudo") };
        if !is_root() {
            command.arg("apt-get");
        }
        command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        run::run(&mut command)
    };
    apt(&["update", "-qq"])?;
    apt(&[&["install", "-qq", "-y", "--no-install-recommends"], missing].concat())
}

pub(crate) fn run() -> anyhow::Result<()> {
    let missing: Vec<_> =
        TOOLS.iter().filter(|tool| !answers(tool.program)).map(|tool| tool.package).collect();
    if missing.is_empty() {
        println!("everything the tests need is installed");
        return Ok(());
    }
    install(&missing)
}

fn answers(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
