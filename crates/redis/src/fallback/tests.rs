//! Nodes without Redis.

use std::collections::HashMap;
use std::num::NonZeroU32;

use tidegate_core::{Algorithm, RuleId, Spec, TimeSpan};
use tidegate_store::SystemClock;

use super::*;
use crate::config::RedisConfig;
use crate::endpoint::Endpoint;

const RULE: RuleId = RuleId::named("default");
const START: Timestamp = Timestamp::from_secs(1_700_000_000);

fn store(nodes: u32, percent: u32) -> FallbackStore {
    let config = RedisConfig {
        fallback_share: Ratio::from_percent(percent),
        max_memory: 1 << 20,
        ..RedisConfig::new(Endpoint::parse("redis://127.0.0.1:1").unwrap())
    };
    let link = Arc::new(Link::new(config, Arc::new(SystemClock::new())));
    FallbackStore::new(link, Arc::new(NodeCount::new(NonZeroU32::new(nodes).unwrap())))
}

fn limit(algorithm: Algorithm, requests: u64) -> Limit {
    Limit::new(algorithm, Spec::new(requests, TimeSpan::from_secs(60))).unwrap()
}

async fn spend(store: &FallbackStore, limit: &Limit, now: Timestamp, cost: u64) -> bool {
    let check = Check::new(CounterKey::new(RULE, b"client"), limit).cost(Cost::new(cost));
    store.decide(&[check], now).await.unwrap().passes()
}

#[tokio::test]
async fn fallback_nodes_together_admit_at_most_their_share_per_window() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..60 {
        let (nodes, percent) = (random.u32(1..8), random.u32(10..=100));
        let requests = random.u64(100..1_000);
        let stores: Vec<_> = (0..nodes).map(|_| store(nodes, percent)).collect();
        let limit = limit(Algorithm::FixedWindow, requests);
        let mut admitted = HashMap::<u64, u64>::new();
        let mut now = START;
        for _ in 0..2_000 {
            now = now + TimeSpan::from_micros(random.u64(0..300_000));
            let cost = random.u64(1..=5);
            if spend(&stores[random.usize(..stores.len())], &limit, now, cost).await {
                *admitted.entry(now.as_micros() / 60_000_000).or_default() += cost;
            }
        }
        let most = requests * u64::from(percent) / 100;
        assert!(admitted.values().all(|units| *units <= most), "{admitted:?} exceed {most}");
        assert!(admitted.values().any(|units| *units + u64::from(nodes) * 6 > most), "{admitted:?} {most}");
    }
}

#[tokio::test]
async fn later_outages_in_the_same_window_admit_no_further_share() {
    for algorithm in Algorithm::ALL {
        let (store, limit) = (store(1, 50), limit(*algorithm, 10));
        store.begin();
        assert!(spend(&store, &limit, START, 5).await, "{algorithm}");
        for _ in 0..3 {
            store.begin();
            assert!(!spend(&store, &limit, START, 5).await, "{algorithm}");
        }
        assert!(spend(&store, &limit, START + TimeSpan::from_secs(120), 5).await, "{algorithm}");
        assert_eq!((store.report().outages, store.report().decisions), (4, 5));
    }
}

#[tokio::test]
async fn drained_charges_are_those_that_still_count() {
    // The first charge is refunded, or has drained.
    let later = START + TimeSpan::from_secs(30);
    for algorithm in Algorithm::ALL {
        let (store, limit) = (store(2, 50), limit(*algorithm, 40));
        let check = Check::new(CounterKey::new(RULE, b"client"), &limit).cost(Cost::new(4));
        let first = store.decide(&[check], START).await.unwrap();
        assert!(first.passes());
        assert!(spend(&store, &limit, later, 3).await);
        store.refund(&first.refunds(&[check]), later).await.unwrap();
        let charges = store.take(9, later);
        let [charge] = &charges[..] else { panic!("one charge expected for {algorithm}: {charges:?}") };
        assert_eq!(
            (charge.cost, charge.counter.last, charge.counter.whole),
            (Cost::new(3), later, limit),
            "{algorithm}"
        );
        assert_eq!(charge.check().role, Role::Overage);
        assert_eq!(store.take(9, later), []);
    }
}

