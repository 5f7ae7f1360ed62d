//! The command line. xtask includes this file: it checks documented commands without a build of the peers.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand};

/// Compares Tidegate with its peers. Rounds are interleaved, the median counts, and every run ends with
/// `bars: M/N met`; it succeeds only if all are.
#[derive(Debug, Parser)]
#[command(name = "bench-peers", max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) bench: Bench,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// One decision in a process, against governor
    Decide(Options),
    /// The gateway against nginx, HAProxy and Envoy, which it starts (and installs, on Debian, where missing)
    Gateway {
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        peers: PeerFilter,
    },
    /// Redis as the shared store: a redis-server on one core, against the classic script
    Redis(Options),
    /// Tower layers against those of other crates and tower's own
    Resilience(Options),
    /// The decision service against throttlecrab-server, redis-server and limitador-server
    Service {
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        peers: PeerFilter,
        #[command(flatten)]
        programs: ProgramPaths,
    },
    /// Build Tidegate and install the programs that the benchmarks start, where missing, without measuring
    Prepare,
}

/// Options of every benchmark.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Options {
    /// Write every round's figures here, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Only the works whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) only: String,
    /// Only the work whose whole name is TEXT
    #[arg(long, requires = "only")]
    pub(crate) exact: bool,
    /// Fewer and shorter rounds, for a first look
    #[arg(long)]
    pub(crate) quick: bool,
    /// Number of rounds
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) rounds: Option<usize>,
}

/// Selects contenders, which saves the time of the others.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct PeerFilter {
    /// Measure only Tidegate and the peers whose name contains this; bars on other peers do not count
    #[arg(long, value_name = "NAME")]
    pub(crate) peer: Option<String>,
}

/// Programs in other places.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ProgramPaths {
    /// A release build of Tidegate; default: one that is built from this repository
    #[arg(long, value_name = "PATH")]
    pub(crate) tidegate: Option<PathBuf>,
    /// throttlecrab-server; default: target/peers/bin, where it is installed if it is missing
    #[arg(long, value_name = "PATH")]
    pub(crate) throttlecrab: Option<PathBuf>,
    /// limitador-server, which is in no package; default: its reference figure
    #[arg(long, value_name = "PATH")]
    pub(crate) limitador: Option<PathBuf>,
}
