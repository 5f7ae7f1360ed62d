//! Who might be among the heaviest offenders: the space-saving algorithm over a sample of refusals.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::Timestamp;

use super::rules::Slot;

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
    pub(crate) rule: Slot,
    pub(crate) client: Box<[u8]>,
    /// About so many refusals.
    weight: u64,
    /// Of which so many may be those of a client that it replaced.
    inherited: u64,
    samples: u32,
}

impl Candidate {
    /// It was refused about so often at least; zero if chance may have it.
    pub(crate) fn refused(&self) -> u64 {
        if self.samples >= 3 { self.weight - self.inherited } else { 0 }
    }
}

/// The candidates of one core.
#[derive(Debug, Default)]
pub(crate) struct Sketch {
    kept: Vec<Candidate>,
}

impl Sketch {
    pub(crate) fn note(&mut self, hash: u64, rule: Slot, client: &[u8], weight: u64) {
        if let Some(known) = self.kept.iter_mut().find(|one| one.hash == hash) {
            known.weight += weight;
            known.samples += 1;
            return;
        }
        let newcomer = |inherited| Candidate {
            hash,
            rule,
            client: client.into(),
            weight: inherited + weight,
            inherited,
            samples: 1,
        };
        if self.kept.len() < KEPT {
            self.kept.push(newcomer(0));
        } else if let Some(lightest) = self.kept.iter_mut().min_by_key(|one| one.weight) {
            *lightest = newcomer(lightest.weight);
        }
    }

    /// All candidates since this was last asked.
    pub(crate) fn take(&mut self) -> Vec<Candidate> {
        std::mem::take(&mut self.kept)
    }
}

/// The candidates of all cores, the heaviest first.
pub(crate) fn merge(all: impl Iterator<Item = Candidate>) -> Vec<Candidate> {
    let mut merged: Vec<Candidate> = all.collect();
    merged.sort_unstable_by_key(|one| one.hash);
    merged.dedup_by(|later, first| {
        let is_same = later.hash == first.hash;
        if is_same {
            first.weight += later.weight;
            first.inherited += later.inherited;
            first.samples += later.samples;
        }
        is_same
    });
    merged.sort_by_key(|one| std::cmp::Reverse(one.refused()));
    merged
}
