//! The parts of a limit that nodes enforce on their own.

use proptest::prelude::*;
use tidegate_core::{
    Algorithm, AlgorithmKind, Cost, CounterState, LeakyBucket, Limit, Rate, Spec, TimeSpan, Timestamp,
    Verdict,
};

use crate::generate::{any_limit, forward, limit_of, replay, start};

fn windowed() -> impl Strategy<Value = Algorithm> {
    proptest::sample::select(&[Algorithm::FixedWindow, Algorithm::SlidingLog, Algorithm::SlidingCounter][..])
}

fn bucketed() -> impl Strategy<Value = Algorithm> {
    proptest::sample::select(&[Algorithm::TokenBucket, Algorithm::LeakyBucket][..])
}

fn window(limit: &Limit) -> TimeSpan {
    match limit.kind() {
        AlgorithmKind::FixedWindow(limit) => limit.window(),
        AlgorithmKind::SlidingLog(limit) => limit.window(),
        AlgorithmKind::SlidingCounter(limit) => limit.window(),
        other => panic!("{other:?} has no window"),
    }
}

fn rate(limit: &Limit) -> &Rate {
    match limit.kind() {
        AlgorithmKind::TokenBucket(limit) => limit.rate(),
        AlgorithmKind::LeakyBucket(limit) => limit.rate(),
        other => panic!("{other:?} has no rate"),
    }
}

/// The sides of `rate(share) / rate(limit) ≤ part / of`, multiplied out.
fn rate_sides(share: &Limit, limit: &Limit, part: u64, of: u64) -> (u128, u128) {
    let side = |rate: &Rate, other: &Rate, factor: u64| {
        u128::from(rate.drain().get())
            * u128::from(other.unit().get())
            * u128::from(other.tick().micros())
            * u128::from(factor)
    };
    (side(rate(share), rate(limit), of), side(rate(limit), rate(share), part))
}

proptest! {
    #[test]
    fn window_shares_of_all_nodes_sum_to_at_most_the_limit(
        generated in windowed().prop_flat_map(limit_of),
        nodes in 1_u64..100,
    ) {
        let share = generated.limit.share(1, nodes);
        prop_assert_eq!(share.algorithm(), generated.limit.algorithm());
        if generated.spec.requests >= nodes {
            prop_assert!(share.capacity() * nodes <= generated.spec.requests);
            prop_assert!((share.capacity() + 1) * nodes > generated.spec.requests);
            prop_assert_eq!(window(&share), generated.spec.window);
        } else {
            prop_assert_eq!(share.capacity(), 1);
            let total = u128::from(window(&share).as_micros()) * u128::from(generated.spec.requests);
            let exact = u128::from(generated.spec.window.as_micros()) * u128::from(nodes);
            prop_assert!(total >= exact && total < exact + u128::from(generated.spec.requests));
        }
    }

    #[test]
    fn bucket_share_has_the_exact_rate(
        generated in bucketed().prop_flat_map(limit_of),
        part in 1_u64..20,
        more in 1_u64..200,
    ) {
        let of = part + more;
        let share = generated.limit.share(part, of);
        let (left, right) = rate_sides(&share, &generated.limit, part, of);
        prop_assert_eq!(left, right);
        let lent = generated.lent() * part / of;
        prop_assert_eq!(share.capacity(), (generated.burst() * part / of).max(1) + lent);
    }

    #[test]
    fn share_never_has_a_higher_rate_and_admits_at_least_one_request(
        generated in any_limit(),
        part in 0_u64..=u64::MAX,
        of in 1_u64..=u64::MAX,
    ) {
        let share = generated.limit.share(part, of);
        let one = share.evaluate(&CounterState::default(), Timestamp::from_secs(1_700_000_000), Cost::ONE);
        prop_assert!(one.verdict.is_pass());
        prop_assert!(share.capacity() <= generated.limit.capacity());
        let slowest = TimeSpan::MAX.as_micros() / 2;
        if bucketed_limit(&share) && u128::from(rate(&share).unit().get()) < u128::from(slowest) && part < of {
            let exact = units_per_microsecond(&generated.limit) * fraction(part.max(1), of);
            prop_assert!(units_per_microsecond(&share) <= exact * 1.000_000_001);
        }
    }

    #[test]
    fn fixed_window_nodes_with_shares_admit_at_most_the_limit_per_window(
        generated in limit_of(Algorithm::FixedWindow),
        nodes in 1_u64..8,
        start in start(),
        arrivals in forward(),
        picks in proptest::collection::vec(any::<prop::sample::Index>(), 60),
    ) {
        prop_assume!(generated.spec.requests >= nodes);
        let share = generated.limit.share(1, nodes);
        let mut states = vec![CounterState::default(); usize::try_from(nodes).unwrap()];
        let mut admitted = std::collections::HashMap::<u64, u64>::new();
        for (number, (now, cost)) in replay(&generated, start, &arrivals).into_iter().enumerate() {
            let state = picks[number].get_mut(&mut states);
            if share.step(state, now, cost).verdict.is_pass() {
                *admitted.entry(now.as_micros() / generated.spec.window.as_micros()).or_default() += cost.get();
            }
        }
        prop_assert!(admitted.values().all(|units| *units <= generated.spec.requests));
    }

    #[test]
    fn leaky_bucket_share_never_waits_longer_than_the_limit(
        generated in limit_of(Algorithm::LeakyBucket),
        nodes in 2_u64..8,
        start in start(),
        arrivals in forward(),
    ) {
        let share = generated.limit.share(1, nodes);
        let longest = generated.spec.max_wait.unwrap_or(LeakyBucket::DEFAULT_MAX_WAIT);
        let mut state = CounterState::default();
        for (now, cost) in replay(&generated, start, &arrivals) {
            if let Verdict::Pass { wait } = share.step(&mut state, now, cost).verdict {
                prop_assert!(wait <= longest, "{:?} > {:?}", wait, longest);
            }
        }
    }
}

