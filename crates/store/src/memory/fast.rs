//! The way of almost all decisions: every counter is in its slot, packed, under the limit that is asked for.
//!
//! Counters are read and judged without a lock. What is refused is answered at once. What passes locks the
//! lines, looks whether anything has changed since, and stores the new words: a handful of instructions. If
//! anything is out of the ordinary, there is no answer here, and nothing was touched.

use smallvec::SmallVec;
use tidegate_core::{Check, Cost, Decision, Outcome, Outcomes, Role, Timestamp};

use super::bucket::{Bucket, LINES, Locked, Tag, Word};
use super::table::ORIGIN;
use super::{Ask, MemoryStore};

/// A counter as it was read, and as it is to be.
#[derive(Clone, Copy, Debug)]
struct Found<'t> {
    line: &'t Bucket,
    slot: usize,
    tag: Tag,
    word: u64,
    next: Option<u64>,
}

impl Found<'_> {
    fn is_unchanged(&self) -> bool {
        self.line.tag(self.slot) == self.tag && self.line.word(self.slot) == Word::Packed(self.word)
    }
}

impl MemoryStore {
    /// The decision over a single check.
    #[inline(never)]
    pub(super) fn decide_one(&self, check: &Check<'_>, ask: Ask, now: Timestamp) -> Decision {
        let slow = || self.decide_held(std::slice::from_ref(check), &[ask], now);
        let Some((outcome, found)) = self.judge_found(check, ask, now) else { return slow() };
        let passes = outcome.verdict.is_pass();
        // Made where it is wanted, before anything is stored: it is large.
        let decision = Decision::of_one(now, check.role, outcome);
        if passes && check.cost > Cost::ZERO {
            let line = found.line.lock();
            match found.next {
                Some(next) if found.is_unchanged() => line.set_word(found.slot, Word::Packed(next)),
                _ => {
                    drop(line);
                    return self.decide_contended(check, ask, now, found);
                }
            }
        } else if check.role == Role::Overage {
            return slow();
        }
        self.top.sample(check.key, ask.hash, now, passes);
        decision
    }

    /// Another was faster: judges what it left, now that nobody else can change it.
    #[inline(never)]
    fn decide_contended(&self, check: &Check<'_>, ask: Ask, now: Timestamp, found: Found<'_>) -> Decision {
        let line = found.line.lock();
        if let (Word::Packed(word), true) = (line.word(found.slot), line.tag(found.slot) == found.tag) {
            let (outcome, next) = check.limit.step_word(word, ORIGIN, now, check.cost);
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
        let mut found = SmallVec::<[Found<'_>; 4]>::new();
        for (position, (check, ask)) in checks.iter().zip(asks).enumerate() {
            // Checks that share a key are judged together, and overage is charged whatever it is.
            if check.role == Role::Overage || asks[..position].iter().any(|other| other.hash == ask.hash) {
                return None;
            }
            let (outcome, one) = self.judge_found(check, *ask, now)?;
            outcomes.push(outcome);
            found.push(one);
        }
        let mut decision = Decision::new(now, checks, outcomes);
        if decision.passes() {
            charge_all(checks, &decision.outcomes, &found)?;
        } else {
            for ((check, found), outcome) in checks.iter().zip(&found).zip(&mut decision.outcomes) {
                if outcome.verdict.is_pass() {
                    let (left, _) = check.limit.step_word(found.word, ORIGIN, now, Cost::ZERO);
                    *outcome = Outcome { verdict: outcome.verdict, ..left };
                }
            }
        }
        Some(decision)
    }

    #[expect(clippy::inline_always, reason = "its answer is large and taken apart at once")]
    #[inline(always)]
    fn judge_found(&self, check: &Check<'_>, ask: Ask, now: Timestamp) -> Option<(Outcome, Found<'_>)> {
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
        if self.overrides.in_force(check.key, now).is_some() {
            return None;
        }
        let (outcome, next) = check.limit.step_word(word, ORIGIN, now, check.cost);
        // The word was the tag's if the tag is still there.
        if line.tag(slot) == tag { Some((outcome, Found { line, slot, tag, word, next })) } else { None }
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

/// Stores all new words, or nothing if any counter has changed.
fn charge_all(checks: &[Check<'_>], outcomes: &[Outcome], found: &[Found<'_>]) -> Option<()> {
    let charged = || {
        let fitting = checks.iter().zip(outcomes).zip(found);
        fitting.filter(|((check, outcome), _)| outcome.verdict.is_pass() && check.cost > Cost::ZERO)
    };
    let mut lines: SmallVec<[&Bucket; 4]> = charged().map(|(_, found)| found.line).collect();
    lines.sort_unstable_by_key(|line| line.as_ptr());
    lines.dedup_by_key(|line| line.as_ptr());
    let locked: SmallVec<[Locked<'_>; 4]> = lines.into_iter().map(Bucket::lock).collect();
    if charged().any(|(_, found)| found.next.is_none() || !found.is_unchanged()) {
        return None;
    }
    for (_, found) in charged() {
        let line = locked.iter().find(|line| line.as_ptr() == found.line.as_ptr());
        if let (Some(line), Some(next)) = (line, found.next) {
            line.set_word(found.slot, Word::Packed(next));
        }
    }
    Some(())
}
