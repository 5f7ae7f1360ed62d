//! Our own benches. Figures that matter are kept in docs/performance.md with the command that made them.

#![allow(clippy::disallowed_methods, reason = "a bench measures wall time")]

mod step;

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
}

fn main() -> anyhow::Result<()> {
    match Args::parse().bench {
        Bench::Step => step::run(),
    }
}
