//! The command line. xtask includes this file: it checks documented commands without a build of the benchmarks.

use std::path::PathBuf;

use clap::Subcommand;

/// A benchmark.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
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
