//! What an outcome says must be true: of the next tick, of one unit more, of nothing charged.

use proptest::prelude::*;
use tidegate_core::{
    Algorithm, Cost, CounterState, LeakyBucket, Limit, LimitError, Spec, TimeSpan, Timestamp, Verdict,
    WORD_MAX,
};

use crate::generate::{any_made, made, play, start, unruly};

proptest! {
    #[test]
    fn retry_after_is_the_first_tick_at_which_the_same_cost_passes(
        made in any_made(), start in start(), arrivals in unruly()
    ) {
        let mut state = CounterState::default();
        for (now, cost) in play(&made, start, &arrivals) {
            if let Verdict::NotUntil { retry_after } = made.limit.step(&mut state, now, cost).verdict {
                let then = now + retry_after;
                prop_assert!(retry_after > TimeSpan::ZERO);
                prop_assert!(made.limit.evaluate(&state, then, cost).verdict.is_pass());
                let before = then - TimeSpan::from_micros(1);
                prop_assert!(!made.limit.evaluate(&state, before, cost).verdict.is_pass());
            }
        }
    }

    #[test]
    fn remaining_is_at_least_one_exactly_when_one_more_passes(
        made in any_made(), start in start(), arrivals in unruly()
    ) {
        let mut state = CounterState::default();
        for (now, cost) in play(&made, start, &arrivals) {
            let outcome = made.limit.step(&mut state, now, cost);
            let one_more = made.limit.evaluate(&state, now, Cost::ONE).verdict.is_pass();
            prop_assert_eq!(outcome.remaining >= 1, one_more);
            if outcome.remaining > 0 {
                let all = Cost::new(outcome.remaining);
                prop_assert!(made.limit.evaluate(&state, now, all).verdict.is_pass());
            }
            // One after another no more than that pass. A leaky bucket whose longest wait is short may admit more in a
            // single request: that waits once.
            let mut spent = state.clone();
            made.limit.charge(&mut spent, now, Cost::new(outcome.remaining));
            prop_assert!(!made.limit.evaluate(&spent, now, Cost::ONE).verdict.is_pass());
            if made.limit.algorithm() != Algorithm::LeakyBucket {
                let more = Cost::new(outcome.remaining + 1);
                prop_assert!(!made.limit.evaluate(&state, now, more).verdict.is_pass());
            }
        }
    }

    #[test]
    fn leaky_bucket_never_makes_a_request_wait_longer_than_max_wait(
        made in made(Algorithm::LeakyBucket), start in start(), arrivals in unruly()
    ) {
        let mut state = CounterState::default();
        let max_wait = made.spec.max_wait.unwrap_or(LeakyBucket::DEFAULT_MAX_WAIT);
        for (now, cost) in play(&made, start, &arrivals) {
            if let Verdict::Pass { wait } = made.limit.step(&mut state, now, cost).verdict {
                prop_assert!(wait <= max_wait);
            }
        }
    }

    #[test]
    fn a_refused_step_changes_nothing(made in any_made(), start in start(), arrivals in unruly()) {
        let mut state = CounterState::default();
        for (now, cost) in play(&made, start, &arrivals) {
            let before = state.clone();
            if !made.limit.step(&mut state, now, cost).verdict.is_pass() {
                prop_assert_eq!(&state, &before);
            }
        }
    }

    #[test]
    fn a_peek_changes_no_answer(made in any_made(), start in start(), arrivals in unruly()) {
        let mut state = CounterState::default();
        for (now, cost) in play(&made, start, &arrivals) {
            let answer = made.limit.evaluate(&state, now, cost);
            made.limit.step(&mut state, now, Cost::ZERO);
            prop_assert_eq!(made.limit.evaluate(&state, now, cost), answer);
            made.limit.step(&mut state, now, cost);
        }
    }

    #[test]
    fn never_is_said_exactly_of_a_cost_above_the_capacity(
        made in any_made(), start in start(), arrivals in unruly()
    ) {
        let mut state = CounterState::default();
        for (now, cost) in play(&made, start, &arrivals) {
            let verdict = made.limit.step(&mut state, now, cost).verdict;
            prop_assert_eq!(verdict == Verdict::Never, cost.get() > made.limit.capacity());
        }
    }

    #[test]
    fn after_reset_after_the_whole_limit_passes_and_the_key_is_fresh(
        made in any_made(), start in start(), arrivals in unruly()
    ) {
        let mut state = CounterState::default();
        for (now, cost) in play(&made, start, &arrivals) {
            let outcome = made.limit.step(&mut state, now, cost);
            let then = now + outcome.reset_after;
            let whole = Cost::new(made.limit.capacity());
            prop_assert!(made.limit.evaluate(&state, then, whole).verdict.is_pass());
            if outcome.remaining < made.limit.evaluate(&CounterState::Unseen, now, Cost::ZERO).remaining {
                let before = then - TimeSpan::from_micros(1);
                prop_assert!(!made.limit.evaluate(&state, before, whole).verdict.is_pass());
            }
            prop_assert!(made.limit.is_fresh(&state, then));
            for cost in [Cost::ONE, whole] {
                let unseen = made.limit.evaluate(&CounterState::Unseen, then, cost);
                prop_assert_eq!(made.limit.evaluate(&state, then, cost), unseen);
            }
        }
    }

    #[test]
    fn what_is_packed_into_a_word_is_unpacked_unchanged(
        made in any_made(), start in start(), arrivals in unruly(), before in 0_u64..1_000_000_000_000_000
    ) {
        let origin = start - TimeSpan::from_micros(before);
        let mut state = CounterState::default();
        for (now, cost) in play(&made, start, &arrivals) {
            made.limit.step(&mut state, now, cost);
            if let Some(word) = made.limit.pack(&state, origin) {
                prop_assert!(word <= WORD_MAX);
                prop_assert_eq!(made.limit.unpack(word, origin), state.clone());
            }
        }
    }

    #[test]
    fn extremes_never_panic_or_wrap(
        algorithm in proptest::sample::select(Algorithm::ALL),
        requests in extreme(), window in extreme(), burst in proptest::option::of(extreme()),
        max_wait in proptest::option::of(extreme().prop_map(TimeSpan::from_micros)),
        steps in proptest::collection::vec((extreme(), extreme(), any::<bool>()), 1..20),
    ) {
        let spec = Spec { requests, window: TimeSpan::from_micros(window), burst, max_wait };
        let Ok(limit) = Limit::new(algorithm, spec) else { return Ok(()) };
        let mut state = CounterState::default();
        let mut newest = Timestamp::ZERO;
        for (at, cost, force) in steps {
            let (at, cost) = (Timestamp::from_micros(at), Cost::new(cost));
            newest = newest.max(at);
            let outcome = limit.step(&mut state, at, cost);
            prop_assert_eq!(outcome.verdict == Verdict::Never, cost.get() > limit.capacity());
            prop_assert!(outcome.remaining <= limit.capacity());
            if force {
                limit.charge(&mut state, at, cost);
                let whole = Cost::new(limit.capacity());
                if cost > Cost::ZERO && newest == at {
                    prop_assert!(!limit.evaluate(&state, at, whole).verdict.is_pass());
                }
                limit.refund(&mut state, at, newest, cost);
                if let Some(word) = limit.pack(&state, Timestamp::ZERO) {
                    prop_assert_eq!(limit.unpack(word, Timestamp::ZERO), state.clone());
                }
            }
            limit.is_fresh(&state, newest);
        }
    }
}

