//! Numbers for limits: a slot has room for a number, not for a limit.
//!
//! A number is an index into a hash table that is searched by the limit's fingerprint:
//!
//! ```text
//! fingerprints[n]   0      n is free
//!                   odd    n belongs to the limit with this fingerprint
//!                   even   n is retired (a sweep searches for counters that still need it), or n is free and
//!                          searches for other limits continue past it
//! ```
//!
//! Limits that nothing pins get at most half of the numbers: the other half is always there for policies and overrides.
//! Requests may carry any number of limits; those without a number are stored beside their states, in slots with the
//! number [`CARRIED`].
//!
//! A number is reused once nothing needs it: it is not pinned (by a policy or an override), and a sweep of the
//! whole table (`reclaim`) has found no live counter with it. A decision takes no lock to look a number up, so the
//! number may be retired, and belong to another limit, before the decision acts on it. Therefore a decision checks
//! [`belongs_to`](LimitRegistry::belongs_to) after it has read a counter, or after it has locked all of its lines.
//!
//! While some limits are pinned, new keys under all others use only half of the slots, and half of the pool: requests that
//! carry limits cannot take the room of a policy.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock, PoisonError};

use arc_swap::{ArcSwapOption, Guard};
use tidegate_core::{CounterState, Limit, Timestamp};

use super::cache_line::LIMITS;
use super::carried::{SharedUsage, SharedUsageCell};
use super::pool::Budget;
use crate::store::StoreError;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// The number of limits that can have a number at once. Number 0 marks an empty slot.
pub(super) const MAX_LIMITS: usize = LIMITS - 2;
/// How many of them may be neither in a policy nor in an override.
pub(super) const MAX_UNPINNED: usize = MAX_LIMITS / 2;
/// The number in slots whose limit has none. Even, so that no limit has it as its first index; searches skip it.
pub(super) const CARRIED: u16 = LIMITS as u16 - 2;
/// Numbers of shared counters per limit, tried in this order: fewer if memory is short. New keys share counters when the
/// table is full.
const SHARED: [usize; 5] = [256, 64, 16, 4, 1];
/// The number of groups of limits without a number by size: each is four times as large as the one before. They do not
/// share counters, because the units of a large limit would use up a small one.
const SIZES: usize = 8;
const CHUNK: usize = if LIMITS < 64 { LIMITS } else { 64 };

/// A counter that several keys share.
pub(super) type SharedCell = Mutex<CounterState>;

/// The data of a number.
#[derive(Debug, Default)]
struct NumberedLimit {
    /// `None`: the number is free.
    limit: ArcSwapOption<Limit>,
    /// Kept when the number is reused; every cell is reset before that.
    shared: OnceLock<Box<[SharedCell]>>,
    /// The same while nothing pins the number but others are pinned. Empty if there was no room.
    secondary: OnceLock<Box<[SharedCell]>>,
}

type LimitChunk = [NumberedLimit; CHUNK];

/// All numbers and their limits.
#[derive(Debug)]
pub(super) struct LimitRegistry {
    fingerprints: Box<[AtomicU64; LIMITS]>,
    chunks: Box<[OnceLock<Box<LimitChunk>>]>,
    /// How many numbers may be in use without a pin, before a decision gets no new one.
    max_unpinned: usize,
    /// The counters of keys under limits without a number that share them, for each size of limits.
    shared_usage: [OnceLock<Box<[SharedUsageCell]>>; SIZES],
    /// Locked while a number is assigned, pinned, retired or freed.
    usage: Arc<Mutex<Usage>>,
    pinned: Arc<PinnedNumbers>,
}

/// The pinned numbers, to be read without a lock.
#[derive(Debug)]
struct PinnedNumbers {
    count: AtomicUsize,
    numbers: Box<[AtomicBool]>,
}

impl Default for PinnedNumbers {
    fn default() -> Self {
        Self { count: AtomicUsize::new(0), numbers: (0..LIMITS).map(|_| AtomicBool::new(false)).collect() }
    }
}

impl PinnedNumbers {
    /// Changes a number whose pins have changed; `count` is the number of pinned ones.
    fn set(&self, number: u16, is_pinned: bool, count: usize) {
        if let Some(pinned) = self.numbers.get(usize::from(number)) {
            pinned.store(is_pinned, Ordering::Relaxed);
        }
        self.count.store(count, Ordering::Relaxed);
    }

    fn has(&self, number: u16) -> bool {
        self.numbers.get(usize::from(number)).is_some_and(|pinned| pinned.load(Ordering::Relaxed))
    }
}

