//! How much may pass: each algorithm's promise, checked over every interval of what was admitted.

use proptest::prelude::*;
use tidegate_core::{Algorithm, Cost, CounterState, Timestamp, Verdict};

use crate::generate::{Made, any_made, forward, made, play, start, unruly};

/// An admitted request, in ticks of its limit.
#[derive(Clone, Copy, Debug)]
struct Admitted {
    at: u128,
    departs: u128,
    units: u128,
}

fn admit(made: &Made, trace: &[(Timestamp, Cost)]) -> Vec<Admitted> {
    let mut state = CounterState::default();
    let mut newest = Timestamp::ZERO;
    let mut admitted = Vec::new();
    for &(now, cost) in trace.iter().filter(|(_, cost)| *cost > Cost::ZERO) {
        if let Verdict::Pass { wait } = made.limit.step(&mut state, now, cost).verdict {
            newest = newest.max(now);
            admitted.push(Admitted {
                at: u128::from(made.tick_of(newest)),
                departs: u128::from(made.tick_of(now + wait)),
                units: u128::from(cost.get()),
            });
        }
    }
    admitted
}

/// Checks the promise of `made` over every interval that begins and ends with an admission.
fn keeps_its_promise(made: &Made, admitted: &[Admitted]) -> Result<(), TestCaseError> {
    let requests = u128::from(made.spec.requests);
    let period = u128::from(made.period());
    let burst = u128::from(made.burst());
    for (first, from) in admitted.iter().enumerate() {
        let mut units = 0;
        for to in &admitted[first..] {
            units += to.units;
            let length = to.at - from.at;
            let within = match made.limit.algorithm() {
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
    fn no_interval_admits_more_than_the_algorithms_bound(
        made in any_made(), start in start(), arrivals in forward()
    ) {
        keeps_its_promise(&made, &admit(&made, &play(&made, start, &arrivals)))?;
    }

    /// Measured on the newest time of an admission: what a state can know of time is what was charged to it.
    #[test]
    fn time_that_goes_backwards_never_admits_more(
        made in any_made(), start in start(), arrivals in unruly()
    ) {
        keeps_its_promise(&made, &admit(&made, &play(&made, start, &arrivals)))?;
    }

    #[test]
    fn an_earlier_now_never_leaves_more(
        made in any_made(), start in start(), arrivals in unruly(), back in 0_u64..10_000_000_000
    ) {
        let mut state = CounterState::default();
        for (now, cost) in play(&made, start, &arrivals) {
            made.limit.step(&mut state, now, cost);
            let earlier = Timestamp::from_micros(now.as_micros().saturating_sub(back));
            let then = made.limit.evaluate(&state, earlier, Cost::ZERO).remaining;
            prop_assert!(then <= made.limit.evaluate(&state, now, Cost::ZERO).remaining);
        }
    }

    #[test]
    fn departures_of_a_leaky_bucket_are_never_closer_than_its_rate(
        made in made(Algorithm::LeakyBucket), start in start(), arrivals in forward()
    ) {
        let admitted = admit(&made, &play(&made, start, &arrivals));
        let (requests, period) = (u128::from(made.spec.requests), u128::from(made.period()));
        for (first, from) in admitted.iter().enumerate() {
            let mut units = from.units;
            for to in &admitted[first + 1..] {
                // Exact departures are rationals; each is seen at the first tick not before it.
                prop_assert!(units * period < requests * (to.departs - from.departs + 1));
                units += to.units;
            }
        }
    }

    #[test]
    fn leaky_bucket_holds_at_most_burst_the_departing_request_included(
        made in made(Algorithm::LeakyBucket), start in start(), arrivals in forward()
    ) {
        let admitted = admit(&made, &play(&made, start, &arrivals));
        for (position, one) in admitted.iter().enumerate() {
            let waiting = admitted[..=position].iter().filter(|other| other.departs > one.at);
            let requests = waiting.count() as u128;
            prop_assert!(requests < u128::from(made.burst()), "{requests} wait at {}", one.at);
        }
    }
}