#[tokio::test]
async fn charges_of_windows_that_are_over_are_not_drained() {
    for algorithm in Algorithm::ALL {
        let (store, limit) = (store(1, 100), limit(*algorithm, 10));
        assert!(spend(&store, &limit, START, 5).await);
        assert_eq!(store.take(9, START + TimeSpan::from_secs(180)), [], "{algorithm}");
    }
}

#[tokio::test]
async fn charge_that_was_put_back_ends_with_its_window() {
    let (key, later) = (CounterKey::new(RULE, b"client"), START + TimeSpan::from_secs(1));
    for algorithm in Algorithm::ALL {
        let (store, limit) = (store(1, 100), limit(*algorithm, 60));
        let spend = |now, cost| store.ledger.charge(key, &limit, &limit, now, Cost::new(cost));
        spend(START, 30);
        let charge = store.take(9, START).remove(0);
        assert!(!store.has_charges());
        spend(later, 5);
        store.put_back(charge);
        let charge = store.take(9, later).remove(0);
        // A bucket has drained one unit.
        assert!((34..=35).contains(&charge.cost.get()), "{algorithm}: {charge:?}");
        store.put_back(charge);
        assert_eq!(store.take(9, START + TimeSpan::from_secs(180)), [], "{algorithm}");
        assert!(!store.has_charges(), "{algorithm}");
    }
}

#[tokio::test]
async fn charge_of_a_window_that_is_over_on_the_server_is_dropped() {
    let (store, limit) = (store(1, 100), limit(Algorithm::FixedWindow, 10));
    let second = |second: u64| Timestamp::from_secs(START.as_secs_ceil() / 60 * 60 + second);
    // The node's clock is 10 s behind.
    store.link.server_time().observe(second(10), second(0));
    assert!(spend(&store, &limit, second(45), 5).await);
    assert!(
        !store.has_charges() || store.take(9, second(52)).is_empty(),
        "the server's next window has begun"
    );
    assert!(spend(&store, &limit, second(53), 4).await);
    assert_eq!(store.take(9, second(61))[0].cost, Cost::new(4), "it is still that window");
}

#[tokio::test]
async fn nodes_with_different_clocks_admit_their_shares_in_the_same_windows() {
    let limit = limit(Algorithm::FixedWindow, 30);
    let stores: Vec<_> = (0..3).map(|_| store(3, 50)).collect();
    let start = Timestamp::from_secs(START.as_secs_ceil() / 60 * 60);
    let behind = [0, 20, 40].map(TimeSpan::from_secs);
    for (store, behind) in stores.iter().zip(behind) {
        store.link.server_time().observe(start, start - behind);
    }
    let mut admitted = HashMap::<u64, u64>::new();
    for second in 0..240 {
        let now = start + TimeSpan::from_secs(second);
        for (store, behind) in stores.iter().zip(behind) {
            *admitted.entry(second / 60).or_default() +=
                u64::from(spend(store, &limit, now - behind, 1).await);
        }
    }
    assert!(admitted.values().all(|units| *units == 15), "{admitted:?}");
}

#[tokio::test]
async fn override_applies_to_the_fallback() {
    let (store, narrow) = (store(1, 50), limit(Algorithm::FixedWindow, 10));
    let key = CounterKey::new(RULE, b"client");
    let wide =
        Override { limit: limit(Algorithm::FixedWindow, 100), until: START + TimeSpan::from_secs(9_000) };
    store.override_limit(key, Some(wide), START).await.unwrap();
    assert!(spend(&store, &narrow, START, 50).await);
    assert!(!spend(&store, &narrow, START, 1).await);
    assert_eq!(store.take(9, START)[0].cost, Cost::new(50));
    store.override_limit(key, None, START).await.unwrap();
    store.reset(key).await.unwrap();
    assert!(!spend(&store, &narrow, START, 6).await);
}

#[tokio::test]
async fn counters_beyond_the_cap_are_only_counted() {
    let (store, limit) = (store(1, 100), limit(Algorithm::FixedWindow, 10));
    for client in 0..u32::try_from(ledger::MAX_COUNTERS).unwrap() + 5_000 {
        let client = client.to_be_bytes();
        let key = CounterKey::new(RULE, &client);
        store.ledger.charge(key, &limit, &limit, START, Cost::ONE);
    }
    let report = store.report();
    assert!(report.unrecorded_units >= 5_000, "{report:?}");
    assert_eq!(report.counters + report.unrecorded_units, ledger::MAX_COUNTERS as u64 + 5_000);
}
