//! Benchmarks of this project. Important results are kept in docs/performance.md with the command that produced them.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures wall time")]

mod accuracy;
mod admit;
mod cascade;
mod conditions;
mod flood;
mod hot;
mod matching;
mod policy;
mod step;
mod storm;
mod telemetry;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Measures the parts of this project; `bench-peers` measures other projects.
#[derive(Debug, Parser)]
#[command(name = "bench", max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// One step of each algorithm without a store: nanoseconds, median of rounds
    Step,
    /// 10 million random keys against a cap for a million, with an abuser and a thousand regular clients
    Flood,
    /// Compile a policy of 10,000 endpoint rules: milliseconds, median of rounds
    Policy,
    /// The most expensive conditions on the longest header: milliseconds, median of rounds
    Conditions,
    /// Match requests: paths, identities, conditions, API keys, a whole match
    Match,
    /// The cost of metrics, logs and scrapes
    Telemetry,
    /// 1,000 clients against a service that dies for 10 s, with and without jitter, retry budget and breaker (virtual time)
    Storm {
        /// Write the picture here instead of to docs/images/retry-storm.svg
        #[arg(long, value_name = "FILE")]
        picture: Option<PathBuf>,
    },
    /// Three tiers of which the bottom one hangs for 10 s, with and without the stack of tower layers (virtual time)
    Cascade,
    /// Three node processes that share limits through Redis, replayed on an ideal limiter: excess and utilisation
    Accuracy {
        /// Decisions per mode and algorithm
        #[arg(long, default_value_t = 1_000_000)]
        decisions: u64,
        /// Only the runs whose name contains this, such as `lease token_bucket`
        #[arg(long, value_name = "TEXT")]
        only: Option<String>,
    },
    /// One node of `accuracy`
    #[command(hide = true)]
    AccuracyNode(accuracy::NodeArgs),
    /// One check per decision in a loop, for profiling
    Hot {
        /// Number of different keys
        #[arg(default_value_t = 1_000)]
        keys: usize,
        /// Sixteen decisions at a time
        #[arg(long)]
        batch: bool,
        /// Reject all but the first request of each key
        #[arg(long)]
        reject: bool,
    },
}

fn main() -> anyhow::Result<()> {
    match Args::parse().bench {
        Bench::Step => step::run(),
        Bench::Flood => flood::run(),
        Bench::Policy => policy::run(),
        Bench::Conditions => conditions::run(),
        Bench::Match => matching::run(),
        Bench::Telemetry => telemetry::run(),
        Bench::Storm { picture } => storm::run(picture),
        Bench::Cascade => cascade::run(),
        Bench::Accuracy { decisions, only } => accuracy::run(decisions, only.as_deref().unwrap_or_default()),
        Bench::AccuracyNode(args) => accuracy::run_node(&args),
        Bench::Hot { keys, batch, reject } => hot::run(keys, batch, reject),
    }
}

const ROUNDS: usize = 9;

fn median(mut measure: impl FnMut() -> f64) -> f64 {
    let mut rounds: Vec<_> = (0..ROUNDS).map(|_| measure()).collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

#[expect(clippy::cast_precision_loss, reason = "a figure to read, not to compute with")]
fn nanos_each(elapsed: std::time::Duration, count: u64) -> f64 {
    elapsed.as_nanos() as f64 / count as f64
}
