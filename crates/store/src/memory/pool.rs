//! States that do not fit a word (logs and extreme values), and counters whose limit has no number. All of them count
//! towards the cap.

use std::sync::{OnceLock, PoisonError};

use tidegate_core::CounterState;

use super::carried::CarriedCounter;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

const CHUNK: usize = if cfg!(loom) { 4 } else { 1_024 };
/// The size of an entry without its heap bytes.
const CELL_BYTES: u64 = size_of::<Mutex<PoolEntry>>() as u64;
/// One part in this many is reserved for shared counters.
const SHARED_PART: u64 = 8;
/// One part in this many of the rest is for carried limits at most, so that the logs of numbered limits find room.
const CARRIED_PART: u64 = 2;

/// The content of a place.
#[derive(Debug)]
enum PoolEntry {
    State(CounterState),
    Carried(CarriedCounter),
}

impl PoolEntry {
    const EMPTY: Self = Self::State(CounterState::Unseen);
}

/// The limits that use a part of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PoolShare {
    /// Limits with a number.
    Numbered,
    /// Limits without a number.
    Carried,
}

/// Bytes for states that are not in slots.
#[derive(Debug)]
pub(super) struct Budget {
    bytes: u64,
    used: AtomicU64,
    /// The part of `used` for carried limits.
    carried: AtomicU64,
}

impl Budget {
    pub(super) fn new(bytes: u64) -> Self {
        Self { bytes, used: AtomicU64::new(0), carried: AtomicU64::new(0) }
    }

    /// Takes cells for shared counters: the first of `numbers` that fits the budget, or one cell.
    pub(super) fn take_cells(&self, numbers: impl Iterator<Item = usize>) -> usize {
        self.take_first(numbers, CELL_BYTES)
    }

    /// Takes cells of `cell_bytes` for counters shared under carried limits, for one of `groups`: all groups together leave
    /// half of the reserve to numbered limits.
    pub(super) fn take_carried_cells(
        &self,
        numbers: impl Iterator<Item = usize>,
        cell_bytes: u64,
        groups: u64,
    ) -> usize {
        let max = self.bytes / SHARED_PART / 2 / groups;
        self.take_first(numbers.filter(|cells| *cells as u64 * cell_bytes <= max), cell_bytes)
    }

    /// Takes cells like [`take_cells`](Self::take_cells) for a numbered limit that nothing pins, from the part of carried
    /// limits; none if that is full.
    pub(super) fn take_secondary_cells(&self, numbers: impl Iterator<Item = usize>) -> usize {
        let bytes = |cells: usize| cells as u64 * CELL_BYTES;
        let mut numbers = numbers;
        let cells = numbers.find(|cells| self.has_room(PoolShare::Carried, bytes(*cells))).unwrap_or(0);
        self.add(PoolShare::Carried, bytes(cells));
        cells
    }

    fn take_first(&self, numbers: impl Iterator<Item = usize>, cell_bytes: u64) -> usize {
        let mut numbers = numbers;
        let fitting = numbers.find(|cells| self.used() + *cells as u64 * cell_bytes <= self.bytes);
        let cells = fitting.unwrap_or(1);
        self.used.fetch_add(cells as u64 * cell_bytes, Ordering::Relaxed);
        cells
    }

    /// Changes a shared state; it grows only within the budget.
    pub(super) fn change_shared(&self, state: &mut CounterState, change: impl FnOnce(&mut CounterState)) {
        let grown = state.heap_bytes() as u64;
        self.change(PoolShare::Numbered, self.used() + grown <= self.bytes, state, change);
    }

    /// Changes a state. If it `may_grow`, its memory may double, as that of a growing log does.
    fn change(
        &self,
        share: PoolShare,
        may_grow: bool,
        state: &mut CounterState,
        change: impl FnOnce(&mut CounterState),
    ) {
        let before = state.heap_bytes() as u64;
        if !may_grow {
            state.make_room();
        }
        change(state);
        self.add(share, (state.heap_bytes() as u64).wrapping_sub(before));
    }

