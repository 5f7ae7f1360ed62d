//! The fields of an outcome are exact.

use proptest::prelude::*;
use tidegate_core::{
    Algorithm, Borrow, Cost, CounterState, LeakyBucket, Limit, LimitError, Spec, TimeSpan, Timestamp,
    Verdict, WORD_MAX,
};

use crate::generate::{any_direction, any_limit, limit_of, replay, start};

proptest! {
    #[test]
    fn retry_after_is_the_first_tick_that_admits_the_same_cost(
        generated in any_limit(), start in start(), arrivals in any_direction()
    ) {
        let mut state = CounterState::default();
        for (now, cost) in replay(&generated, start, &arrivals) {
            if let Verdict::NotUntil { retry_after } = generated.limit.step(&mut state, now, cost).verdict {
                let then = now + retry_after;
                prop_assert!(retry_after > TimeSpan::ZERO);
                prop_assert!(generated.limit.evaluate(&state, then, cost).verdict.is_pass());
                let before = then - TimeSpan::from_micros(1);
                prop_assert!(!generated.limit.evaluate(&state, before, cost).verdict.is_pass());
            }
        }
    }

    #[test]
    fn remaining_is_at_least_one_exactly_if_one_more_unit_is_admitted(
        generated in any_limit(), start in start(), arrivals in any_direction()
    ) {
        let mut state = CounterState::default();
        for (now, cost) in replay(&generated, start, &arrivals) {
            let outcome = generated.limit.step(&mut state, now, cost);
            let one_more = generated.limit.evaluate(&state, now, Cost::ONE).verdict.is_pass();
            prop_assert_eq!(outcome.remaining >= 1, one_more);
            if outcome.remaining > 0 {
                let all = Cost::new(outcome.remaining);
                prop_assert!(generated.limit.evaluate(&state, now, all).verdict.is_pass());
            }
            // Single units: no more than that are admitted. A leaky bucket with a short longest wait may admit more in a
            // single request, which waits only once.
            let mut spent = state.clone();
            generated.limit.charge(&mut spent, now, Cost::new(outcome.remaining));
            prop_assert!(!generated.limit.evaluate(&spent, now, Cost::ONE).verdict.is_pass());
            if generated.limit.algorithm() != Algorithm::LeakyBucket {
                let more = Cost::new(outcome.remaining + 1);
                prop_assert!(!generated.limit.evaluate(&state, now, more).verdict.is_pass());
            }
        }
    }

    #[test]
    fn leaky_bucket_never_makes_a_request_wait_longer_than_max_wait(
        generated in limit_of(Algorithm::LeakyBucket), start in start(), arrivals in any_direction()
    ) {
        let mut state = CounterState::default();
        let max_wait = generated.spec.max_wait.unwrap_or(LeakyBucket::DEFAULT_MAX_WAIT);
        for (now, cost) in replay(&generated, start, &arrivals) {
            if let Verdict::Pass { wait } = generated.limit.step(&mut state, now, cost).verdict {
                prop_assert!(wait <= max_wait);
            }
        }
    }

    #[test]
    fn rejected_step_changes_nothing(generated in any_limit(), start in start(), arrivals in any_direction()) {
        let mut state = CounterState::default();
        for (now, cost) in replay(&generated, start, &arrivals) {
            let before = state.clone();
            if !generated.limit.step(&mut state, now, cost).verdict.is_pass() {
                prop_assert_eq!(&state, &before);
            }
        }
    }

    #[test]
    fn peek_changes_no_later_outcome(generated in any_limit(), start in start(), arrivals in any_direction()) {
        let mut state = CounterState::default();
        for (now, cost) in replay(&generated, start, &arrivals) {
            let outcome = generated.limit.evaluate(&state, now, cost);
            generated.limit.step(&mut state, now, Cost::ZERO);
            prop_assert_eq!(generated.limit.evaluate(&state, now, cost), outcome);
            generated.limit.step(&mut state, now, cost);
        }
    }

    #[test]
    fn verdict_is_never_exactly_if_the_cost_exceeds_the_capacity(
        generated in any_limit(), start in start(), arrivals in any_direction()
    ) {
        let mut state = CounterState::default();
        for (now, cost) in replay(&generated, start, &arrivals) {
            let verdict = generated.limit.step(&mut state, now, cost).verdict;
            prop_assert_eq!(verdict == Verdict::Never, cost.get() > generated.limit.capacity());
        }
    }

    #[test]
    fn after_reset_after_the_whole_limit_is_admitted_and_the_key_is_unused(
        generated in any_limit(), start in start(), arrivals in any_direction()
    ) {
        let mut state = CounterState::default();
        for (now, cost) in replay(&generated, start, &arrivals) {
            let outcome = generated.limit.step(&mut state, now, cost);
            let then = now + outcome.reset_after;
            let whole = Cost::new(generated.limit.capacity());
            prop_assert!(generated.limit.evaluate(&state, then, whole).verdict.is_pass());
            if outcome.remaining < generated.limit.evaluate(&CounterState::Unseen, now, Cost::ZERO).remaining {
                let before = then - TimeSpan::from_micros(1);
                prop_assert!(!generated.limit.evaluate(&state, before, whole).verdict.is_pass());
            }
            prop_assert!(generated.limit.is_fresh(&state, then));
            for cost in [Cost::ONE, whole] {
                let unseen = generated.limit.evaluate(&CounterState::Unseen, then, cost);
                prop_assert_eq!(generated.limit.evaluate(&state, then, cost), unseen);
            }
        }
    }

    #[test]
    fn packed_state_is_unpacked_unchanged(
        generated in any_limit(), start in start(), arrivals in any_direction(), before in 0_u64..1_000_000_000_000_000
    ) {
        let origin = start - TimeSpan::from_micros(before);
        let mut state = CounterState::default();
        for (now, cost) in replay(&generated, start, &arrivals) {
            generated.limit.step(&mut state, now, cost);
            if let Some(word) = generated.limit.pack(&state, origin) {
                prop_assert!(word <= WORD_MAX);
                prop_assert_eq!(generated.limit.unpack(word, origin), state.clone());
            }
        }
    }

    #[test]
    fn extreme_values_never_panic_or_wrap(
        algorithm in proptest::sample::select(Algorithm::ALL),
        requests in extreme(), window in extreme(), burst in proptest::option::of(extreme()),
        max_wait in proptest::option::of(extreme().prop_map(TimeSpan::from_micros)),
        borrow in proptest::option::of((extreme(), extreme()).prop_map(|(units, repay)| Borrow { units, repay })),
        steps in proptest::collection::vec((extreme(), extreme(), any::<bool>()), 1..20),
    ) {
        let spec = Spec { requests, window: TimeSpan::from_micros(window), burst, max_wait, borrow };
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
fn limit_without_an_exact_tick_is_rejected_with_its_parameters() {
    let spec = Spec::new((1 << 53) - 1, TimeSpan::from_secs(1_000_003));
    let error = Limit::new(Algorithm::TokenBucket, spec).unwrap_err();
    assert!(matches!(error, LimitError::NotRepresentable { requests, .. } if requests == spec.requests));
    assert!(error.to_string().contains("cannot be counted exactly"), "{error}");
}

#[test]
fn limit_with_a_zero_parameter_is_rejected_by_name() {
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
fn max_wait_for_an_algorithm_without_waits_is_rejected() {
    let spec = Spec { max_wait: Some(TimeSpan::from_secs(1)), ..Spec::new(10, TimeSpan::from_secs(1)) };
    for &algorithm in Algorithm::ALL {
        let created = Limit::new(algorithm, spec);
        match algorithm {
            Algorithm::LeakyBucket => assert!(created.is_ok()),
            _ => assert_eq!(created, Err(LimitError::NoMaxWait { algorithm })),
        }
    }
}

#[test]
fn borrow_for_an_algorithm_that_lends_nothing_or_of_nothing_is_rejected() {
    let spec = |units, repay| {
        let borrow = Some(Borrow { units, repay });
        Spec { borrow, ..Spec::new(10, TimeSpan::from_secs(1)) }
    };
    for &algorithm in Algorithm::ALL {
        let created = Limit::new(algorithm, spec(1, 1));
        match algorithm {
            Algorithm::TokenBucket => assert!(created.is_ok()),
            _ => assert_eq!(created, Err(LimitError::NoBorrow { algorithm })),
        }
    }
    for spec in [spec(0, 2), spec(1, 0)] {
        assert_eq!(Limit::new(Algorithm::TokenBucket, spec), Err(LimitError::ZeroBorrow));
    }
}

#[test]
fn bucket_that_lends_20_of_which_each_costs_2_is_full_again_40_units_later() {
    let borrow = Some(Borrow { units: 20, repay: 2 });
    let spec = Spec { burst: Some(30), borrow, ..Spec::new(10, TimeSpan::from_secs(1)) };
    let limit = Limit::new(Algorithm::TokenBucket, spec).unwrap();
    let now = Timestamp::from_secs(1_700_000_000);
    let mut state = CounterState::default();
    let outcome = limit.step(&mut state, now, Cost::new(50));
    assert_eq!((outcome.verdict, outcome.limit, outcome.remaining), (Verdict::PASS, 50, 0));
    assert_eq!(outcome.reset_after, TimeSpan::from_secs(7), "(30 + 40) units at 10 per second");
    let retry_after = TimeSpan::from_millis(200);
    assert_eq!(limit.step(&mut state, now, Cost::ONE).verdict, Verdict::NotUntil { retry_after });
    let later = limit.evaluate(&state, now + TimeSpan::from_secs(4), Cost::ZERO);
    assert_eq!(later.remaining, 20, "the burst is still empty, and everything can be borrowed again");
    assert_eq!(limit.evaluate(&state, now + TimeSpan::from_secs(7), Cost::new(50)).verdict, Verdict::PASS);
}

#[test]
fn burst_for_an_algorithm_without_burst_is_rejected() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingLog, Algorithm::SlidingCounter] {
        let spec = Spec { burst: Some(5), ..Spec::new(10, TimeSpan::from_secs(1)) };
        assert_eq!(Limit::new(algorithm, spec), Err(LimitError::NoBurst { algorithm }));
    }
}

#[test]
fn algorithm_name_parses_to_the_algorithm() {
    for &algorithm in Algorithm::ALL {
        assert_eq!(algorithm.name().parse(), Ok(algorithm));
    }
    let error = "token-bucket".parse::<Algorithm>().unwrap_err().to_string();
    assert!(error.contains("token_bucket") && error.contains("sliding_window_log"), "{error}");
}