#[derive(Debug, Default)]
struct Usage {
    /// Numbers that are not free.
    in_use: usize,
    /// Numbers assigned since the last sweep began.
    assigned: usize,
    /// How often a number is pinned. A pinned number is never retired.
    pins: HashMap<u16, usize>,
    /// A copy of the keys of `pins`.
    pinned: Arc<PinnedNumbers>,
}

/// Limits that keep their numbers until this is dropped; see
/// [`Store::retain_limits`](crate::Store::retain_limits). The default retains none.
#[must_use = "dropping it releases the limits"]
#[derive(Debug, Default)]
pub struct RetainedLimits {
    /// The registry in which `numbers` are pinned, if there are any.
    usage: Option<Arc<Mutex<Usage>>>,
    numbers: Box<[u16]>,
}

impl Usage {
    fn unpinned(&self) -> usize {
        self.in_use - self.pins.len()
    }
}

impl Drop for RetainedLimits {
    fn drop(&mut self) {
        let Some(usage) = &self.usage else { return };
        let mut usage = lock(usage);
        for number in &self.numbers {
            let pins = usage.pins.entry(*number).or_default();
            *pins = pins.saturating_sub(1);
            if *pins == 0 {
                usage.pins.remove(number);
                usage.pinned.set(*number, false, usage.pins.len());
            }
        }
    }
}

/// The result of a search for a limit.
enum SearchResult {
    /// The limit has this number.
    Number(usize),
    /// The limit has no number; this one is free.
    Free(usize),
    /// The limit has no number, and none is free.
    Nothing,
}

impl LimitRegistry {
    pub(super) fn new() -> Self {
        Self::with_max_unpinned(MAX_UNPINNED)
    }

    /// A registry that gives numbers to at most `max_unpinned` limits that nothing pins.
    pub(super) fn with_max_unpinned(max_unpinned: usize) -> Self {
        let fingerprints: Box<[_]> = (0..LIMITS).map(|_| AtomicU64::new(0)).collect();
        let pinned = Arc::<PinnedNumbers>::default();
        let usage = Usage { pinned: Arc::clone(&pinned), ..Usage::default() };
        Self {
            fingerprints: fingerprints.try_into().unwrap_or_else(|_| unreachable!("the length is LIMITS")),
            chunks: (0..LIMITS / CHUNK).map(|_| OnceLock::new()).collect(),
            max_unpinned,
            shared_usage: std::array::from_fn(|_| OnceLock::new()),
            usage: Arc::new(Mutex::new(usage)),
            pinned,
        }
    }

    /// The number that `limit` almost always has, if it has one: its first index. Verify it with
    /// [`belongs_to`](Self::belongs_to).
    #[expect(clippy::inline_always, reason = "a few instructions of every decision")]
    #[inline(always)]
    pub(super) fn presumed_number(limit: &Limit) -> u16 {
        first_index(fingerprint(limit)) as u16
    }

    /// Whether `number` belongs to `limit` now.
    #[expect(clippy::inline_always, reason = "a few instructions of every decision")]
    #[inline(always)]
    pub(super) fn belongs_to(&self, number: u16, limit: &Limit) -> bool {
        let index = usize::from(number) % LIMITS;
        self.fingerprints[index].load(Ordering::Acquire) == fingerprint(limit)
    }

    /// The number of `limit`, if it has one that is not retired. Takes no lock.
    pub(super) fn find(&self, limit: &Limit) -> Option<u16> {
        let wanted = fingerprint(limit);
        let mut index = first_index(wanted);
        for _ in 1..LIMITS {
            match self.fingerprints[index].load(Ordering::Acquire) {
                found if found == wanted => return Some(index as u16),
                0 => break,
                _ => index = next_index(index),
            }
        }
        None
    }

    /// The number of `limit`, if it has one. Revives a retired number.
    pub(super) fn find_or_revive(&self, limit: &Limit) -> Option<u16> {
        self.find(limit).or_else(|| match self.search(&lock(&self.usage), limit) {
            SearchResult::Number(index) => Some(index as u16),
            SearchResult::Free(_) | SearchResult::Nothing => None,
        })
    }

    /// The number of `limit`. Assigns one if it has none; `None` if too many are in use that nothing pins.
    pub(super) fn find_or_add(&self, limit: &Limit) -> Option<u16> {
        let mut usage = lock(&self.usage);
        match self.search(&usage, limit) {
            SearchResult::Number(index) => Some(index as u16),
            SearchResult::Free(_) if usage.unpinned() < self.max_unpinned => self.add(&mut usage, limit),
            SearchResult::Free(_) | SearchResult::Nothing => None,
        }
    }

