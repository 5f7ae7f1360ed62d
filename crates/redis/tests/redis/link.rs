//! The connection: every deployment, and every way in which a server can fail.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Algorithm, Check, CounterKey, Limit, RuleId, Spec, TimeSpan, Timestamp};
use tidegate_redis::{CentralStore, Endpoint, RedisConfig, TimeSource, TlsMaterial};
use tidegate_store::conformance::Suite;
use tidegate_store::{Store, StoreError, SystemClock};
use tidegate_testkit::certificate::Certificate;
use tidegate_testkit::process::{RedisCluster, RedisOptions, RedisSentinel, RedisServer};
use tidegate_testkit::server::{FaultProxy, ProxyMode};
use tidegate_testkit::wait::{eventually, within};

const RULE: RuleId = RuleId::named("default");
const LIMIT: u64 = 100_000;

/// Long enough for a machine that runs many tests, short enough to wait for.
const TIMEOUT: Duration = Duration::from_millis(80);

fn config(url: &str) -> RedisConfig {
    RedisConfig { timeout: TIMEOUT, ..RedisConfig::new(Endpoint::parse(url).unwrap()) }
}

fn open(config: RedisConfig) -> CentralStore {
    CentralStore::new(config, Arc::new(SystemClock::new()))
}

async fn connect(config: RedisConfig) -> CentralStore {
    let store = open(config);
    within("a connection", store.connected()).await;
    store
}

fn limit() -> Limit {
    Limit::new(Algorithm::TokenBucket, Spec::new(LIMIT, TimeSpan::from_secs(86_400 * 30))).unwrap()
}

async fn decide(store: &CentralStore, client: &[u8]) -> Result<bool, StoreError> {
    decide_under(store, client, &limit()).await
}

async fn decide_under(store: &CentralStore, client: &[u8], limit: &Limit) -> Result<bool, StoreError> {
    let check = Check::new(CounterKey::new(RULE, client), limit);
    store.decide(&[check], Timestamp::ZERO).await.map(|decision| decision.passes())
}

/// What a client was charged so far.
async fn charged(store: &CentralStore, client: &[u8]) -> Result<u64, StoreError> {
    charged_under(store, client, &limit()).await
}

async fn charged_under(store: &CentralStore, client: &[u8], limit: &Limit) -> Result<u64, StoreError> {
    let check = Check::new(CounterKey::new(RULE, client), limit);
    let decision = store.peek(&[check], Timestamp::ZERO).await?;
    Ok(LIMIT - decision.outcomes[0].remaining)
}

/// How decisions ended.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    admitted: u64,
    unavailable: u64,
}

impl Tally {
    /// Any other result is a bug.
    fn add(&mut self, result: Result<bool, StoreError>) -> bool {
        match result {
            Ok(true) => self.admitted += 1,
            Err(StoreError::Unavailable(_)) => self.unavailable += 1,
            other => panic!("{other:?}"),
        }
        self.unavailable == 0
    }
}

