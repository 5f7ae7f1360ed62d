//! Worked examples with exact numbers.

use tidegate_core::{
    Algorithm, Breaker, BreakerConfig, BreakerState, CallOutcome, CallTiming, Cost, CounterDelta,
    CounterState, Limit, Ratio, RetryBudget, Spec, TimeSpan, Timestamp, Verdict,
};

const START: Timestamp = Timestamp::from_secs(1_700_000_040); // a whole minute

fn limit(algorithm: Algorithm, requests: u64, seconds: u64, burst: Option<u64>) -> Limit {
    // The leaky bucket may delay requests for any time, except in the tests of the longest wait.
    let max_wait = (algorithm == Algorithm::LeakyBucket).then_some(TimeSpan::MAX);
    Limit::new(algorithm, Spec { burst, max_wait, ..Spec::new(requests, TimeSpan::from_secs(seconds)) })
        .unwrap()
}

#[test]
fn token_bucket_of_10_refills_2_tokens_per_second() {
    let limit = limit(Algorithm::TokenBucket, 2, 1, Some(10));
    let mut state = CounterState::default();
    let left = |state: &CounterState, after: u64| {
        limit.evaluate(state, START + TimeSpan::from_millis(after), Cost::ZERO).remaining
    };
    assert_eq!(left(&state, 0), 10);
    assert_eq!(limit.step(&mut state, START, Cost::new(5)).remaining, 5);
    assert_eq!(left(&state, 500), 6);
    assert_eq!(left(&state, 1_000), 7);
    assert_eq!(left(&state, 60_000), 10);
}

#[test]
fn token_bucket_of_100_admits_a_burst_of_100_and_then_10_per_second() {
    let limit = limit(Algorithm::TokenBucket, 10, 1, Some(100));
    let mut state = CounterState::default();
    let passed = |state: &mut CounterState, millis: u64, requests: u64| {
        let now = START + TimeSpan::from_millis(millis);
        (0..requests).filter(|_| limit.step(state, now, Cost::ONE).verdict.is_pass()).count()
    };
    assert_eq!(passed(&mut state, 0, 150), 100);
    assert_eq!(passed(&mut state, 99, 1), 0);
    assert_eq!(passed(&mut state, 100, 2), 1, "one token each 100 ms");
    assert_eq!(passed(&mut state, 1_100, 50), 10);
    let full = limit.evaluate(&state, START + TimeSpan::from_millis(11_100), Cost::ZERO);
    assert_eq!((full.remaining, full.limit), (100, 100), "ten seconds fill it");
    assert_eq!(passed(&mut state, 60_000, 150), 100, "and no more than that");
}

#[test]
fn leaky_bucket_of_10_with_8_leaks_2_per_second_and_of_5_more_one_fits() {
    let limit = limit(Algorithm::LeakyBucket, 2, 1, Some(10));
    let mut state = CounterState::default();
    let level = |state: &CounterState, millis: u64| {
        10 - limit.evaluate(state, START + TimeSpan::from_millis(millis), Cost::ZERO).remaining
    };
    for _ in 0..8 {
        assert!(limit.step(&mut state, START, Cost::ONE).verdict.is_pass());
    }
    assert_eq!([0, 500, 1_000].map(|millis| level(&state, millis)), [8, 7, 6]);
    let now = START + TimeSpan::from_secs(1);
    let passed = |state: &mut CounterState, requests: u64| {
        (0..requests).filter(|_| limit.step(state, now, Cost::ONE).verdict.is_pass()).count()
    };
    assert_eq!(passed(&mut state, 3), 3);
    assert_eq!(level(&state, 1_000), 9);
    assert_eq!(passed(&mut state, 5), 1, "the bucket is full");
    assert_eq!(level(&state, 1_000), 10);
}

#[test]
fn sliding_log_with_78_of_100_in_the_window_admits_22() {
    let limit = limit(Algorithm::SlidingLog, 100, 60, None);
    let mut state = CounterState::default();
    // 40 of the 118 leave the window before the next request.
    for (second, requests) in [(0, 40), (20, 50), (50, 28)] {
        limit.charge(&mut state, START + TimeSpan::from_secs(second), Cost::new(requests));
    }
    let now = START + TimeSpan::from_secs(65);
    assert_eq!(limit.evaluate(&state, now, Cost::ZERO).remaining, 22);
    let passed = (0..30).filter(|_| limit.step(&mut state, now, Cost::ONE).verdict.is_pass()).count();
    assert_eq!(passed, 22);
}

