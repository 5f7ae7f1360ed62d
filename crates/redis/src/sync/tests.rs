//! The script against core, and exchanges that are lost or repeated.

use std::time::Duration;

use tidegate_core::{Algorithm, Cost, CounterDelta, CounterState, RuleId, Spec};
use tidegate_store::SystemClock;
use tidegate_testkit::process::RedisServer;

use super::*;
use crate::config::TimeSource;
use crate::endpoint::Endpoint;

const RULE: RuleId = RuleId::named("default");
/// The machine may be busy: these tests do not measure time.
const TIMEOUT: Duration = Duration::from_secs(1);
const START: Timestamp = Timestamp::from_secs(1_700_000_000);

fn link(server: &RedisServer) -> Arc<Link> {
    let config = RedisConfig {
        time: TimeSource::Caller,
        timeout: TIMEOUT,
        ..RedisConfig::new(Endpoint::parse(&server.url()).unwrap())
    };
    Arc::new(Link::new(config, Arc::new(SystemClock::new())))
}

fn store(link: &Arc<Link>) -> SyncStore {
    SyncStore::new(Arc::clone(link), Arc::new(NodeCount::new(link.config().nodes)))
}

fn limit(algorithm: Algorithm, requests: u64) -> Limit {
    Limit::new(algorithm, Spec::new(requests, TimeSpan::from_secs(60))).unwrap()
}

async fn exchange(link: &Link, exchange: CounterExchange, now: Timestamp) -> ExchangedCounter {
    match link.call(Operation::Exchange(vec![exchange]), now).await.unwrap() {
        OperationReply::Exchanged(_, replies) => match &replies[..] {
            [ExchangeReply::Counter(counter)] => counter.clone(),
            other => panic!("one counter expected: {other:?}"),
        },
        other => panic!("counters expected: {other:?}"),
    }
}

/// Limits whose windows, units and drains are small, large and prime.
fn random_limit(random: &mut fastrand::Rng) -> Limit {
    let algorithms = [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingCounter];
    loop {
        let requests = [random.u64(1..20), random.u64(1..5_000), 1_000_003][random.usize(..3)];
        let micros = [random.u64(1..1_000), random.u64(1..100_000_000), 60_000_000, 31_536_000_000_000];
        let window = TimeSpan::from_micros(micros[random.usize(..4)]);
        let algorithm = algorithms[random.usize(..3)];
        let burst = (algorithm == Algorithm::TokenBucket && random.bool()).then(|| random.u64(1..50));
        if let Ok(limit) = Limit::new(algorithm, Spec { burst, ..Spec::new(requests, window) }) {
            return limit;
        }
    }
}

#[tokio::test]
async fn script_merges_deltas_like_core() {
    let server = RedisServer::start();
    let link = link(&server);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for trace in 0..150_u64 {
        let limit = random_limit(&mut random);
        let client = trace.to_be_bytes();
        let key = link.names().sync(CounterKey::new(RULE, &client));
        let span = limit.memory_span().as_micros();
        let (mut now, mut expected) = (START, CounterState::default());
        for number in 1..20_u64 {
            // The node's own copy differs from the shared one, and the delta is sometimes late.
            let (mut own, mut delta) = (expected.clone(), CounterDelta::default());
            for _ in 0..random.u8(0..4) {
                now = now + TimeSpan::from_micros(random.u64(0..=span / 3 + 1));
                let cost = Cost::new(random.u64(1..=limit.capacity()));
                limit.charge_with_delta(&mut own, &mut delta, now, cost);
                if random.u8(..4) == 0 {
                    limit.refund_with_delta(&mut own, &mut delta, now, now, cost);
                }
            }
            now = now + TimeSpan::from_micros(random.u64(0..=span / 2 + 1));
            let sent = CounterExchange {
                key: key.clone(),
                limit,
                node: NodeId(random.u64(1..4)),
                number,
                epoch: 0,
                delta,
            };
            let reply = exchange(&link, sent, now).await;
            if number > 1 {
                assert_eq!(limit.state_numbers(&reply.before), limit.state_numbers(&expected), "{limit:?}");
            }
            limit.merge(&mut expected, &delta, now);
            assert_eq!(
                limit.state_numbers(&reply.after),
                limit.state_numbers(&expected),
                "{limit:?} {delta:?}"
            );
        }
    }
}

