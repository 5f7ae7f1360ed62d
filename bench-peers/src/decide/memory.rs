//! What live keys take, by the process's resident set.

use anyhow::{Context, ensure};
use tidegate_store::MemoryStore;

use super::contender::{Rate, Tidegate};
use super::work::fill;
use crate::bars::Bars;

const MILLION: usize = 1_000_000;

/// A store with the cap for so many keys, and so many keys that all still count.
#[expect(clippy::cast_precision_loss, reason = "a figure to read, not to compute with")]
pub(crate) fn run(bars: &mut Bars) -> anyhow::Result<()> {
    for keys in [MILLION, 10 * MILLION] {
        let before = resident_bytes()?;
        let tidegate = Tidegate::new(keys, Rate::Stingy)?;
        fill(&tidegate, keys);
        let taken = resident_bytes()?.saturating_sub(before) as f64;
        let overflowed = tidegate.store.memory_use().overflowed;
        println!("\n{keys} live keys: {:.1} MB, {overflowed} share a counter", taken / 1e6);
        ensure!(overflowed < keys as u64 / 10_000, "{overflowed} of {keys} keys found no place");
        bars.at_most("B per key", taken / keys as f64, 44.0);
        bars.at_most("× the cap", taken / MemoryStore::cap_for(keys) as f64, 1.05);
    }
    Ok(())
}

/// Resident memory of this process.
pub(crate) fn resident_bytes() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("this needs Linux")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    let kilobytes: u64 = line.split_whitespace().nth(1).context("no figure")?.parse()?;
    Ok(kilobytes * 1024)
}