#[test]
fn sliding_counter_with_80_before_and_30_now_at_40_percent_estimates_78() {
    let limit = limit(Algorithm::SlidingCounter, 100, 60, None);
    let mut state = CounterState::default();
    limit.charge(&mut state, START - TimeSpan::from_secs(1), Cost::new(80));
    limit.charge(&mut state, START, Cost::new(30));
    let now = START + TimeSpan::from_secs(24);
    // 80 · 0.6 + 30
    assert_eq!(limit.used(&state, now), 78);
    assert!(limit.evaluate(&state, now, Cost::new(22)).verdict.is_pass());
    assert!(!limit.evaluate(&state, now, Cost::new(23)).verdict.is_pass());
}

#[test]
fn sync_of_three_nodes_that_counted_75_of_100_leaves_25_on_each() {
    let limit = limit(Algorithm::FixedWindow, 100, 60, None);
    let mut global = CounterState::default();
    for spent in [20, 30, 25] {
        let (mut node, mut delta) = (CounterState::default(), CounterDelta::default());
        limit.charge_with_delta(&mut node, &mut delta, START, Cost::new(spent));
        assert_eq!(limit.used(&node, START), spent, "a node knows of its own requests");
        limit.merge(&mut global, &delta, START);
    }
    // What every node pulls.
    assert_eq!(limit.used(&global, START), 75);
    assert_eq!(limit.evaluate(&global, START, Cost::ZERO).remaining, 25);
    assert!(!limit.evaluate(&global, START, Cost::new(26)).verdict.is_pass());
}

#[test]
fn breaker_opens_at_the_fifth_failure_and_one_probe_after_30_s_closes_it() {
    let breaker =
        Breaker::new(BreakerConfig { open_jitter: Ratio::ZERO, ..BreakerConfig::default() }).unwrap();
    let at = |seconds| START + TimeSpan::from_secs(seconds);
    let timing = |now| move || CallTiming { now, elapsed: TimeSpan::ZERO, random: 0 };
    for failure in 1..=5 {
        assert_eq!(breaker.state(), BreakerState::Closed, "before failure {failure}");
        let call = breaker.try_acquire(|| START).unwrap();
        breaker.record(call, CallOutcome::Failure, timing(START));
    }
    assert_eq!(breaker.state(), BreakerState::Open);
    assert!(breaker.try_acquire(|| at(29)).is_err());
    let probe = breaker.try_acquire(|| at(30)).unwrap();
    assert!(probe.is_probe());
    assert!(breaker.try_acquire(|| at(30)).is_err(), "one probe at a time");
    assert_eq!(breaker.record(probe, CallOutcome::Success, timing(at(30))), Some(BreakerState::Closed));
}

#[test]
fn retry_budget_of_10_percent_allows_100_retries_of_1_000_failures() {
    let budget = RetryBudget::new(Ratio::from_percent(10), 0);
    let mut retries = 0;
    for _ in 0..1_000 {
        budget.record_request(START);
        retries += usize::from(budget.try_withdraw(START).is_some());
    }
    assert_eq!(retries, 100);
    assert!(
        budget.try_withdraw(START + TimeSpan::from_secs(1)).is_none(),
        "a second is no reason for a retry"
    );
}

#[test]
fn sliding_counter_with_84_before_and_36_now_a_quarter_in_admits_one_more() {
    let limit = limit(Algorithm::SlidingCounter, 100, 60, None);
    let mut state = CounterState::default();
    let quarter = START + TimeSpan::from_secs(15);
    limit.charge(&mut state, START - TimeSpan::from_secs(1), Cost::new(84));
    limit.charge(&mut state, START, Cost::new(36));
    // floor(84 · 3/4) + 36 = 99
    let outcome = limit.step(&mut state, quarter, Cost::ONE);
    assert_eq!((outcome.verdict, outcome.remaining), (Verdict::PASS, 0));
    // 84 · (60 s − e) / 60 s < 63 first holds one microsecond later.
    let next = limit.step(&mut state, quarter, Cost::ONE);
    assert_eq!(next.verdict, Verdict::NotUntil { retry_after: TimeSpan::from_micros(1) });
}

#[test]
fn leaky_bucket_departures_are_exactly_spaced() {
    let limit = limit(Algorithm::LeakyBucket, 10, 1, Some(3));
    let mut state = CounterState::default();
    let waits: Vec<_> = (0..4).map(|_| limit.step(&mut state, START, Cost::ONE).verdict).collect();
    let after = |millis| Verdict::Pass { wait: TimeSpan::from_millis(millis) };
    let rejected = Verdict::NotUntil { retry_after: TimeSpan::from_millis(100) };
    assert_eq!(waits, [after(0), after(100), after(200), rejected], "the three include the departing one");
}

