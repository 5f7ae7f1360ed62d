//! A deterministic simulation: several nodes and a real Redis that loses its latest writes, or one of its keys, again and
//! again.

use std::collections::HashMap;

use fastrand::Rng;
use tidegate_core::Timestamp;
use tidegate_store::SystemClock;
use tidegate_testkit::process::RedisServer;
use tidegate_testkit::wait::within;

use super::*;
use crate::config::RedisConfig;
use crate::endpoint::Endpoint;

const NODES: usize = 3;
const IDS: u8 = 8;
const KEYS: [&str; 3] = ["tg:{shared}records", "tg:{shared}changes", "tg:{shared}expiry"];
/// Copies the first database to the second one, as a snapshot does.
const SAVE: &str = "redis.call('SELECT', 1) redis.call('FLUSHDB') redis.call('SELECT', 0) \
    for _, key in ipairs(redis.call('KEYS', '*')) do redis.call('COPY', key, key, 'DB', 1) end";
/// Replaces the first database by the second one.
const RESTORE: &str = "redis.call('FLUSHDB') redis.call('SELECT', 1) \
    for _, key in ipairs(redis.call('KEYS', '*')) do redis.call('COPY', key, key, 'DB', 0) end";

fn node(link: &Arc<Link>) -> (ExchangeTask, mpsc::Receiver<SharedEvent>) {
    let (events, received) = mpsc::channel(10_000);
    let node = NodeId::random();
    let exchange = ExchangeTask {
        script: Arc::new(SharedScript::new(link, node)),
        link: Arc::downgrade(link),
        node,
        copy: Arc::default(),
        channel: "simulation".into(),
        sealer: Arc::new(Sealer::new(b"secret").unwrap()),
        events,
    };
    (exchange, received)
}

/// Applies events as the admin API does: a change of another node is not applied over a later one of this node.
fn apply(state: &mut HashMap<Vec<u8>, SharedRecord>, events: &mut mpsc::Receiver<SharedEvent>) {
    while let Ok(event) = events.try_recv() {
        if let SharedEvent::Records(records) = event {
            for record in records {
                if state.get(&record.id).is_none_or(|known| known.changed <= record.changed) {
                    state.insert(record.id.clone(), record);
                }
            }
        }
    }
}

/// Redis runs an exchange of the node, which gets no reply.
async fn lose_replies(exchange: &ExchangeTask, link: &Link) {
    let (known, batch) = {
        let copy = lock(&exchange.copy);
        (copy.cursor(), copy.next_batch(PAGE).unwrap_or_default())
    };
    exchange.script.pull(link, known).await.unwrap();
    let sealed =
        batch.iter().map(|(field, record)| (*field, record, exchange.sealer.seal_record(record).unwrap()));
    exchange.script.push(link, known, sealed).await.unwrap();
}

async fn simulate(server: &RedisServer, link: &Arc<Link>, seed: u64) {
    let mut random = Rng::with_seed(seed);
    server.command(&["FLUSHALL"]);
    let mut nodes: Vec<_> = (0..NODES).map(|_| node(link)).collect();
    let mut states: [HashMap<Vec<u8>, SharedRecord>; NODES] = Default::default();
    let mut latest = HashMap::new();
    for step in 1..60 {
        let number = random.usize(..NODES);
        let (exchange, events) = &mut nodes[number];
        match random.u8(..12) {
            0..5 => {
                let body = random.bool().then(|| vec![step]);
                let changed = Timestamp::from_secs(step.into());
                let record = SharedRecord { id: vec![random.u8(..IDS)], changed, expires: None, body };
                lock(&exchange.copy).change(exchange.sealer.field(&record.id), record.clone());
                states[number].insert(record.id.clone(), record.clone());
                latest.insert(record.id.clone(), record);
                // The operator's change is acknowledged after it was sent, or while Redis is away.
                if random.bool() {
                    exchange.try_exchange(link).await.unwrap();
                }
            }
            5..8 => {
                exchange.try_exchange(link).await.unwrap();
                apply(&mut states[number], events);
            }
            8 => drop(server.command(&["EVAL", SAVE, "0"])),
            9 => lose_replies(exchange, link).await,
            // An eviction, which leaves the other keys.
            10 => drop(server.command(&["DEL", KEYS[random.usize(..KEYS.len())]])),
            _ => drop(server.command(&["EVAL", RESTORE, "0"])),
        }
    }
    // The first round pushes what each node knows, the second one pulls it.
    for _ in 0..2 {
        for ((exchange, events), state) in nodes.iter_mut().zip(&mut states) {
            exchange.try_exchange(link).await.unwrap();
            apply(state, events);
        }
    }
    for state in states {
        assert_eq!(state, latest, "seed {seed}");
    }
}

#[tokio::test]
async fn records_of_nodes_are_equal_after_redis_has_gone_back_or_lost_a_key() {
    let server = RedisServer::start();
    let config = RedisConfig {
        timeout: Duration::from_secs(5),
        ..RedisConfig::new(Endpoint::parse(&server.url()).unwrap())
    };
    let link = Arc::new(Link::new(config, Arc::new(SystemClock::new())));
    within("a connection", link.wait_until_connected()).await;
    let first = fastrand::u64(..1 << 40);
    for seed in first..first + 100 {
        simulate(&server, &link, seed).await;
    }
}
