//! The way of almost all decisions: every counter is in its slot, packed, under the limit that is asked for.
//!
//! Counters are read and judged as they are. What is refused is answered at once. What passes replaces the word it
//! has read; if that has changed meanwhile, it is judged again. Several words are held first, all of them unchanged,
//! and then replaced together. If anything is out of the ordinary, there is no answer here, and nothing was touched.
//!
//! After a counter is read, and not only before, its number must belong to the limit: see `limits`.

use smallvec::SmallVec;
use tidegate_core::{
    AlgorithmKind, Check, Cost, Decision, Key, Limit, Outcome, Outcomes, RateAlgorithm, Role, Spent, Stepped,
    Timestamp, TokenBucket, Visitor,
};

use super::bucket::{HeldWord, LINES, Seen, Tag, patiently};
use super::table::ORIGIN;
use super::{Ask, MemoryStore};
use crate::store::StoreError;

/// Why a check was not answered here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missed {
    /// Its counter is not in a slot, not packed, held, or asks for more than a step.
    Unusual,
    /// Another thread has just changed its counter, or it is not in its home: a longer look will tell.
    Contended,
}

/// Whether a check is what almost all are: of one unit, and binding.
#[expect(clippy::inline_always, reason = "what almost every decision runs through")]
#[inline(always)]
pub(super) fn is_ordinary(check: &Check<'_>) -> bool {
    check.cost == Cost::ONE && check.role == Role::Binding
}

impl MemoryStore {
    /// Charges an ordinary check to a token bucket. Of what it found spent, the caller makes what it wants to know.
    #[expect(clippy::inline_always, reason = "what almost every decision runs through")]
    #[inline(always)]
    pub(super) fn spend(
        &self,
        (limit, meter): (&Limit, &TokenBucket),
        key: &Key<'_>,
        ask: Ask,
        now: Timestamp,
    ) -> Option<Spent> {
        if self.overrides.are_any() {
            return None;
        }
        let at_home = self.table.line(ask.home).see(Tag::new(ask.hash, 0, ask.number));
        let spent = at_home
            .ok_or(Missed::Contended)
            .and_then(|seen| self.spend_seen((limit, meter), key, ask, seen, now));
        match spent {
            Ok(spent) => Some(spent),
            Err(Missed::Contended) => self.spend_patiently(limit, key, ask.hash, ask.number, now),
            Err(Missed::Unusual) => None,
        }
    }

