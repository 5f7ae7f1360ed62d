//! Worked examples with exact numbers.

use tidegate_core::{Algorithm, Cost, CounterState, Limit, Spec, TimeSpan, Timestamp, Verdict};

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
