//! Refunds and changed limits.

use proptest::prelude::*;
use tidegate_core::{
    Algorithm, AlgorithmKind, Cost, CounterState, Limit, Spec, TimeSpan, Timestamp, Verdict,
};

use crate::generate::{Arrival, GeneratedLimit, any_limit, forward, replay, start};

/// Charges `cost` if it fits, and returns when the request was scheduled.
fn charged(
    generated: &GeneratedLimit,
    state: &mut CounterState,
    now: Timestamp,
    cost: Cost,
) -> Option<Timestamp> {
    match generated.limit.step(state, now, cost).verdict {
        Verdict::Pass { wait } => Some(now + wait),
        _ => None,
    }
}

fn after(generated: &GeneratedLimit, start: Timestamp, arrivals: &[Arrival]) -> (CounterState, Timestamp) {
    let mut state = CounterState::default();
    let mut now = start;
    for (at, cost) in replay(generated, start, arrivals) {
        generated.limit.step(&mut state, at, cost);
        now = at;
    }
    (state, now)
}

/// A leaky bucket refunds nothing if several requests depart within one tick.
pub(crate) fn can_refund(limit: &Limit) -> bool {
    !matches!(limit.kind(), AlgorithmKind::LeakyBucket(bucket) if bucket.rate().unit() < bucket.rate().drain())
}

proptest! {
    #[test]
    fn immediate_refund_undoes_the_charge(
        generated in any_limit(), start in start(), arrivals in forward(), cost in 1_u64..=5
    ) {
        if !can_refund(&generated.limit) {
            return Ok(());
        }
        let (mut state, now) = after(&generated, start, &arrivals);
        let before = generated.limit.evaluate(&state, now, Cost::ZERO);
        if let Some(passed) = charged(&generated, &mut state, now, Cost::new(cost)) {
            generated.limit.refund(&mut state, passed, now, Cost::new(cost));
            prop_assert_eq!(generated.limit.evaluate(&state, now, Cost::ZERO), before);
        }
    }

    /// Two clients send the same requests; one of them sends one more, which is refunded later.
    #[test]
    fn refund_never_leaves_more_than_without_the_charge(
        generated in any_limit(), start in start(),
        before in forward(), between in forward(), afterwards in forward(), cost in 1_u64..=5
    ) {
        let (mut without, now) = after(&generated, start, &before);
        let mut with = without.clone();
        let Some(passed) = charged(&generated, &mut with, now, Cost::new(cost)) else { return Ok(()) };
        let mut refunded_at = now;
        for (now, cost) in replay(&generated, now, &between) {
            // Charge only what fits both states.
            if generated.limit.evaluate(&with, now, cost).verdict.is_pass()
                && generated.limit.evaluate(&without, now, cost).verdict.is_pass()
            {
                generated.limit.charge(&mut with, now, cost);
                generated.limit.charge(&mut without, now, cost);
            }
            refunded_at = now;
        }
        generated.limit.refund(&mut with, passed, refunded_at, Cost::new(cost));
        for (now, cost) in replay(&generated, refunded_at, &afterwards) {
            let left = generated.limit.evaluate(&with, now, Cost::ZERO).remaining;
            prop_assert!(left <= generated.limit.evaluate(&without, now, Cost::ZERO).remaining);
            if generated.limit.step(&mut with, now, cost).verdict.is_pass() {
                prop_assert!(generated.limit.step(&mut without, now, cost).verdict.is_pass());
            }
        }
    }

    #[test]
    fn changed_limit_keeps_the_spent_units(
        generated in any_limit(), start in start(), arrivals in forward(),
        requests in 1_u64..=1_000, seconds in 1_u64..=120
    ) {
        // With a longest wait, fewer units remain than are unspent.
        let max_wait = (generated.limit.algorithm() == Algorithm::LeakyBucket).then_some(TimeSpan::MAX);
        let generated = generated.with(Spec { max_wait, ..generated.spec });
        let (state, now) = after(&generated, start, &arrivals);
        let spec = Spec { max_wait, ..Spec::new(requests, TimeSpan::from_secs(seconds)) };
        let changed = Limit::new(generated.limit.algorithm(), spec).unwrap();
        let old = generated.limit.evaluate(&state, now, Cost::ZERO);
        let rebased = changed.rebase(&generated.limit, state, now);
        let new = changed.evaluate(&rebased, now, Cost::ZERO);
        let spent = old.limit - old.remaining;
        if generated.limit.algorithm() == Algorithm::SlidingLog && spec.window < generated.spec.window {
            // A shorter window contains fewer instants.
            prop_assert!(new.remaining >= new.limit.saturating_sub(spent));
        } else {
            prop_assert_eq!(new.remaining, new.limit.saturating_sub(spent));
        }
    }

    #[test]
    fn repeated_change_between_two_bucket_limits_leaves_as_much_as_before(
        leaks in any::<bool>(), units in 1_u64..=1_000,
        requests in prop::array::uniform2(1_u64..=1_000), seconds in prop::array::uniform2(1_u64..=120)
    ) {
        let algorithm = if leaks { Algorithm::LeakyBucket } else { Algorithm::TokenBucket };
        let limit = |i: usize| Limit::new(algorithm, Spec::new(requests[i], TimeSpan::from_secs(seconds[i]))).unwrap();
        let (a, b) = (limit(0), limit(1));
        let (charged, now) = (Timestamp::from_secs(1_700_000_000), Timestamp::from_micros(1_700_000_000_123_456));
        let mut state = CounterState::default();
        a.charge(&mut state, charged, Cost::new(units));
        let left = a.evaluate(&state, now, Cost::ZERO).remaining;
        for _ in 0..20 {
            state = a.rebase(&b, b.rebase(&a, state, now), now);
        }
        prop_assert_eq!(a.evaluate(&state, now, Cost::ZERO).remaining, left);
    }

    #[test]
    fn rebase_to_the_same_limit_changes_nothing(generated in any_limit(), start in start(), arrivals in forward()) {
        let (state, now) = after(&generated, start, &arrivals);
        prop_assert_eq!(generated.limit.rebase(&generated.limit, state.clone(), now), state);
    }
}

