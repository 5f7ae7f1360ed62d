//! Limits that requests carry, beside those of a policy.

use pollster::block_on;
use tidegate_core::{Algorithm, Check, Cost, CounterKey, Limit, RuleId, Spec, TimeSpan, Timestamp};
use tidegate_store::{MemoryStore, Store};

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const POLICY: RuleId = RuleId::named("default");
const CARRIED: RuleId = RuleId::named("\"CL.THROTTLE\"");
const YEAR: TimeSpan = TimeSpan::from_secs(365 * 24 * 3_600);
/// 7,168 slots, and 16 KiB for states that do not fit a slot.
const CAP: usize = 128 << 10;

fn limit(algorithm: Algorithm, requests: u64, window: TimeSpan) -> Limit {
    Limit::new(algorithm, Spec::new(requests, window)).unwrap()
}

/// Charges one unit of new keys, under limits that `choose` chooses.
fn flood(store: &MemoryStore, keys: std::ops::Range<u64>, now: Timestamp, choose: impl Fn(u64) -> Limit) {
    for key in keys {
        let (client, limit) = (key.to_le_bytes(), choose(key));
        let check = Check::new(CounterKey::new(CARRIED, &client), &limit);
        block_on(store.decide(&[check], now)).unwrap();
    }
}

/// Limits with a period of a year: equal ones, many different ones, and ones whose states do not fit a slot.
fn yearly(key: u64) -> Limit {
    match key % 4 {
        0 | 1 => limit(Algorithm::TokenBucket, 1, YEAR),
        2 => limit(Algorithm::FixedWindow, 1 + key % 2_000, YEAR),
        _ => limit(Algorithm::SlidingLog, 10 + key % 7, YEAR),
    }
}

#[test]
fn flood_of_carried_limits_never_changes_a_decision_of_a_policy() {
    let policy = [
        limit(Algorithm::TokenBucket, 3, TimeSpan::from_secs(60)),
        limit(Algorithm::FixedWindow, 2, TimeSpan::from_secs(3_600)),
        limit(Algorithm::SlidingLog, 3, TimeSpan::from_secs(60)),
    ];
    let [alone, flooded] = [(); 2].map(|()| MemoryStore::with_cap(CAP));
    let _retained = [&alone, &flooded].map(|store| store.retain_limits(&policy, START).unwrap());
    let overflowed_alone = alone.memory_use().overflowed;
    for round in 0..6 {
        let now = START + TimeSpan::from_secs(round * 20);
        flood(&flooded, round * 4_000..(round + 1) * 4_000, now, yearly);
        // New clients in every round, and the earlier ones again.
        for client in 0..(round + 1) * 80 {
            let client_key = client.to_le_bytes();
            // Logs do not fit a slot, and the pool has room for few.
            let kinds = if client % 20 == 0 { 0..3 } else { 0..2 };
            for kind in kinds {
                let rule = RuleId::named(["a", "b", "c"][kind]);
                let check = Check::new(CounterKey::new(rule, &client_key), &policy[kind]).cost(Cost::ONE);
                let [expected, decided] =
                    [&alone, &flooded].map(|store| block_on(store.decide(&[check], now)).unwrap());
                assert_eq!(decided, expected, "round {round}, client {client}, limit {kind}");
            }
        }
    }
    assert_eq!(alone.memory_use().overflowed, overflowed_alone, "the policy alone has room");
    assert!(flooded.memory_use().overflowed > 5_000, "the flood does not fit");
}

#[test]
fn carried_limits_use_the_whole_table_while_nothing_is_retained() {
    let store = MemoryStore::with_cap(CAP);
    flood(&store, 0..4_000, START, |_| limit(Algorithm::TokenBucket, 1, YEAR));
    assert_eq!(store.memory_use().overflowed, 0);
    let retained = store.retain_limits(&[limit(Algorithm::TokenBucket, 3, YEAR)], START).unwrap();
    let policy = CounterKey::new(POLICY, b"client");
    let check = limit(Algorithm::TokenBucket, 3, YEAR);
    assert!(block_on(store.decide(&[Check::new(policy, &check)], START)).unwrap().passes());
    flood(&store, 4_000..6_000, START, |_| limit(Algorithm::TokenBucket, 1, YEAR));
    let shared = store.memory_use().overflowed;
    assert!(shared > 0, "half of the table is full");
    // Keys that have a counter keep it.
    flood(&store, 0..100, START, |_| limit(Algorithm::TokenBucket, 1, YEAR));
    assert_eq!(store.memory_use().overflowed, shared);
    drop(retained);
    let unseen = CounterKey::new(CARRIED, b"another");
    let check = limit(Algorithm::TokenBucket, 1, YEAR);
    assert!(block_on(store.decide(&[Check::new(unseen, &check)], START)).unwrap().passes());
    assert_eq!(store.memory_use().overflowed, shared, "the whole table is there again");
}