#[test]
fn leaky_bucket_wait_over_max_wait_is_rejected_until_the_wait_is_within_it() {
    let hour = Spec::new(10, TimeSpan::from_secs(3_600));
    let limit = Limit::new(Algorithm::LeakyBucket, hour).unwrap();
    let mut state = CounterState::default();
    let first = limit.step(&mut state, START, Cost::ONE);
    assert_eq!((first.verdict, first.limit, first.remaining), (Verdict::PASS, 10, 0));
    // The next departs after 360 s, and waits at most 30.
    let rejected = limit.step(&mut state, START, Cost::ONE).verdict;
    assert_eq!(rejected, Verdict::NotUntil { retry_after: TimeSpan::from_secs(330) });
    let then = limit.step(&mut state, START + TimeSpan::from_secs(330), Cost::ONE).verdict;
    assert_eq!(then, Verdict::Pass { wait: TimeSpan::from_secs(30) });
    // A request without a wait is admitted at any cost up to the burst.
    let fresh = limit.step(&mut CounterState::default(), START, Cost::new(10));
    assert_eq!((fresh.verdict, fresh.remaining), (Verdict::PASS, 0));
}

#[test]
fn leaky_bucket_of_3_per_second_never_drifts() {
    let limit = limit(Algorithm::LeakyBucket, 3, 1, Some(3_001));
    let mut state = CounterState::default();
    let mut last = TimeSpan::ZERO;
    for _ in 0..=3_000 {
        let Verdict::Pass { wait } = limit.step(&mut state, START, Cost::ONE).verdict else { panic!() };
        last = wait;
    }
    assert_eq!(last, TimeSpan::from_secs(1_000));
}

#[test]
fn fixed_window_admits_twice_across_a_boundary_and_no_more() {
    let limit = limit(Algorithm::FixedWindow, 5, 60, None);
    let mut state = CounterState::default();
    let before = START - TimeSpan::from_micros(1);
    assert!(limit.step(&mut state, before, Cost::new(5)).verdict.is_pass());
    let rejected = limit.step(&mut state, before, Cost::ONE);
    assert_eq!(rejected.verdict, Verdict::NotUntil { retry_after: TimeSpan::from_micros(1) });
    assert!(limit.step(&mut state, START, Cost::new(5)).verdict.is_pass());
    let rejected = limit.step(&mut state, START, Cost::ONE);
    assert_eq!(rejected.verdict, Verdict::NotUntil { retry_after: TimeSpan::from_secs(60) });
    assert_eq!(rejected.reset_after, TimeSpan::from_secs(60));
}

#[test]
fn sliding_log_frees_each_unit_when_its_own_window_ends() {
    let limit = limit(Algorithm::SlidingLog, 2, 60, None);
    let mut state = CounterState::default();
    let later = START + TimeSpan::from_secs(10);
    limit.step(&mut state, START, Cost::ONE);
    limit.step(&mut state, later, Cost::ONE);
    let rejected = limit.step(&mut state, later, Cost::ONE);
    assert_eq!(rejected.verdict, Verdict::NotUntil { retry_after: TimeSpan::from_secs(50) });
    assert_eq!(rejected.reset_after, TimeSpan::from_secs(60));
    assert!(limit.step(&mut state, START + TimeSpan::from_secs(60), Cost::ONE).verdict.is_pass());
}

#[test]
fn sliding_log_overcharged_keeps_at_most_as_many_entries_as_its_limit() {
    let limit = limit(Algorithm::SlidingLog, 3, 60, None);
    let mut state = CounterState::default();
    for second in 0..30 {
        limit.charge(&mut state, START + TimeSpan::from_secs(second), Cost::ONE);
    }
    let CounterState::SlidingLog(log) = &state else { panic!("expected the state of a sliding log") };
    assert_eq!(log.len(), 3);
    let whole = limit.evaluate(&state, START + TimeSpan::from_secs(88), Cost::new(3));
    assert_eq!(whole.verdict, Verdict::NotUntil { retry_after: TimeSpan::from_secs(1) });
}

#[test]
fn limit_with_extreme_rate_is_exact() {
    const YEAR: u64 = 365 * 86_400;
    for &algorithm in Algorithm::ALL {
        let burst = matches!(algorithm, Algorithm::TokenBucket).then_some(1);
        for (requests, seconds) in [(1, YEAR), (1_000_000, 86_400), (1_000_001, 86_400), (10_000_000, 1)] {
            let limit = limit(algorithm, requests, seconds, burst);
            let mut state = CounterState::default();
            let whole = Cost::new(limit.capacity());
            assert!(limit.step(&mut state, START, whole).verdict.is_pass(), "{algorithm} {requests}");
            let rejected = limit.step(&mut state, START, whole).verdict;
            assert!(matches!(rejected, Verdict::NotUntil { .. }), "{algorithm} {requests}: {rejected:?}");
        }
    }
    let bucket = limit(Algorithm::TokenBucket, 1, YEAR, Some(1));
    let mut state = CounterState::default();
    bucket.step(&mut state, START, Cost::ONE);
    let rejected = bucket.step(&mut state, START, Cost::ONE).verdict;
    assert_eq!(rejected, Verdict::NotUntil { retry_after: TimeSpan::from_secs(YEAR) });
}
