//! Who might be among the heaviest offenders, by a sample of refusals.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::Timestamp;
use tidegate_store::{SpaceSaving, WeightedItem};

use super::rules::RuleSlot;

/// So many are kept for each core; whoever causes more than one in so many refusals is among them.
const KEPT: usize = 128;
/// Refusals of one core within a window that are all looked at; of more, one in `SPARSE`.
const DENSE: u64 = 32;
const SPARSE: u64 = 64;
/// A window is so many bits of microseconds: about 8 ms.
const WINDOW: u32 = 13;

/// Decides which refusals are looked at, so that a flood costs next to nothing.
#[derive(Debug, Default)]
pub(crate) struct Sampler(AtomicU64);

impl Sampler {
    /// How many refusals this one stands for, if it is looked at. Threads that share a sampler may both count as the
    /// same one: it is a sample.
    pub(crate) fn weight(&self, now: Timestamp) -> Option<u64> {
        const COUNT: u64 = 0xff_ffff;
        let window = now.as_micros() >> WINDOW << 24;
        let before = self.0.load(Ordering::Relaxed);
        let count = if before & !COUNT == window { (before & COUNT).saturating_add(1).min(COUNT) } else { 1 };
        self.0.store(window | count, Ordering::Relaxed);
        match count {
            ..=DENSE => Some(1),
            // The time is as good as random, so nobody's turn is always the same.
            _ if (count ^ now.as_micros()).is_multiple_of(SPARSE) => Some(SPARSE),
            _ => None,
        }
    }
}

/// A client that may be heavy.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) hash: u64,
    pub(crate) rule: RuleSlot,
    pub(crate) client: Box<[u8]>,
    samples: u32,
}

/// It was refused about so often at least; zero if chance may have it.
pub(crate) fn refused(candidate: &WeightedItem<Candidate>) -> u64 {
    if candidate.item.samples >= 3 { candidate.at_least() } else { 0 }
}

/// The candidates of one core.
#[derive(Debug, Default)]
pub(crate) struct Sketch(SpaceSaving<Candidate, KEPT>);

impl Sketch {
    pub(crate) fn note(&mut self, hash: u64, rule: RuleSlot, client: &[u8], weight: u64) {
        let new = || Candidate { hash, rule, client: client.into(), samples: 0 };
        self.0.record(weight, |known| known.hash == hash, new).samples += 1;
    }

    /// All candidates since this was last asked.
    pub(crate) fn take(&mut self) -> Vec<WeightedItem<Candidate>> {
        self.0.take()
    }
}

/// The candidates of all cores, the heaviest first.
pub(crate) fn merge(all: impl Iterator<Item = WeightedItem<Candidate>>) -> Vec<WeightedItem<Candidate>> {
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
    merged.sort_by_key(|one| std::cmp::Reverse(refused(one)));
    merged
}
