use proptest::prelude::*;
use tidegate_core::{Borrow, Cost, CounterState, Timestamp};

use super::*;

fn quota(algorithm: Algorithm, spec: Spec) -> Option<(Limit, Quota)> {
    let limit = Limit::new(algorithm, spec).ok()?;
    Some((limit, Quota::new(&limit, &spec)))
}

fn spec() -> impl Strategy<Value = (Algorithm, Spec)> {
    let rate = prop_oneof![
        4 => (1_u64..=1_000, (1_u64..=120_000).prop_map(TimeSpan::from_millis)),
        2 => (1_u64..=1_000, (1_u64..=999_999).prop_map(TimeSpan::from_micros)),
        2 => (1_u64..=1_000_000_000, (1_u64..=1_000_000).prop_map(TimeSpan::from_secs)),
        1 => (1_u64..=(1 << 53), (1_u64..=1_000_000).prop_map(TimeSpan::from_micros)),
        1 => (Just(1), (1_u64..=1_000_000_000).prop_map(TimeSpan::from_secs)),
    ];
    let burst = prop_oneof![Just(None), (1_u64..=20).prop_map(Some), (1_u64..=1_000_000_000).prop_map(Some)];
    let max_wait = prop_oneof![Just(None), (0_u64..=1 << 40).prop_map(|us| Some(TimeSpan::from_micros(us)))];
    let borrow = prop_oneof![
        2 => Just(None),
        1 => (1_u64..=1_000, 1_u64..=5).prop_map(|(units, repay)| Some(Borrow { units, repay })),
    ];
    let algorithm = proptest::sample::select(Algorithm::ALL);
    (algorithm, rate, burst, max_wait, borrow).prop_map(
        |(algorithm, (requests, window), burst, max_wait, borrow)| {
            let knows_burst = matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
            let burst = burst.filter(|_| knows_burst);
            let max_wait = max_wait.filter(|_| algorithm == Algorithm::LeakyBucket);
            let borrow = borrow.filter(|_| algorithm == Algorithm::TokenBucket);
            (algorithm, Spec { requests, window, burst, max_wait, borrow })
        },
    )
}

/// Gaps in thousandths of the window, costs in thousandths of the capacity, and whether the cost is charged in any case.
fn arrivals() -> impl Strategy<Value = Vec<(u64, u64, bool)>> {
    let gap = prop_oneof![2 => Just(0), 2 => 0_u64..=100, 1 => 0_u64..=2_500];
    let cost = prop_oneof![3 => Just(0), 1 => 0_u64..=1_100];
    proptest::collection::vec((gap, cost, proptest::bool::weighted(0.1)), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, max_global_rejects: 100_000, ..ProptestConfig::default() })]

    /// r ≤ q, t ≤ w, and numbers that a structured field can hold, for every algorithm and any history.
    #[test]
    fn report_of_any_outcome_stays_within_its_quota((algorithm, spec) in spec(), arrivals in arrivals()) {
        let Some((limit, quota)) = quota(algorithm, spec) else { return Ok(()) };
        let capacity = limit.capacity();
        let full = quota.full_report("a");
        let window = full.window.unwrap();
        prop_assert!((1..=LARGEST).contains(&full.quota));
        prop_assert!((1..=LARGEST).contains(&window.as_secs_ceil()));
        if algorithm == Algorithm::LeakyBucket && spec.window >= TimeSpan::from_secs(1) {
            prop_assert!(full.quota <= spec.requests && full.quota <= spec.burst.unwrap_or(u64::MAX));
        }
        let mut state = CounterState::default();
        let mut now = Timestamp::from_micros(1_700_000_000_123_456);
        for (gap, cost, forced) in arrivals {
            let gap = u128::from(spec.window.as_micros()) * u128::from(gap) / 1_000;
            now = now + TimeSpan::from_micros(u64::try_from(gap).unwrap());
            let cost = u64::try_from(u128::from(capacity) * u128::from(cost) / 1_000).unwrap().max(1);
            let outcome = limit.step(&mut state, now, Cost::new(cost));
            let report = quota.report("a", &outcome);
            prop_assert_eq!((report.quota, report.window), (full.quota, full.window));
            prop_assert!(report.remaining <= report.quota);
            prop_assert_eq!(report.remaining == 0, outcome.remaining == 0);
            if let Verdict::NotUntil { retry_after } = outcome.verdict {
                // `Retry-After` is at least this.
                prop_assert_eq!(report.announced_reset(), retry_after);
                prop_assert!(report.reset_after >= retry_after);
            } else {
                prop_assert_eq!(report.retry_after, None);
                prop_assert!(report.reset_after <= window);
                prop_assert_eq!(report.announced_reset(), report.reset_after);
            }
            if forced {
                // Debt, as a response may charge it.
                limit.charge(&mut state, now, Cost::new(cost));
            }
        }
    }

    /// A client that follows the announced quota never exceeds the rate of the limit.
    #[test]
    fn quota_announces_no_higher_rate_than_the_limit((algorithm, spec) in spec()) {
        let Some((_, quota)) = quota(algorithm, spec) else { return Ok(()) };
        let LimitReport { quota, window, .. } = quota.full_report("a");
        // A span is no longer than 285 years.
        prop_assume!(window != Some(TimeSpan::MAX));
        let announced = u128::from(quota) * u128::from(spec.window.as_micros());
        let allowed = u128::from(window.unwrap().as_micros()) * u128::from(spec.requests);
        prop_assert!(announced <= allowed, "{quota} per {window:?} of {spec:?}");
    }
}

