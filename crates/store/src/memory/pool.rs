//! States that do not fit a word: logs and extreme values. All of them count towards the cap.

use std::sync::{OnceLock, PoisonError};

use tidegate_core::CounterState;

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

const CHUNK: usize = 1_024;
/// The size of a state without its heap bytes.
const CELL_BYTES: u64 = size_of::<Mutex<CounterState>>() as u64;
/// One part in this many is reserved for shared counters.
const SHARED_PART: u64 = 8;

/// Bytes for states that are not in slots.
#[derive(Debug)]
pub(super) struct Budget {
    bytes: u64,
    used: AtomicU64,
}

impl Budget {
    pub(super) fn new(bytes: u64) -> Self {
        Self { bytes, used: AtomicU64::new(0) }
    }

    /// Takes cells for shared counters: the first of `numbers` that fits the budget, or one cell.
    pub(super) fn take_cells(&self, numbers: impl Iterator<Item = usize>) -> usize {
        let mut numbers = numbers;
        let fitting = numbers.find(|cells| self.used() + *cells as u64 * CELL_BYTES <= self.bytes);
        let cells = fitting.unwrap_or(1);
        self.used.fetch_add(cells as u64 * CELL_BYTES, Ordering::Relaxed);
        cells
    }

    /// Changes a shared state; it grows only within the budget.
    pub(super) fn change_shared(&self, state: &mut CounterState, change: impl FnOnce(&mut CounterState)) {
        self.change(self.bytes, state, change);
    }

    fn change<R>(
        &self,
        max: u64,
        state: &mut CounterState,
        change: impl FnOnce(&mut CounterState) -> R,
    ) -> R {
        let before = state.heap_bytes() as u64;
        // A growing log doubles its memory.
        if self.used() + before > max {
            state.make_room();
        }
        let result = change(state);
        let after = state.heap_bytes() as u64;
        self.used.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        result
    }

    fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn place_bytes(&self) -> u64 {
        self.bytes - self.bytes / SHARED_PART
    }
}

/// Places for states, allocated and freed one by one, within a budget of bytes.
#[derive(Debug)]
pub(super) struct Pool {
    chunks: Box<[Chunk]>,
    free: Mutex<FreeList>,
    pub(super) budget: Budget,
}

/// Allocated when its first place is used.
type Chunk = OnceLock<Box<[Mutex<CounterState>]>>;

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
            budget: Budget::new(budget),
        }
    }

    /// The bytes in use.
    pub(super) fn used(&self) -> u64 {
        self.budget.used()
    }

    /// Whether one more small state fits.
    pub(super) fn has_room(&self) -> bool {
        self.used() + 2 * CELL_BYTES <= self.budget.place_bytes()
    }

    /// Stores a state in a place of its own.
    pub(super) fn insert(&self, state: CounterState) -> Result<u64, PoolFull> {
        let bytes = CELL_BYTES + state.heap_bytes() as u64;
        let place = self.take_place(bytes).ok_or(PoolFull)?;
        *self.cell(place) = state;
        Ok(place)
    }

    fn take_place(&self, bytes: u64) -> Option<u64> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if self.used() + bytes > self.budget.place_bytes() {
            return None;
        }
        let place = free.returned.pop().or_else(|| {
            let next = free.next;
            (next as usize / CHUNK < self.chunks.len()).then(|| {
                free.next += 1;
                next
            })
        })?;
        self.budget.used.fetch_add(bytes, Ordering::Relaxed);
        Some(u64::from(place))
    }

    /// Frees a place.
    pub(super) fn remove(&self, place: u64) {
        let state = std::mem::take(&mut *self.cell(place));
        self.budget.used.fetch_sub(CELL_BYTES + state.heap_bytes() as u64, Ordering::Relaxed);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.returned.extend(u32::try_from(place));
    }

    /// Reads the state of a place.
    pub(super) fn read<R>(&self, place: u64, read: impl FnOnce(&CounterState) -> R) -> R {
        read(&self.cell(place))
    }

    /// Changes the state of a place; it grows only within the budget.
    pub(super) fn change<R>(&self, place: u64, change: impl FnOnce(&mut CounterState) -> R) -> R {
        self.budget.change(self.budget.place_bytes(), &mut self.cell(place), change)
    }

    fn cell(&self, place: u64) -> MutexGuard<'_, CounterState> {
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        let chunk = self.chunks[place / CHUNK]
            .get_or_init(|| (0..CHUNK).map(|_| Mutex::new(CounterState::Unseen)).collect());
        chunk[place % CHUNK].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use tidegate_core::{Algorithm, Cost, Limit, Spec, TimeSpan, Timestamp};

    use super::*;

    #[test]
    fn pool_freed_place_is_reused_within_the_budget() {
        let pool = Pool::new(16 * CELL_BYTES);
        let places: Vec<_> = (0..14).map(|_| pool.insert(CounterState::Unseen).unwrap()).collect();
        assert_eq!(pool.insert(CounterState::Unseen), Err(PoolFull));
        pool.remove(places[3]);
        assert_eq!(pool.insert(CounterState::Unseen), Ok(places[3]));
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
        let place = pool.insert(CounterState::Unseen).unwrap();
        let start = Timestamp::from_secs(1_700_000_000);
        for n in 0..1_000 {
            let now = start + TimeSpan::from_millis(n);
            let outcome = pool.change(place, |state| limit.step(state, now, Cost::ONE));
            assert_eq!(outcome.remaining, 999 - n);
            assert!(pool.used() <= CELL_BYTES + 2_000, "{} bytes after {n}", pool.used());
        }
        let full = pool
            .read(place, |state| limit.evaluate(state, start + TimeSpan::from_secs(60), Cost::new(1_000)));
        assert!(!full.verdict.is_pass());
    }
}
