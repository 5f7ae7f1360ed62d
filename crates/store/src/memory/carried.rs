//! Counters under limits without a number: the limit is stored beside the state, in the pool.
//!
//! A limit that requests carry has a number only while few limits do. All slots of other limits have the number
//! [`CARRIED`](super::limit_registry::CARRIED), and their words are places of [`CarriedCounter`]s. When the pool has no room
//! for one more, new keys share a [`SharedUsage`].

use tidegate_core::{
    Algorithm, AlgorithmKind, Borrow, Cost, CounterState, Limit, Outcome, Rate, Spec, TimeSpan, Timestamp,
};

use super::cache_line::SlotWord;
use super::pool::{Pool, PoolFull, PoolShare};
use super::table::ORIGIN;
use crate::sync::Mutex;

/// The parameters from which a limit can be created again, in 32 bytes. Equal limits have equal parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CompactLimit {
    /// The algorithm above the requests: no limit counts more than 2^53 of them.
    algorithm_and_requests: u64,
    window: TimeSpan,
    /// Only buckets have a burst; that of a token bucket includes what it lends.
    burst: u64,
    /// The longest wait of a leaky bucket in microseconds; what a token bucket lends, see `pack_borrow`.
    terms: u64,
}

const REQUEST_BITS: u32 = 56;

impl CompactLimit {
    pub(super) fn new(limit: &Limit) -> Self {
        let (requests, window, burst, terms) = match limit.kind() {
            AlgorithmKind::TokenBucket(bucket) => {
                let (requests, window) = period(bucket.rate());
                (requests, window, limit.capacity(), bucket.borrow().map_or(0, pack_borrow))
            }
            AlgorithmKind::LeakyBucket(bucket) => {
                let (requests, window) = period(bucket.rate());
                let max_wait = time_to_drain(bucket.rate(), bucket.max_backlog());
                (requests, window, limit.capacity(), max_wait.as_micros())
            }
            AlgorithmKind::FixedWindow(counter) => (limit.capacity(), counter.window(), 0, 0),
            AlgorithmKind::SlidingLog(log) => (limit.capacity(), log.window(), 0, 0),
            AlgorithmKind::SlidingCounter(counter) => (limit.capacity(), counter.window(), 0, 0),
        };
        let algorithm_and_requests = (limit.algorithm() as u64) << REQUEST_BITS | requests;
        Self { algorithm_and_requests, window, burst, terms }
    }

    /// The limit. Always `Some`: the parameters are those of a valid limit.
    pub(super) fn restore(&self) -> Option<Limit> {
        let algorithm = *Algorithm::ALL.get((self.algorithm_and_requests >> REQUEST_BITS) as usize)?;
        let is_bucket = matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
        let is_leaky = algorithm == Algorithm::LeakyBucket;
        let borrow = if is_leaky { None } else { unpack_borrow(self.terms) };
        let lent = borrow.map_or(0, |borrow| borrow.units);
        let spec = Spec {
            requests: self.algorithm_and_requests & ((1 << REQUEST_BITS) - 1),
            window: self.window,
            burst: is_bucket.then_some(self.burst.saturating_sub(lent)),
            max_wait: is_leaky.then_some(TimeSpan::from_micros(self.terms)),
            borrow,
        };
        Limit::new(algorithm, spec).ok()
    }
}

const LENGTH_BITS: u32 = 6;

/// The units and their price in one word: their product is at most 2^53, so both take at most 55 bits. Never 0.
fn pack_borrow(Borrow { units, repay }: Borrow) -> u64 {
    let length = u64::BITS - units.leading_zeros();
    ((repay << length | units) << LENGTH_BITS) | u64::from(length)
}

fn unpack_borrow(word: u64) -> Option<Borrow> {
    let (length, both) = (word & ((1 << LENGTH_BITS) - 1), word >> LENGTH_BITS);
    (word != 0).then_some(Borrow { units: both & ((1 << length) - 1), repay: both >> length })
}

/// The shortest specification of a rate: whole units per whole ticks.
fn period(rate: &Rate) -> (u64, TimeSpan) {
    (rate.drain().get(), TimeSpan::from_micros(rate.unit().get().saturating_mul(rate.tick().micros())))
}

/// The shortest whole ticks in which `subunits` drain.
fn time_to_drain(rate: &Rate, subunits: u64) -> TimeSpan {
    TimeSpan::from_micros(subunits.div_ceil(rate.drain().get()).saturating_mul(rate.tick().micros()))
}