#[test]
fn quota_of_each_algorithm_is_announced_as_documented() {
    let secs = TimeSpan::from_secs;
    let of = |algorithm, requests, window, burst| {
        let (_, quota) = quota(algorithm, Spec { burst, ..Spec::new(requests, window) }).unwrap();
        let report = quota.full_report("a");
        (report.quota, report.window.unwrap().as_secs_ceil())
    };
    assert_eq!(of(Algorithm::SlidingCounter, 100, secs(60), None), (100, 60));
    assert_eq!(of(Algorithm::FixedWindow, 10, TimeSpan::from_millis(1_500), None), (10, 2));
    assert_eq!(of(Algorithm::TokenBucket, 30, secs(60), Some(10)), (10, 20));
    assert_eq!(of(Algorithm::TokenBucket, 30, secs(60), None), (30, 60));
    assert_eq!(of(Algorithm::TokenBucket, 10, secs(1), Some(100)), (100, 10));
    assert_eq!(of(Algorithm::TokenBucket, 7, secs(60), Some(1)), (1, 9));
    assert_eq!(of(Algorithm::LeakyBucket, 10, secs(60), None), (10, 60));
    assert_eq!(of(Algorithm::LeakyBucket, 10, secs(60), Some(4)), (4, 24));
    assert_eq!(of(Algorithm::LeakyBucket, 10, secs(60), Some(50)), (10, 60));
    for algorithm in Algorithm::ALL {
        assert_eq!(of(*algorithm, 10, TimeSpan::from_millis(100), None), (100, 1), "{algorithm}");
    }
    assert_eq!(of(Algorithm::SlidingLog, 10, TimeSpan::from_millis(300), None), (33, 1));
    assert_eq!(of(Algorithm::TokenBucket, 10, TimeSpan::from_millis(100), Some(20)), (200, 2));
    assert_eq!(of(Algorithm::FixedWindow, (1 << 53) - 1, secs(1), None), (LARGEST, 1));
}

#[test]
fn quota_of_an_override_is_announced_with_the_window_of_the_rule() {
    let (_, quota) = quota(Algorithm::TokenBucket, Spec::new(10, TimeSpan::from_secs(60))).unwrap();
    let replacement = Limit::new(Algorithm::TokenBucket, Spec::new(500, TimeSpan::from_secs(60))).unwrap();
    let outcome = replacement.evaluate(&CounterState::Unseen, Timestamp::from_secs(1), Cost::ONE);
    let report = quota.report("a", &outcome);
    assert_eq!((report.quota, report.window, report.remaining), (500, Some(TimeSpan::from_secs(60)), 499));
}

#[test]
fn locked_out_report_has_nothing_left_and_the_longer_retry_after() {
    let (limit, quota) = quota(Algorithm::SlidingLog, Spec::new(1, TimeSpan::from_secs(60))).unwrap();
    let now = Timestamp::from_secs(1);
    let locked = |state: &CounterState, left| {
        let outcome = limit.evaluate(state, now, Cost::ONE);
        let report = quota.report_locked_out("a", Some(&outcome), TimeSpan::from_secs(left));
        (report.remaining, report.retry_after.unwrap(), report.reset_after)
    };
    let mut spent = CounterState::default();
    limit.step(&mut spent, now, Cost::ONE);
    assert_eq!(locked(&spent, 10), (0, TimeSpan::from_secs(60), TimeSpan::from_secs(60)));
    assert_eq!(locked(&spent, 90), (0, TimeSpan::from_secs(90), TimeSpan::from_secs(90)));
    assert_eq!(locked(&CounterState::Unseen, 10), (0, TimeSpan::from_secs(10), TimeSpan::from_secs(60)));
    assert_eq!(quota.report_locked_out("a", None, TimeSpan::from_secs(10)).quota, 1);
    let never = limit.evaluate(&CounterState::Unseen, now, Cost::new(2));
    let report = quota.report_locked_out("a", Some(&never), TimeSpan::from_secs(10));
    assert_eq!((report.retry_after, report.announced_reset()), (None, TimeSpan::from_secs(10)));
}

#[test]
fn bucket_that_lends_announces_all_units_and_the_time_to_repay_them() {
    let borrow = Some(Borrow { units: 20, repay: 2 });
    let spec = Spec { burst: Some(30), borrow, ..Spec::new(10, TimeSpan::from_secs(1)) };
    let (_, quota) = quota(Algorithm::TokenBucket, spec).unwrap();
    let report = quota.full_report("a");
    assert_eq!((report.quota, report.window), (50, Some(TimeSpan::from_secs(7))));
}
