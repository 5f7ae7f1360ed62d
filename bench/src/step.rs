//! The cost of the arithmetic: one step of each algorithm on a given state.

use std::hint::black_box;
use std::time::Instant;

use tidegate_core::{Algorithm, Cost, CounterState, Limit, Spec, TimeSpan, Timestamp};

use crate::{median, nanos_each};

const STEPS: u64 = 1_000_000;

pub(crate) fn run() -> anyhow::Result<()> {
    println!("{:24} {:>12} {:>12}", "ns per step", "admitted", "rejected");
    for &algorithm in Algorithm::ALL {
        let limit = Limit::new(algorithm, Spec::new(100, TimeSpan::from_secs(1)))?;
        // One unit is refilled every 10 ms: at that rate all requests are admitted, at a thousand times the rate almost none.
        let admitted = median(|| time_steps(&limit, TimeSpan::from_millis(10)));
        let rejected = median(|| time_steps(&limit, TimeSpan::from_micros(10)));
        println!("{:24} {admitted:>12.1} {rejected:>12.1}", algorithm.name());
    }
    Ok(())
}

fn time_steps(limit: &Limit, pace: TimeSpan) -> f64 {
    let mut state = CounterState::default();
    let mut now = Timestamp::from_secs(1_700_000_000);
    let start = Instant::now();
    for _ in 0..STEPS {
        now = now + pace;
        black_box(limit.step(&mut state, black_box(now), Cost::ONE));
    }
    nanos_each(start.elapsed(), STEPS)
}