#[test]
fn changed_algorithm_starts_with_an_unused_state() {
    let spec = Spec::new(10, TimeSpan::from_secs(60));
    let now = Timestamp::from_secs(1_700_000_000);
    for (&old, &new) in Algorithm::ALL.iter().zip(Algorithm::ALL.iter().cycle().skip(1)) {
        let (old, new) = (Limit::new(old, spec).unwrap(), Limit::new(new, spec).unwrap());
        let mut state = CounterState::default();
        old.step(&mut state, now, Cost::new(10));
        assert_eq!(
            new.evaluate(&state, now, Cost::ZERO),
            new.evaluate(&CounterState::Unseen, now, Cost::ZERO)
        );
        assert_eq!(new.rebase(&old, state, now), CounterState::Unseen);
    }
}

#[test]
fn fixed_window_refund_of_an_earlier_window_is_ignored() {
    let limit = Limit::new(Algorithm::FixedWindow, Spec::new(10, TimeSpan::from_secs(60))).unwrap();
    let start = Timestamp::from_secs(1_700_000_040);
    let next = start + TimeSpan::from_secs(60);
    let mut state = CounterState::default();
    limit.step(&mut state, start, Cost::new(4));
    limit.step(&mut state, next, Cost::new(3));
    limit.refund(&mut state, start, next, Cost::new(4));
    assert_eq!(limit.evaluate(&state, next, Cost::ZERO).remaining, 7);
}

#[test]
fn leaky_bucket_refunds_only_the_last_departure() {
    let limit = Limit::new(Algorithm::LeakyBucket, Spec::new(10, TimeSpan::from_secs(1))).unwrap();
    let now = Timestamp::from_secs(1_700_000_000);
    let mut state = CounterState::default();
    let departures: Vec<_> = (0..3)
        .map(|_| match limit.step(&mut state, now, Cost::ONE).verdict {
            Verdict::Pass { wait } => now + wait,
            rejected => panic!("{rejected:?}"),
        })
        .collect();
    let left = |state: &CounterState| limit.evaluate(state, now, Cost::ZERO).remaining;
    limit.refund(&mut state, departures[0], now, Cost::ONE);
    assert_eq!(left(&state), 7, "two others depart after the first: its departure cannot be reused");
    limit.refund(&mut state, departures[2], now, Cost::ONE);
    assert_eq!(left(&state), 8);
    limit.refund(&mut state, departures[1], now, Cost::ONE);
    assert_eq!(left(&state), 9, "now the second is the last");
}
