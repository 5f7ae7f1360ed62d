//! The way of almost all decisions: every counter is in its slot, packed, under the limit that is asked for.
//!
//! Counters are read and judged as they are. What is refused is answered at once. What passes replaces the word it
//! has read; if that has changed meanwhile, it is judged again. Several words are held first, all of them unchanged,
//! and then replaced together. If anything is out of the ordinary, there is no answer here, and nothing was touched.

use smallvec::SmallVec;
use tidegate_core::{Check, Cost, Decision, Meter, Outcome, Outcomes, Role, Stepped, Timestamp, Visitor};

use super::bucket::{Bucket, HeldWord, LINES, Tag, patiently};
use super::table::ORIGIN;
use super::{Ask, MemoryStore};
use crate::store::StoreError;

/// A counter as it was read.
#[derive(Clone, Copy, Debug)]
struct Found<'t> {
    line: &'t Bucket,
    slot: usize,
    tag: Tag,
    word: u64,
}

impl Found<'_> {
    /// The same counter as it is now; `None` if it is not there any more, or held.
    #[inline]
    fn again(&self) -> Option<Self> {
        let word = self.line.packed(self.slot)?;
        // The word was the tag's if the tag is still there.
        (self.line.tag(self.slot) == self.tag).then_some(Self { word, ..*self })
    }
}

impl MemoryStore {
    /// The answer to a single check.
    #[expect(clippy::inline_always, reason = "its answer is taken apart at once")]
    #[inline(always)]
    pub(super) fn try_one<M: Meter>(
        &self,
        meter: &M,
        check: &Check<'_>,
        ask: Ask,
        now: Timestamp,
    ) -> Result<Outcome, Missed> {
        let found = self.find(check, ask, now).ok_or(Missed::Unusual)?;
        let stepped = meter.step_word(found.word, ORIGIN, now, check.cost);
        let Stepped { outcome, next } = stepped.ok_or(Missed::Unusual)?;
        let passes = outcome.verdict.is_pass();
        if passes && check.cost > Cost::ZERO {
            if !found.line.replace(found.slot, found.word, next) {
                return Err(Missed::Contended);
            }
        } else if !passes && check.role == Role::Overage {
            return Err(Missed::Unusual);
        }
        self.top.sample(&check.key, ask.hash, now, passes);
        Ok(outcome)
    }

    /// Another was faster: judges what it left, until nobody is.
    #[cold]
    #[inline(never)]
    fn try_contended(&self, check: &Check<'_>, ask: Ask, now: Timestamp) -> Option<Outcome> {
        let found = self.find(check, ask, now)?;
        let outcome = patiently(|| {
            let stepped = found
                .again()
                .map(|found| (found, check.limit.step_word(found.word, ORIGIN, now, check.cost)));
            let Some((found, Some(Stepped { outcome, next }))) = stepped else { return Some(None) };
            match outcome.verdict.is_pass() {
                true => found.line.replace(found.slot, found.word, next).then_some(Some(outcome)),
                false if check.role == Role::Overage => Some(None),
                false => Some(Some(outcome)),
            }
        })?;
        self.top.sample(&check.key, ask.hash, now, outcome.verdict.is_pass());
        Some(outcome)
    }

    /// The decision over several checks.
    pub(super) fn try_several(&self, checks: &[Check<'_>], asks: &[Ask], now: Timestamp) -> Option<Decision> {
        let mut outcomes = Outcomes::new();
        let mut found = SmallVec::<[(Found<'_>, u64); 4]>::new();
        for (position, (check, ask)) in checks.iter().zip(asks).enumerate() {
            // Checks that share a key are judged together, and overage is charged whatever it is.
            if check.role == Role::Overage || asks[..position].iter().any(|other| other.hash == ask.hash) {
                return None;
            }
            let one = self.find(check, *ask, now)?;
            let stepped = check.limit.step_word(one.word, ORIGIN, now, check.cost)?;
            outcomes.push(stepped.outcome);
            found.push((one, stepped.next));
        }
        let mut decision = Decision::new(now, checks, outcomes);
        if decision.passes() {
            charge_all(checks, &decision.outcomes, &found)?;
        } else {
            for ((check, (found, _)), outcome) in checks.iter().zip(&found).zip(&mut decision.outcomes) {
                if outcome.verdict.is_pass() {
                    let left = check.limit.step_word(found.word, ORIGIN, now, Cost::ZERO)?.outcome;
                    *outcome = Outcome { verdict: outcome.verdict, ..left };
                }
            }
            // All were read at one instant if none has changed since.
            if found.iter().any(|(found, _)| found.again().is_none_or(|again| again.word != found.word)) {
                return None;
            }
        }
        Some(decision)
    }

    /// The counter of a check, if it is in its slot, packed, under the limit that is asked for.
    #[expect(clippy::inline_always, reason = "its answer is taken apart at once")]
    #[inline(always)]
    fn find(&self, check: &Check<'_>, ask: Ask, now: Timestamp) -> Option<Found<'_>> {
        let Ask { hash, home, number } = ask;
        if self.overrides.in_force(&check.key, now).is_some() {
            return None;
        }
        let (line, tag) = (self.table.line(home), Tag::new(hash, 0, number));
        if let Some(slot) = line.find_exactly(tag) {
            return Found { line, slot, tag, word: 0 }.again();
        }
        let away = self.find_away(home, hash, number)?;
        let (line, tag) = (self.table.line(home + away), Tag::new(hash, away, number));
        Found { line, slot: line.find_exactly(tag)?, tag, word: 0 }.again()
    }

    /// How far from its home a key lives that has spilled.
    #[inline(never)]
    fn find_away(&self, home: usize, hash: u64, number: u16) -> Option<usize> {
        let lives =
            |away: &usize| self.table.line(home + away).find_exactly(Tag::new(hash, *away, number)).is_some();
        if self.table.line(home).has_spilled() { (1..LINES).find(lives) } else { None }
    }
}

/// Why a check was not answered here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missed {
    /// Its counter is not in a slot, not packed, held, or asks for more than a step.
    Unusual,
    /// Another thread has just changed its counter.
    Contended,
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
    fn visit<M: Meter>(self, meter: &M) -> Result<Decision, StoreError> {
        let Self { store, check, ask, now } = self;
        let outcome = match store.try_one(meter, check, ask, now) {
            Ok(outcome) => Some(outcome),
            Err(Missed::Contended) => store.try_contended(check, ask, now),
            Err(Missed::Unusual) => None,
        };
        match outcome {
            Some(outcome) => Ok(Decision::of_one(now, check.role, outcome)),
            None => store.decide_held(std::slice::from_ref(check), now),
        }
    }
}

/// Stores all new words, or nothing if any counter has changed.
fn charge_all(checks: &[Check<'_>], outcomes: &[Outcome], found: &[(Found<'_>, u64)]) -> Option<()> {
    let mut held = SmallVec::<[(HeldWord<'_>, u64); 4]>::new();
    for ((check, outcome), (found, next)) in checks.iter().zip(outcomes).zip(found) {
        if outcome.verdict.is_pass() && check.cost > Cost::ZERO {
            held.push((found.line.hold(found.slot, found.word)?, *next));
        }
    }
    for (word, next) in &mut held {
        word.set(*next);
    }
    Some(())
}
