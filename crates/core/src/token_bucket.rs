//! `token_bucket`: tokens are refilled at a steady rate; up to `burst` of them can be taken at once.
//!
//! Law: any interval of length t admits at most `burst + rate · t` units.
//!
//! The state stores the *spent* tokens, not the remaining ones: a new key has spent nothing, and a changed limit keeps
//! the spent tokens without knowing the old size of the bucket.

use crate::bucket::{Bucket, Level, Rate};
use crate::decision::Outcome;
use crate::limit::{Algorithm, Cost, LimitError, RateAlgorithm, Spec, StepResult};
use crate::time::{Tick, Timestamp};

/// The parameters of a token bucket; `burst` defaults to `requests`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket(pub(crate) Bucket);

impl TokenBucket {
    /// The exact refill rate.
    pub const fn rate(&self) -> &Rate {
        self.0.rate()
    }

    /// The outcome of a charge of one unit.
    #[expect(clippy::inline_always, reason = "fields that the caller does not read are not computed")]
    #[inline(always)]
    pub fn outcome_of_one(&self, spent: UnitCharge, now: Timestamp) -> Outcome {
        match spent {
            UnitCharge::Admitted(subunits) => self.0.admitted(subunits, now, Cost::ONE),
            UnitCharge::Rejected(subunits) => self.0.rejected(subunits, Some(self.0.room_for_one()), now),
        }
    }

    /// Charges one unit to a packed state; almost every decision does this. Returns the subunits spent before, and the next
    /// packed state if the unit fits. `None` if a word cannot represent the result.
    #[expect(clippy::inline_always, reason = "on the path of almost every decision")]
    #[inline(always)]
    pub fn spend_one(&self, word: u64, origin: Timestamp, now: Timestamp) -> Option<(u64, Option<u64>)> {
        self.0.spend_one(word, origin, now)
    }
}

/// The result of charging one unit, with the subunits spent before. An outcome can be derived from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitCharge {
    /// The unit fits.
    Admitted(u64),
    /// The unit does not fit.
    Rejected(u64),
}

impl RateAlgorithm for TokenBucket {
    const ALGORITHM: Algorithm = Algorithm::TokenBucket;
    type State = Level;

    fn new(spec: &Spec) -> Result<Self, LimitError> {
        spec.reject_max_wait(Self::ALGORITHM)?;
        Bucket::new(spec, spec.burst()?, None).map(Self)
    }

    fn capacity(&self) -> u64 {
        self.0.capacity()
    }

    fn tick(&self) -> Tick {
        self.0.rate().tick()
    }

    fn evaluate(&self, state: &Level, now: Timestamp, cost: Cost) -> Outcome {
        self.0.evaluate(*state, now, cost)
    }

    fn charge(&self, state: &mut Level, now: Timestamp, cost: Cost) {
        self.0.charge(state, now, cost);
    }

    fn refund(&self, state: &mut Level, charged: Timestamp, now: Timestamp, cost: Cost) -> bool {
        self.0.refund(state, charged, now, cost)
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

    #[expect(clippy::inline_always, reason = "fields that the caller does not read are not computed")]
    #[inline(always)]
    fn step_word(&self, word: u64, origin: Timestamp, now: Timestamp, cost: Cost) -> Option<StepResult> {
        let (stepped, _) = self.0.step_word(word, origin, now, cost)?;
        Some(stepped)
    }
}