#[tokio::test]
async fn repeated_exchange_is_applied_once() {
    let server = RedisServer::start();
    let link = link(&server);
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingCounter] {
        let (store, limit) = (store(&link), limit(algorithm, 100));
        let key = CounterKey::new(RuleId::named(algorithm.name()), b"client");
        let check = Check::new(key, &limit).cost(Cost::new(10));
        assert!(store.decide(&[check], START).await.unwrap().passes());
        // The reply to the first push is lost; the node spends on and pushes again.
        let mut lost = None;
        store.node.table.visit_all(START, |_, counter| {
            lost = Some(counter.start_exchange(store.node.id, store.node.next_ticket()).1);
        });
        let lost = lost.unwrap();
        exchange(&link, lost.clone(), START).await;
        assert!(store.decide(&[check], START).await.unwrap().passes());
        store.exchange(START).await.unwrap();
        assert_eq!(store.peek(&[check], START).await.unwrap().outcomes[0].remaining, 80, "{algorithm}");
        store.exchange(START).await.unwrap();
        // The first push arrives once more.
        let counter = exchange(&link, lost, START).await;
        assert_eq!(limit.used(&counter.after, START), 20, "{algorithm}");
    }
}

#[tokio::test]
async fn entry_of_a_drained_counter_outlives_repetitions_of_its_changes() {
    let server = RedisServer::start();
    let config =
        RedisConfig { timeout: TIMEOUT, ..RedisConfig::new(Endpoint::parse(&server.url()).unwrap()) };
    let link = Arc::new(Link::new(config, Arc::new(SystemClock::new())));
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingCounter] {
        let limit = limit(algorithm, 6_000);
        let key = link.names().sync(CounterKey::new(RULE, algorithm.name().as_bytes()));
        let sent = CounterExchange {
            key,
            limit,
            node: NodeId(1),
            number: 0,
            epoch: 0,
            delta: CounterDelta::default(),
        };
        let OperationReply::Exchanged(now, _) =
            link.call(Operation::Exchange(vec![sent.clone()]), START).await.unwrap()
        else {
            panic!("counters expected")
        };
        // One unit drains in 10 ms; a charge and its refund leave nothing.
        let (mut own, mut delta) = (CounterState::default(), CounterDelta::default());
        limit.charge_with_delta(&mut own, &mut delta, now, Cost::ONE);
        exchange(&link, CounterExchange { number: 1, delta, ..sent.clone() }, now).await;
        let mut delta = CounterDelta::default();
        limit.refund_with_delta(&mut own, &mut delta, now, now, Cost::ONE);
        exchange(&link, CounterExchange { number: 2, delta, ..sent.clone() }, now).await;
        // Within its span, a repeated change would be applied to an entry that does not know its number.
        let pttl = redis::cmd("PTTL").arg(sent.key.as_bytes()).to_owned();
        let redis::Value::Int(left) = link.command(sent.key.slot(), &pttl).await.unwrap() else {
            panic!("a number expected")
        };
        let span = limit.memory_span().as_micros() / 1_000;
        assert!(u64::try_from(left).unwrap() >= span, "{algorithm}: {left} ms of {span} ms");
    }
}