fn extreme() -> impl Strategy<Value = u64> {
    const EXACT: u64 = 1 << 53;
    prop_oneof![
        Just(0),
        Just(1),
        Just(2),
        Just(999_999),
        Just(1_000_000),
        Just(86_400_000_000),
        Just(31_536_000_000_000),
        Just(EXACT - 1),
        Just(EXACT),
        Just(EXACT + 1),
        Just(u64::MAX - 1),
        Just(u64::MAX),
        any::<u64>(),
    ]
}

#[test]
fn what_no_tick_can_hold_is_refused_with_its_figures() {
    let spec = Spec::new((1 << 53) - 1, TimeSpan::from_secs(1_000_003));
    let error = Limit::new(Algorithm::TokenBucket, spec).unwrap_err();
    assert!(matches!(error, LimitError::NotRepresentable { requests, .. } if requests == spec.requests));
    assert!(error.to_string().contains("cannot be counted exactly"), "{error}");
}

#[test]
fn zero_is_refused_by_name() {
    let window = TimeSpan::from_secs(1);
    for &algorithm in Algorithm::ALL {
        assert_eq!(Limit::new(algorithm, Spec::new(0, window)), Err(LimitError::ZeroRequests));
        assert_eq!(Limit::new(algorithm, Spec::new(1, TimeSpan::ZERO)), Err(LimitError::ZeroWindow));
    }
    let no_burst = Spec { burst: Some(0), ..Spec::new(1, window) };
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        assert_eq!(Limit::new(algorithm, no_burst), Err(LimitError::ZeroBurst));
    }
}

#[test]
fn max_wait_where_no_request_waits_is_rejected() {
    let spec = Spec { max_wait: Some(TimeSpan::from_secs(1)), ..Spec::new(10, TimeSpan::from_secs(1)) };
    for &algorithm in Algorithm::ALL {
        let made = Limit::new(algorithm, spec);
        match algorithm {
            Algorithm::LeakyBucket => assert!(made.is_ok()),
            _ => assert_eq!(made, Err(LimitError::NoMaxWait { algorithm })),
        }
    }
}

#[test]
fn a_burst_where_none_is_known_is_refused() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingLog, Algorithm::SlidingCounter] {
        let spec = Spec { burst: Some(5), ..Spec::new(10, TimeSpan::from_secs(1)) };
        assert_eq!(Limit::new(algorithm, spec), Err(LimitError::NoBurst { algorithm }));
    }
}

#[test]
fn every_algorithm_is_found_by_its_name() {
    for &algorithm in Algorithm::ALL {
        assert_eq!(algorithm.name().parse(), Ok(algorithm));
    }
    let error = "token-bucket".parse::<Algorithm>().unwrap_err().to_string();
    assert!(error.contains("token_bucket") && error.contains("sliding_window_log"), "{error}");
}
