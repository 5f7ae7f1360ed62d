//! The waits between attempts: their ranges and means, for all kinds of jitter.

use tidegate_core::{Backoff, Jitter, TimeSpan};

const BASE: f64 = 1.0;
const CAP: f64 = 30.0;
const CALLS: u32 = 20_000;

/// Draws the waits of one retry for many calls: the waits before it, and the wait.
fn draw(jitter: Jitter, retry: usize, mut visit: impl FnMut(f64, f64)) {
    let backoff = Backoff::new(TimeSpan::from_secs(1), TimeSpan::from_secs(30), jitter).unwrap();
    let mut random = fastrand::Rng::with_seed(15);
    let mut next = move |delays: &mut tidegate_core::BackoffDelays| {
        std::time::Duration::from(delays.next_delay(random.u64(..))).as_secs_f64()
    };
    for _ in 0..CALLS {
        let mut delays = backoff.delays();
        let mut previous = BASE;
        for _ in 1..retry {
            previous = next(&mut delays);
        }
        visit(previous, next(&mut delays));
    }
}

fn exponential(retry: usize) -> f64 {
    (BASE * f64::from(1 << (retry - 1))).min(CAP)
}

/// Checks that all waits of each retry are within the range, and that their mean is at the same share of it.
fn check(jitter: Jitter, range: fn(f64) -> (f64, f64)) {
    for retry in 1..=7 {
        let (low, high) = range(exponential(retry));
        let mut sum = 0.0;
        draw(jitter, retry, |_, wait| {
            assert!((low..=high).contains(&wait), "{jitter:?} {retry}: {wait} in {low}..={high}");
            sum += wait;
        });
        let (mean, expected) = (sum / f64::from(CALLS), f64::midpoint(low, high));
        assert!(
            (mean - expected).abs() <= 0.02 * high,
            "{jitter:?} {retry}: mean {mean}, expected {expected}"
        );
    }
}

#[test]
fn backoff_without_jitter_is_exponential() {
    check(Jitter::None, |exponential| (exponential, exponential));
}

#[test]
fn backoff_with_full_jitter_is_uniform_from_zero() {
    check(Jitter::Full, |exponential| (0.0, exponential));
}

#[test]
fn backoff_with_equal_jitter_is_uniform_from_half() {
    check(Jitter::Equal, |exponential| (exponential / 2.0, exponential));
}

#[test]
fn backoff_with_decorrelated_jitter_is_uniform_from_base_to_three_times_the_wait_before() {
    for retry in 1..=7 {
        let (mut sum, mut expected) = (0.0, 0.0);
        draw(Jitter::Decorrelated, retry, |previous, wait| {
            let high = previous * 3.0;
            assert!(wait >= BASE && wait <= high.min(CAP) + 1e-6, "{retry}: {wait} after {previous}");
            sum += wait;
            // The mean of a uniform wait from the base to `high` that is cut off at the cap.
            expected += if high <= CAP {
                f64::midpoint(BASE, high)
            } else {
                (f64::midpoint(BASE, CAP) * (CAP - BASE) + CAP * (high - CAP)) / (high - BASE)
            };
        });
        assert!((sum / expected - 1.0).abs() < 0.02, "{retry}: {sum} {expected}");
    }
}
