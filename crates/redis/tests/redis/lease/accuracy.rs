//! Nothing is admitted in excess, and little less than the limit.

use std::sync::Arc;

use tidegate_core::{Algorithm, Check, CounterKey, TimeSpan};
use tidegate_redis::TimeSource;
use tidegate_store::{Clock, Store};
use tidegate_testkit::process::RedisServer;

use super::super::SkewedClock;
use super::{LEASED, RULE, Replay, START, ideal, limit, node, nodes};

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
async fn random_traces_over_three_nodes_have_no_excess() {
    let server = RedisServer::start();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut worst = 1_000;
    for trace in 0..24_usize {
        let stores = nodes(&server, 3);
        let algorithm = LEASED[trace % 3];
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
        let utilisation = total * 1_000 / ideal;
        worst = worst.min(utilisation);
        println!("{algorithm} {requests} per {window} ms: {total} of {ideal}, {utilisation} per mille");
        assert_eq!(excess, 0, "seed {seed}, trace {trace}");
    }
    println!("worst utilisation {worst} per mille");
}

#[tokio::test]
async fn saturated_limit_is_utilised_to_98_percent_without_excess() {
    let server = RedisServer::start();
    for algorithm in LEASED {
        let stores = nodes(&server, 3);
        let limit = limit(algorithm, 300, TimeSpan::from_secs(10));
        let check = Check::new(CounterKey::new(RULE, algorithm.name().as_bytes()), &limit);
        let (mut replay, mut times) = (Replay::default(), Vec::new());
        for tick in 0..8_000_usize {
            // 30 units per second, 80 requests per second, unevenly spread over the nodes; ten windows.
            let now = START + TimeSpan::from_micros(12_500 * tick as u64);
            let node = [0, 1, 0, 2, 0, 1][tick % 6];
            let decision = stores[node].decide(&[check], now).await.unwrap();
            times.push(now);
            if decision.passes() {
                replay.add(decision.at, 1);
            }
            if tick % 25 == 0 {
                for store in &stores {
                    store.settle(now).await;
                }
            }
        }
        let (excess, total) = replay.excess(&limit);
        let ideal = ideal(&limit, &times);
        println!("{algorithm}: {total} of {ideal}, {} per mille", total * 1_000 / ideal);
        assert_eq!(excess, 0, "{algorithm}");
        // Requests in the background take real time, while virtual time passes several times faster. With real time the bar is
        // 99 %: `cargo xtask scorecard accuracy`.
        assert!(total * 100 >= ideal * 98, "{algorithm}: {total} of {ideal}");
    }
}

#[tokio::test]
async fn killed_holder_strands_its_units_until_the_lease_expires() {
    let server = RedisServer::start();
    let limit = limit(Algorithm::TokenBucket, 100, TimeSpan::from_secs(10));
    let check = Check::new(CounterKey::new(RULE, b"client"), &limit);
    let stores = nodes(&server, 2);
    assert!(stores[0].decide(&[check], START).await.unwrap().passes());
    assert_eq!(stores[0].report(START).units, 49);
    let mut replay = Replay::default();
    replay.add(START, 1);
    let mut admitted = 0;
    for _ in 0..100 {
        let decision = stores[1].decide(&[check], START).await.unwrap();
        if decision.passes() {
            admitted += 1;
            replay.add(decision.at, 1);
        }
    }
    assert_eq!(admitted, 50, "what the killed node holds is not available");
    // A bucket that refills in 10 s has leases of 2 s. From then on the stranded units drain at 10 per second.
    let later = START + TimeSpan::from_secs(12);
    let mut returned = 0;
    for _ in 0..200 {
        let decision = stores[1].decide(&[check], later).await.unwrap();
        if decision.passes() {
            returned += 1;
            replay.add(decision.at, 1);
        }
    }
    assert_eq!(returned, 100);
    assert_eq!(replay.excess(&limit).0, 0);
}

#[tokio::test]
async fn stopped_holder_that_continues_spends_nothing_of_its_expired_lease() {
    let server = RedisServer::start();
    for algorithm in LEASED {
        let limit = limit(algorithm, 100, TimeSpan::from_secs(10));
        let check = Check::new(CounterKey::new(RULE, algorithm.name().as_bytes()), &limit);
        let stores = nodes(&server, 2);
        let mut replay = Replay::default();
        let mut now = START;
        for round in 0..4 {
            // Node 0 stops while it holds units; node 1 uses up the limit; then node 0 continues.
            for node in [0, 1, 0] {
                let count = if node == 0 && round % 2 == 0 { 1 } else { 300 };
                for _ in 0..count {
                    let decision = stores[node].decide(&[check], now).await.unwrap();
                    if decision.passes() {
                        replay.add(decision.at, 1);
                    }
                }
                now = now + TimeSpan::from_millis(2_100);
            }
        }
        let (excess, total) = replay.excess(&limit);
        assert_eq!(excess, 0, "{algorithm}");
        assert!(total >= 200, "{algorithm}: {total}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_clocks_ten_seconds_apart_have_no_excess() {
    let server = RedisServer::start();
    let five = TimeSpan::from_secs(5);
    for algorithm in LEASED {
        let limit = limit(algorithm, 200, TimeSpan::from_millis(250));
        let tasks = [(five, TimeSpan::ZERO), (TimeSpan::ZERO, five)].map(|(ahead, behind)| {
            let clock = Arc::new(SkewedClock::new(ahead, behind));
            let store = node(&server, 2, TimeSource::Server, Arc::clone(&clock) as Arc<dyn Clock>);
            tokio::spawn(async move {
                let check = Check::new(CounterKey::new(RULE, algorithm.name().as_bytes()), &limit);
                let (mut spends, start) = (Vec::new(), clock.now());
                while clock.now().since(start) < TimeSpan::from_millis(1_200) {
                    let decision = store.decide(&[check], clock.now()).await.unwrap();
                    if decision.passes() {
                        spends.push((decision.at, 1));
                    }
                    tokio::task::yield_now().await;
                }
                spends
            })
        });
        let mut replay = Replay::default();
        let mut each = Vec::new();
        for task in tasks {
            let spends = task.await.unwrap();
            each.push(spends.len());
            replay.spends.extend(spends);
        }
        let (excess, total) = replay.excess(&limit);
        println!("{algorithm}: {each:?} admitted in 1.2 s of 200 per 250 ms");
        assert_eq!(excess, 0, "{algorithm}");
        assert!(total > 400, "{algorithm}: {total}");
    }
}
