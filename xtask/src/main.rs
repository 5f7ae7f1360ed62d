//! The tasks of this repository: `cargo xtask --help`.

mod bench;
mod commands;
mod compare;
mod documented;
mod instructions;
mod load;
mod run;
mod scorecard;
mod setup;
mod test;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Development tasks of this repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100, after_help = EXAMPLES)]
struct Args {
    #[command(subcommand)]
    task: Task,
}

const EXAMPLES: &str = "\
Examples:
  cargo xtask test                     run all checks and tests, as CI does
  cargo xtask test --only tests        run one step
  cargo xtask scorecard                list the long tests and their criteria
  cargo xtask scorecard equivalence    run one of them
  cargo xtask bench --quick            compare speed with what is recorded for this processor
  cargo xtask instructions             instructions per request of target/release/tidegate
  cargo xtask compare OLD NEW          processor time per request of two release builds";

#[derive(Debug, Subcommand)]
enum Task {
    /// Install what is missing, then check and test everything.
    ///
    /// Steps, in order: setup, format, clippy, tidy, tests (units, laws, conformance, a real redis-server, the real
    /// binary, doc tests), docs, loom. The first step that fails ends the run.
    Test {
        /// Run only this step.
        #[arg(long, value_name = "STEP", value_enum)]
        only: Option<test::Step>,
    },
    /// Check crate dependencies, file length, names, forbidden words, that docs name all metrics, events and errors,
    /// and that the documented benchmarks and tasks exist.
    Tidy,
    /// Test all interleavings of concurrent code with loom.
    Loom,
    /// Write docs/config.md from the table of the policy language.
    Docs,
    /// Install what the tests need (Debian, Ubuntu), or list what is missing.
    Setup {
        /// What `bench-peers` needs instead: nginx, HAProxy, redis-server, wrk, Envoy (in target/).
        #[arg(long)]
        peers: bool,
    },
    /// Count the user-space instructions of a release build per request: passed, rejected, with a body of 64 KiB.
    ///
    /// One request at a time, so that two runs differ by less than 0.5 %. To compare two versions, count both binaries.
    Instructions {
        /// The binary. Default: target/release/tidegate.
        #[arg(long, value_name = "PATH")]
        binary: Option<std::path::PathBuf>,
        /// Keep callgrind's profiles in this folder, for `callgrind_annotate`.
        #[arg(long, value_name = "FOLDER")]
        profiles: Option<std::path::PathBuf>,
    },
    /// Compare the processor time per request of two release builds, in alternating pairs.
    ///
    /// Prints each pair, the median of the ratios and its 95 % bounds.
    Compare {
        /// The earlier binary.
        old: std::path::PathBuf,
        /// The later binary.
        new: std::path::PathBuf,
        /// Number of pairs.
        #[arg(long, default_value_t = 20)]
        pairs: usize,
    },
    /// Run the documented benchmarks, all or one, or compare the most important rows with recorded ratios (--quick).
    ///
    /// A ratio is the time of Tidegate divided by that of a peer in the same rounds. With --quick, a row that is more than 7 % worse
    /// than recorded in two of three runs fails (exit code 1); rows or processors without a record are reported (exit code 3).
    Bench(bench::Options),
    /// Run a long test. It prints its seed and result, and succeeds only if its criterion is met.
    Scorecard {
        /// Name of the test. Without it, all are listed.
        name: Option<String>,
    },
}

fn main() -> ExitCode {
    let task = Args::parse().task;
    match perform(task) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(task: Task) -> anyhow::Result<ExitCode> {
    match task {
        Task::Bench(options) => return bench::run(&options),
        Task::Test { only } => test::run(only),
        Task::Tidy => tidy::run(),
        Task::Loom => test::loom(),
        Task::Docs => docs(),
        Task::Setup { peers: true } => setup::peers(),
        Task::Setup { peers: false } => setup::run(),
        Task::Instructions { binary, profiles } => instructions::run(binary, profiles.as_deref()),
        Task::Compare { old, new, pairs } => compare::run(&old, &new, pairs),
        Task::Scorecard { name } => scorecard::run(name.as_deref()),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn docs() -> anyhow::Result<()> {
    let page = run::output(&mut run::cargo("run --quiet --package tidegate -- schema --format markdown"))?;
    let path = run::root().join("docs/config.md");
    std::fs::write(&path, page)?;
    println!("wrote docs/config.md");
    Ok(())
}