    /// Searches for a limit, and revives its number if it is retired.
    fn search(&self, _usage: &Usage, limit: &Limit) -> SearchResult {
        let wanted = fingerprint(limit);
        let (mut index, mut free) = (first_index(wanted), SearchResult::Nothing);
        for _ in 1..LIMITS {
            let found = self.fingerprints[index].load(Ordering::Acquire);
            let is_free = is_even(found) && self.limit(index as u16).is_none();
            if found == wanted {
                return SearchResult::Number(index);
            }
            if found == retired(wanted) && !is_free {
                self.fingerprints[index].store(wanted, Ordering::Release);
                return SearchResult::Number(index);
            }
            if is_free && matches!(free, SearchResult::Nothing) {
                free = SearchResult::Free(index);
            }
            if found == 0 {
                break;
            }
            index = next_index(index);
        }
        free
    }

    fn add(&self, usage: &mut Usage, limit: &Limit) -> Option<u16> {
        let index = match self.search(usage, limit) {
            SearchResult::Number(index) => return Some(index as u16),
            SearchResult::Free(index) if usage.in_use < MAX_LIMITS => index,
            SearchResult::Free(_) | SearchResult::Nothing => return None,
        };
        self.slot_of(index).limit.store(Some(Arc::new(*limit)));
        self.fingerprints[index].store(fingerprint(limit), Ordering::Release);
        usage.in_use += 1;
        usage.assigned += 1;
        Some(index as u16)
    }

    /// Pins the number of each of `limits`, and assigns missing ones. Also returns how many are new. Changes nothing if too
    /// few are free.
    pub(super) fn retain(&self, limits: &[Limit]) -> Result<(RetainedLimits, usize), StoreError> {
        let mut usage = lock(&self.usage);
        let missing = |limit: &&Limit| !matches!(self.search(&usage, limit), SearchResult::Number(_));
        let new = limits.iter().filter(missing).map(fingerprint).collect::<HashSet<_>>().len();
        if usage.in_use + new > MAX_LIMITS {
            return Err(StoreError::TooManyLimits { new, in_use: usage.in_use, max: MAX_LIMITS });
        }
        let numbers: Box<[_]> = limits.iter().filter_map(|limit| self.add(&mut usage, limit)).collect();
        for number in &numbers {
            *usage.pins.entry(*number).or_default() += 1;
            usage.pinned.set(*number, true, usage.pins.len());
        }
        Ok((RetainedLimits { usage: Some(Arc::clone(&self.usage)), numbers }, new))
    }

    /// Whether any number is pinned.
    pub(super) fn has_pinned(&self) -> bool {
        self.pinned.count.load(Ordering::Relaxed) > 0
    }

    /// Whether nothing pins this number, while others are pinned.
    pub(super) fn is_secondary(&self, number: u16) -> bool {
        self.has_pinned() && !self.pinned.has(number)
    }

    /// The numbers in use.
    pub(super) fn in_use(&self) -> usize {
        lock(&self.usage).in_use
    }

    /// The numbers in use that nothing pins, and the numbers assigned since the last sweep began.
    pub(super) fn unpinned_and_assigned(&self) -> (usize, usize) {
        let usage = lock(&self.usage);
        (usage.unpinned(), usage.assigned)
    }

    /// Retires every number that is not pinned. From now on no decision assigns it to a counter, unless it looks up the limit
    /// again and thereby revives it.
    pub(super) fn retire_unpinned(&self) {
        let mut usage = lock(&self.usage);
        usage.assigned = 0;
        for (index, fingerprint) in self.fingerprints.iter().enumerate() {
            let found = fingerprint.load(Ordering::Relaxed);
            // A fingerprint of 1 would become 0, which terminates searches.
            if !is_even(found) && found > 1 && !usage.pins.contains_key(&(index as u16)) {
                fingerprint.store(retired(found), Ordering::Release);
            }
        }
    }

    /// Whether the number in a slot is retired.
    pub(super) fn is_retired(&self, number: u16) -> bool {
        let found = self.fingerprints[usize::from(number) % LIMITS].load(Ordering::Relaxed);
        found != 0 && is_even(found)
    }

    /// Frees the numbers that are still retired, except those of live counters, which are revived.
    pub(super) fn free_retired(&self, is_live: impl Fn(u16) -> bool, budget: &Budget, now: Timestamp) {
        let mut usage = lock(&self.usage);
        for index in 1..LIMITS {
            let number = index as u16;
            let fingerprint = &self.fingerprints[index];
            let found = fingerprint.load(Ordering::Relaxed);
            if !is_even(found) {
                continue;
            }
            let Some(limit) = self.limit(number).as_deref().copied() else { continue };
            if is_live(number) || !self.clear_shared(index, &limit, budget, now) {
                fingerprint.store(found | 1, Ordering::Release);
            } else {
                self.slot_of(index).limit.store(None);
                usage.in_use -= 1;
            }
        }
        self.end_searches(&usage);
    }