/// Decides until a decision is made.
async fn recover(store: &CentralStore, client: &[u8], tally: &mut Tally) {
    within("a decision by Redis", async {
        loop {
            let before = tally.admitted;
            tally.add(decide(store, client).await);
            if tally.admitted > before {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Decides until the breaker is open.
async fn fail(store: &CentralStore, client: &[u8], tally: &mut Tally) {
    within("an open breaker", async {
        while store.link_report().servers_open == 0 {
            tally.add(decide(store, client).await);
        }
    })
    .await;
}

async fn conform(store: &impl Store) {
    let suite = Suite { algorithms: Algorithm::ALL, seed: fastrand::u64(..), traces: 3, steps: 200 };
    println!("seed {}: {:?}", suite.seed, suite.run(store).await);
}

#[tokio::test]
async fn server_with_tls_client_certificate_user_and_database_conforms() {
    let certificate = Certificate::for_name("127.0.0.1");
    let user = ("gate".to_owned(), "secret".to_owned(), "~tg:* &tg:* +@all".to_owned());
    let options = RedisOptions { tls: Some(certificate.clone()), user: Some(user), arguments: Vec::new() };
    let server = RedisServer::with(&options);
    let material = TlsMaterial {
        ca: Some(certificate.chain.clone().into_bytes()),
        client: Some((certificate.chain.into_bytes(), certificate.key.into_bytes())),
    };
    let url = format!("{}/3", server.url());
    let store = connect(RedisConfig { tls: material, time: TimeSource::Caller, ..config(&url) }).await;
    conform(&store).await;

    let untrusted = open(config(&url));
    let mut tally = Tally::default();
    fail(&untrusted, b"a", &mut tally).await;
    assert_eq!(tally.admitted, 0, "the certificate is not trusted");
}

#[tokio::test]
async fn server_with_a_wrong_password_is_unavailable() {
    let user = ("gate".to_owned(), "secret".to_owned(), "~* &* +@all".to_owned());
    let server = RedisServer::with(&RedisOptions { user: Some(user), ..RedisOptions::default() });
    let store = open(config(&server.url().replace("secret", "guess")));
    let mut tally = Tally::default();
    fail(&store, b"a", &mut tally).await;
    assert_eq!(tally.admitted, 0);
}

#[tokio::test]
async fn sentinel_conforms_and_follows_failover_by_hand_and_after_a_crash() {
    let mut sentinel = RedisSentinel::start();
    let store = connect(RedisConfig { time: TimeSource::Caller, ..config(&sentinel.url()) }).await;
    conform(&store).await;
    let mut tally = Tally::default();
    recover(&store, b"a", &mut tally).await;
    sentinel.fail_over();
    recover(&store, b"a", &mut tally).await;
    sentinel.nodes[0].kill();
    recover(&store, b"a", &mut tally).await;
    assert_eq!(sentinel.nodes[1].command(&["DBSIZE"]).parse::<u64>().map(|keys| keys > 0), Ok(true));
}

#[tokio::test]
async fn cluster_conforms() {
    let cluster = RedisCluster::start();
    let store = connect(RedisConfig { time: TimeSource::Caller, ..config(&cluster.url()) }).await;
    assert_eq!(store.link_report().servers, 3);
    conform(&store).await;
}

/// A client of each third of the slots.
fn clients() -> Vec<Vec<u8>> {
    (0..60_u8).map(|number| vec![b'c', number]).collect()
}

#[tokio::test]
async fn cluster_with_a_killed_primary_recovers_and_charges_nothing_twice() {
    let mut cluster = RedisCluster::start();
    let store = connect(config(&cluster.url())).await;
    let clients = clients();
    let mut tallies = vec![Tally::default(); clients.len()];
    for (client, tally) in clients.iter().zip(&mut tallies) {
        tally.add(decide(&store, client).await);
    }
    cluster.nodes[0].kill();
    for (client, tally) in clients.iter().zip(&mut tallies) {
        recover(&store, client, tally).await;
    }
    let failed: u64 = tallies.iter().map(|tally| tally.unavailable).sum();
    assert!(failed > 0, "some clients are on the killed primary");
    for (client, tally) in clients.iter().zip(&tallies) {
        let charged = charged(&store, client).await.unwrap();
        // The replica may miss what the primary charged last.
        assert!(charged <= tally.admitted + tally.unavailable, "{charged} of {tally:?}");
    }
}

#[tokio::test]
async fn cluster_follows_a_failover_by_hand_without_losing_a_charge() {
    let cluster = RedisCluster::start();
    let store = connect(config(&cluster.url())).await;
    let clients = clients();
    let mut tallies = vec![Tally::default(); clients.len()];
    assert_eq!(cluster.nodes[3].command(&["CLUSTER", "FAILOVER"]), "OK");
    within("the replica as primary", async {
        while cluster.primary_of(0, 1) != Some(3) {
            for (client, tally) in clients.iter().zip(&mut tallies) {
                tally.add(decide(&store, client).await);
            }
        }
    })
    .await;
    for (client, tally) in clients.iter().zip(&mut tallies) {
        recover(&store, client, tally).await;
        let charged = charged(&store, client).await.unwrap();
        assert!(
            (tally.admitted..=tally.admitted + tally.unavailable).contains(&charged),
            "{charged} of {tally:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_slot_moved_under_load_charges_every_admitted_request_once() {
    move_slot_under_load(limit()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_slot_of_a_log_moved_under_load_charges_every_admitted_request_once() {
    let spec = Spec::new(LIMIT, TimeSpan::from_secs(86_400 * 30));
    move_slot_under_load(Limit::new(Algorithm::SlidingLog, spec).unwrap()).await;
}

async fn move_slot_under_load(limit: Limit) {
    let cluster = RedisCluster::start();
    let store = connect(config(&cluster.url())).await;
    let client = b"moving";
    let mut tally = Tally::default();
    tally.add(decide_under(&store, client, &limit).await);
    let key =
        cluster.nodes[..3].iter().map(|node| node.command(&["KEYS", "tg:*"])).find(|keys| !keys.is_empty());
    let key = key.unwrap().lines().next().unwrap().to_owned();
    let slot: u16 = cluster.nodes[0].command(&["CLUSTER", "KEYSLOT", &key]).parse().unwrap();
    let from = cluster.primary_of(slot, 0).unwrap();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let workers: Vec<_> = (0..8)
        .map(|_| {
            let (store, stopped) = (store.clone(), stopped.clone());
            tokio::spawn(async move {
                let mut tally = Tally::default();
                while !*stopped.borrow() {
                    tally.add(decide_under(&store, client, &limit).await);
                    // A decision that fails at once does not yield, and would keep a failed test from ending.
                    tokio::task::yield_now().await;
                }
                tally
            })
        })
        .collect();
    let to = (from + 1) % 3;
    let retries = store.link_report().retries;
    let (handle, moving) = (tokio::runtime::Handle::current(), store.clone());
    let cluster = tokio::task::spawn_blocking(move || {
        let mut tally = Tally::default();
        // The keys of the client are not all on the same server during some of the steps.
        let during = || {
            tally.add(handle.block_on(decide_under(&moving, client, &limit)));
        };
        cluster.move_slot(slot, from, to, during);
        (cluster, tally)
    });
    let (cluster, during) = cluster.await.unwrap();
    tally.admitted += during.admitted;
    tally.unavailable += during.unavailable;
    eventually("a redirection", || store.link_report().retries > retries).await;
    stop.send_replace(true);
    for worker in workers {
        let worker = worker.await.unwrap();
        tally.admitted += worker.admitted;
        tally.unavailable += worker.unavailable;
    }
    let charged = charged_under(&store, client, &limit).await.unwrap();
    assert!(
        (tally.admitted..=tally.admitted + tally.unavailable).contains(&charged),
        "{charged} of {tally:?}"
    );
    assert_eq!(cluster.primary_of(slot, 1), Some(to));
}

#[tokio::test]
async fn flushed_scripts_are_loaded_again_and_the_operation_runs_once() {
    let server = RedisServer::start();
    let store = connect(config(&server.url())).await;
    let mut tally = Tally::default();
    for _ in 0..20 {
        server.command(&["SCRIPT", "FLUSH"]);
        assert!(tally.add(decide(&store, b"a").await));
    }
    assert_eq!(charged(&store, b"a").await.unwrap(), 20);
    assert!(store.link_report().retries >= 20);
}

#[tokio::test]
async fn killed_server_opens_the_breaker_and_closes_it_after_its_restart() {
    let mut server = RedisServer::start();
    let store = connect(config(&server.url())).await;
    let mut tally = Tally::default();
    assert!(tally.add(decide(&store, b"a").await));
    server.kill();
    fail(&store, b"a", &mut tally).await;
    let before = store.link_report();
    assert!(decide(&store, b"a").await.is_err());
    let after = store.link_report();
    assert_eq!(
        (after.rejected_open - before.rejected_open, after.timeouts),
        (1, before.timeouts),
        "not queued"
    );
    assert!(after.connection_errors > 0);
    server.restart();
    recover(&store, b"a", &mut tally).await;
    assert!(store.link_report().open_micros > 0);
}

#[tokio::test]
async fn stopped_server_times_out_and_charges_each_call_at_most_once() {
    let server = RedisServer::start();
    let store = connect(config(&server.url())).await;
    let mut tally = Tally::default();
    assert!(tally.add(decide(&store, b"a").await));
    server.stop();
    fail(&store, b"a", &mut tally).await;
    server.resume();
    recover(&store, b"a", &mut tally).await;
    let charged = charged(&store, b"a").await.unwrap();
    assert!(
        (tally.admitted..=tally.admitted + tally.unavailable).contains(&charged),
        "{charged} of {tally:?}"
    );
    assert_eq!(store.link_report().unanswered, 0);
}

#[tokio::test]
async fn absent_server_is_unavailable_until_it_starts() {
    let mut server = RedisServer::start();
    server.kill();
    let store = open(config(&server.url()));
    let mut tally = Tally::default();
    fail(&store, b"a", &mut tally).await;
    assert_eq!(tally.admitted, 0);
    server.restart();
    recover(&store, b"a", &mut tally).await;
}

#[tokio::test]
async fn absent_cluster_and_absent_sentinels_fail_at_once_until_they_start() {
    for url in ["redis-cluster://127.0.0.1:1", "redis-sentinel://127.0.0.1:1/main"] {
        let store = open(config(url));
        eventually("a failed discovery", || store.link_report().connection_errors > 0).await;
        let before = store.link_report().rejected_open;
        assert!(matches!(decide(&store, b"a").await, Err(StoreError::Unavailable(_))), "{url}");
        assert_eq!(store.link_report().rejected_open, before + 1, "{url}");
    }
}

#[tokio::test]
async fn blackholed_slow_or_resetting_network_opens_the_breaker_and_recovers() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address()).await;
    let store = connect(config(&format!("redis://{}", proxy.address()))).await;
    let mut tally = Tally::default();
    for mode in [ProxyMode::Blackhole, ProxyMode::Delay(Duration::from_millis(200)), ProxyMode::Reset] {
        recover(&store, b"a", &mut tally).await;
        proxy.set(mode);
        fail(&store, b"a", &mut tally).await;
        proxy.set(ProxyMode::Pass);
    }
    recover(&store, b"a", &mut tally).await;
    let charged = charged(&store, b"a").await.unwrap();
    assert!(
        (tally.admitted..=tally.admitted + tally.unavailable).contains(&charged),
        "{charged} of {tally:?}"
    );
}

#[tokio::test]
async fn more_callers_than_the_queue_holds_are_rejected_at_once_while_redis_hangs() {
    let server = RedisServer::start();
    // Longer than it takes to submit the calls.
    let store = connect(RedisConfig { timeout: Duration::from_secs(2), ..config(&server.url()) }).await;
    server.stop();
    let calls = (0..20_000).map(|_| {
        let store = store.clone();
        async move { decide(&store, b"a").await }
    });
    let results = within("all results", futures_util::future::join_all(calls)).await;
    assert!(results.iter().all(|result| matches!(result, Err(StoreError::Unavailable(_)))));
    let report = store.link_report();
    assert_eq!(report.rejected_full, 20_000 - 16_384);
    assert_eq!(report.timeouts + report.rejected_open, 16_384);
    assert_eq!(report.unanswered, 0);
    server.resume();
}
