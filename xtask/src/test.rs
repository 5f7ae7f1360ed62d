//! `cargo xtask test`: all checks that a change must pass.

use clap::ValueEnum;

use crate::run::{self, cargo};
use crate::{setup, tidy};

/// The steps in the order in which they run: cheap steps that fail often come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Step {
    /// Install what is missing
    Setup,
    /// `cargo fmt --check`
    Format,
    /// clippy for all targets; warnings are errors
    Clippy,
    /// Crate dependencies, file length, names, documented names and commands
    Tidy,
    /// All tests of all crates, including doc tests
    Tests,
    /// rustdoc; warnings are errors
    Docs,
    /// All interleavings of concurrent code
    Loom,
}

impl Step {
    fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Setup => setup::run(),
            Self::Format => run::run(&mut cargo("fmt --all --check")),
            Self::Clippy => run::run(&mut cargo("clippy --quiet --workspace --all-targets -- -D warnings")),
            Self::Tidy => tidy::run(),
            Self::Tests => run::run(&mut cargo("test --quiet --workspace")),
            // Nothing in the workspace needs all layers, so their features are named.
            Self::Docs => run::run(
                cargo("doc --quiet --workspace --no-deps --document-private-items")
                    .args([
                        "--features",
                        "tidegate-tower/axum,tidegate-tower/full,tidegate-tower/policy,tidegate-tower/tonic",
                    ])
                    .env("RUSTDOCFLAGS", "-D warnings"),
            ),
            Self::Loom => loom(),
        }
    }
}

pub(crate) fn run(only: Option<Step>) -> anyhow::Result<()> {
    for &step in Step::value_variants().iter().filter(|step| only.is_none_or(|only| only == **step)) {
        println!("\n== {}", format!("{step:?}").to_lowercase());
        step.run()?;
    }
    println!("\nall steps passed");
    Ok(())
}

/// Runs the tests named `loom_…`, in a separate build with the locks of loom.
pub(crate) fn loom() -> anyhow::Result<()> {
    run::run(
        cargo("test --quiet --target-dir target/loom --package tidegate-core --package tidegate-store --lib loom_")
            .env("RUSTFLAGS", "--cfg loom"),
    )
}