/// A limit, and the state that is counted under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CarriedCounter {
    limit: CompactLimit,
    /// The bits of a [`SlotWord`]: a packed state, the place of a state that does not fit a word, or vacant for an unused
    /// state.
    word: u64,
}

impl CarriedCounter {
    pub(super) fn limit(&self) -> &CompactLimit {
        &self.limit
    }

    /// The place of a state that does not fit a word.
    pub(super) fn state_place(&self) -> Option<u64> {
        match SlotWord::from_bits(self.word) {
            SlotWord::Packed(_) | SlotWord::VACANT => None,
            SlotWord::Pooled(place) => Some(place),
        }
    }
}

impl Pool {
    /// Reads the state of a counter, whose limit is `limit`.
    pub(super) fn read_carried<R>(
        &self,
        counter: &CarriedCounter,
        limit: &Limit,
        read: impl FnOnce(&CounterState) -> R,
    ) -> R {
        match SlotWord::from_bits(counter.word) {
            SlotWord::Packed(word) => read(&limit.unpack(word, ORIGIN)),
            SlotWord::VACANT => read(&CounterState::Unseen),
            SlotWord::Pooled(place) => self.read(place, read),
        }
    }

    /// Stores a limit and its state in a place of their own.
    pub(super) fn insert_carried(&self, limit: &Limit, state: CounterState) -> Result<u64, PoolFull> {
        let vacant = CarriedCounter { limit: CompactLimit::new(limit), word: SlotWord::VACANT.to_bits() };
        let place = self.insert_counter(vacant)?;
        self.replace_carried(place, limit, state).inspect_err(|_| self.remove(place))?;
        Ok(place)
    }

    /// Replaces the limit and the state of a place. Changes nothing if the state does not fit.
    pub(super) fn replace_carried(
        &self,
        place: u64,
        limit: &Limit,
        state: CounterState,
    ) -> Result<(), PoolFull> {
        let Some(before) = self.carried(place) else { return Err(PoolFull) };
        let packed = limit.pack(&state, ORIGIN).map(SlotWord::Packed);
        let small = packed.or_else(|| (state == CounterState::Unseen).then_some(SlotWord::VACANT));
        let word = match (small, before.state_place()) {
            (Some(word), Some(large)) => {
                self.remove_state(large, PoolShare::Carried);
                word
            }
            (Some(word), None) => word,
            (None, Some(large)) => {
                self.change(large, PoolShare::Carried, |old| *old = state);
                SlotWord::Pooled(large)
            }
            (None, None) => SlotWord::Pooled(self.insert(state, PoolShare::Carried)?),
        };
        self.set_counter(place, CarriedCounter { limit: CompactLimit::new(limit), word: word.to_bits() });
        Ok(())
    }
}

/// A counter of keys under any limits without numbers, for the time when the pool is full.
///
/// All units count until the last of them has expired under its own limit. So every limit sees at least the units that it
/// would count alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SharedUsage {
    units: u64,
    until: Timestamp,
}

pub(super) type SharedUsageCell = Mutex<SharedUsage>;

impl SharedUsage {
    /// Checks whether `cost` fits under `limit`.
    pub(super) fn evaluate(&self, limit: &Limit, now: Timestamp, cost: Cost) -> Outcome {
        limit.evaluate(&self.state_under(limit, now), now, cost)
    }

    /// Changes the units as `change` changes a state under `limit`.
    pub(super) fn change(&mut self, limit: &Limit, now: Timestamp, change: impl FnOnce(&mut CounterState)) {
        let mut state = self.state_under(limit, now);
        change(&mut state);
        let expiry = limit.evaluate(&state, now, Cost::ZERO).reset_after;
        // The state saturates if the limit cannot count this many units.
        self.units = self.units_at(now).max(limit.used(&state, now));
        self.until = self.until.max(now + expiry);
    }

    /// A state in which all units were charged at `now`.
    fn state_under(&self, limit: &Limit, now: Timestamp) -> CounterState {
        let mut state = CounterState::Unseen;
        limit.charge(&mut state, now, Cost::new(self.units_at(now)));
        state
    }

    fn units_at(&self, now: Timestamp) -> u64 {
        if now < self.until { self.units } else { 0 }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
