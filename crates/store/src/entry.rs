//! What is remembered of one key: how much it spent, under which limit, and a limit of its own if it has one.

use std::borrow::Cow;

use tidegate_core::{Cost, Limit, Outcome, Refund, State, Timestamp};

/// Another limit in force for one key, for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// The limit in force instead of the rule's.
    pub limit: Limit,
    /// From then on the rule's own limit is in force again.
    pub until: Timestamp,
}

/// One key's counter and override. The default is a key never seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    counter: Option<Counter>,
    instead: Option<Override>,
}

/// A state, and the limit it was last counted under.
#[derive(Clone, Debug)]
struct Counter {
    limit: Limit,
    state: State,
}

impl Entry {
    pub(crate) fn judge(&self, limit: &Limit, now: Timestamp, cost: Cost) -> Outcome {
        let limit = self.in_force(limit, now);
        limit.judge(&self.state_under(&limit, now), now, cost)
    }

    pub(crate) fn charge(&mut self, limit: &Limit, now: Timestamp, cost: Cost) {
        let counter = self.counter_under(limit, now);
        counter.limit.charge(&mut counter.state, now, cost);
    }

    pub(crate) fn refund(&mut self, refund: &Refund<'_>, now: Timestamp) {
        if self.counter.is_some() {
            let counter = self.counter_under(refund.limit, now);
            counter.limit.refund(&mut counter.state, refund.charged, now, refund.cost);
        }
    }

    pub(crate) fn reset(&mut self) {
        self.counter = None;
    }

    pub(crate) fn override_limit(&mut self, instead: Option<Override>) {
        self.instead = instead;
    }

    /// Whether forgetting the entry changes no answer from `now` on.
    pub(crate) fn is_fresh(&self, now: Timestamp) -> bool {
        let counter = self.counter.as_ref();
        counter.is_none_or(|counter| counter.limit.fresh_at(&counter.state) <= now)
            && self.instead.is_none_or(|instead| instead.until <= now)
    }

    fn in_force(&self, limit: &Limit, now: Timestamp) -> Limit {
        self.instead.filter(|instead| now < instead.until).map_or(*limit, |instead| instead.limit)
    }

    fn state_under(&self, limit: &Limit, now: Timestamp) -> Cow<'_, State> {
        match &self.counter {
            None => Cow::Owned(State::Unseen),
            Some(counter) if counter.limit == *limit => Cow::Borrowed(&counter.state),
            Some(counter) => Cow::Owned(limit.rebase(&counter.limit, counter.state.clone(), now)),
        }
    }

    /// The counter, moved to the limit in force.
    fn counter_under(&mut self, limit: &Limit, now: Timestamp) -> &mut Counter {
        let limit = self.in_force(limit, now);
        let counter = self.counter.get_or_insert(Counter { limit, state: State::Unseen });
        if counter.limit != limit {
            let state = std::mem::take(&mut counter.state);
            *counter = Counter { limit, state: limit.rebase(&counter.limit, state, now) };
        }
        counter
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Algorithm, Span, Spec, Verdict};

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

    fn minute(requests: u64) -> Limit {
        Limit::new(Algorithm::TokenBucket, Spec::new(requests, Span::from_secs(60))).expect("a valid limit")
    }

    #[test]
    fn an_override_is_in_force_until_it_ends_and_spending_stays() {
        let (rule, instead) = (minute(10), minute(3));
        let mut entry = Entry::default();
        entry.charge(&rule, NOW, Cost::new(2));
        entry.override_limit(Some(Override { limit: instead, until: NOW + Span::from_secs(1) }));
        let outcome = entry.judge(&rule, NOW, Cost::ZERO);
        assert_eq!((outcome.limit, outcome.remaining), (3, 1));
        let after = entry.judge(&rule, NOW + Span::from_secs(1), Cost::ZERO);
        assert_eq!((after.limit, after.remaining), (10, 8));
    }

    #[test]
    fn what_is_judged_under_another_limit_is_not_moved_to_it() {
        let mut entry = Entry::default();
        entry.charge(&minute(10), NOW, Cost::new(10));
        assert_eq!(entry.judge(&minute(5), NOW, Cost::new(6)).verdict, Verdict::Never);
        assert_eq!(entry.judge(&minute(10), NOW + Span::from_secs(60), Cost::new(10)).verdict, Verdict::PASS);
    }

    #[test]
    fn an_entry_is_fresh_when_both_its_counter_and_its_override_are() {
        let mut entry = Entry::default();
        assert!(entry.is_fresh(NOW));
        entry.charge(&minute(60), NOW, Cost::ONE);
        entry.override_limit(Some(Override { limit: minute(1), until: NOW + Span::from_secs(9) }));
        assert!(!entry.is_fresh(NOW + Span::from_secs(8)));
        assert!(entry.is_fresh(NOW + Span::from_secs(9)));
        entry.reset();
        assert!(!entry.is_fresh(NOW), "the override outlives a reset");
    }
}
