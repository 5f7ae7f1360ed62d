//! `cargo xtask compare`: processor time per request of two release builds, in pairs.
//!
//! Both builds of a pair run at the same time and take turns in short slices, so that both meet the same other load.
//!
//! The figures of one build vary with the machine's other load; the ratio within a pair varies little, and the median of
//! many pairs less. The bounds of the median come from order statistics, which assume nothing about the distribution.

use std::path::Path;
use std::process::Command;

use anyhow::bail;

use crate::load::{CONNECTIONS, Connection, Gateway, MODES, Mode, connect, request, send};
use crate::run;

/// Requests before a measurement.
const WARM_UP: usize = 2_000;
/// Parts of a measurement: the two builds take turns, so that both meet the same other load.
const SLICES: usize = 20;
/// Gateway and load each keep to a processor of their own.
const GATEWAY: [&str; 3] = ["taskset", "--cpu-list", "1"];
const LOAD: &str = "0";

pub(crate) fn run(old: &Path, new: &Path, pairs: usize) -> anyhow::Result<()> {
    if pairs < 6 {
        bail!("fewer than 6 pairs bound no median");
    }
    let process = std::process::id().to_string();
    run::output(Command::new("taskset").args(["--all-tasks", "--cpu-list", "--pid", LOAD, &process]))?;
    println!("processor time per request, {} to {}, {pairs} pairs", old.display(), new.display());
    for mode in &MODES {
        let mut ratios = Vec::new();
        for pair in 0..pairs {
            // The first of a pair may find the machine in another state: each is, in turn.
            let (old_time, new_time) = if pair % 2 == 0 {
                measure(old, new, mode)?
            } else {
                let (new_time, old_time) = measure(new, old, mode)?;
                (old_time, new_time)
            };
            println!("{:12} {old_time:8.2} µs {new_time:8.2} µs  {:.3}", mode.name, new_time / old_time);
            ratios.push(new_time / old_time);
        }
        ratios.sort_by(f64::total_cmp);
        let (low, high) = bounds(ratios.len());
        let median = f64::midpoint(ratios[(pairs - 1) / 2], ratios[pairs / 2]);
        println!(
            "{:12} median {median:.3}, 95 % bounds {:.3} to {:.3}",
            mode.name, ratios[low], ratios[high]
        );
    }
    Ok(())
}

/// Microseconds of processor time for each request of two builds.
fn measure(first: &Path, second: &Path, mode: &Mode) -> anyhow::Result<(f64, f64)> {
    let (mut first, mut second) = (Measured::start(first, mode)?, Measured::start(second, mode)?);
    for _ in 0..SLICES {
        first.slice(mode)?;
        second.slice(mode)?;
    }
    Ok((first.time_per_request(mode)?, second.time_per_request(mode)?))
}

/// A gateway and what it has spent.
struct Measured {
    gateway: Gateway,
    connections: Vec<Connection>,
    request: Vec<u8>,
    before: u64,
}

impl Measured {
    fn start(binary: &Path, mode: &Mode) -> anyhow::Result<Self> {
        let gateway = Gateway::start(binary, mode, &GATEWAY)?;
        let (mut connections, request) = (connect(gateway.address, CONNECTIONS)?, request(mode.body));
        send(&mut connections, &request, WARM_UP)?;
        let before = gateway.processor_time()?;
        Ok(Self { gateway, connections, request, before })
    }

    fn slice(&mut self, mode: &Mode) -> anyhow::Result<()> {
        send(&mut self.connections, &self.request, mode.requests / SLICES)
    }

    #[expect(clippy::cast_precision_loss, reason = "figures to read, not to compute with")]
    fn time_per_request(&self, mode: &Mode) -> anyhow::Result<f64> {
        let spent = self.gateway.processor_time()?.saturating_sub(self.before);
        Ok(spent as f64 / 1_000.0 / (mode.requests / SLICES * SLICES) as f64)
    }
}

/// The positions of the values between which the median of `count` sorted values lies with at least 95 %.
#[expect(clippy::cast_precision_loss, reason = "counts of pairs are small")]
fn bounds(count: usize) -> (usize, usize) {
    // Of the ranks below the lower bound, each is above the median as often as `count` coins show that many heads.
    let mut coefficient = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let (mut below, mut low) = (coefficient, 0);
    while below <= 0.025 {
        low += 1;
        coefficient *= (count - low + 1) as f64 / low as f64;
        below += coefficient;
    }
    let low = low.saturating_sub(1);
    (low, count - 1 - low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_the_median_have_the_known_ranks() {
        // Ranks (from 1) of the 95 % interval in tables of the sign test.
        for (count, low, high) in [(6, 1, 6), (10, 2, 9), (20, 6, 15), (30, 10, 21), (40, 14, 27)] {
            assert_eq!(bounds(count), (low - 1, high - 1), "{count}");
        }
    }
}
