//! The oracle's entry for one key: its counter and its override.

use std::borrow::Cow;

use tidegate_core::{Cost, CounterState, Limit, Outcome, Refund, Timestamp};

use crate::store::{Override, StoredOverride};

/// One key's counter and override. The default is an unused key.
#[derive(Clone, Debug, Default)]
pub(super) struct OracleEntry {
    counter: Option<OracleCounter>,
    stored: Option<StoredOverride>,
}

/// A state, and the limit it was last counted under.
#[derive(Clone, Debug)]
struct OracleCounter {
    limit: Limit,
    state: CounterState,
}

impl OracleEntry {
    pub(super) fn evaluate(&self, limit: &Limit, now: Timestamp, cost: Cost) -> Outcome {
        let limit = self.in_force(limit, now);
        limit.evaluate(&self.state_under(&limit, now), now, cost)
    }

    /// Converts the counter to the limit that applies, if that has changed. Every decision does so, also one that rejects:
    /// otherwise the spent units would keep draining at the old rate during rejections.
    pub(super) fn adopt(&mut self, limit: &Limit, now: Timestamp) {
        let limit = self.in_force(limit, now);
        if let Some(counter) = self.counter.as_mut().filter(|counter| counter.limit != limit) {
            let state = std::mem::take(&mut counter.state);
            *counter = OracleCounter { limit, state: limit.rebase(&counter.limit, state, now) };
        }
    }

    /// Charges `cost` under the limit that [`adopt`](Self::adopt) applied.
    pub(super) fn charge(&mut self, limit: &Limit, now: Timestamp, cost: Cost) {
        let limit = self.in_force(limit, now);
        let counter = self.counter.get_or_insert(OracleCounter { limit, state: CounterState::Unseen });
        counter.limit.charge(&mut counter.state, now, cost);
    }

    /// Refunds only if the counter still uses the limit of the charge. Under another limit the part that is left is unknown.
    /// Returns whether it contained any.
    pub(super) fn refund(&mut self, refund: &Refund<'_>, now: Timestamp) -> bool {
        let limit = self.stored.map_or(Some(*refund.limit), |stored| stored.limit_of_charge(refund, now));
        let counter = self.counter.as_mut().filter(|counter| Some(counter.limit) == limit);
        counter
            .is_some_and(|counter| counter.limit.refund(&mut counter.state, refund.charged, now, refund.cost))
    }

    pub(super) fn reset(&mut self) {
        self.counter = None;
    }

    /// `None` ends the override now. The entry is kept for later refunds.
    pub(super) fn override_limit(&mut self, replacement: Option<Override>, now: Timestamp) {
        match replacement {
            Some(replacement) => self.stored = Some(StoredOverride::begin(replacement, self.stored, now)),
            None => {
                if let Some(StoredOverride { replacement: ended, .. }) = &mut self.stored {
                    ended.until = ended.until.min(now);
                }
            }
        }
    }

    fn in_force(&self, limit: &Limit, now: Timestamp) -> Limit {
        let replacement = self.stored.map(|stored| stored.replacement);
        replacement
            .filter(|replacement| now < replacement.until)
            .map_or(*limit, |replacement| replacement.limit)
    }

    fn state_under(&self, limit: &Limit, now: Timestamp) -> Cow<'_, CounterState> {
        match &self.counter {
            None => Cow::Owned(CounterState::Unseen),
            Some(counter) if counter.limit == *limit => Cow::Borrowed(&counter.state),
            Some(counter) => Cow::Owned(limit.rebase(&counter.limit, counter.state.clone(), now)),
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Algorithm, CounterKey, RuleId, Spec, TimeSpan, Verdict};

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

    fn minute(requests: u64) -> Limit {
        limit(requests, 60)
    }

    fn limit(requests: u64, seconds: u64) -> Limit {
        let spec = Spec::new(requests, TimeSpan::from_secs(seconds));
        Limit::new(Algorithm::TokenBucket, spec).expect("a valid limit")
    }

