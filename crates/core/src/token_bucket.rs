//! `token_bucket`: tokens are refilled at a steady rate; up to `burst` of them can be taken at once.
//!
//! Law: any interval of length t admits at most `burst + rate · t` units.
//!
//! The state stores the *spent* tokens, not the remaining ones: a new key has spent nothing, and a changed limit keeps
//! the spent tokens without knowing the old size of the bucket.
//!
//! A bucket may lend tokens beyond its burst (`lending`): then the law has `burst + units` in place of `burst`.

use crate::bucket::{Bucket, Level, Rate};
use crate::decision::{Outcome, Verdict};
use crate::lending::{Borrow, Lending};
use crate::limit::{Algorithm, Cost, LimitError, RateAlgorithm, Spec, StepResult, step_unpacked};
use crate::time::{EXACT_MAX, Tick, Timestamp};

/// The parameters of a token bucket; `burst` defaults to `requests`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    /// With everything that can be borrowed, at its price.
    pub(crate) bucket: Bucket,
    lending: Option<Lending>,
}

impl TokenBucket {
    /// The exact refill rate.
    pub const fn rate(&self) -> &Rate {
        self.bucket.rate()
    }

    /// The units that it lends beyond its burst.
    pub fn borrow(&self) -> Option<Borrow> {
        self.lending.map(|lending| lending.borrow(self.rate().unit()))
    }

    /// The outcome of a charge of one unit.
    #[expect(clippy::inline_always, reason = "fields that the caller does not read are not computed")]
    #[inline(always)]
    pub fn outcome_of_one(&self, spent: UnitCharge, now: Timestamp) -> Outcome {
        match spent {
            UnitCharge::Admitted(subunits) => self.bucket.admitted(subunits, now, Cost::ONE),
            UnitCharge::Rejected(subunits) => {
                self.bucket.rejected(subunits, Some(self.bucket.room_for_one()), now)
            }
        }
    }

    /// Charges one unit to a packed state; almost every decision does this. Returns the subunits spent before, and the next
    /// packed state if the unit fits. `None` if a word cannot represent the result.
    #[expect(clippy::inline_always, reason = "on the path of almost every decision")]
    #[inline(always)]
    pub fn spend_one(&self, word: u64, origin: Timestamp, now: Timestamp) -> Option<(u64, Option<u64>)> {
        self.bucket.spend_one(word, origin, now)
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

impl TokenBucket {
    /// The outcome of `cost` at a bucket that lends.
    fn evaluate_lending(&self, lending: &Lending, state: Level, now: Timestamp, cost: Cost) -> Outcome {
        let (level, amount) = (self.bucket.subunits(state, now), self.bucket.subunits_of(cost));
        let (verdict, after) = match lending.room_for(amount) {
            None => (Verdict::Never, state),
            Some(room) if level <= room => {
                (Verdict::PASS, self.bucket.level(lending.after(level, amount), now))
            }
            Some(room) => {
                let retry_after = self.bucket.time_until_at_most(room, state, now);
                (Verdict::NotUntil { retry_after }, state)
            }
        };
        let remaining = lending.left(self.bucket.subunits(after, now)) / self.rate().unit();
        Outcome::new(verdict, self.capacity(), remaining, self.bucket.time_until_empty(after, now))
    }
}

impl RateAlgorithm for TokenBucket {
    const ALGORITHM: Algorithm = Algorithm::TokenBucket;
    type State = Level;

    fn new(spec: &Spec) -> Result<Self, LimitError> {
        spec.reject_max_wait(Self::ALGORITHM)?;
        let burst = spec.burst()?;
        let Some(borrow) = spec.borrow()? else {
            return Ok(Self { bucket: Bucket::new(spec, burst, None)?, lending: None });
        };
        let whole = borrow.units.saturating_mul(borrow.repay).saturating_add(burst);
        let bucket = Bucket::new(spec, whole, None)?.without_words();
        let lending = Lending::new(burst, borrow, bucket.rate().unit());
        Ok(Self { bucket, lending: Some(lending.ok_or_else(|| spec.not_representable())?) })
    }

    fn capacity(&self) -> u64 {
        match self.borrow() {
            None => self.bucket.capacity(),
            Some(Borrow { units, repay }) => {
                let price = units.saturating_mul(repay).saturating_sub(units);
                self.bucket.capacity().saturating_sub(price)
            }
        }
    }

    fn tick(&self) -> Tick {
        self.bucket.rate().tick()
    }

    fn evaluate(&self, state: &Level, now: Timestamp, cost: Cost) -> Outcome {
        match &self.lending {
            None => self.bucket.evaluate(*state, now, cost),
            Some(lending) => self.evaluate_lending(lending, *state, now, cost),
        }
    }

    fn charge(&self, state: &mut Level, now: Timestamp, cost: Cost) {
        match &self.lending {
            None => self.bucket.charge(state, now, cost),
            Some(lending) => {
                let level = lending.after(self.bucket.subunits(*state, now), self.bucket.subunits_of(cost));
                *state = self.bucket.level(level.min(EXACT_MAX), now);
            }
        }
    }

    fn refund(&self, state: &mut Level, charged: Timestamp, now: Timestamp, cost: Cost) -> bool {
        let Some(lending) = &self.lending else { return self.bucket.refund(state, charged, now, cost) };
        let amount = self.bucket.refundable(charged, now, cost);
        let level = self.bucket.subunits(*state, now);
        if level > 0 {
            *state = self.bucket.level(lending.without(level, amount), now);
        }
        level.min(amount) > 0
    }

    fn rebase(&self, old: &Self, state: Level, now: Timestamp) -> Level {
        if self.lending == old.lending && (self.lending.is_none() || self.rate() == old.rate()) {
            return self.bucket.rebase(&old.bucket, state, now);
        }
        // The units spent stay spent; what they cost depends on the terms.
        let level = old.bucket.subunits(state, now);
        let spent = old.lending.map_or(level, |lending| lending.spent(level));
        let spent = self.bucket.rescaled(&old.bucket, spent);
        let level = self.lending.map_or(spent, |lending| lending.level_of(spent));
        self.bucket.level(level.min(EXACT_MAX), now)
    }

    fn used(&self, state: &Level, now: Timestamp) -> u64 {
        match &self.lending {
            None => self.bucket.used(*state, now),
            Some(lending) => {
                lending.spent(self.bucket.subunits(*state, now)).div_ceil(self.rate().unit().get())
            }
        }
    }

    fn is_fresh(&self, state: &Level, now: Timestamp) -> bool {
        self.bucket.is_empty(*state, now)
    }

    fn pack(&self, state: &Level, origin: Timestamp) -> Option<u64> {
        self.bucket.pack(*state, origin)
    }

    fn unpack(&self, word: u64, origin: Timestamp) -> Level {
        self.bucket.unpack(word, origin)
    }

    #[expect(clippy::inline_always, reason = "fields that the caller does not read are not computed")]
    #[inline(always)]
    fn step_word(&self, word: u64, origin: Timestamp, now: Timestamp, cost: Cost) -> Option<StepResult> {
        match self.bucket.step_word(word, origin, now, cost) {
            Some((stepped, _)) => Some(stepped),
            None => self.lending.and_then(|_| step_unpacked(self, (word, origin), now, cost)),
        }
    }
}
