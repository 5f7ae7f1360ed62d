//! Leases against a real server.

mod accuracy;
mod operations;
mod waits;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Algorithm, Cost, CounterState, Limit, RuleId, Spec, TimeSpan, Timestamp};
use tidegate_redis::{Endpoint, LeaseStore, RedisConfig, TimeSource};
use tidegate_store::{Clock, SystemClock};
use tidegate_testkit::process::RedisServer;

const RULE: RuleId = RuleId::named("default");
/// The start of a minute.
const START: Timestamp = Timestamp::from_secs(1_699_999_980);
const LEASED: [Algorithm; 3] = [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingCounter];

fn limit(algorithm: Algorithm, requests: u64, window: TimeSpan) -> Limit {
    Limit::new(algorithm, Spec::new(requests, window)).unwrap()
}

fn nodes(server: &RedisServer, count: u32) -> Vec<LeaseStore> {
    (0..count).map(|_| node(server, count, TimeSource::Caller, Arc::new(SystemClock::new()))).collect()
}

fn node(server: &RedisServer, count: u32, time: TimeSource, clock: Arc<dyn Clock>) -> LeaseStore {
    let nodes = NonZeroU32::new(count).unwrap();
    // A busy machine must not decide the outcome of a test.
    let timeout = Duration::from_secs(5);
    let endpoint = Endpoint::parse(&server.url()).unwrap();
    let config = RedisConfig { time, nodes, timeout, ..RedisConfig::new(endpoint) };
    LeaseStore::connect(config, clock)
}

/// The requests admitted over a trace, in the order of their store time, replayed against the algorithm itself.
#[derive(Default)]
struct Replay {
    spends: Vec<(Timestamp, u64)>,
}

impl Replay {
    fn add(&mut self, at: Timestamp, cost: u64) {
        self.spends.push((at, cost));
    }

    /// The units that do not fit, and all units.
    fn excess(&mut self, limit: &Limit) -> (u64, u64) {
        self.spends.sort_unstable();
        let (mut state, mut excess, mut total) = (CounterState::default(), 0, 0);
        for (at, cost) in &self.spends {
            if !limit.evaluate(&state, *at, Cost::new(*cost)).verdict.is_pass() {
                excess += cost;
            }
            limit.charge(&mut state, *at, Cost::new(*cost));
            total += cost;
        }
        (excess, total)
    }
}

/// What the algorithm itself admits if a request of cost 1 arrives at each of `times`.
fn ideal(limit: &Limit, times: &[Timestamp]) -> u64 {
    let mut state = CounterState::default();
    times.iter().map(|at| u64::from(limit.step(&mut state, *at, Cost::ONE).verdict.is_pass())).sum()
}
