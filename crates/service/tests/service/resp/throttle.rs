//! `CL.THROTTLE` against a model of redis-cell.

use proptest::prelude::*;
use tidegate_core::TimeSpan;

use super::{RespClient, error, integers};
use crate::fixture::TestService;

/// Generic cell rate algorithm as redis-cell publishes it, in exact arithmetic: times are in units of 1/count µs, so that the
/// emission interval `period / count` is a whole number.
struct CellModel {
    max_burst: i128,
    count: i128,
    period: i128,
    /// The theoretical arrival time; `None` for an unused key.
    arrival: Option<i128>,
}

impl CellModel {
    fn new(max_burst: i64, count: i64, period: i64) -> Self {
        Self { max_burst: max_burst.into(), count: count.into(), period: period.into(), arrival: None }
    }

    /// The reply at `now`, in microseconds.
    fn throttle(&mut self, quantity: i64, now: u64) -> [i64; 5] {
        let now = i128::from(now) * self.count;
        let interval = self.period * 1_000_000;
        let limit = self.max_burst + 1;
        let tolerance = interval * limit;
        let increment = interval * i128::from(quantity);
        // An arrival time in the past is that of an unused key.
        let arrival = self.arrival.unwrap_or(now).max(now);
        let new_arrival = arrival + increment;
        let excess = new_arrival - tolerance - now;
        let (is_limited, retry_after, until_reset) = if excess > 0 {
            let retry_after = (increment <= tolerance).then_some(excess);
            (true, retry_after, arrival - now)
        } else {
            self.arrival = Some(new_arrival);
            (false, None, new_arrival - now)
        };
        let seconds = |units: i128| -(-units).div_euclid(self.count * 1_000_000);
        let reply = [
            i128::from(is_limited),
            limit,
            (tolerance - until_reset).max(0) / interval,
            retry_after.map_or(-1, seconds),
            seconds(until_reset),
        ];
        reply.map(|number| i64::try_from(number).unwrap())
    }
}

/// One command: milliseconds after the one before, the quantity.
type Step = (u64, i64);
/// The burst, the count and the period of a limit, and commands with it.
type LimitCase<'c> = ((i64, i64, i64), &'c [Step]);

/// Compares the replies to commands on a new key with those of the model.
fn compare(service: &TestService, client: &mut RespClient, limit: (i64, i64, i64), steps: &[Step]) -> usize {
    let key = new_key();
    let (max_burst, count, period) = limit;
    let mut model = CellModel::new(max_burst, count, period);
    for (index, (millis, quantity)) in steps.iter().enumerate() {
        service.clock.advance(TimeSpan::from_millis(*millis));
        let now = tidegate_store::Clock::now(&*service.clock).as_micros();
        let command = format!("CL.THROTTLE {key} {max_burst} {count} {period} {quantity}");
        let expected = integers(&model.throttle(*quantity, now));
        assert_eq!(client.call(&command), expected, "{limit:?}, step {index} of {steps:?}");
    }
    steps.len()
}

