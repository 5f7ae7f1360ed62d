//! Leases against a real server.

use std::num::NonZeroU32;
use std::sync::Arc;

use tidegate_core::{
    Algorithm, Check, Cost, CounterKey, CounterState, Limit, Role, RuleId, Spec, TimeSpan, Timestamp, Verdict,
};
use tidegate_redis::{Endpoint, LeaseStore, RedisConfig, TimeSource};
use tidegate_store::{Clock, Override, Store, StoreError, SystemClock};
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
    let config = RedisConfig { time, nodes, ..RedisConfig::new(Endpoint::parse(&server.url()).unwrap()) };
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

#[tokio::test]
async fn first_blocks_are_fair_shares_and_move_with_demand() {
    let server = RedisServer::start();
    let stores = nodes(&server, 3);
    for algorithm in LEASED {
        let limit = limit(algorithm, 300, TimeSpan::from_secs(60));
        let client = algorithm.name().as_bytes();
        let check = Check::new(CounterKey::new(RULE, client), &limit);
        let mut now = START;
        let before: Vec<_> = stores.iter().map(|store| store.report(now).units).collect();
        for store in &stores {
            assert!(store.decide(&[check], now).await.unwrap().passes());
        }
        let shares: Vec<_> =
            stores.iter().zip(&before).map(|(store, before)| store.report(now).units + 1 - before).collect();
        // 6, 4 and 2 requests per second: twice the limit, so that all of it is spent.
        let (mut admitted, mut first) = ([1_u64; 3], [1_u64; 3]);
        for tick in 1..600 {
            now = START + TimeSpan::from_millis(100 * tick);
            for (position, store) in stores.iter().enumerate() {
                let tenths = [6, 4, 2][position];
                if tick * tenths / 10 > (tick - 1) * tenths / 10 {
                    let passes = store.decide(&[check], now).await.unwrap().passes();
                    admitted[position] += u64::from(passes);
                    first[position] += u64::from(passes && tick <= 250);
                }
                if tick % 10 == 0 {
                    store.settle(now).await;
                }
            }
        }
        println!(
            "{algorithm}: first blocks {shares:?}, admitted in a minute {admitted:?} ({first:?} in 25 s)"
        );
        assert_eq!(shares, [100, 100, 100], "{algorithm}");
        let share = |units: u64| units * 100 / admitted.iter().sum::<u64>();
        assert!((42..=56).contains(&share(admitted[0])), "{algorithm}: {admitted:?}");
        assert!((26..=40).contains(&share(admitted[1])), "{algorithm}: {admitted:?}");
        assert!((10..=24).contains(&share(admitted[2])), "{algorithm}: {admitted:?}");
        let bound = if algorithm == Algorithm::TokenBucket { 600 } else { 300 };
        let total: u64 = admitted.iter().sum();
        assert!(total <= bound && total >= 297, "{algorithm}: {total}");
    }
}

#[tokio::test]
async fn random_traces_over_three_nodes_have_no_excess_and_full_utilisation() {
    let server = RedisServer::start();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut worst = 1.0_f64;
    for trace in 0..24_u64 {
        let stores = nodes(&server, 3);
        let algorithm = LEASED[trace as usize % 3];
        let requests = *random.choice(&[5, 30, 200, 1_000]).unwrap();
        let window = *random.choice(&[1_000, 5_000, 60_000]).unwrap();
        let limit = limit(algorithm, requests, TimeSpan::from_millis(window));
        let client = trace.to_le_bytes();
        let check = Check::new(CounterKey::new(RULE, &client), &limit);
        let mut replay = Replay::default();
        let (mut now, mut times) = (START, Vec::new());
        let weights = [random.u32(1..9), random.u32(1..9), random.u32(1..9)];
        // About three times the limit, over about three windows.
        let steps = (requests * 9).clamp(600, 2_500);
        let gap = (window * 3_000 / steps).max(1);
        for step in 0..steps {
            now = now + TimeSpan::from_micros(random.u64(0..=2 * gap));
            let mut choice = random.u32(0..weights.iter().sum());
            let mut node = 0;
            while choice >= weights[node] {
                choice -= weights[node];
                node += 1;
            }
            let decision = stores[node].decide(&[check], now).await.unwrap();
            times.push(now);
            if decision.passes() {
                replay.add(decision.at, 1);
            }
            if step % 16 == 0 {
                for store in &stores {
                    store.settle(now).await;
                }
            }
        }
        let (excess, total) = replay.excess(&limit);
        let ideal = ideal(&limit, &times);
        let utilisation = total as f64 / ideal as f64;
        worst = worst.min(utilisation);
        println!("{algorithm} {requests} per {window} ms: {total} of {ideal}, {utilisation:.3}");
        assert_eq!(excess, 0, "seed {seed}, trace {trace}");
    }
    println!("worst utilisation {worst:.3}");
}
