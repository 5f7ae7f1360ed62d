//! Our own benches. Figures that matter are kept in docs/performance.md with the command that made them.

#![allow(clippy::disallowed_methods, reason = "a bench measures wall time")]

mod admit;
mod flood;
mod hot;
mod matching;
mod policy;
mod step;
mod telemetry;

use clap::{Parser, Subcommand};

/// Measures this project's own parts; peers are measured by `bench-peers`.
#[derive(Debug, Parser)]
#[command(name = "bench", max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// One step of each algorithm, no store around it: nanoseconds, median of rounds
    Step,
    /// 10 million random keys against a cap for a million, an abuser and a thousand regulars
    Flood,
    /// Compile a policy of 10,000 endpoint rules: milliseconds, median of rounds
    Policy,
    /// What a policy says about a request: paths, identities, conditions, API keys, a whole match
    Match,
    /// What metrics, logs and scrapes cost
    Telemetry,
    /// One check a decision over and over, for a profiler
    Hot {
        /// How many different keys
        #[arg(default_value_t = 1_000)]
        keys: usize,
        /// Sixteen decisions at a time
        #[arg(long)]
        batch: bool,
        /// Refuse all but the first of each key
        #[arg(long)]
        refuse: bool,
    },
}

fn main() -> anyhow::Result<()> {
    match Args::parse().bench {
        Bench::Step => step::run(),
        Bench::Flood => flood::run(),
        Bench::Policy => policy::run(),
        Bench::Match => matching::run(),
        Bench::Telemetry => telemetry::run(),
        Bench::Hot { keys, batch, refuse } => hot::run(keys, batch, refuse),
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
