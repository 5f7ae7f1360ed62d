//! What is given back, and what a changed limit keeps.

use proptest::prelude::*;
use tidegate_core::{
    Algorithm, AlgorithmKind, Cost, CounterState, Limit, Spec, TimeSpan, Timestamp, Verdict,
};

use crate::generate::{Arrival, Made, any_made, forward, play, start};

/// Plays `before`, then charges `cost` if it fits; the instant at which it was to pass.
fn charged(made: &Made, state: &mut CounterState, now: Timestamp, cost: Cost) -> Option<Timestamp> {
    match made.limit.step(state, now, cost).verdict {
        Verdict::Pass { wait } => Some(now + wait),
        _ => None,
    }
}

fn after(made: &Made, start: Timestamp, arrivals: &[Arrival]) -> (CounterState, Timestamp) {
    let mut state = CounterState::default();
    let mut now = start;
    for (at, cost) in play(made, start, arrivals) {
        made.limit.step(&mut state, at, cost);
        now = at;
    }
    (state, now)
}

/// Where several depart within one tick, a leaky bucket gives nothing back.
pub(crate) fn gives_back(limit: &Limit) -> bool {
    !matches!(limit.kind(), AlgorithmKind::LeakyBucket(bucket) if bucket.rate().unit() < bucket.rate().drain())
}

proptest! {
    #[test]
    fn an_immediate_refund_undoes_the_charge(
        made in any_made(), start in start(), arrivals in forward(), cost in 1_u64..=5
    ) {
        if !gives_back(&made.limit) {
            return Ok(());
        }
        let (mut state, now) = after(&made, start, &arrivals);
        let before = made.limit.evaluate(&state, now, Cost::ZERO);
        if let Some(passed) = charged(&made, &mut state, now, Cost::new(cost)) {
            made.limit.refund(&mut state, passed, now, Cost::new(cost));
            prop_assert_eq!(made.limit.evaluate(&state, now, Cost::ZERO), before);
        }
    }

    /// Two clients send the same; one sends one request more, and has it refunded later.
    #[test]
    fn a_refund_never_leaves_more_than_if_nothing_had_been_charged(
        made in any_made(), start in start(),
        before in forward(), between in forward(), afterwards in forward(), cost in 1_u64..=5
    ) {
        let (mut without, now) = after(&made, start, &before);
        let mut with = without.clone();
        let Some(passed) = charged(&made, &mut with, now, Cost::new(cost)) else { return Ok(()) };
        let mut refunded_at = now;
        for (now, cost) in play(&made, now, &between) {
            // Only what both may do is done by both.
            if made.limit.evaluate(&with, now, cost).verdict.is_pass()
                && made.limit.evaluate(&without, now, cost).verdict.is_pass()
            {
                made.limit.charge(&mut with, now, cost);
                made.limit.charge(&mut without, now, cost);
            }
            refunded_at = now;
        }
        made.limit.refund(&mut with, passed, refunded_at, Cost::new(cost));
        for (now, cost) in play(&made, refunded_at, &afterwards) {
            let left = made.limit.evaluate(&with, now, Cost::ZERO).remaining;
            prop_assert!(left <= made.limit.evaluate(&without, now, Cost::ZERO).remaining);
            if made.limit.step(&mut with, now, cost).verdict.is_pass() {
                prop_assert!(made.limit.step(&mut without, now, cost).verdict.is_pass());
            }
        }
    }

    #[test]
    fn a_changed_limit_keeps_the_units_spent(
        made in any_made(), start in start(), arrivals in forward(),
        requests in 1_u64..=1_000, seconds in 1_u64..=120
    ) {
        // A longest wait leaves less than the units that are not spent.
        let max_wait = (made.limit.algorithm() == Algorithm::LeakyBucket).then_some(TimeSpan::MAX);
        let made = made.with(Spec { max_wait, ..made.spec });
        let (state, now) = after(&made, start, &arrivals);
        let spec = Spec { max_wait, ..Spec::new(requests, TimeSpan::from_secs(seconds)) };
        let changed = Limit::new(made.limit.algorithm(), spec).unwrap();
        let old = made.limit.evaluate(&state, now, Cost::ZERO);
        let rebased = changed.rebase(&made.limit, state, now);
        let new = changed.evaluate(&rebased, now, Cost::ZERO);
        let spent = old.limit - old.remaining;
        if made.limit.algorithm() == Algorithm::SlidingLog && spec.window < made.spec.window {
            // A shorter window holds fewer instants: exactly those that are inside it.
            prop_assert!(new.remaining >= new.limit.saturating_sub(spent));
        } else {
            prop_assert_eq!(new.remaining, new.limit.saturating_sub(spent));
        }
    }

    #[test]
    fn the_same_limit_changes_nothing(made in any_made(), start in start(), arrivals in forward()) {
        let (state, now) = after(&made, start, &arrivals);
        prop_assert_eq!(made.limit.rebase(&made.limit, state.clone(), now), state);
    }
}

#[test]
fn a_changed_algorithm_starts_afresh() {
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
fn a_rolled_window_takes_no_refund() {
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
fn a_leaky_bucket_gives_back_only_its_last_departure() {
    let limit = Limit::new(Algorithm::LeakyBucket, Spec::new(10, TimeSpan::from_secs(1))).unwrap();
    let now = Timestamp::from_secs(1_700_000_000);
    let mut state = CounterState::default();
    let departures: Vec<_> = (0..3)
        .map(|_| match limit.step(&mut state, now, Cost::ONE).verdict {
            Verdict::Pass { wait } => now + wait,
            refused => panic!("{refused:?}"),
        })
        .collect();
    let left = |state: &CounterState| limit.evaluate(state, now, Cost::ZERO).remaining;
    limit.refund(&mut state, departures[0], now, Cost::ONE);
    assert_eq!(left(&state), 7, "two others depart after the first: it leaves a gap");
    limit.refund(&mut state, departures[2], now, Cost::ONE);
    assert_eq!(left(&state), 8);
    limit.refund(&mut state, departures[1], now, Cost::ONE);
    assert_eq!(left(&state), 9, "now the second is the last");
}
