//! Each algorithm's upper bound, checked over every interval of admitted requests.

use proptest::prelude::*;
use tidegate_core::{Algorithm, Cost, CounterState, Timestamp, Verdict};

use crate::generate::{GeneratedLimit, any_direction, any_limit, forward, limit_of, replay, start};

/// An admitted request, in ticks of its limit.
#[derive(Clone, Copy, Debug)]
struct Admitted {
    at: u128,
    departs: u128,
    units: u128,
}

fn admit(generated: &GeneratedLimit, trace: &[(Timestamp, Cost)]) -> Vec<Admitted> {
    let mut state = CounterState::default();
    let mut newest = Timestamp::ZERO;
    let mut admitted = Vec::new();
    for &(now, cost) in trace.iter().filter(|(_, cost)| *cost > Cost::ZERO) {
        if let Verdict::Pass { wait } = generated.limit.step(&mut state, now, cost).verdict {
            newest = newest.max(now);
            admitted.push(Admitted {
                at: u128::from(generated.tick_of(newest)),
                departs: u128::from(generated.tick_of(now + wait)),
                units: u128::from(cost.get()),
            });
        }
    }
    admitted
}

/// Checks the bound of `generated` over every interval that begins and ends with an admission.
fn assert_bound(generated: &GeneratedLimit, admitted: &[Admitted]) -> Result<(), TestCaseError> {
    let requests = u128::from(generated.spec.requests);
    let period = u128::from(generated.period());
    let burst = u128::from(generated.burst() + generated.lent());
    for (first, from) in admitted.iter().enumerate() {
        let mut units = 0;
        for to in &admitted[first..] {
            units += to.units;
            let length = to.at - from.at;
            let within = match generated.limit.algorithm() {
                Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                    units * period <= burst * period + requests * length
                }
                Algorithm::FixedWindow if from.at / period == to.at / period => units <= requests,
                Algorithm::SlidingLog if length < period => units <= requests,
                Algorithm::FixedWindow | Algorithm::SlidingCounter if length < period => {
                    units <= 2 * requests
                }
                Algorithm::FixedWindow | Algorithm::SlidingLog | Algorithm::SlidingCounter => true,
            };
            prop_assert!(within, "{units} units within {length} ticks, from {from:?} to {to:?}");
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_interval_admits_at_most_the_algorithms_bound(
        generated in any_limit(), start in start(), arrivals in forward()
    ) {
        assert_bound(&generated, &admit(&generated, &replay(&generated, start, &arrivals)))?;
    }

    /// Measured on the newest time of an admission, because a state knows only the times of its charges.
    #[test]
    fn time_going_backwards_never_admits_more(
        generated in any_limit(), start in start(), arrivals in any_direction()
    ) {
        assert_bound(&generated, &admit(&generated, &replay(&generated, start, &arrivals)))?;
    }

    #[test]
    fn earlier_time_never_has_more_remaining(
        generated in any_limit(), start in start(), arrivals in any_direction(), back in 0_u64..10_000_000_000
    ) {
        let mut state = CounterState::default();
        for (now, cost) in replay(&generated, start, &arrivals) {
            generated.limit.step(&mut state, now, cost);
            let earlier = Timestamp::from_micros(now.as_micros().saturating_sub(back));
            let then = generated.limit.evaluate(&state, earlier, Cost::ZERO).remaining;
            prop_assert!(then <= generated.limit.evaluate(&state, now, Cost::ZERO).remaining);
        }
    }

    /// Single units depart from a limit that is used up, each as soon as it fits.
    #[test]
    fn waiting_units_never_depart_sooner_than_the_least_time(
        generated in any_limit(), start in start(), arrivals in forward(), waiting in 1_u64..60
    ) {
        let limit = &generated.limit;
        let (mut state, mut now) = (CounterState::default(), start);
        for (at, cost) in replay(&generated, start, &arrivals) {
            limit.step(&mut state, at, cost);
            now = at;
        }
        while limit.step(&mut state, now, Cost::ONE).verdict.is_pass() {}
        let mut first = None;
        for more in 0..waiting {
            if let Verdict::NotUntil { retry_after } = limit.evaluate(&state, now, Cost::ONE).verdict {
                now = now + retry_after;
            }
            limit.charge(&mut state, now, Cost::ONE);
            let first = *first.get_or_insert(now);
            prop_assert!(now.since(first) >= limit.least_time_between(1, more), "{more} after the first");
        }
    }

    #[test]
    fn leaky_bucket_departures_are_never_closer_than_its_rate(
        generated in limit_of(Algorithm::LeakyBucket), start in start(), arrivals in forward()
    ) {
        let admitted = admit(&generated, &replay(&generated, start, &arrivals));
        let (requests, period) = (u128::from(generated.spec.requests), u128::from(generated.period()));
        for (first, from) in admitted.iter().enumerate() {
            let mut units = from.units;
            for to in &admitted[first + 1..] {
                // Exact departures are rationals; each is rounded up to a tick.
                prop_assert!(units * period < requests * (to.departs - from.departs + 1));
                units += to.units;
            }
        }
    }

    #[test]
    fn leaky_bucket_holds_at_most_burst_the_departing_request_included(
        generated in limit_of(Algorithm::LeakyBucket), start in start(), arrivals in forward()
    ) {
        let admitted = admit(&generated, &replay(&generated, start, &arrivals));
        for (position, one) in admitted.iter().enumerate() {
            let waiting = admitted[..=position].iter().filter(|other| other.departs > one.at);
            let requests = waiting.count() as u128;
            prop_assert!(requests < u128::from(generated.burst()), "{requests} wait at {}", one.at);
        }
    }
}
