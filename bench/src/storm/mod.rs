//! A retry storm on virtual time: 1,000 clients call a service of limited capacity that dies for ten seconds.
//!
//! The clients share one retry budget and one breaker, as they do behind a gateway. The run has no clock: one seed gives one
//! result, to the last request.

mod chart;
mod curve;
mod service;
mod simulation;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use tidegate_core::Jitter;

use self::curve::StormReport;
use self::simulation::{Protection, StormConfig};

/// The protections, each with one more than the one before.
pub(crate) const PROTECTIONS: [Protection; 4] = [
    Protection { name: "no jitter, no budget", jitter: Jitter::None, has_budget: false, has_breaker: false },
    Protection { name: "jitter", jitter: Jitter::Decorrelated, has_budget: false, has_breaker: false },
    Protection {
        name: "jitter and budget",
        jitter: Jitter::Decorrelated,
        has_budget: true,
        has_breaker: false,
    },
    Protection {
        name: "jitter, budget and breaker",
        jitter: Jitter::Decorrelated,
        has_budget: true,
        has_breaker: true,
    },
];

/// Runs every protection, prints the curves and writes the picture.
pub(crate) fn run(picture: Option<PathBuf>) -> anyhow::Result<()> {
    let config = StormConfig::default();
    let reports = reports(&config)?;
    println!(
        "{} clients, one request per second each, a service for {} per second that dies from {} s to {} s (seed {})",
        config.clients,
        config.capacity_per_second(),
        config.outage.start,
        config.outage.end,
        config.seed
    );
    println!(
        "{:28} {:>9} {:>9} {:>9} {:>9} {:>10}",
        "", "requests", "attempts", "peak/s", "served", "recovers"
    );
    for report in &reports {
        println!(
            "{:28} {:>9} {:>8.2}x {:>9} {:>8.1}% {:>10}",
            report.name,
            report.requests,
            report.amplification(),
            report.peak_per_second(),
            report.served_percent(),
            report.recovery_text()
        );
    }
    for report in &reports {
        println!("\n{}: attempts per second, second by second\n  {}", report.name, report.attempts_line());
    }
    let path = picture.unwrap_or_else(picture_path);
    std::fs::write(&path, chart::render(&config, &reports))
        .with_context(|| format!("cannot write {}", path.display()))?;
    println!("\nwrote {}", path.display());
    check(&reports)?;
    println!("target met");
    Ok(())
}

pub(crate) fn reports(config: &StormConfig) -> anyhow::Result<Vec<StormReport>> {
    PROTECTIONS.iter().map(|protection| simulation::run(config, protection)).collect()
}

/// The picture in the documentation.
pub(crate) fn picture_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/images/retry-storm.svg")
}

/// What the protections must achieve.
pub(crate) fn check(reports: &[StormReport]) -> anyhow::Result<()> {
    let [plain, jitter, budget, breaker] = reports else {
        anyhow::bail!("expected a report for each protection");
    };
    ensure!(plain.peak_per_second() >= 4 * budget.peak_per_second(), "the budget does not lower the peak");
    ensure!(plain.peak_per_second() * 2 >= 3 * jitter.peak_per_second(), "jitter does not lower the peak");
    ensure!(plain.amplification() > 3.0, "without a budget retries do not multiply the load");
    ensure!(budget.amplification() <= 1.2, "retries exceed the budget");
    ensure!(breaker.amplification() <= 0.1, "the breaker does not keep calls from the dead service");
    ensure!(plain.recovered_after.is_none(), "the service recovers in spite of the storm");
    for report in [budget, breaker] {
        ensure!(report.recovered_after.is_some_and(|seconds| seconds <= 5), "{}: no recovery", report.name);
    }
    Ok(())
}
