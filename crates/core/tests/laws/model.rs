//! An independent model in 128-bit rationals, written from the definitions and not from the code. It has the same
//! verdict, remaining, `retry_after`, `reset_after` and wait in every field.

use proptest::prelude::*;
use tidegate_core::{Algorithm, Borrow, Cost, CounterState, Outcome, TimeSpan, Timestamp, Verdict};

use crate::generate::{GeneratedLimit, any_direction, any_limit, limit_of, replay, start};

/// The expected outcome of a cost at an instant. Times are ticks since the epoch.
struct ModelOutcome {
    fits: bool,
    never: bool,
    /// The first tick at which it fits, if it does not fit now.
    fits_at: i128,
    departs: i128,
    left: i128,
    fresh_at: i128,
}

trait Model {
    fn evaluate(&self, tick: i128, cost: i128) -> ModelOutcome;
    fn charge(&mut self, tick: i128, cost: i128);
}

fn ceil_div(a: i128, b: i128) -> i128 {
    (a + b - 1).div_euclid(b)
}

/// When the bucket is full again, as a fraction of a tick over `count`; at any time before, `count / period`
/// tokens less per tick. Each token beyond `burst` costs `repay` tokens, and there are `units` of them.
struct Tokens {
    count: i128,
    period: i128,
    burst: i128,
    units: i128,
    repay: i128,
    full_at: i128,
}

impl Tokens {
    /// What is missing.
    fn missing(&self, tick: i128) -> i128 {
        (self.full_at - tick * self.count).max(0)
    }

    fn own(&self) -> i128 {
        self.burst * self.period
    }

    /// What can be taken when this much is missing, times `repay`.
    fn available(&self, missing: i128) -> i128 {
        let own = (self.own() - missing).max(0);
        let debt = (missing - self.own()).max(0);
        (own + self.units * self.period) * self.repay - debt
    }

    fn fits(&self, tick: i128, needs: i128) -> bool {
        needs * self.repay <= self.available(self.missing(tick))
    }

    /// What is missing after `needs` was taken.
    fn after(&self, missing: i128, needs: i128) -> i128 {
        let own = (self.own() - missing).max(0).min(needs);
        missing + own + (needs - own) * self.repay
    }
}

impl Model for Tokens {
    fn evaluate(&self, tick: i128, cost: i128) -> ModelOutcome {
        let needs = cost * self.period;
        let missing = self.missing(tick);
        let (fits, never) = (self.fits(tick, needs), cost > self.burst + self.units);
        let after = if fits { self.after(missing, needs) } else { missing };
        // By bisection: it only fills while nothing is taken.
        let (mut low, mut high) = (tick, tick + ceil_div(missing, self.count));
        while low < high && !never {
            let middle = (low + high).div_euclid(2);
            if self.fits(middle, needs) { high = middle } else { low = middle + 1 }
        }
        ModelOutcome {
            fits,
            never,
            fits_at: low,
            departs: tick,
            left: self.available(after).div_euclid(self.period * self.repay),
            fresh_at: tick + ceil_div(after, self.count),
        }
    }

    fn charge(&mut self, tick: i128, cost: i128) {
        self.full_at = tick * self.count + self.after(self.missing(tick), cost * self.period);
    }
}

/// The next departure as a fraction of a tick over `count`.
struct Queue {
    count: i128,
    period: i128,
    burst: i128,
    max_wait: i128,
    next: i128,
}

impl Model for Queue {
    fn evaluate(&self, tick: i128, cost: i128) -> ModelOutcome {
        let departs = self.next.max(tick * self.count);
        // The bucket holds at most `burst`, and a request departs at most `max_wait` ticks after its arrival.
        let full = tick * self.count + self.burst * self.period;
        let last_departure = (tick + self.max_wait) * self.count;
        let fits = departs + cost * self.period <= full && departs <= last_departure;
        let next = if fits { departs + cost * self.period } else { departs };
        let has_room = ceil_div(departs + (cost - self.burst) * self.period, self.count);
        let departs = ceil_div(departs, self.count);
        ModelOutcome {
            fits,
            never: cost > self.burst,
            fits_at: has_room.max(departs - self.max_wait),
            departs,
            // Single units: the last of them departs within `max_wait`, too.
            left: (full - next).min(last_departure + self.period - next).div_euclid(self.period),
            fresh_at: ceil_div(next, self.count),
        }
    }

    fn charge(&mut self, tick: i128, cost: i128) {
        self.next = self.next.max(tick * self.count) + cost * self.period;
    }
}

/// All charges, with the instant at which each counts.
struct ChargeList {
    algorithm: Algorithm,
    requests: i128,
    window: i128,
    charges: Vec<(i128, i128)>,
}

impl ChargeList {
    fn forward(&self, tick: i128) -> i128 {
        self.charges.last().map_or(tick, |(at, _)| {
            // Time never goes back to an earlier window; the log never goes back behind its newest entry.
            if self.algorithm == Algorithm::SlidingLog || at / self.window > tick / self.window {
                tick.max(*at)
            } else {
                tick
            }
        })
    }

    fn sum(&self, inside: impl Fn(i128) -> bool) -> i128 {
        self.charges.iter().filter(|(at, _)| inside(*at)).map(|(_, units)| units).sum()
    }