    /// Adds bytes, or subtracts them if `bytes` has wrapped around.
    fn add(&self, share: PoolShare, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        if share == PoolShare::Carried {
            self.carried.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Whether this many more bytes fit, outside the reserve for shared counters.
    fn has_room(&self, share: PoolShare, bytes: u64) -> bool {
        let max = self.bytes - self.bytes / SHARED_PART;
        self.used() + bytes <= max
            && (share == PoolShare::Numbered
                || self.carried.load(Ordering::Relaxed) + bytes <= max / CARRIED_PART)
    }

    fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

/// Places for entries, allocated and freed one by one, within a budget of bytes.
#[derive(Debug)]
pub(super) struct Pool {
    chunks: Box<[PoolChunk]>,
    free: Mutex<FreeList>,
    /// The number of carried counters.
    counters: AtomicU64,
    pub(super) budget: Budget,
}

/// Allocated when its first place is used.
type PoolChunk = OnceLock<Box<[Mutex<PoolEntry>]>>;

/// Freed places, and the first place never used.
#[derive(Debug, Default)]
struct FreeList {
    returned: Vec<u32>,
    next: u32,
}

/// A state does not fit the pool's budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PoolFull;

impl Pool {
    pub(super) fn new(budget: u64) -> Self {
        let places = usize::try_from(budget / CELL_BYTES).unwrap_or(usize::MAX);
        Self {
            chunks: (0..places.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect(),
            free: Mutex::new(FreeList::default()),
            counters: AtomicU64::new(0),
            budget: Budget::new(budget),
        }
    }

    /// The bytes in use.
    pub(super) fn used(&self) -> u64 {
        self.budget.used()
    }

    /// The number of counters that have their limits beside them.
    pub(super) fn carried_counters(&self) -> u64 {
        self.counters.load(Ordering::Relaxed)
    }

    /// Whether one more small state fits; with its limit, if that is carried.
    pub(super) fn has_room(&self, share: PoolShare) -> bool {
        let cells = if share == PoolShare::Carried { 3 } else { 2 };
        self.budget.has_room(share, cells * CELL_BYTES)
    }

    /// Stores a state in a place of its own.
    pub(super) fn insert(&self, state: CounterState, share: PoolShare) -> Result<u64, PoolFull> {
        let place = self.take_place(share, CELL_BYTES + state.heap_bytes() as u64)?;
        *self.cell(place) = PoolEntry::State(state);
        Ok(place)
    }

    /// Stores a counter in a place of its own.
    pub(super) fn insert_counter(&self, counter: CarriedCounter) -> Result<u64, PoolFull> {
        let place = self.take_place(PoolShare::Carried, CELL_BYTES)?;
        self.set_counter(place, counter);
        self.counters.fetch_add(1, Ordering::Relaxed);
        Ok(place)
    }

    fn take_place(&self, share: PoolShare, bytes: u64) -> Result<u64, PoolFull> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.budget.has_room(share, bytes) {
            return Err(PoolFull);
        }
        let place = free.returned.pop().or_else(|| {
            let next = free.next;
            (next as usize / CHUNK < self.chunks.len()).then(|| {
                free.next += 1;
                next
            })
        });
        let place = place.ok_or(PoolFull)?;
        self.budget.add(share, bytes);
        Ok(u64::from(place))
    }

    /// Frees a place: of a state under a numbered limit, or of a counter with its limit.
    pub(super) fn remove(&self, place: u64) {
        let Some(counter) = self.carried(place) else {
            return self.remove_state(place, PoolShare::Numbered);
        };
        if let Some(state) = counter.state_place() {
            self.remove_state(state, PoolShare::Carried);
        }
        self.remove_state(place, PoolShare::Carried);
        self.counters.fetch_sub(1, Ordering::Relaxed);
    }

    /// Frees one place.
    pub(super) fn remove_state(&self, place: u64, share: PoolShare) {
        let heap_bytes = match std::mem::replace(&mut *self.cell(place), PoolEntry::EMPTY) {
            PoolEntry::State(state) => state.heap_bytes() as u64,
            PoolEntry::Carried(_) => 0,
        };
        self.budget.add(share, 0_u64.wrapping_sub(CELL_BYTES + heap_bytes));
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.returned.extend(u32::try_from(place));
    }

    /// Reads the state of a place.
    pub(super) fn read<R>(&self, place: u64, read: impl FnOnce(&CounterState) -> R) -> R {
        match &*self.cell(place) {
            PoolEntry::State(state) => read(state),
            PoolEntry::Carried(_) => read(&CounterState::Unseen),
        }
    }

    /// The counter of a place, if it has a limit beside it.
    pub(super) fn carried(&self, place: u64) -> Option<CarriedCounter> {
        match &*self.cell(place) {
            PoolEntry::State(_) => None,
            PoolEntry::Carried(counter) => Some(*counter),
        }
    }

    /// Replaces the counter of a place.
    pub(super) fn set_counter(&self, place: u64, counter: CarriedCounter) {
        *self.cell(place) = PoolEntry::Carried(counter);
    }

    /// Changes the state of a place; it grows only within the budget.
    pub(super) fn change(&self, place: u64, share: PoolShare, change: impl FnOnce(&mut CounterState)) {
        if let PoolEntry::State(state) = &mut *self.cell(place) {
            let may_grow = self.budget.has_room(share, state.heap_bytes() as u64);
            self.budget.change(share, may_grow, state, change);
        }
    }

    fn cell(&self, place: u64) -> MutexGuard<'_, PoolEntry> {
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        let chunk = self.chunks[place / CHUNK]
            .get_or_init(|| (0..CHUNK).map(|_| Mutex::new(PoolEntry::EMPTY)).collect());
        chunk[place % CHUNK].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use tidegate_core::{Algorithm, Cost, Limit, Spec, TimeSpan, Timestamp};

    use super::*;

    #[test]
    fn pool_cell_of_a_state_or_a_carried_counter_takes_64_bytes() {
        assert_eq!(CELL_BYTES, 64);
    }

    #[test]
    fn pool_freed_place_is_reused_within_the_budget() {
        let pool = Pool::new(16 * CELL_BYTES);
        let places: Vec<_> =
            (0..14).map(|_| pool.insert(CounterState::Unseen, PoolShare::Numbered).unwrap()).collect();
        assert_eq!(pool.insert(CounterState::Unseen, PoolShare::Numbered), Err(PoolFull));
        pool.remove(places[3]);
        assert_eq!(pool.insert(CounterState::Unseen, PoolShare::Numbered), Ok(places[3]));
        assert_eq!(
            pool.budget.take_cells([4, 2, 1].into_iter()),
            2,
            "the rest is reserved for shared counters"
        );
        assert_eq!(pool.budget.take_cells([4, 2, 1].into_iter()), 1, "always at least one");
        for place in places {
            pool.remove(place);
        }
        assert_eq!(pool.used(), 3 * CELL_BYTES);
    }

    #[test]
    fn pool_log_out_of_memory_gets_coarser_and_never_admits_more() {
        let limit = Limit::new(Algorithm::SlidingLog, Spec::new(1_000, TimeSpan::from_secs(60))).unwrap();
        let pool = Pool::new((CELL_BYTES + 2_000) / 7 * 8);
        let place = pool.insert(CounterState::Unseen, PoolShare::Numbered).unwrap();
        let start = Timestamp::from_secs(1_700_000_000);
        for n in 0..1_000 {
            let now = start + TimeSpan::from_millis(n);
            let outcome = pool.read(place, |state| limit.evaluate(state, now, Cost::ONE));
            pool.change(place, PoolShare::Numbered, |state| limit.charge(state, now, Cost::ONE));
            assert_eq!(outcome.remaining, 999 - n);
            assert!(pool.used() <= CELL_BYTES + 2_000, "{} bytes after {n}", pool.used());
        }
        let full = pool
            .read(place, |state| limit.evaluate(state, start + TimeSpan::from_secs(60), Cost::new(1_000)));
        assert!(!full.verdict.is_pass());
    }
}
