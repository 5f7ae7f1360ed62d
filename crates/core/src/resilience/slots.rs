//! Counts of the last moments: a ring of words, each of which counts two things in one slot of time.
//!
//! A word holds the number of its slot (modulo 2^20) above two counts of 22 bits, so that a slot is emptied and counted in
//! one atomic step. Counts saturate.

use super::atomic::{AtomicU64, Ordering};

const COUNT_BITS: u32 = 22;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
const EPOCH_MASK: u64 = (1 << 20) - 1;

/// Two counts of one slot, or sums over several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotCounts {
    pub(super) first: u64,
    pub(super) second: u64,
}

impl SlotCounts {
    pub(super) const FIRST: Self = Self { first: 1, second: 0 };
    pub(super) const SECOND: Self = Self { first: 0, second: 1 };
    pub(super) const BOTH: Self = Self { first: 1, second: 1 };

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            first: self.first.saturating_add(other.first),
            second: self.second.saturating_add(other.second),
        }
    }
}

/// One slot of the ring.
#[derive(Debug, Default)]
pub(super) struct TimeSlot(AtomicU64);

impl TimeSlot {
    /// Adds to the counts of slot number `epoch`, which replaces an older one. Returns whether it was counted: not if the slot
    /// already counts a later time.
    pub(super) fn add(&self, epoch: u64, added: SlotCounts) -> bool {
        let epoch = epoch & EPOCH_MASK;
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let (of, counts) = unpack(word);
            let counts = if of == epoch {
                counts
            } else if is_later(of, epoch) && word != 0 {
                return false;
            } else {
                SlotCounts::default()
            };
            // Both counts stop together, so that their ratio stays true.
            let is_full = counts.first.max(counts.second) == COUNT_MAX;
            let next = pack(epoch, if is_full { counts } else { counts.plus(added) });
            match self.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(actual) => word = actual,
            }
        }
    }

    /// Adds one to the second count of slot number `epoch` if that leaves it at most `max`. Returns whether it did.
    pub(super) fn try_add_second(&self, epoch: u64, max: u64) -> bool {
        let epoch = epoch & EPOCH_MASK;
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let (of, counts) = unpack(word);
            let counts = if of == epoch { counts } else { SlotCounts::default() };
            if (word != 0 && is_later(of, epoch)) || counts.second >= max.min(COUNT_MAX) {
                return false;
            }
            let next = pack(epoch, counts.plus(SlotCounts::SECOND));
            match self.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(actual) => word = actual,
            }
        }
    }

    /// Takes one from the second count, if the slot still counts `epoch`.
    pub(super) fn take_second(&self, epoch: u64) {
        let epoch = epoch & EPOCH_MASK;
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let (of, counts) = unpack(word);
            if of != epoch {
                return;
            }
            let next = pack(epoch, SlotCounts { second: counts.second.saturating_sub(1), ..counts });
            match self.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(actual) => word = actual,
            }
        }
    }

    /// The counts of slot number `epoch`; zero if the slot counts another time.
    pub(super) fn counts(&self, epoch: u64) -> SlotCounts {
        counts_of(self.0.load(Ordering::Relaxed), epoch)
    }

    /// Like [`Self::counts`], and ordered with all additions: of two threads that add to different slots and then read both,
    /// at least one sees the other's addition.
    pub(super) fn counts_in_order(&self, epoch: u64) -> SlotCounts {
        counts_of(self.0.fetch_add(0, Ordering::AcqRel), epoch)
    }

    pub(super) fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

fn counts_of(word: u64, epoch: u64) -> SlotCounts {
    let (of, counts) = unpack(word);
    if of == epoch & EPOCH_MASK { counts } else { SlotCounts::default() }
}

fn pack(epoch: u64, counts: SlotCounts) -> u64 {
    let (first, second) = (counts.first.min(COUNT_MAX), counts.second.min(COUNT_MAX));
    (epoch << (2 * COUNT_BITS)) | (first << COUNT_BITS) | second
}

fn unpack(word: u64) -> (u64, SlotCounts) {
    let counts = SlotCounts { first: (word >> COUNT_BITS) & COUNT_MAX, second: word & COUNT_MAX };
    (word >> (2 * COUNT_BITS), counts)
}

/// A slot counts as later only if it is this close. Anything else is a slot that was not used for long: numbers wrap.
const MAX_AHEAD: u64 = 64;

/// Whether `epoch` is shortly after `other`.
fn is_later(epoch: u64, other: u64) -> bool {
    let ahead = epoch.wrapping_sub(other) & EPOCH_MASK;
    ahead != 0 && ahead <= MAX_AHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_of_later_time_replaces_the_counts_of_an_earlier_one() {
        let slot = TimeSlot::default();
        assert!(slot.add(3, SlotCounts::BOTH) && slot.add(3, SlotCounts::FIRST));
        assert_eq!(slot.counts(3), SlotCounts { first: 2, second: 1 });
        assert!(slot.add(4, SlotCounts::SECOND));
        assert_eq!(slot.counts(3), SlotCounts::default());
        assert_eq!(slot.counts(4), SlotCounts::SECOND);
        assert!(!slot.add(3, SlotCounts::FIRST), "time went backwards");
        assert_eq!(slot.counts(4), SlotCounts::SECOND);
    }

    #[test]
    fn slot_counts_saturate_together() {
        let slot = TimeSlot::default();
        assert!(slot.add(1, SlotCounts { first: u64::MAX, second: 1 }));
        assert!(slot.add(1, SlotCounts::BOTH));
        assert_eq!(slot.counts(1), SlotCounts { first: COUNT_MAX, second: 1 });
    }

    #[test]
    fn slot_second_count_is_taken_only_from_its_own_time() {
        let slot = TimeSlot::default();
        slot.add(7, SlotCounts { first: 5, second: 2 });
        slot.take_second(6);
        slot.take_second(7);
        assert_eq!(slot.counts(7), SlotCounts { first: 5, second: 1 });
        slot.take_second(7);
        slot.take_second(7);
        assert_eq!(slot.counts(7), SlotCounts { first: 5, second: 0 });
    }

    #[test]
    fn slot_that_was_not_used_for_any_time_counts_again() {
        for idle in [65, 1 << 10, (1 << 19) + 16, EPOCH_MASK - 64] {
            let slot = TimeSlot::default();
            assert!(slot.add(1, SlotCounts::BOTH));
            assert!(slot.add(1 + idle, SlotCounts::FIRST), "{idle}");
            assert_eq!(slot.counts(1 + idle), SlotCounts::FIRST);
            assert!(slot.try_add_second(1 + 2 * idle, 1), "{idle}");
        }
    }

    #[test]
    fn slot_epoch_wraps() {
        let slot = TimeSlot::default();
        assert!(slot.add(EPOCH_MASK, SlotCounts::FIRST));
        assert!(slot.add(EPOCH_MASK + 1, SlotCounts::FIRST), "the next after the largest");
        assert_eq!(slot.counts(EPOCH_MASK + 1), SlotCounts::FIRST);
    }
}
