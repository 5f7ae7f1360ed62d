//! The way of almost all decisions: every counter is in its slot, packed, under the limit that is asked for.
//!
//! Counters are read and judged as they are. What is refused is answered at once. What passes replaces the word it
//! has read; if that has changed meanwhile, it is judged again. Several words are held first, all of them unchanged,
//! and then replaced together. If anything is out of the ordinary, there is no answer here, and nothing was touched.

use smallvec::SmallVec;
use tidegate_core::{
    Check, Cost, Decision, Meter, Outcome, Outcomes, Role, Stepped, Timestamp, Visitor, WORD_MAX,
};

use super::bucket::{Bucket, HeldWord, LINES, Tag, Word, patiently};
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
    /// The same counter as it is now; `None` if it is not there any more.
    fn again(&self) -> Option<Self> {
        let Word::Packed(word) = self.line.word(self.slot) else { return None };
        // The word was the tag's if the tag is still there.
        (self.line.tag(self.slot) == self.tag).then_some(Self { word, ..*self })
    }
}

impl MemoryStore {
    /// The answer to a single check.
    #[expect(clippy::inline_always, reason = "its answer is taken apart at once")]
    #[inline(always)]
    fn try_one<M: Meter>(
        &self,
        meter: &M,
        check: &Check<'_>,
        ask: Ask,
        now: Timestamp,
    ) -> Option<Outcome> {
        let found = self.find(check, ask, now)?;
        let Stepped { outcome, next } = meter.step_word(found.word, ORIGIN, now, check.cost);
        let passes = outcome.verdict.is_pass();
        if passes && check.cost > Cost::ZERO {
            if next > WORD_MAX {
                return None;
            }
            if !found.line.replace(found.slot, found.word, next) {
                return self.try_contended(check, ask, now);
            }
        } else if !passes && check.role == Role::Overage {
            return None;
        }
        self.top.sample(&check.key, ask.hash, now, passes);
        Some(outcome)
    }

    /// Another was faster: judges what it left, until nobody is.
    #[cold]
    #[inline(never)]
    fn try_contended(&self, check: &Check<'_>, ask: Ask, now: Timestamp) -> Option<Outcome> {
        let found = self.find(check, ask, now)?;
        let outcome = patiently(|| {
            let Some(found) = found.again() else { return Some(None) };
            let Stepped { outcome, next } = check.limit.step_word(found.word, ORIGIN, now, check.cost);
            match outcome.verdict.is_pass() {
                true if next <= WORD_MAX => {
                    found.line.replace(found.slot, found.word, next).then_some(Some(outcome))
                }
                false if check.role != Role::Overage => Some(Some(outcome)),
                _ => Some(None),
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
            let stepped = check.limit.step_word(one.word, ORIGIN, now, check.cost);
            outcomes.push(stepped.outcome);
            found.push((one, stepped.next));
        }
        let mut decision = Decision::new(now, checks, outcomes);
        if decision.passes() {
            charge_all(checks, &decision.outcomes, &found)?;
        } else {
            for ((check, (found, _)), outcome) in checks.iter().zip(&found).zip(&mut decision.outcomes) {
                if outcome.verdict.is_pass() {
                    let left = check.limit.step_word(found.word, ORIGIN, now, Cost::ZERO).outcome;
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
        let line = self.table.line(home);
        let tag = Tag::new(hash, 0, number);
        let found = match line.find_exactly(tag) {
            Some(slot) => Found { line, slot, tag, word: 0 },
            None => self.find_away(home, hash, number)?,
        };
        if self.overrides.in_force(&check.key, now).is_some() {
            return None;
        }
        found.again()
    }

    /// The slot of a key that has spilled from its home.
    #[inline(never)]
    fn find_away(&self, home: usize, hash: u64, number: u16) -> Option<Found<'_>> {
        if !self.table.line(home).has_spilled() {
            return None;
        }
        (1..LINES).find_map(|away| {
            let (line, tag) = (self.table.line(home + away), Tag::new(hash, away, number));
            line.find_exactly(tag).map(|slot| Found { line, slot, tag, word: 0 })
        })
    }

    /// The decision over a single check, in code of its own for each algorithm: nothing goes through memory on
    /// the way from the slot to the decision.
    #[inline(never)]
    fn decide_metered<M: Meter>(
        &self,
        meter: &M,
        check: &Check<'_>,
        now: Timestamp,
    ) -> Result<Decision, StoreError> {
        let ask = self.ask(&check.key, check.limit)?;
        match self.try_one(meter, check, ask, now) {
            Some(outcome) => Ok(Decision::of_one(now, check.role, outcome)),
            None => self.decide_held(std::slice::from_ref(check), now),
        }
    }

    /// The same for one of a batch, whose key was hashed before.
    #[inline(never)]
    fn decide_asked_metered<M: Meter>(
        &self,
        meter: &M,
        (check, ask): (&Check<'_>, Ask),
        now: Timestamp,
        decision: &mut Decision,
    ) -> Result<(), StoreError> {
        match self.try_one(meter, check, ask, now) {
            Some(outcome) => decision.add_one(check.role, outcome),
            None => *decision = self.decide_held(std::slice::from_ref(check), now)?,
        }
        Ok(())
    }
}

/// Decides a single check.
pub(super) struct DecideOne<'a> {
    pub(super) store: &'a MemoryStore,
    pub(super) check: &'a Check<'a>,
    pub(super) now: Timestamp,
}

impl Visitor for DecideOne<'_> {
    /// As callers want it: to wrap a decision later would be to copy it.
    type Output = Result<Decision, StoreError>;

    #[inline]
    fn visit<M: Meter>(self, meter: &M) -> Result<Decision, StoreError> {
        self.store.decide_metered(meter, self.check, self.now)
    }
}

/// Decides a single check of a batch, into its place.
pub(super) struct DecideAsked<'a> {
    pub(super) store: &'a MemoryStore,
    pub(super) check: &'a Check<'a>,
    pub(super) ask: Ask,
    pub(super) now: Timestamp,
    pub(super) decision: &'a mut Decision,
}

impl Visitor for DecideAsked<'_> {
    type Output = Result<(), StoreError>;

    #[inline]
    fn visit<M: Meter>(self, meter: &M) -> Result<(), StoreError> {
        self.store.decide_asked_metered(meter, (self.check, self.ask), self.now, self.decision)
    }
}

/// Stores all new words, or nothing if any counter has changed.
fn charge_all(checks: &[Check<'_>], outcomes: &[Outcome], found: &[(Found<'_>, u64)]) -> Option<()> {
    let mut held = SmallVec::<[(HeldWord<'_>, u64); 4]>::new();
    for ((check, outcome), (found, next)) in checks.iter().zip(outcomes).zip(found) {
        if outcome.verdict.is_pass() && check.cost > Cost::ZERO {
            if *next > WORD_MAX {
                return None;
            }
            held.push((found.line.hold(found.slot, found.word)?, *next));
        }
    }
    for (word, next) in &mut held {
        word.set(*next);
    }
    Some(())
}