    #[test]
    fn override_applies_until_it_ends_and_spent_units_stay_spent() {
        let (rule, replacement) = (minute(10), minute(3));
        let mut entry = OracleEntry::default();
        entry.charge(&rule, NOW, Cost::new(2));
        entry.override_limit(Some(Override { limit: replacement, until: NOW + TimeSpan::from_secs(1) }), NOW);
        let outcome = entry.evaluate(&rule, NOW, Cost::ZERO);
        assert_eq!((outcome.limit, outcome.remaining), (3, 1));
        let after = entry.evaluate(&rule, NOW + TimeSpan::from_secs(1), Cost::ZERO);
        assert_eq!((after.limit, after.remaining), (10, 8));
    }

    #[test]
    fn changed_limit_that_rejects_admits_after_retry_after() {
        let (old, new) = (limit(1_000, 3_600), limit(10, 1));
        let mut entry = OracleEntry::default();
        entry.charge(&old, NOW, Cost::new(1_000));
        let mut now = NOW;
        entry.adopt(&new, now);
        let Verdict::NotUntil { retry_after } = entry.evaluate(&new, now, Cost::ONE).verdict else {
            panic!("everything is spent");
        };
        assert_eq!(
            retry_after,
            TimeSpan::from_millis(99_100),
            "1,000 spent, 9 may stay, 10 are refilled per second"
        );
        now = now + retry_after;
        entry.adopt(&new, now);
        assert_eq!(entry.evaluate(&new, now, Cost::ONE).verdict, Verdict::PASS);
    }

    #[test]
    fn refund_of_a_charge_before_a_limit_change_gives_nothing_back() {
        let (old, new) = (limit(10, 1), limit(10, 3_600));
        let refund = refund_of(&old, NOW);
        let mut entry = OracleEntry::default();
        entry.charge(&old, NOW, Cost::new(5));
        let later = NOW + TimeSpan::from_secs(3);
        entry.adopt(&new, later);
        entry.charge(&new, later, Cost::new(10));
        entry.refund(&refund, later);
        assert_eq!(entry.evaluate(&new, later, Cost::ZERO).remaining, 0);
    }

    #[test]
    fn refund_of_a_charge_before_an_override_gives_nothing_back() {
        let (rule, replacement) = (limit(10, 60), limit(10, 3_600));
        let refund = refund_of(&rule, NOW);
        let mut entry = OracleEntry::default();
        entry.charge(&rule, NOW, Cost::new(5));
        let later = NOW + TimeSpan::from_secs(300);
        entry.override_limit(
            Some(Override { limit: replacement, until: later + TimeSpan::from_secs(9) }),
            later,
        );
        entry.adopt(&rule, later);
        entry.charge(&rule, later, Cost::new(10));
        entry.refund(&refund, later);
        assert_eq!(entry.evaluate(&rule, later, Cost::ZERO).remaining, 0);
        entry.override_limit(None, later);
        entry.adopt(&rule, later);
        entry.refund(&refund, later);
        assert_eq!(entry.evaluate(&rule, later, Cost::ZERO).remaining, 0, "nor after the override ended");
    }

    #[test]
    fn refund_of_a_charge_under_an_override_gives_it_back_while_it_applies() {
        let (rule, replacement) = (limit(10, 60), limit(20, 3_600));
        let mut entry = OracleEntry::default();
        let over = Override { limit: replacement, until: NOW + TimeSpan::from_secs(60) };
        entry.override_limit(Some(over), NOW);
        let charged = NOW + TimeSpan::from_secs(1);
        entry.adopt(&rule, charged);
        entry.charge(&rule, charged, Cost::new(5));
        // The same override again, as a node applies it that has it from another one.
        entry.override_limit(Some(over), charged + TimeSpan::from_secs(1));
        entry.refund(&refund_of(&rule, charged), charged);
        assert_eq!(entry.evaluate(&rule, charged, Cost::ZERO).remaining, 20);
    }

    fn refund_of(limit: &Limit, charged: Timestamp) -> Refund<'_> {
        Refund { key: CounterKey::new(RuleId::named("rule"), b""), limit, cost: Cost::new(5), charged }
    }
}
