//! `token_bucket`: tokens come back at a steady rate, up to `burst` of them can be taken at once.
//!
//! Law: any interval of length t admits at most `burst + rate · t` units.
//!
//! What is remembered is what was *spent*, not what is left: a key never seen has spent nothing, and a limit
//! that changes keeps what was spent without asking how large the bucket used to be.

use crate::bucket::{Bucket, Level, Rate};
use crate::decision::Outcome;
use crate::limit::{Algorithm, Cost, LimitError, RateAlgorithm, Spec, StepResult};
use crate::time::{Tick, Timestamp};

/// The parameters of a token bucket; `burst` defaults to `requests`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket(Bucket);

impl TokenBucket {
    /// The exact rate at which tokens come back.
    pub const fn rate(&self) -> &Rate {
        self.0.rate()
    }

    /// The answer to a charge of one unit that found so much spent.
    #[expect(clippy::inline_always, reason = "what a caller does not ask of an outcome is not computed")]
    #[inline(always)]
    pub fn outcome_of_one(&self, spent: UnitCharge, now: Timestamp) -> Outcome {
        match spent {
            UnitCharge::Admitted(subunits) => self.0.admitted(subunits, now, Cost::ONE),
            UnitCharge::Rejected(subunits) => self.0.rejected(subunits, Some(self.0.room_for_one()), now),
        }
    }

    /// Charges one unit to a packed state, the way of almost every decision: how many subunits it found spent, and the
    /// packed state that follows where the unit fits. `None` where that takes more than words can hold.
    #[expect(clippy::inline_always, reason = "what almost every decision runs through")]
    #[inline(always)]
    pub fn spend_one(&self, word: u64, origin: Timestamp, now: Timestamp) -> Option<(u64, Option<u64>)> {
        self.0.spend_one(word, origin, now)
    }
}

/// What a charge found spent, and whether it was refused: all that its answer follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitCharge {
    /// It fits pending_cost so many subunits.
    Admitted(u64),
    /// It does not.
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

    fn refund(&self, state: &mut Level, charged: Timestamp, now: Timestamp, cost: Cost) {
        self.0.refund(state, charged, now, cost);
    }

    fn rebase(&self, old: &Self, state: Level, now: Timestamp) -> Level {
        self.0.rebase(&old.0, state, now)
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

    #[expect(clippy::inline_always, reason = "what a caller does not ask of an outcome is not computed")]
    #[inline(always)]
    fn step_word(&self, word: u64, origin: Timestamp, now: Timestamp, cost: Cost) -> Option<StepResult> {
        let (stepped, _) = self.0.step_word(word, origin, now, cost)?;
        Some(stepped)
    }
}
