//! Which limits each coordination supports, and which limit was in force.

use tidegate_core::{
    Algorithm, Coordination, Cost, CounterState, Limit, Outcome, TimeSpan, Timestamp, Verdict,
};

/// Whether nodes can share a limit with this algorithm in this way. A lease and an exchange of counts add up units, which needs
/// a counter that is a number of units; the others keep when requests were, or are scheduled. A bucket that lends charges units by
/// its level.
pub(crate) fn supports(coordination: Coordination, limit: &Limit) -> bool {
    match coordination {
        Coordination::Central | Coordination::Static => true,
        Coordination::Lease | Coordination::Sync => match limit.algorithm() {
            Algorithm::TokenBucket => !limit.lends(),
            Algorithm::FixedWindow | Algorithm::SlidingCounter => true,
            Algorithm::LeakyBucket | Algorithm::SlidingLog => false,
        },
    }
}

/// Whether the outcome of `cost` at `at` shows that another limit than `own` was in force: it names another capacity, or a wait
/// that `own` does not cause, even if it is used up. After an overage the latter may hold without an override.
pub(crate) fn shows_override(own: &Limit, cost: Cost, outcome: &Outcome, at: Timestamp) -> bool {
    let Verdict::NotUntil { retry_after } = outcome.verdict else {
        return outcome.limit != own.capacity();
    };
    let mut used_up = CounterState::default();
    own.charge(&mut used_up, at, Cost::new(own.capacity()));
    let longest = match own.evaluate(&used_up, at, cost).verdict {
        Verdict::NotUntil { retry_after } => retry_after,
        _ => TimeSpan::ZERO,
    };
    outcome.limit != own.capacity() || retry_after > longest
}

#[cfg(test)]
mod tests {
    use tidegate_core::Spec;

    use super::*;

    #[test]
    fn wait_that_the_limit_does_not_cause_shows_an_override() {
        let at = Timestamp::from_secs(1_700_000_000);
        for algorithm in Algorithm::ALL {
            let [own, other] = [60, 3_600]
                .map(|seconds| Limit::new(*algorithm, Spec::new(10, TimeSpan::from_secs(seconds))).unwrap());
            let rejection = |limit: &Limit| {
                let mut state = CounterState::default();
                limit.charge(&mut state, at, Cost::new(10));
                limit.evaluate(&state, at, Cost::ONE)
            };
            let shows = |outcome: &Outcome| shows_override(&own, Cost::ONE, outcome, at);
            assert!(!shows(&rejection(&own)), "{algorithm}");
            assert!(shows(&rejection(&other)), "{algorithm}");
            assert!(shows(&Outcome { limit: 11, ..rejection(&own) }), "{algorithm}");
        }
    }
}