    /// Marks free numbers that no search has to pass, to keep searches short.
    fn end_searches(&self, _usage: &Usage) {
        let mut is_passed = [false; LIMITS];
        for at in 1..LIMITS {
            if self.limit(at as u16).is_some() {
                let mut index = first_index(self.fingerprints[at].load(Ordering::Relaxed) | 1);
                while index != at {
                    is_passed[index] = true;
                    index = next_index(index);
                }
            }
        }
        for index in (1..LIMITS).filter(|index| !is_passed[*index]) {
            if self.limit(index as u16).is_none() {
                self.fingerprints[index].store(0, Ordering::Release);
            }
        }
    }

    /// The limit of a number, if it is not free. While a line is locked, the numbers in its slots keep their limits.
    pub(super) fn limit(&self, number: u16) -> Guard<Option<Arc<Limit>>> {
        let index = usize::from(number);
        let chunk = self.chunks.get(index / CHUNK).and_then(OnceLock::get);
        chunk.map_or_else(|| Guard::from_inner(None), |chunk| chunk[index % CHUNK].limit.load())
    }

    fn slot_of(&self, index: usize) -> &NumberedLimit {
        let chunk = self.chunks[index / CHUNK]
            .get_or_init(|| Box::new(std::array::from_fn(|_| NumberedLimit::default())));
        &chunk[index % CHUNK]
    }

    /// The shared counter of the key with this hash under the limit with this number; `None` if there is no room for one.
    pub(super) fn shared(&self, number: u16, budget: &Budget, hash: u64) -> Option<&SharedCell> {
        let new_cells =
            |cells: usize| (0..cells).map(|_| SharedCell::new(CounterState::Unseen)).collect::<Box<[_]>>();
        let slot = self.slot_of(usize::from(number));
        let cells = if self.is_secondary(number) {
            slot.secondary.get_or_init(|| new_cells(budget.take_secondary_cells(SHARED.into_iter())))
        } else {
            slot.shared.get_or_init(|| new_cells(budget.take_cells(SHARED.into_iter())))
        };
        cells.get((hash as usize).checked_rem(cells.len())?)
    }

    /// The shared counter of the key with this hash under a limit without a number, or without a counter of its own.
    pub(super) fn shared_usage(&self, limit: &Limit, budget: &Budget, hash: u64) -> &SharedUsageCell {
        let size = limit.capacity().max(1).ilog2() as usize / 2;
        let cells = self.shared_usage[size.min(SIZES - 1)].get_or_init(|| {
            let cell_bytes = size_of::<SharedUsageCell>() as u64;
            let cells = budget.take_carried_cells(SHARED.into_iter(), cell_bytes, SIZES as u64);
            (0..cells).map(|_| SharedUsageCell::new(SharedUsage::default())).collect()
        });
        &cells[hash as usize % cells.len()]
    }

    /// Resets the shared counters of a number. Returns false, and keeps the rest, if one of them is still live.
    fn clear_shared(&self, index: usize, limit: &Limit, budget: &Budget, now: Timestamp) -> bool {
        let slot = self.slot_of(index);
        let mut cells = [&slot.shared, &slot.secondary].into_iter().filter_map(OnceLock::get).flatten();
        cells.all(|cell| {
            let mut state = cell.lock().unwrap_or_else(PoisonError::into_inner);
            let is_fresh = limit.is_fresh(&state, now);
            if is_fresh {
                budget.change_shared(&mut state, |state| *state = CounterState::Unseen);
            }
            is_fresh
        })
    }
}

/// Locks the usage. A panic leaves the data consistent: it is locked only for complete changes.
fn lock(usage: &Mutex<Usage>) -> MutexGuard<'_, Usage> {
    usage.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Odd, so that neither the fingerprint nor its first index is 0, and an even number marks a retired one.
fn fingerprint(limit: &Limit) -> u64 {
    limit.fingerprint() | 1
}

fn retired(fingerprint: u64) -> u64 {
    fingerprint & !1
}

fn is_even(found: u64) -> bool {
    found & 1 == 0
}

fn first_index(fingerprint: u64) -> usize {
    fingerprint as usize % LIMITS
}

/// Skips 0 and [`CARRIED`], the last even index.
fn next_index(index: usize) -> usize {
    let next = index + 1 + usize::from(index + 1 == usize::from(CARRIED));
    if next == LIMITS { 1 } else { next }
}

#[cfg(all(test, not(loom)))]
mod tests;
