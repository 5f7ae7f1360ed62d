//! The way of almost all decisions: every counter is in its slot, packed, under the limit that is asked for.
//!
//! Counters are read and judged without a lock. What is refused is answered at once. What passes locks the
//! lines, looks whether anything has changed since, and stores the new words: a handful of instructions. If
//! anything is out of the ordinary, there is no answer here, and nothing was touched.

use smallvec::SmallVec;
use tidegate_core::{Check, Cost, Decision, Meter, Outcome, Outcomes, Role, Timestamp, Visitor};

use super::bucket::{Bucket, LINES, Locked, Tag, Word};
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
    fn is_unchanged(&self) -> bool {
        self.line.tag(self.slot) == self.tag && self.line.word(self.slot) == Word::Packed(self.word)
    }
}

impl MemoryStore {
    /// The decision over a single check.
    #[inline]
    pub(super) fn decide_one(
        &self,
        check: &Check<'_>,
        ask: Ask,
        now: Timestamp,
    ) -> Result<Decision, StoreError> {
        check.limit.visit(DecideOne { store: self, check, ask, now })
    }

    /// Another was faster: judges what it left, now that nobody else can change it.
    #[inline(never)]
    fn decide_contended(&self, check: &Check<'_>, ask: Ask, now: Timestamp, found: Found<'_>) -> Decision {
        let line = found.line.lock();
        if let (Word::Packed(word), true) = (line.word(found.slot), line.tag(found.slot) == found.tag)
            && let Some((outcome, next)) = check.limit.step_word(word, ORIGIN, now, check.cost)
        {
            if let (true, Some(next)) = (outcome.verdict.is_pass(), next) {
                line.set_word(found.slot, Word::Packed(next));
                return Decision::of_one(now, check.role, outcome);
            }
            if !outcome.verdict.is_pass() && check.role != Role::Overage {
                return Decision::of_one(now, check.role, outcome);
            }
        }
        drop(line);
        self.decide_held(std::slice::from_ref(check), &[ask], now)
    }

    /// The decision over several checks.
    pub(super) fn decide_several(
        &self,
        checks: &[Check<'_>],
        asks: &[Ask],
        now: Timestamp,
    ) -> Option<Decision> {
        let mut outcomes = Outcomes::new();
        let mut found = SmallVec::<[(Found<'_>, Option<u64>); 4]>::new();
        for (position, (check, ask)) in checks.iter().zip(asks).enumerate() {
            // Checks that share a key are judged together, and overage is charged whatever it is.
            if check.role == Role::Overage || asks[..position].iter().any(|other| other.hash == ask.hash) {
                return None;
            }
            let one = self.find(check, *ask, now)?;
            let (outcome, next) = check.limit.step_word(one.word, ORIGIN, now, check.cost)?;
            outcomes.push(outcome);
            found.push((one, next));
        }
        let mut decision = Decision::new(now, checks, outcomes);
        if decision.passes() {
            charge_all(checks, &decision.outcomes, &found)?;
        } else {
            for ((check, (found, _)), outcome) in checks.iter().zip(&found).zip(&mut decision.outcomes) {
                if outcome.verdict.is_pass() {
                    let (left, _) = check.limit.step_word(found.word, ORIGIN, now, Cost::ZERO)?;
                    *outcome = Outcome { verdict: outcome.verdict, ..left };
                }
            }
        }
        Some(decision)
    }

    /// The counter of a check, if it is in its slot, packed, under the limit that is asked for.
    #[expect(clippy::inline_always, reason = "its answer is taken apart at once")]
    #[inline(always)]
    fn find(&self, check: &Check<'_>, ask: Ask, now: Timestamp) -> Option<Found<'_>> {
        let Ask { hash, number } = ask;
        let home = self.table.home(hash);
        let mut line = self.table.line(home);
        let mut tag = Tag::new(hash, 0, number);
        let slot = if let Some(slot) = line.find_exactly(tag) {
            slot
        } else {
            let away = self.find_away(home, hash, number)?;
            line = self.table.line(home + away);
            tag = Tag::new(hash, away, number);
            line.find_exactly(tag)?
        };
        let Word::Packed(word) = line.word(slot) else { return None };
        // The word was the tag's if the tag is still there.
        if line.tag(slot) != tag || self.overrides.in_force(&check.key, now).is_some() {
            return None;
        }
        Some(Found { line, slot, tag, word })
    }

    /// How far from its home a key lives that has spilled.
    #[inline(never)]
    fn find_away(&self, home: usize, hash: u64, number: u16) -> Option<usize> {
        if !self.table.line(home).has_spilled() {
            return None;
        }
        let lives =
            |away: &usize| self.table.line(home + away).find_exactly(Tag::new(hash, *away, number)).is_some();
        (1..LINES).find(lives)
    }
}

/// Decides a single check, in code of its own for each algorithm: nothing goes through memory on the way from
/// the slot to the decision.
struct DecideOne<'a> {
    store: &'a MemoryStore,
    check: &'a Check<'a>,
    ask: Ask,
    now: Timestamp,
}

impl Visitor for DecideOne<'_> {
    /// As callers want it: to wrap a decision later would be to copy it.
    type Output = Result<Decision, StoreError>;

    #[inline(never)]
    fn visit<M: Meter>(self, meter: &M) -> Result<Decision, StoreError> {
        let Self { store, check, ask, now } = self;
        let slow = || Ok(store.decide_held(std::slice::from_ref(check), &[ask], now));
        let Some(found) = store.find(check, ask, now) else { return slow() };
        let Some((outcome, next)) = meter.step_word(found.word, ORIGIN, now, check.cost) else {
            return slow();
        };
        let passes = outcome.verdict.is_pass();
        if passes && check.cost > Cost::ZERO {
            let line = found.line.lock();
            match next {
                Some(next) if found.is_unchanged() => line.set_word(found.slot, Word::Packed(next)),
                _ => {
                    drop(line);
                    return Ok(store.decide_contended(check, ask, now, found));
                }
            }
        } else if !passes && check.role == Role::Overage {
            return slow();
        }
        store.top.sample(&check.key, ask.hash, now, passes);
        Ok(Decision::of_one(now, check.role, outcome))
    }
}

/// Stores all new words, or nothing if any counter has changed.
fn charge_all(checks: &[Check<'_>], outcomes: &[Outcome], found: &[(Found<'_>, Option<u64>)]) -> Option<()> {
    let charged = || {
        let fitting = checks.iter().zip(outcomes).zip(found);
        fitting.filter(|((check, outcome), _)| outcome.verdict.is_pass() && check.cost > Cost::ZERO)
    };
    let mut lines: SmallVec<[&Bucket; 4]> = charged().map(|(_, (found, _))| found.line).collect();
    lines.sort_unstable_by_key(|line| line.as_ptr());
    lines.dedup_by_key(|line| line.as_ptr());
    let locked: SmallVec<[Locked<'_>; 4]> = lines.into_iter().map(Bucket::lock).collect();
    if charged().any(|(_, (found, next))| next.is_none() || !found.is_unchanged()) {
        return None;
    }
    for (_, (found, next)) in charged() {
        let line = locked.iter().find(|line| line.as_ptr() == found.line.as_ptr());
        if let (Some(line), Some(next)) = (line, next) {
            line.set_word(found.slot, Word::Packed(*next));
        }
    }
    Some(())
}
