//! `leaky_bucket`: a queue from which requests depart exactly `1 / rate` apart.
//!
//! The `wait` of an admitted request is the time until its departure. The queue holds at most `burst` units, including
//! the departing one. A request that finds it full is rejected, and so is one that would wait longer than `max_wait`. A
//! request of cost n departs once and takes n departure slots.

use crate::bucket::{Bucket, Level, Rate};
use crate::decision::{Outcome, Verdict};
use crate::limit::{Algorithm, Cost, LimitError, RateAlgorithm, Spec, StepResult};
use crate::time::{Tick, TimeSpan, Timestamp};

/// The parameters of a leaky bucket; `burst` defaults to `requests`, `max_wait` to [`LeakyBucket::DEFAULT_MAX_WAIT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeakyBucket(pub(crate) Bucket);

impl LeakyBucket {
    /// The longest wait if the specification has none.
    pub const DEFAULT_MAX_WAIT: TimeSpan = TimeSpan::from_secs(30);

    /// The exact rate of departures.
    pub const fn rate(&self) -> &Rate {
        self.0.rate()
    }

    /// The largest fill level, in subunits, at which a request is admitted: what drains within the longest wait.
    pub const fn max_backlog(&self) -> u64 {
        self.0.max_backlog()
    }
}

impl RateAlgorithm for LeakyBucket {
    const ALGORITHM: Algorithm = Algorithm::LeakyBucket;
    type State = Level;

    fn new(spec: &Spec) -> Result<Self, LimitError> {
        spec.reject_borrow(Self::ALGORITHM)?;
        let max_wait = spec.max_wait.unwrap_or(Self::DEFAULT_MAX_WAIT);
        Bucket::new(spec, spec.burst()?, Some(max_wait)).map(Self)
    }

    fn capacity(&self) -> u64 {
        self.0.capacity()
    }

    fn tick(&self) -> Tick {
        self.0.rate().tick()
    }

    fn evaluate(&self, state: &Level, now: Timestamp, cost: Cost) -> Outcome {
        let mut outcome = self.0.evaluate(*state, now, cost);
        if let Verdict::Pass { wait } = &mut outcome.verdict {
            *wait = self.0.time_until_empty(*state, now);
        }
        outcome
    }

    fn charge(&self, state: &mut Level, now: Timestamp, cost: Cost) {
        self.0.charge(state, now, cost);
    }

    fn refund(&self, state: &mut Level, charged: Timestamp, now: Timestamp, cost: Cost) -> bool {
        self.0.refund_last_departure(state, charged, now, cost)
    }

    fn rebase(&self, old: &Self, state: Level, now: Timestamp) -> Level {
        self.0.rebase(&old.0, state, now)
    }

    fn used(&self, state: &Level, now: Timestamp) -> u64 {
        self.0.used(*state, now)
    }

    fn is_fresh(&self, state: &Level, now: Timestamp) -> bool {
        self.0.is_empty(*state, now)
    }

    fn pack(&self, state: &Level, origin: Timestamp) -> Option<u64> {
        self.0.pack(*state, origin)
    }

    fn unpack(&self, word: u64, origin: Timestamp) -> Level {
        self.0.unpack(word, origin)
    }

    #[inline]
    fn step_word(&self, word: u64, origin: Timestamp, now: Timestamp, cost: Cost) -> Option<StepResult> {
        let (mut stepped, before) = self.0.step_word(word, origin, now, cost)?;
        if let Verdict::Pass { wait } = &mut stepped.outcome.verdict {
            *wait = self.0.time_until_drained(before, now);
        }
        Some(stepped)
    }
}