/// Rates of random 64-bit parts do not fit 128 bits when multiplied out, so these compare in floating point.
fn units_per_microsecond(limit: &Limit) -> f64 {
    let rate = rate(limit);
    fraction(rate.drain().get(), rate.unit().get()) / fraction(rate.tick().micros(), 1)
}

#[expect(clippy::cast_precision_loss, reason = "compared with a tolerance")]
fn fraction(part: u64, of: u64) -> f64 {
    part as f64 / of as f64
}

fn bucketed_limit(limit: &Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket)
}

#[test]
fn share_of_300_per_minute_over_three_nodes_is_100_per_minute() {
    let spec = Spec::new(300, TimeSpan::from_secs(60));
    let fixed = Limit::new(Algorithm::FixedWindow, spec).unwrap();
    assert_eq!(
        fixed.share(1, 3),
        Limit::new(Algorithm::FixedWindow, Spec { requests: 100, ..spec }).unwrap()
    );
    let bucket = Limit::new(Algorithm::TokenBucket, spec).unwrap();
    assert_eq!(
        bucket.share(1, 3),
        Limit::new(Algorithm::TokenBucket, Spec { requests: 100, ..spec }).unwrap()
    );
    assert_eq!(bucket.share(3, 3), bucket);
    assert_eq!(bucket.share(4, 3), bucket);
}

#[test]
fn share_of_less_than_one_request_has_a_longer_window() {
    let limit = Limit::new(Algorithm::FixedWindow, Spec::new(2, TimeSpan::from_secs(60))).unwrap();
    let slow = Limit::new(Algorithm::FixedWindow, Spec::new(1, TimeSpan::from_secs(150))).unwrap();
    assert_eq!(limit.share(1, 5), slow);
}

#[test]
fn bucket_share_that_cannot_be_exact_has_the_next_smaller_rate() {
    let spec = Spec { burst: Some(1), ..Spec::new(1_000_003, TimeSpan::from_secs(100 * 365 * 86_400)) };
    let limit = Limit::new(Algorithm::TokenBucket, spec).unwrap();
    let share = limit.share(999_983, 1_000_000_007);
    let (left, right) = rate_sides(&share, &limit, 999_983, 1_000_000_007);
    assert!(left < right, "not larger");
    assert!(left > right - right / 1_000, "nor much smaller: {left} {right}");
}