    fn used(&self, tick: i128) -> i128 {
        let window = tick / self.window;
        let of = |number: i128| self.sum(|at| at / self.window == number);
        match self.algorithm {
            Algorithm::FixedWindow => of(window),
            Algorithm::SlidingLog => self.sum(|at| at > tick - self.window && at <= tick),
            _ => {
                let inside = self.window - (tick - window * self.window);
                (of(window - 1) * inside).div_euclid(self.window) + of(window)
            }
        }
    }

    /// By bisection: usage only falls while nothing is charged.
    fn first_with_at_most(&self, from: i128, most: i128) -> i128 {
        let (mut low, mut high) = (from, from + 3 * self.window);
        while low < high {
            let middle = (low + high).div_euclid(2);
            if self.used(middle) <= most { high = middle } else { low = middle + 1 }
        }
        low
    }
}

impl Model for ChargeList {
    fn evaluate(&self, tick: i128, cost: i128) -> ModelOutcome {
        // If time went back before its window, a sliding counter uses the start of the window.
        let seen = match self.forward(tick) {
            seen if seen > tick && self.algorithm == Algorithm::SlidingCounter => {
                seen / self.window * self.window
            }
            seen => seen,
        };
        let used = self.used(seen);
        let fits = used + cost <= self.requests;
        let mut after = Self { charges: self.charges.clone(), ..*self };
        if fits && cost > 0 {
            after.charge(tick, cost);
        }
        let fresh_at = match self.algorithm {
            Algorithm::FixedWindow => (seen / self.window + 1) * self.window,
            _ if after.used(seen) == 0 => tick,
            _ => after.first_with_at_most(seen, 0),
        };
        ModelOutcome {
            fits,
            never: cost > self.requests,
            fits_at: if fits || cost > self.requests {
                tick
            } else {
                self.first_with_at_most(seen, self.requests - cost)
            },
            departs: tick,
            left: self.requests - after.used(seen),
            fresh_at,
        }
    }

    fn charge(&mut self, tick: i128, cost: i128) {
        let seen = self.forward(tick);
        self.charges.push((seen, cost));
    }
}

fn model(generated: &GeneratedLimit) -> Box<dyn Model> {
    let count = i128::from(generated.spec.requests);
    let period = i128::from(generated.period());
    let burst = i128::from(generated.burst());
    match generated.limit.algorithm() {
        Algorithm::TokenBucket => {
            let (units, repay) = match generated.spec.borrow {
                Some(Borrow { units, repay }) => (i128::from(units), i128::from(repay)),
                None => (0, 1),
            };
            Box::new(Tokens { count, period, burst, units, repay, full_at: 0 })
        }
        Algorithm::LeakyBucket => {
            let max_wait = i128::from(generated.max_wait());
            Box::new(Queue { count, period, burst, max_wait, next: 0 })
        }
        algorithm @ (Algorithm::FixedWindow | Algorithm::SlidingLog | Algorithm::SlidingCounter) => {
            Box::new(ChargeList { algorithm, requests: count, window: period, charges: Vec::new() })
        }
    }
}

fn expected(generated: &GeneratedLimit, model: &dyn Model, now: Timestamp, cost: Cost) -> Outcome {
    let tick = i128::from(generated.tick_of(now));
    let outcome = model.evaluate(tick, i128::from(cost.get()));
    let until = |at: i128| {
        let micros = at * i128::from(generated.limit.tick().micros()) - i128::from(now.as_micros());
        TimeSpan::from_micros(u64::try_from(micros.max(0)).unwrap_or(u64::MAX))
    };
    let verdict = if outcome.never {
        Verdict::Never
    } else if outcome.fits {
        let waits = outcome.departs > tick;
        Verdict::Pass { wait: if waits { until(outcome.departs) } else { TimeSpan::ZERO } }
    } else {
        Verdict::NotUntil { retry_after: until(outcome.fits_at) }
    };
    let remaining = u64::try_from(outcome.left.max(0)).expect("the remaining units are below the limit");
    let reset_after = until(outcome.fresh_at);
    Outcome::new(verdict, generated.limit.capacity(), remaining, reset_after)
}

fn assert_model_agrees(generated: &GeneratedLimit, trace: &[(Timestamp, Cost)]) -> Result<(), TestCaseError> {
    let mut model = model(generated);
    let mut state = CounterState::default();
    for &(now, cost) in trace {
        let expected = expected(generated, &*model, now, cost);
        let outcome = generated.limit.step(&mut state, now, cost);
        prop_assert_eq!(outcome, expected, "cost {} at {:?}", cost.get(), now);
        if outcome.verdict.is_pass() && cost > Cost::ZERO {
            model.charge(i128::from(generated.tick_of(now)), i128::from(cost.get()));
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn algorithm_equals_a_128_bit_rational_model_in_every_field(
        generated in any_limit(), start in start(), arrivals in any_direction()
    ) {
        assert_model_agrees(&generated, &replay(&generated, start, &arrivals))?;
    }

    #[test]
    fn sliding_log_equals_a_naive_list_of_instants(
        generated in limit_of(Algorithm::SlidingLog), start in start(), arrivals in any_direction()
    ) {
        assert_model_agrees(&generated, &replay(&generated, start, &arrivals))?;
    }
}