    /// The same for a key that does not live in its home, or that another thread charges too.
    #[expect(
        clippy::too_many_arguments,
        reason = "each has a register; gathered, they would go through memory"
    )]
    #[inline(never)]
    fn spend_patiently(
        &self,
        limit: &Limit,
        key: &Key<'_>,
        hash: u64,
        number: u16,
        now: Timestamp,
    ) -> Option<Spent> {
        let AlgorithmKind::TokenBucket(meter) = limit.kind() else { return None };
        let ask = Ask { hash, home: self.table.home(hash), number };
        let seen = self.see(ask)?;
        patiently(|| match self.spend_seen((limit, meter), key, ask, seen, now) {
            Ok(spent) => Some(Some(spent)),
            Err(Missed::Contended) => None,
            Err(Missed::Unusual) => Some(None),
        })
    }

    #[expect(clippy::too_many_arguments, reason = "it is part of its callers")]
    #[expect(clippy::inline_always, reason = "what almost every decision runs through")]
    #[inline(always)]
    fn spend_seen(
        &self,
        (limit, meter): (&Limit, &TokenBucket),
        key: &Key<'_>,
        Ask { hash, number, .. }: Ask,
        seen: Seen<'_>,
        now: Timestamp,
    ) -> Result<Spent, Missed> {
        let word = self.packed(seen, number, limit).ok_or(Missed::Unusual)?;
        match meter.spend_one(word, ORIGIN, now) {
            Some((spent, Some(next))) if seen.replace(word, next) => {
                self.heavy_hitters.sample(key, hash, now, true);
                Ok(Spent::Passing(spent))
            }
            Some((spent, None)) => {
                self.heavy_hitters.sample(key, hash, now, false);
                Ok(Spent::Refused(spent))
            }
            Some(_) => Err(Missed::Contended),
            None => Err(Missed::Unusual),
        }
    }

    /// The answer to a single check.
    fn try_one<M: RateAlgorithm>(
        &self,
        meter: &M,
        check: &Check<'_>,
        ask: Ask,
        now: Timestamp,
    ) -> Option<Outcome> {
        let seen = self.find(check, ask, now)?;
        let outcome = patiently(|| {
            let stepped = self
                .packed(seen, ask.number, check.limit)
                .and_then(|word| Some((word, meter.step_word(word, ORIGIN, now, check.cost)?)));
            let Some((word, Stepped { outcome, next })) = stepped else { return Some(None) };
            match outcome.verdict.is_pass() {
                true if check.cost == Cost::ZERO => Some(Some(outcome)),
                // If another was faster, what it left is judged.
                true => seen.replace(word, next).then_some(Some(outcome)),
                false if check.role == Role::Overage => Some(None),
                false => Some(Some(outcome)),
            }
        })?;
        self.heavy_hitters.sample(&check.key, ask.hash, now, outcome.verdict.is_pass());
        Some(outcome)
    }

    /// The decision over several checks.
    pub(super) fn try_several(&self, checks: &[Check<'_>], asks: &[Ask], now: Timestamp) -> Option<Decision> {
        let mut outcomes = Outcomes::new();
        let mut found = SmallVec::<[Found<'_>; 4]>::new();
        for (position, (check, ask)) in checks.iter().zip(asks).enumerate() {
            // Checks that share a key are judged together, and overage is charged whatever it is.
            if check.role == Role::Overage || asks[..position].iter().any(|other| other.hash == ask.hash) {
                return None;
            }
            let seen = self.find(check, *ask, now)?;
            let word = self.packed(seen, ask.number, check.limit)?;
            let Stepped { outcome, next } = check.limit.step_word(word, ORIGIN, now, check.cost)?;
            outcomes.push(outcome);
            found.push(Found { seen, word, next });
        }
        let mut decision = Decision::new(now, checks, outcomes);
        if decision.passes() {
            charge_all(checks, &decision.outcomes, &found)?;
        } else {
            for ((check, found), outcome) in checks.iter().zip(&found).zip(&mut decision.outcomes) {
                if outcome.verdict.is_pass() {
                    let left = check.limit.step_word(found.word, ORIGIN, now, Cost::ZERO)?.outcome;
                    *outcome = Outcome { verdict: outcome.verdict, ..left };
                }
            }
            // All were read at one instant if none has changed since.
            if found.iter().any(|found| found.seen.packed() != Some(found.word)) {
                return None;
            }
        }
        Some(decision)
    }

    /// Where the counter of a check is, if it is in a slot under the limit that is asked for.
    #[inline]
    fn find(&self, check: &Check<'_>, ask: Ask, now: Timestamp) -> Option<Seen<'_>> {
        match self.overrides.in_force(&check.key, now) {
            Some(_) => None,
            None => self.see(ask),
        }
    }

    /// The state that was seen, if it is packed and is counted under `limit`.
    #[expect(clippy::inline_always, reason = "what almost every decision runs through")]
    #[inline(always)]
    fn packed(&self, seen: Seen<'_>, number: u16, limit: &Limit) -> Option<u64> {
        seen.packed().filter(|_| self.table.limits.belongs_to(number, limit))
    }

    #[inline]
    fn see(&self, Ask { hash, home, number }: Ask) -> Option<Seen<'_>> {
        let line = self.table.line(home);
        line.see(Tag::new(hash, 0, number)).or_else(|| {
            let see_in = |away| self.table.line(home + away).see(Tag::new(hash, away, number));
            if line.has_spilled() { (1..LINES).find_map(see_in) } else { None }
        })
    }
}

/// Decides a single check, in code of its own for each algorithm.
pub(super) struct DecideOne<'a> {
    pub(super) store: &'a MemoryStore,
    pub(super) check: &'a Check<'a>,
    pub(super) ask: Ask,
    pub(super) now: Timestamp,
}

impl Visitor for DecideOne<'_> {
    type Output = Result<Decision, StoreError>;

    #[inline(never)]
    fn visit<M: RateAlgorithm>(self, meter: &M) -> Result<Decision, StoreError> {
        let Self { store, check, ask, now } = self;
        match store.try_one(meter, check, ask, now) {
            Some(outcome) => Ok(Decision::of_one(now, check.role, outcome)),
            None => store.decide_otherwise(std::slice::from_ref(check), &mut [ask], now),
        }
    }
}

/// A counter as it was read, and what it becomes if it is charged.
#[derive(Clone, Copy, Debug)]
struct Found<'t> {
    seen: Seen<'t>,
    word: u64,
    next: u64,
}

/// Stores all new words, or nothing if any counter has changed.
fn charge_all(checks: &[Check<'_>], outcomes: &[Outcome], found: &[Found<'_>]) -> Option<()> {
    let mut held = SmallVec::<[(HeldWord<'_>, u64); 4]>::new();
    for ((check, outcome), found) in checks.iter().zip(outcomes).zip(found) {
        if outcome.verdict.is_pass() && check.cost > Cost::ZERO {
            held.push((found.seen.hold(found.word)?, found.next));
        }
    }
    for (word, next) in &mut held {
        word.set(*next);
    }
    Some(())
}
