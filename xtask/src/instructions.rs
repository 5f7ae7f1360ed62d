//! `cargo xtask instructions`: user-space instructions per request, counted by callgrind.
//!
//! One request at a time, over connections that take turns: nothing is batched, so every run does the same work. The
//! count depends neither on the clock nor on other load, and an older binary can be measured with the same load.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::load::{CONNECTIONS, Gateway, MODES, Mode, connect, request, send};
use crate::{run, setup};

/// Requests before counting starts: connections, pools and tables are ready then.
const WARM_UP: usize = 400;
const CALLGRIND: [&str; 5] =
    ["valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=out"];

pub(crate) fn run(binary: Option<PathBuf>, profiles: Option<&Path>) -> anyhow::Result<()> {
    setup::ensure("valgrind")?;
    let binary = binary.unwrap_or_else(|| run::root().join("target/release/tidegate"));
    if !binary.is_file() {
        bail!("{} is missing; build it with `cargo build --release`", binary.display());
    }
    println!("{}", binary.display());
    for mode in &MODES {
        println!("{:12} {:8} instructions per request", mode.name, measure(&binary, mode, profiles)?);
    }
    Ok(())
}

fn measure(binary: &Path, mode: &Mode, profiles: Option<&Path>) -> anyhow::Result<u64> {
    let gateway = Gateway::start(binary, mode, &CALLGRIND)?;
    let (mut connections, request) = (connect(gateway.address, CONNECTIONS)?, request(mode.body));
    send(&mut connections, &request, WARM_UP)?;
    control(&gateway, "--instr=on")?;
    send(&mut connections, &request, mode.requests)?;
    control(&gateway, "--dump")?;
    let dump = gateway.folder.join("out.1");
    if let Some(folder) = profiles {
        std::fs::create_dir_all(folder)?;
        std::fs::copy(&dump, folder.join(mode.name.replace(' ', "-")))?;
    }
    Ok(counted(&dump)? / mode.requests as u64)
}

fn control(gateway: &Gateway, order: &str) -> anyhow::Result<()> {
    run::output(Command::new("callgrind_control").args([order, &gateway.id().to_string()])).map(drop)
}

/// The instructions in a dump.
fn counted(dump: &Path) -> anyhow::Result<u64> {
    let dump = std::fs::read_to_string(dump).context("callgrind wrote no dump")?;
    let total =
        dump.lines().find_map(|line| line.strip_prefix("totals: ").or(line.strip_prefix("summary: ")));
    total.context("callgrind counted nothing")?.trim().parse().context("callgrind's total is not a number")
}
