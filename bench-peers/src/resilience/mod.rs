//! Tower layers around a service that is ready: what breaker, rate limit and the whole stack cost, and how far retries multiply
//! the load when everything fails.

mod amplification;
mod breaker;
mod race;
mod rate_limit;
mod report;
mod retries;
mod service;
mod stack;

use self::report::Report;
use crate::arguments::Options;

pub(crate) fn run(options: Options) -> anyhow::Result<bool> {
    let mut report = Report::new(options);
    for name in ["tower", "tower-resilience", "tower_governor"] {
        println!("{name} {}", version(name));
    }
    println!("\nns of processor time per call, medians of rounds, the contenders in turn");
    breaker::run(&mut report)?;
    rate_limit::run(&mut report)?;
    stack::run(&mut report)?;
    amplification::run(&mut report)?;
    report.options.require_one_of(&report.names)?;
    if let Some(path) = &report.options.json {
        std::fs::write(path, serde_json::to_vec_pretty(&report.measurements)?)?;
    }
    Ok(report.bars.close())
}

/// The version of a package in the lock file that this program was built with.
fn version(name: &str) -> &'static str {
    const LOCK_FILE: &str = include_str!("../../Cargo.lock");
    let package = format!("name = \"{name}\"\nversion = \"");
    LOCK_FILE.split_once(&package).and_then(|(_, rest)| rest.split('"').next()).unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_the_peers_are_in_the_lock_file() {
        for name in ["tower", "tower-resilience", "tower_governor"] {
            assert!(version(name).starts_with("0."), "{name} {}", version(name));
        }
    }
}