/// Compares the replies to commands with several limits on one key with those of a model for each rate.
fn compare_mixed(limits: &[(i64, i64, i64)], steps: &[(usize, u64, i64)]) {
    let service = TestService::start("{}");
    let mut client = RespClient::connect(&service);
    let mut arrivals = std::collections::HashMap::new();
    for (index, &(limit, millis, quantity)) in steps.iter().enumerate() {
        service.clock.advance(TimeSpan::from_millis(millis));
        let now = tidegate_store::Clock::now(&*service.clock).as_micros();
        let (max_burst, count, period) = limits[limit % limits.len()];
        // 30 per 60 seconds is the same rate as 1 per 2 seconds.
        let divisor = gcd(count, period);
        let rate = (count / divisor, period / divisor);
        let mut model = CellModel::new(max_burst, rate.0, rate.1);
        let arrival = arrivals.entry(rate).or_insert(None);
        model.arrival = *arrival;
        let expected = integers(&model.throttle(quantity, now));
        *arrival = model.arrival;
        let command = format!("CL.THROTTLE key {max_burst} {count} {period} {quantity}");
        assert_eq!(client.call(&command), expected, "{limits:?}, step {index} of {steps:?}");
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A key that no other call returns.
fn new_key() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("key:{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

#[test]
fn throttle_published_cases_have_the_replies_of_redis_cell() {
    let service = TestService::start("{}");
    let mut client = RespClient::connect(&service);
    let cases: [LimitCase<'_>; 9] = [
        // The example of its documentation: 30 per minute, 16 at once.
        ((15, 30, 60), &[(0, 1), (0, 1), (0, 0), (1_000, 1), (0, 13), (0, 1), (500, 1), (2_000, 1)]),
        // The cases of its own tests: 1 per second, 5 at once.
        (
            (4, 1, 1),
            &[
                (0, 6),
                (0, 1),
                (0, 1),
                (0, 1),
                (0, 1),
                (0, 1),
                (0, 1),
                (3_000, 1),
                (100, 1),
                (900, 1),
                (4_000, 1),
                (1_500, 1),
                (0, 0),
                (0, 2),
                (0, 5),
            ],
        ),
        // No burst.
        ((0, 1, 10), &[(0, 1), (0, 1), (9_999, 1), (1, 1), (10_000, 0), (0, 2)]),
        // Intervals that are not whole milliseconds.
        ((2, 3, 1), &[(0, 1), (0, 1), (0, 1), (0, 1), (333, 1), (1, 1), (332, 1), (1, 1)]),
        ((6, 7, 60), &[(0, 3), (0, 4), (0, 1), (8_571, 1), (1, 1), (100_000, 0)]),
        // Quantities: peek, all at once, more than the burst, zero after everything is spent.
        ((9, 10, 60), &[(0, 0), (0, 10), (0, 0), (0, 1), (0, 11), (6_000, 1), (0, 2), (60_000, 11)]),
        // A long period, and a high rate.
        ((1, 1, 31_536_000), &[(0, 1), (0, 1), (0, 1), (31_536_000_000, 1), (0, 1)]),
        ((99_999, 100_000, 1), &[(0, 100_000), (0, 1), (1, 100), (0, 1), (500, 50_000), (0, 0)]),
        ((0, 1_000_000, 1), &[(0, 1), (0, 1), (1, 1), (0, 0)]),
    ];
    let compared: usize =
        cases.iter().map(|(limit, steps)| compare(&service, &mut client, *limit, steps)).sum();
    assert!(compared >= 60, "{compared}");
}

#[test]
fn throttle_example_of_redis_cell_has_its_literal_replies() {
    let service = TestService::start("{}");
    let mut client = RespClient::connect(&service);
    assert_eq!(client.call("CL.THROTTLE user123 15 30 60 1"), integers(&[0, 16, 15, -1, 2]));
    assert_eq!(client.call("cl.throttle user123 15 30 60"), integers(&[0, 16, 14, -1, 4]));
    assert_eq!(client.call("CL.THROTTLE user123 15 30 60 0"), integers(&[0, 16, 14, -1, 4]));
    assert_eq!(client.call("CL.THROTTLE user123 15 30 60 14"), integers(&[0, 16, 0, -1, 32]));
    assert_eq!(client.call("CL.THROTTLE user123 15 30 60"), integers(&[1, 16, 0, 2, 32]));
    assert_eq!(client.call("CL.THROTTLE user123 15 30 60 17"), integers(&[1, 16, 0, -1, 32]));
    service.clock.advance(TimeSpan::from_millis(1_001));
    assert_eq!(client.call("CL.THROTTLE user123 15 30 60"), integers(&[1, 16, 0, 1, 31]));
    service.clock.advance(TimeSpan::from_millis(999));
    assert_eq!(client.call("CL.THROTTLE user123 15 30 60"), integers(&[0, 16, 0, -1, 32]));
}

#[test]
fn throttle_keys_have_separate_counters_and_differ_from_rules() {
    let service = TestService::start("rate_limits: { default: { requests: 1, window: 1m } }");
    let mut client = RespClient::connect(&service);
    for key in ["a", "b", "", "user:bob"] {
        let command = format!("CL.THROTTLE {key} 0 1 60");
        assert_eq!(client.call(&command), integers(&[0, 1, 0, -1, 60]), "{key:?}");
        assert_eq!(client.call(&command), integers(&[1, 1, 0, 60, 60]), "{key:?}");
    }
    let super::Reply::Array(checked) = client.call("TIDEGATE.CHECK default user:bob") else { panic!() };
    assert_eq!(checked[0], super::Reply::Integer(1));
}

#[test]
fn throttle_limits_with_the_same_digits_are_different_limits() {
    let service = TestService::start("{}");
    let mut client = RespClient::connect(&service);
    let commands = [("15 3 60", 16), ("1 53 60", 2), ("1 5 360", 2), ("15 36 0", 0), ("15 3 60", 16)];
    for (number, (limit, capacity)) in commands.into_iter().enumerate() {
        for is_inline in [true, false] {
            let words = format!("CL.THROTTLE {is_inline}{number} {limit}");
            client.send(if is_inline { format!("{words}\r\n").into_bytes() } else { super::encode(&words) });
            match client.reply() {
                super::Reply::Array(reply) => {
                    assert_eq!(reply[1], super::Reply::Integer(capacity), "{words}");
                }
                reply => {
                    assert_eq!((capacity, matches!(reply, super::Reply::Error(_))), (0, true), "{words}");
                }
            }
        }
    }
}

#[test]
fn throttle_fast_limit_on_a_key_does_not_drain_a_slow_one() {
    let service = TestService::start("{}");
    let mut client = RespClient::connect(&service);
    let admitted = (0..400).filter(|_| {
        let is_admitted = client.call("CL.THROTTLE key 99 100 86400") != integers(&[1, 100, 0, 864, 86_400]);
        // Neither a charge nor a peek with another rate changes the slow counter.
        for quantity in [1, 0] {
            client.call(&format!("CL.THROTTLE key 199 200 1 {quantity}"));
        }
        is_admitted
    });
    assert_eq!(admitted.count(), 100);
}

#[test]
fn throttle_invalid_arguments_state_what_is_wrong() {
    let service = TestService::start("{}");
    let mut client = RespClient::connect(&service);
    let cases = [
        ("CL.THROTTLE", "ERR wrong number of arguments for 'cl.throttle' command"),
        ("CL.THROTTLE k 1 1", "ERR wrong number of arguments for 'cl.throttle' command"),
        ("CL.THROTTLE k 1 1 1 1 1", "ERR wrong number of arguments for 'cl.throttle' command"),
        ("CL.THROTTLE k x 1 1", "ERR max_burst is not an integer or out of range"),
        ("CL.THROTTLE k 1 1.5 1", "ERR count is not an integer or out of range"),
        ("CL.THROTTLE k 1 1 9223372036854775808", "ERR period is not an integer or out of range"),
        ("CL.THROTTLE k 1 1 1 ", "ERR quantity is not an integer or out of range"),
        ("CL.THROTTLE k -1 1 1", "ERR max_burst must not be negative"),
        ("CL.THROTTLE k 1 -1 1", "ERR count must not be negative"),
        ("CL.THROTTLE k 1 1 -1", "ERR period must not be negative"),
        ("CL.THROTTLE k 1 1 1 -1", "ERR quantity must not be negative"),
        ("CL.THROTTLE k 1 0 1", "ERR count must be positive"),
        ("CL.THROTTLE k 1 1 0", "ERR period must be positive"),
        (
            "CL.THROTTLE k 9223372036854775806 9223372036854775807 86399",
            "ERR 9223372036854775807 per 86399 s with a burst of 9223372036854775807 cannot be counted exactly; \
             use a smaller count or burst, a shorter period or rounder numbers",
        ),
    ];
    for (command, expected) in cases {
        assert_eq!(client.call(command), error(expected), "{command}");
    }
    // The connection stays usable.
    assert_eq!(client.call("CL.THROTTLE k 0 1 1"), integers(&[0, 1, 0, -1, 1]));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn throttle_any_commands_have_the_replies_of_the_model(
        max_burst in 0_i64..50,
        count in 1_i64..2_000,
        period in 1_i64..4_000,
        steps in prop::collection::vec((0_u64..20_000, 0_i64..60), 1..30),
    ) {
        let service = TestService::start("{}");
        let mut client = RespClient::connect(&service);
        compare(&service, &mut client, (max_burst, count, period), &steps);
    }

    /// As long as `max_burst + 1` periods are at most 285 years, time is counted in microseconds.
    #[test]
    fn throttle_periods_of_up_to_a_year_have_the_replies_of_the_model(
        max_burst in 0_i64..280,
        count in 1_i64..100_000,
        period in 1_i64..31_622_400,
        steps in prop::collection::vec((0_u64..200_000_000, 0_i64..300), 1..30),
    ) {
        let service = TestService::start("{}");
        let mut client = RespClient::connect(&service);
        compare(&service, &mut client, (max_burst, count, period), &steps);
    }

    #[test]
    fn throttle_mixed_limits_on_one_key_have_the_replies_of_the_models(
        rates in prop::collection::vec((1_i64..2_000, 1_i64..4_000, 1_i64..4), 1..4),
        bursts in prop::collection::vec(0_i64..50, 1..4),
        steps in prop::collection::vec((0_usize..32, 0_u64..20_000, 0_i64..60), 1..40),
    ) {
        let limits = rates.iter().flat_map(|&(count, period, factor)| {
            let limit = move |&burst| [(burst, count, period), (burst, count * factor, period * factor)];
            bursts.iter().flat_map(limit)
        });
        compare_mixed(&limits.collect::<Vec<_>>(), &steps);
    }
}
