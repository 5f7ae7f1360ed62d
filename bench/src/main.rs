//! Benchmarks of this project. Important results are kept in docs/performance.md with the command that produced them.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures wall time")]

mod accuracy;
mod admit;
mod arguments;
mod cascade;
mod conditions;
mod flood;
mod hot;
mod matching;
mod policy;
mod step;
mod storm;
mod telemetry;

use arguments::Bench;
use clap::{Parser, Subcommand};

/// Measures the parts of this project; `bench-peers` measures other projects.
#[derive(Debug, Parser)]
#[command(name = "bench", max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    #[command(flatten)]
    Bench(Bench),
    /// One node of `accuracy`
    #[command(hide = true)]
    AccuracyNode(accuracy::NodeArgs),
}

fn main() -> anyhow::Result<()> {
    let bench = match Args::parse().task {
        Task::Bench(bench) => bench,
        Task::AccuracyNode(args) => return accuracy::run_node(&args),
    };
    match bench {
        Bench::Step => step::run(),
        Bench::Flood => flood::run(),
        Bench::Policy => policy::run(),
        Bench::Conditions => conditions::run(),
        Bench::Match => matching::run(),
        Bench::Telemetry => telemetry::run(),
        Bench::Storm { picture } => storm::run(picture),
        Bench::Cascade => cascade::run(),
        Bench::Accuracy { decisions, only } => accuracy::run(decisions, only.as_deref().unwrap_or_default()),
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
