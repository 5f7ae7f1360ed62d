//! The servers of the benchmark: where they are, and the installation of those that are missing.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::arguments::ProgramPaths;
use crate::executables::{self, version};

/// The version that the bars were set with.
const THROTTLECRAB: &str = "0.4.40";
const THROTTLECRAB_PROGRAM: &str = "bin/throttlecrab-server";

/// Where everything is.
#[derive(Debug)]
pub(crate) struct Programs {
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
    pub(crate) fn find(paths: &ProgramPaths) -> anyhow::Result<Self> {
        let peers = executables::root()?.join("target/peers");
        // The build of throttlecrab-server needs protoc.
        let builds = paths.throttlecrab.is_none() && !peers.join(THROTTLECRAB_PROGRAM).is_file();
        let needed = ["redis-server", "nginx", "taskset", "setpriv", "timeout"];
        let needed: Vec<_> = needed.into_iter().chain(builds.then_some("protoc")).collect();
        executables::install_missing(&needed, None)?;
        let tidegate = match &paths.tidegate {
            Some(path) => given("--tidegate", path)?,
            None => executables::build_tidegate()?,
        };
        let programs = Self {
            tidegate,
            throttlecrab: throttlecrab(paths.throttlecrab.as_deref(), &peers)?,
            redis: executables::installed("redis-server")?,
            nginx: executables::installed("nginx")?,
            limitador: paths.limitador.as_deref().map(|path| given("--limitador", path)).transpose()?,
            dir: executables::working_directory("service-bench")?,
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
fn throttlecrab(path: Option<&Path>, root: &Path) -> anyhow::Result<PathBuf> {
    if let Some(path) = path {
        return given("--throttlecrab", path);
    }
    let path = root.join(THROTTLECRAB_PROGRAM);
    if !path.is_file() {
        println!(
            "throttlecrab-server is missing: installing {THROTTLECRAB} from crates.io into target/peers"
        );
        let root = root.to_string_lossy();
        let package = ["install", "throttlecrab-server", "--version", THROTTLECRAB, "--locked"];
        executables::run_cargo(&[&package[..], &["--root", &root]].concat())?;
    }
    ensure!(path.is_file(), "throttlecrab-server is still missing");
    Ok(path)
}

/// A path from the command line, which must exist.
fn given(option: &str, path: &Path) -> anyhow::Result<PathBuf> {
    ensure!(path.is_file(), "{option}: {} does not exist", path.display());
    Ok(path.to_owned())
}
