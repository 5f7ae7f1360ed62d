//! The limits a table has met, by number: a slot has room for a number, not for a limit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError};

use tidegate_core::{Limit, State};

use super::bucket::LIMITS;
use super::pool::Budget;
use crate::sync::Mutex;

/// Counters shared by the newcomers of one limit when the table is full: so many, or fewer where memory is short.
const SHARED: [usize; 5] = [256, 64, 16, 4, 1];
const CHUNK: usize = 64;

/// A limit that has a number.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) limit: Limit,
    shared: OnceLock<Box<[SharedCell]>>,
}

/// A counter that several keys share.
pub(super) type SharedCell = Mutex<State>;

type Chunk = [OnceLock<Known>; CHUNK];

/// Numbered limits: a number is a place in a hash table, found by the limit's fingerprint. Numbers are never
/// given back; place 0 is never taken.
#[derive(Debug)]
pub(super) struct Limits {
    fingerprints: Box<[AtomicU64; LIMITS]>,
    chunks: Box<[OnceLock<Box<Chunk>>]>,
    /// How many are known; held while one is added.
    count: Mutex<usize>,
}

impl Limits {
    pub(super) fn new() -> Self {
        let fingerprints: Box<[_]> = (0..LIMITS).map(|_| AtomicU64::new(0)).collect();
        Self {
            fingerprints: fingerprints.try_into().unwrap_or_else(|_| unreachable!("they are so many")),
            chunks: (0..LIMITS / CHUNK).map(|_| OnceLock::new()).collect(),
            count: Mutex::new(0),
        }
    }

    /// The number of `limit`; `None` if there are no more numbers.
    pub(super) fn number(&self, limit: &Limit) -> Option<u16> {
        self.likely_number(limit).or_else(|| self.find_or_add(limit))
    }

    /// The number of `limit`, if it is known and at its first place, as almost every one is.
    #[expect(clippy::inline_always, reason = "a few instructions of every decision")]
    #[inline(always)]
    pub(super) fn likely_number(&self, limit: &Limit) -> Option<u16> {
        let wanted = fingerprint(limit);
        let place = first_place(wanted);
        (self.fingerprints[place].load(Ordering::Acquire) == wanted).then_some(place as u16)
    }

    #[cold]
    fn find_or_add(&self, limit: &Limit) -> Option<u16> {
        let wanted = fingerprint(limit);
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let mut place = first_place(wanted);
        loop {
            match self.fingerprints[place].load(Ordering::Acquire) {
                found if found == wanted => return u16::try_from(place).ok(),
                // One place stays free, so that every search ends.
                0 if *count < LIMITS - 2 => break,
                0 => return None,
                _ => place = next_place(place),
            }
        }
        let chunk = self.chunks[place / CHUNK].get_or_init(|| Box::new([const { OnceLock::new() }; CHUNK]));
        let known = Known { limit: *limit, shared: OnceLock::new() };
        // The place was free, and only the holder of `count` fills places.
        let _ = chunk[place % CHUNK].set(known);
        self.fingerprints[place].store(wanted, Ordering::Release);
        *count += 1;
        u16::try_from(place).ok()
    }

    /// The limit of a number that [`number`](Self::number) gave.
    pub(super) fn known(&self, number: u16) -> Option<&Known> {
        let place = usize::from(number);
        self.chunks.get(place / CHUNK)?.get()?[place % CHUNK].get()
    }
}

impl Known {
    /// The counter that the key with this hash shares with others.
    pub(super) fn shared(&self, budget: &Budget, hash: u64) -> &SharedCell {
        let cells = self.shared.get_or_init(|| {
            let cells = budget.take_cells(SHARED.into_iter());
            (0..cells).map(|_| SharedCell::new(State::Unseen)).collect()
        });
        &cells[hash as usize % cells.len()]
    }
}

/// Odd, so that neither it nor its first place is 0, which marks what is free.
fn fingerprint(limit: &Limit) -> u64 {
    limit.fingerprint() | 1
}

fn first_place(fingerprint: u64) -> usize {
    fingerprint as usize % LIMITS
}

fn next_place(place: usize) -> usize {
    (place + 1) % LIMITS + usize::from(place + 1 == LIMITS)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use tidegate_core::{Algorithm, Span, Spec};

    use super::*;

    fn limit(requests: u64) -> Limit {
        Limit::new(Algorithm::FixedWindow, Spec::new(requests, Span::from_secs(1))).expect("a valid limit")
    }

    #[test]
    fn every_limit_keeps_its_number_until_there_are_no_more() {
        let limits = Limits::new();
        let most = LIMITS as u64 - 2;
        let numbers: Vec<_> = (1..=most).map(|n| limits.number(&limit(n)).unwrap()).collect();
        let mut distinct = numbers.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), numbers.len());
        assert!(!distinct.contains(&0));
        assert_eq!(limits.number(&limit(most + 1)), None);
        for (n, number) in (1..=most).zip(numbers) {
            assert_eq!(limits.number(&limit(n)), Some(number));
            assert_eq!(limits.known(number).unwrap().limit, limit(n));
        }
    }
}