#[tokio::test]
async fn copy_with_an_unconfirmed_exchange_is_used_until_it_is_overdue_and_then_renewed() {
    let server = RedisServer::start();
    let link = link(&server);
    let limit = limit(Algorithm::TokenBucket, 1_000);
    let check = Check::new(CounterKey::new(RULE, b"client"), &limit);
    let at = |millis| START + TimeSpan::from_millis(millis);
    let (renewed, overdue) = (store(&link), store(&link));
    for store in [&renewed, &overdue] {
        assert!(store.decide(&[check], at(0)).await.unwrap().passes());
        // This exchange is not confirmed.
        store.node.table.visit_all(START, |_, counter| {
            counter.start_exchange(store.node.id, store.node.next_ticket());
        });
        assert!(store.decide(&[check], at(500)).await.unwrap().passes());
    }
    // The next one, less than two intervals and a timeout later, also covers what was admitted since.
    assert!(renewed.decide(&[check], at(2_900)).await.unwrap().passes());
    assert!(renewed.decide(&[check], at(3_600)).await.unwrap().passes());

    // Other counters were exchanged, this one was not.
    overdue.node.clock.note_attempt(at(3_100));
    overdue.node.clock.note_exchange(at(3_100), at(3_100), at(3_100));
    assert!(overdue.decide(&[check], at(3_100)).await.unwrap().passes());
    // Without Redis it cannot be renewed.
    drop(server);
    overdue.node.clock.note_attempt(at(6_200));
    overdue.node.clock.note_exchange(at(6_200), at(6_200), at(6_200));
    let error = overdue.decide(&[check], at(6_200)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
}

#[tokio::test]
async fn counter_of_a_newer_format_or_a_malformed_one_is_left_alone() {
    let server = RedisServer::start();
    let link = link(&server);
    let limit = limit(Algorithm::FixedWindow, 100);
    let key = CounterKey::new(RULE, b"client");
    let name = link.names().sync(key);
    for entry in [&b"\x02newer"[..], b"\x01malformed", b"\x01", b""] {
        let store = store(&link);
        let set = redis::cmd("SET").arg(name.as_bytes()).arg(entry).arg("EX").arg(60).to_owned();
        link.command(name.slot(), &set).await.unwrap();
        let checks = [Check::new(key, &limit), Check::new(CounterKey::new(RULE, b"other"), &limit)];
        let error = store.decide(&checks, START).await.unwrap_err();
        assert!(matches!(error, StoreError::Protocol { .. }), "{error:?}");
        assert!(store.decide(&checks[1..], START).await.unwrap().passes());
        store.exchange(START).await.unwrap();
        assert!(store.reset(key).await.is_err());
        let get = redis::cmd("GET").arg(name.as_bytes()).to_owned();
        let value = link.command(name.slot(), &get).await.unwrap();
        assert_eq!(value, redis::Value::BulkString(entry.to_vec()));
    }
}

#[tokio::test]
async fn counter_that_thousands_of_nodes_have_used_is_exchanged() {
    let server = RedisServer::start();
    let link = link(&server);
    let limit = limit(Algorithm::FixedWindow, 100);
    let check = Check::new(CounterKey::new(RULE, b"client"), &limit);
    let [one, other] = [store(&link), store(&link)];
    assert!(one.decide(&[check], START).await.unwrap().passes());
    one.exchange(START).await.unwrap();
    // The identifiers, numbers and times of other nodes, as MessagePack.
    let mut nodes = Vec::new();
    for node in 0..4_000_u32 {
        let at = f64::from(u32::try_from(START.as_micros() / 1_000_000).unwrap()) * 1e6;
        for number in [f64::from(node) + 0.5, 1.0, at] {
            nodes.push(0xcb);
            nodes.extend(number.to_be_bytes());
        }
    }
    let name = link.names().sync(check.key);
    let append = redis::cmd("APPEND").arg(name.as_bytes()).arg(nodes).to_owned();
    link.command(name.slot(), &append).await.unwrap();
    for store in [&other, &one] {
        assert!(store.decide(&[check], START).await.unwrap().passes());
        store.exchange(START).await.unwrap();
    }
    assert_eq!(one.peek(&[check], START).await.unwrap().outcomes[0].remaining, 97);
}

#[tokio::test]
async fn invalidated_copy_is_renewed() {
    let server = RedisServer::start();
    let link = link(&server);
    let (one, other, limit) = (store(&link), store(&link), limit(Algorithm::FixedWindow, 10));
    let key = CounterKey::new(RULE, b"client");
    let check = Check::new(key, &limit).cost(Cost::new(10));
    assert!(one.decide(&[check], START).await.unwrap().passes());
    one.exchange(START).await.unwrap();
    assert!(!one.decide(&[check], START).await.unwrap().passes());
    one.exchange(START).await.unwrap();
    other.reset(key).await.unwrap();
    one.exchange(START).await.unwrap();
    assert_eq!(
        one.peek(&[check], START).await.unwrap().outcomes[0].remaining,
        10,
        "a copy that was used lately is pulled"
    );
    assert!(one.decide(&[check], START).await.unwrap().passes());
    let later = START + TimeSpan::from_secs(5);
    one.exchange(later).await.unwrap();
    other.reset(key).await.unwrap();
    one.exchange(later).await.unwrap();
    let remaining = async || one.peek(&[check], later).await.unwrap().outcomes[0].remaining;
    assert_eq!(remaining().await, 0, "one that is unused for long is not");
    one.invalidate(link.names().counter(key).as_bytes());
    one.exchange(later).await.unwrap();
    assert_eq!(remaining().await, 10);
}

#[tokio::test]
async fn full_table_is_unavailable_and_idle_copies_make_room() {
    let server = RedisServer::start();
    let config = RedisConfig {
        time: TimeSource::Caller,
        max_memory: 0,
        timeout: TIMEOUT,
        ..RedisConfig::new(Endpoint::parse(&server.url()).unwrap())
    };
    let store = SyncStore::connect(config, Arc::new(SystemClock::new()));
    let limit = limit(Algorithm::FixedWindow, 10);
    let mut full = 0;
    for client in 0..4_000_u32 {
        let client = client.to_be_bytes();
        match store.decide(&[Check::new(CounterKey::new(RULE, &client), &limit)], START).await {
            Ok(decision) => assert!(decision.passes()),
            Err(StoreError::Unavailable(_)) => full += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(full > 1_000, "{full}");
    assert!(store.report().counters <= 64 * 16);
    let later = START + TimeSpan::from_secs(61);
    store.exchange(later).await.unwrap();
    store.exchange(later).await.unwrap();
    assert_eq!(store.report().counters, 0);
    assert!(
        store.decide(&[Check::new(CounterKey::new(RULE, b"new"), &limit)], later).await.unwrap().passes()
    );
}
