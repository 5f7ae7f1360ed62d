//! Finds the clients that are rejected most, from a sample of rejections.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::Timestamp;
use tidegate_store::{SpaceSaving, WeightedItem};

use super::rules::RuleSlot;

/// Candidates of one core. A client that causes more than one in this many rejections is among them.
const MAX_CANDIDATES: usize = 128;
/// The first rejections of a core in a window are all sampled; of the rest, one in `SPARSE` is.
const DENSE: u64 = 32;
const SPARSE: u64 = 64;
/// The length of a window is 2 to the power of this, in microseconds: about 8 ms.
const WINDOW_BITS: u32 = 13;

/// Decides which rejections are sampled, so that a flood costs next to nothing.
#[derive(Debug, Default)]
pub(crate) struct Sampler(AtomicU64);

impl Sampler {
    /// How many rejections this one stands for, if it is sampled. Threads that share a sampler may lose an update,
    /// which only makes the sample a little less exact.
    pub(crate) fn weight(&self, now: Timestamp) -> Option<u64> {
        const COUNT: u64 = 0xff_ffff;
        let window = now.as_micros() >> WINDOW_BITS << 24;
        let before = self.0.load(Ordering::Relaxed);
        let count = if before & !COUNT == window { (before & COUNT).saturating_add(1).min(COUNT) } else { 1 };
        self.0.store(window | count, Ordering::Relaxed);
        match count {
            ..=DENSE => Some(1),
            // Mixing in the time avoids a bias against clients that come in a regular order.
            _ if (count ^ now.as_micros()).is_multiple_of(SPARSE) => Some(SPARSE),
            _ => None,
        }
    }
}

/// A client that may be one of those rejected most.
#[derive(Debug)]
pub(crate) struct TopCandidate {
    pub(crate) hash: u64,
    pub(crate) rule: RuleSlot,
    pub(crate) client: Box<[u8]>,
    samples: u32,
}

/// A lower bound for the rejections of a candidate; zero if it has too few samples to tell.
pub(crate) fn rejections(candidate: &WeightedItem<TopCandidate>) -> u64 {
    if candidate.item.samples >= 3 { candidate.at_least() } else { 0 }
}

/// The candidates of one core.
#[derive(Debug, Default)]
pub(crate) struct Sketch(SpaceSaving<TopCandidate, MAX_CANDIDATES>);

impl Sketch {
    pub(crate) fn add(&mut self, hash: u64, rule: RuleSlot, client: &[u8], weight: u64) {
        let new = || TopCandidate { hash, rule, client: client.into(), samples: 0 };
        self.0.record(weight, |known| known.hash == hash, new).samples += 1;
    }

    /// Takes all candidates since the last call.
    pub(crate) fn take(&mut self) -> Vec<WeightedItem<TopCandidate>> {
        self.0.take()
    }
}

/// Combines the candidates of all workers, the heaviest first.
pub(crate) fn merge(
    all: impl Iterator<Item = WeightedItem<TopCandidate>>,
) -> Vec<WeightedItem<TopCandidate>> {
    let mut merged: Vec<_> = all.collect();
    merged.sort_unstable_by_key(|one| one.item.hash);
    merged.dedup_by(|later, first| {
        let is_same = later.item.hash == first.item.hash;
        if is_same {
            first.add(later);
            first.item.samples += later.item.samples;
        }
        is_same
    });
    merged.sort_by_key(|one| std::cmp::Reverse(rejections(one)));
    merged
}
