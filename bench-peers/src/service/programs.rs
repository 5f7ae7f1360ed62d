//! The servers of the benchmark: where they are, and the installation of those that are missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// The version that the bars were set with.
const THROTTLECRAB: &str = "0.4.40";
const THROTTLECRAB_PROGRAM: &str = "bin/throttlecrab-server";

/// The programs that the command line names.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProgramPaths<'a> {
    pub(crate) tidegate: Option<&'a Path>,
    pub(crate) throttlecrab: Option<&'a Path>,
    pub(crate) limitador: Option<&'a Path>,
}

/// Where everything is.
#[derive(Debug)]
pub(crate) struct Programs {
    /// It may be missing: then it fails as a contender.
    pub(crate) tidegate: PathBuf,
    pub(crate) throttlecrab: PathBuf,
    pub(crate) redis: PathBuf,
    pub(crate) nginx: PathBuf,
    pub(crate) limitador: Option<PathBuf>,
    /// Configurations and logs; emptied at the start.
    pub(crate) dir: PathBuf,
}

impl Programs {
    /// Finds all of them and installs what is missing.
    pub(crate) fn find(paths: ProgramPaths<'_>) -> anyhow::Result<Self> {
        let root = fs::canonicalize(ROOT).with_context(|| format!("{ROOT} does not exist"))?;
        let peers = root.join("target/peers");
        // The build of throttlecrab-server needs protoc.
        let builds = paths.throttlecrab.is_none() && !peers.join(THROTTLECRAB_PROGRAM).is_file();
        let needed = ["redis-server", "nginx", "taskset", "setpriv", "timeout"];
        let needed = needed.into_iter().chain(builds.then_some("protoc"));
        let missing: Vec<_> = needed.filter(|program| find(program).is_none()).collect();
        if !missing.is_empty() {
            println!(
                "missing: {}; `cargo xtask setup` and `cargo xtask setup --peers` install them",
                missing.join(", ")
            );
            cargo(&["xtask", "setup", "--peers"])?;
        }
        let installed = |name: &str| {
            find(name).with_context(|| format!("{name} is still missing; `cargo xtask setup` installs it"))
        };
        let executable = std::env::current_exe()?;
        let target = executable.ancestors().nth(2).context("this program lies in no target directory")?;
        let tidegate = paths.tidegate.map_or_else(|| root.join("target/release/tidegate"), Path::to_owned);
        if !tidegate.is_file() {
            println!(
                "tidegate is MISSING at {}: build it with `cargo build --release -p tidegate`, or pass --tidegate PATH",
                tidegate.display()
            );
        }
        let programs = Self {
            tidegate,
            throttlecrab: throttlecrab(paths.throttlecrab, &peers)?,
            redis: installed("redis-server")?,
            nginx: installed("nginx")?,
            limitador: limitador(paths.limitador)?,
            dir: target.join("service-bench"),
        };
        programs.prepare()?;
        Ok(programs)
    }

    /// An empty directory with the file that nginx serves and the limits of the peers.
    fn prepare(&self) -> anyhow::Result<()> {
        let _ = fs::remove_dir_all(&self.dir);
        let (files, envoy) = (self.dir.join("files"), self.dir.join("envoy"));
        for directory in [&files, &envoy] {
            fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        }
        fs::write(files.join("small"), "ok\n")?;
        fs::write(envoy.join("bench.yaml"), include_str!("configs/envoy.yaml"))?;
        fs::write(self.dir.join("limitador.yaml"), include_str!("configs/limitador.yaml"))?;
        Ok(())
    }

    /// Writes a file into the directory. Returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> anyhow::Result<String> {
        let path = self.dir.join(name);
        let text = text.replace("@DIR@", &self.dir.to_string_lossy());
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path.to_string_lossy().into_owned())
    }

    pub(crate) fn print_versions(&self) {
        let limitador = self.limitador.as_deref().map(|path| (path, "--version"));
        let programs = [
            (&*self.tidegate, "--version"),
            (&self.throttlecrab, "--version"),
            (&self.redis, "--version"),
            (&self.nginx, "-v"),
        ];
        for (program, argument) in programs.into_iter().chain(limitador) {
            let name = program.file_name().unwrap_or_default().to_string_lossy();
            println!("{name:20} {}", version(program, argument));
        }
        if limitador.is_none() {
            println!(
                "limitador-server     not given (--limitador PATH); its reference figure, measured elsewhere, is used"
            );
        }
    }
}

/// The one that is given, or the one in target/peers, installed if it is missing.
fn throttlecrab(given: Option<&Path>, root: &Path) -> anyhow::Result<PathBuf> {
    if let Some(path) = given {
        ensure!(path.is_file(), "{} does not exist", path.display());
        return Ok(path.to_owned());
    }
    let path = root.join(THROTTLECRAB_PROGRAM);
    if !path.is_file() {
        println!(
            "throttlecrab-server is missing: installing {THROTTLECRAB} from crates.io into target/peers"
        );
        let root = root.to_string_lossy();
        cargo(&["install", "throttlecrab-server", "--version", THROTTLECRAB, "--locked", "--root", &root])?;
    }
    ensure!(path.is_file(), "throttlecrab-server is still missing");
    Ok(path)
}

fn limitador(given: Option<&Path>) -> anyhow::Result<Option<PathBuf>> {
    let Some(path) = given else { return Ok(None) };
    ensure!(path.is_file(), "{} does not exist", path.display());
    Ok(Some(path.to_owned()))
}

/// In the path, or where Debian keeps servers, which users do not have in theirs.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    places.map(|place| place.join(program)).find(|file| file.is_file())
}

fn version(program: &Path, argument: &str) -> String {
    let Ok(output) = Command::new(program).arg(argument).output() else {
        return "MISSING".to_owned();
    };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    text.lines().find(|line| !line.trim().is_empty()).unwrap_or("unknown version").trim().to_owned()
}

fn cargo(arguments: &[&str]) -> anyhow::Result<()> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(program).args(arguments).current_dir(ROOT).status()?;
    if !status.success() {
        bail!("`cargo {}` failed ({status})", arguments.join(" "));
    }
    Ok(())
}
