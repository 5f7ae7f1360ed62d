//! The same work on Tidegate and on its peers, in one run, round by round in turn.

#![allow(clippy::disallowed_methods, reason = "a bench measures wall time")]

mod bars;
mod decide;
mod gateway;
mod redis;
mod resilience;
mod service;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Compares Tidegate with its peers. Rounds are interleaved, the median counts, and every run ends with
/// `bars: M/N met`; it succeeds only if all are.
#[derive(Debug, Parser)]
#[command(name = "bench-peers", max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// One decision in a process, against governor
    Decide {
        /// Write every round's figure here, as JSON
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Only the works whose name holds this
        #[arg(long, value_name = "TEXT")]
        only: Option<String>,
    },
    /// The gateway against nginx, HAProxy and Envoy, which it starts (and installs, on Debian, where missing)
    Gateway {
        /// Write every round's figure here, as JSON
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Only the works whose name holds this
        #[arg(long, value_name = "TEXT")]
        only: Option<String>,
        /// Fewer and shorter rounds, for a first look
        #[arg(long)]
        quick: bool,
    },
    /// Redis as the shared store: a redis-server on one core, against the classic script
    Redis {
        /// Write every round's figure here, as JSON
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Only the works whose name contains this
        #[arg(long, value_name = "TEXT")]
        only: Option<String>,
    },
    /// Tower layers against those of other crates and tower's own
    Resilience {
        /// Write every round's figure here, as JSON
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Only the works whose name contains this
        #[arg(long, value_name = "TEXT")]
        only: Option<String>,
    },
    /// The decision service against throttlecrab-server, redis-server and limitador-server
    Service {
        /// Write every round's figures here, as JSON
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Only the works whose name contains this
        #[arg(long, value_name = "TEXT")]
        only: Option<String>,
        /// Fewer and shorter rounds, for a first look
        #[arg(long)]
        quick: bool,
        /// A release build of Tidegate; default: target/release/tidegate of the repository
        #[arg(long, value_name = "PATH")]
        tidegate: Option<PathBuf>,
        /// throttlecrab-server; default: target/peers/bin, where it is installed if it is missing
        #[arg(long, value_name = "PATH")]
        throttlecrab: Option<PathBuf>,
        /// limitador-server, which is in no package; default: its reference figure
        #[arg(long, value_name = "PATH")]
        limitador: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let result = match Args::parse().bench {
        Bench::Decide { json, only } => decide::run(json.as_deref(), only.as_deref().unwrap_or_default()),
        Bench::Gateway { json, only, quick } => gateway::run(gateway::Options {
            only: only.as_deref().unwrap_or_default(),
            quick,
            json: json.as_deref(),
        }),
        Bench::Redis { json, only } => redis::run(json.as_deref(), only.as_deref().unwrap_or_default()),
        Bench::Resilience { json, only } => {
            resilience::run(json.as_deref(), only.as_deref().unwrap_or_default())
        }
        Bench::Service { json, only, quick, tidegate, throttlecrab, limitador } => {
            service::run(service::Options {
                only: only.as_deref().unwrap_or_default(),
                quick,
                json: json.as_deref(),
                programs: service::ProgramPaths {
                    tidegate: tidegate.as_deref(),
                    throttlecrab: throttlecrab.as_deref(),
                    limitador: limitador.as_deref(),
                },
            })
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench-peers: {error:#}");
            ExitCode::FAILURE
        }
    }
}
