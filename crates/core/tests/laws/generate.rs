//! Random limits, some of them extreme, and random traces that match them.

use proptest::prelude::*;
use tidegate_core::{Algorithm, Borrow, Cost, Limit, Spec, TimeSpan, Timestamp};

const YEAR: TimeSpan = TimeSpan::from_secs(365 * 86_400);
const DAY: TimeSpan = TimeSpan::from_secs(86_400);

/// A limit with the specification it was made from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GeneratedLimit {
    pub(crate) limit: Limit,
    pub(crate) spec: Spec,
}

impl GeneratedLimit {
    /// Returns the same algorithm with another specification.
    pub(crate) fn with(&self, spec: Spec) -> Self {
        Self { limit: Limit::new(self.limit.algorithm(), spec).unwrap(), spec }
    }

    pub(crate) fn burst(&self) -> u64 {
        self.spec.burst.unwrap_or(self.spec.requests)
    }

    /// The units that it lends beyond the burst.
    pub(crate) fn lent(&self) -> u64 {
        self.spec.borrow.map_or(0, |borrow| borrow.units)
    }

    /// The longest wait in whole ticks of the limit.
    pub(crate) fn max_wait(&self) -> u64 {
        self.spec.max_wait.unwrap_or(TimeSpan::from_secs(30)).as_micros() / self.limit.tick().micros()
    }

    /// The window in the limit's ticks.
    pub(crate) fn period(&self) -> u64 {
        self.spec.window.as_micros() / self.limit.tick().micros()
    }

    pub(crate) fn tick_of(&self, at: Timestamp) -> u64 {
        at.as_micros() / self.limit.tick().micros()
    }
}

fn takes_burst(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket)
}

pub(crate) fn algorithm() -> impl Strategy<Value = Algorithm> {
    proptest::sample::select(Algorithm::ALL)
}

/// Realistic rates and extreme ones.
fn spec() -> impl Strategy<Value = Spec> {
    let rate = prop_oneof![
        6 => (1_u64..=20, prop_oneof![
            (1_u64..=120).prop_map(TimeSpan::from_secs),
            (1_u64..=5_000).prop_map(TimeSpan::from_millis),
            (1_u64..=5_000).prop_map(TimeSpan::from_micros),
        ]),
        1 => Just((1, YEAR)),
        1 => Just((1_000_000, DAY)),
        1 => Just((1_000_001, DAY)),
        1 => Just((10_000_000, TimeSpan::from_secs(1))),
        1 => (1_u64..=1_000_000, (1_u64..=100_000).prop_map(TimeSpan::from_millis)),
    ];
    let burst = prop_oneof![
        2 => Just(None),
        1 => Just(Some(1)),
        2 => (1_u64..=50).prop_map(Some),
    ];
    let max_wait = prop_oneof![
        1 => Just(None),
        2 => Just(Some(TimeSpan::MAX)),
        1 => Just(Some(TimeSpan::ZERO)),
        2 => (1_u64..=60_000_000).prop_map(|micros| Some(TimeSpan::from_micros(micros))),
    ];
    let borrow = prop_oneof![
        2 => Just(None),
        1 => (1_u64..=20, 1_u64..=5).prop_map(|(units, repay)| Some(Borrow { units, repay })),
    ];
    (rate, burst, max_wait, borrow).prop_map(|((requests, window), burst, max_wait, borrow)| Spec {
        requests,
        window,
        burst,
        max_wait,
        borrow,
    })
}

pub(crate) fn limit_of(algorithm: Algorithm) -> impl Strategy<Value = GeneratedLimit> {
    spec().prop_map(move |spec| {
        let spec = if takes_burst(algorithm) { spec } else { Spec { burst: None, ..spec } };
        let spec = if algorithm == Algorithm::LeakyBucket { spec } else { Spec { max_wait: None, ..spec } };
        let spec = if algorithm == Algorithm::TokenBucket { spec } else { Spec { borrow: None, ..spec } };
        let limit = Limit::new(algorithm, spec).expect("every generated rate has an exact tick");
        GeneratedLimit { limit, spec }
    })
}

pub(crate) fn any_limit() -> impl Strategy<Value = GeneratedLimit> {
    algorithm().prop_flat_map(limit_of)
}

/// One request of a trace: the gap to the one before, and its cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    gap: Gap,
    cost: CostShape,
}

#[derive(Clone, Copy, Debug)]
enum Gap {
    None,
    Micros(u64),
    /// Thousandths of the time to refill one unit.
    Units(u64),
    /// Thousandths of the window.
    Windows(u64),
    Back(u64),
}

#[derive(Clone, Copy, Debug)]
enum CostShape {
    Exactly(u64),
    /// Thousandths of the capacity.
    Share(u64),
    OverCapacity,
}

fn gap(backwards: bool) -> impl Strategy<Value = Gap> {
    prop_oneof![
        3 => Just(Gap::None),
        2 => (1_u64..=3).prop_map(Gap::Micros),
        4 => (1_u64..=3_000).prop_map(Gap::Units),
        2 => (1_u64..=2_500).prop_map(Gap::Windows),
        u32::from(backwards) * 2 => (1_u64..=2_500).prop_map(Gap::Back),
    ]
}

fn cost() -> impl Strategy<Value = CostShape> {
    prop_oneof![
        6 => Just(CostShape::Exactly(1)),
        1 => Just(CostShape::Exactly(0)),
        2 => (1_u64..=5).prop_map(CostShape::Exactly),
        2 => (1_u64..=1_000).prop_map(CostShape::Share),
        1 => Just(CostShape::OverCapacity),
    ]
}

fn arrivals(backwards: bool) -> impl Strategy<Value = Vec<Arrival>> {
    proptest::collection::vec((gap(backwards), cost()).prop_map(|(gap, cost)| Arrival { gap, cost }), 1..60)
}

/// Arrivals whose time never goes back.
pub(crate) fn forward() -> impl Strategy<Value = Vec<Arrival>> {
    arrivals(false)
}

/// Arrivals whose time sometimes goes back.
pub(crate) fn any_direction() -> impl Strategy<Value = Vec<Arrival>> {
    arrivals(true)
}

/// A start at any position of a window.
pub(crate) fn start() -> impl Strategy<Value = Timestamp> {
    (1_600_000_000_000_000_u64..1_900_000_000_000_000).prop_map(Timestamp::from_micros)
}

/// The instants and costs of `arrivals` under `generated`.
pub(crate) fn replay(
    generated: &GeneratedLimit,
    start: Timestamp,
    arrivals: &[Arrival],
) -> Vec<(Timestamp, Cost)> {
    let window = generated.spec.window.as_micros();
    let unit = (window / generated.spec.requests).max(1);
    let mut now = start;
    let play_one = |arrival: &Arrival| {
        now = match arrival.gap {
            Gap::None => now,
            Gap::Micros(micros) => now + TimeSpan::from_micros(micros),
            Gap::Units(thousandths) => now + TimeSpan::from_micros((unit * thousandths).div_ceil(1_000)),
            Gap::Windows(thousandths) => now + TimeSpan::from_micros(window * thousandths / 1_000),
            Gap::Back(thousandths) => now - TimeSpan::from_micros(window * thousandths / 1_000),
        };
        let capacity = generated.limit.capacity();
        let cost = match arrival.cost {
            CostShape::Exactly(units) => units,
            CostShape::Share(thousandths) => (capacity * thousandths).div_ceil(1_000),
            CostShape::OverCapacity => capacity + 1,
        };
        (now, Cost::new(cost))
    };
    arrivals.iter().map(play_one).collect()
}
