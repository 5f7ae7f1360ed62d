//! The composed store: modes per rule, fallback, cached rejections, membership.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use redis::AsyncCommands;
use tidegate_core::{
    Algorithm, AsKey, Check, Coordination, Cost, CounterKey, CounterState, Decision, Ledger, Limit, Outcome,
    OwnedKey, Ratio, Role, RuleId, Spec, StoreFailureMode, TimeSpan, Timestamp, Verdict, decide,
};
use tidegate_redis::{Endpoint, FallbackDecisions, RedisConfig, RedisStore, TimeSource};
use tidegate_store::{Override, RuleSettings, Store, StoreError, SystemClock};
use tidegate_testkit::folder::Folder;
use tidegate_testkit::port::free_address;
use tidegate_testkit::process::{Process, RedisCluster};
use tidegate_testkit::wait::{DEADLINE, eventually, within};

const CENTRAL: RuleId = RuleId::named("central");
const STATIC: RuleId = RuleId::named("static");
/// Longer than by default: a busy machine must not cause a fallback.
const TIMEOUT: Duration = Duration::from_secs(2);
const HOUR: TimeSpan = TimeSpan::from_secs(3_600);

/// A `redis-server` that restarts on the same port with the snapshot that it saved last.
struct Server {
    address: SocketAddr,
    folder: Folder,
    process: Option<Process>,
}

impl Server {
    fn start() -> Self {
        let mut server = Self::stopped();
        server.restart();
        server
    }

    fn stopped() -> Self {
        Self { address: free_address(), folder: Folder::new(), process: None }
    }

    fn restart(&mut self) {
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &self.address.port().to_string()]);
        command.args(["--save", "", "--dir", &self.folder.root().to_string_lossy()]);
        let process = Process::start(&mut command, "`cargo xtask setup` installs it on Debian and Ubuntu");
        let ready = process.find_output(|line| line.contains("Ready to accept connections").then_some(()));
        assert_eq!(ready, Some(()), "redis-server did not start");
        self.process = Some(process);
    }

    fn kill(&mut self) {
        self.process = None;
    }

    fn config(&self) -> RedisConfig {
        config(self.address)
    }

    async fn raw(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(format!("redis://{}", self.address)).unwrap();
        // A snapshot may take a while.
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(DEADLINE));
        client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
    }

    /// Calls of a command so far.
    async fn calls(&self, command: &str) -> u64 {
        let info: String =
            redis::cmd("INFO").arg("commandstats").query_async(&mut self.raw().await).await.unwrap();
        let start = format!("cmdstat_{command}:calls=");
        let line = info.lines().find_map(|line| line.strip_prefix(&start));
        line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
    }

    async fn assert_all_keys_expire(&self) {
        let mut raw = self.raw().await;
        let keys: Vec<String> = raw.keys("*").await.unwrap();
        assert!(!keys.is_empty());
        for key in keys {
            // Some keys expire between the two commands.
            assert_ne!(raw.pttl::<_, i64>(&key).await.unwrap(), -1, "{key} has no TTL");
        }
    }
}

fn config(address: SocketAddr) -> RedisConfig {
    let endpoint = Endpoint::parse(&format!("redis://{address}")).unwrap();
    RedisConfig {
        timeout: TIMEOUT,
        fallback_share: Ratio::ONE,
        max_memory: 1 << 20,
        ..RedisConfig::new(endpoint)
    }
}

fn open(config: RedisConfig) -> RedisStore {
    let store = RedisStore::new(config, Arc::new(SystemClock::new()));
    store.apply_settings(&[settings(STATIC, Coordination::Static, StoreFailureMode::Local)]);
    store
}

fn settings(rule: RuleId, coordination: Coordination, on_store_failure: StoreFailureMode) -> RuleSettings {
    RuleSettings { rule, coordination, on_store_failure }
}

fn bucket(requests: u64) -> Limit {
    Limit::new(Algorithm::TokenBucket, Spec::new(requests, HOUR)).unwrap()
}

fn check(rule: RuleId, limit: &Limit) -> Check<'_> {
    Check::new(CounterKey::new(rule, b"client"), limit)
}

async fn admits(store: &RedisStore, check: Check<'_>) -> bool {
    store.decide(&[check], Timestamp::ZERO).await.unwrap().passes()
}

async fn remaining(store: &RedisStore, check: Check<'_>) -> u64 {
    store.peek(&[check], Timestamp::ZERO).await.unwrap().outcomes[0].remaining
}

/// Spends everything, and asks again until the rejection is cached.
async fn exhaust(store: &RedisStore, check: Check<'_>) {
    let spending = async {
        let before = store.report().cached_rejections_served;
        while store.report().cached_rejections_served == before {
            store.decide(&[check], Timestamp::ZERO).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    within("a cached rejection", spending).await;
}

#[tokio::test]
async fn two_stores_alternating_admit_exactly_the_limit() {
    let server = Server::start();
    let stores = [open(server.config()), open(server.config())];
    let limit = bucket(10);
    let mut admitted = 0;
    for turn in 0..20 {
        admitted += u32::from(admits(&stores[turn % 2], check(CENTRAL, &limit)).await);
    }
    assert_eq!(admitted, 10);
    server.assert_all_keys_expire().await;
}

#[tokio::test]
async fn rejected_flood_on_one_key_sends_no_command() {
    let server = Server::start();
    let store = open(server.config());
    let limit = bucket(3);
    exhaust(&store, check(CENTRAL, &limit)).await;
    let before = server.calls("evalsha").await;
    assert!(before >= 4);
    let mut batch = Vec::new();
    for _ in 0..1_000 {
        let decision = store.decide(&[check(CENTRAL, &limit)], Timestamp::ZERO).await.unwrap();
        let Verdict::NotUntil { retry_after } = decision.verdict else { panic!("{decision:?}") };
        assert!(retry_after <= TimeSpan::from_secs(1_200) && retry_after > TimeSpan::from_secs(1_100));
        let checks = [check(CENTRAL, &limit)];
        let tried = store.try_decide(&checks, Timestamp::ZERO).unwrap().unwrap();
        assert_eq!((tried.outcomes[0].limit, tried.outcomes[0].remaining), (3, 0));
        store.decide_batch(&[&checks, &checks], Timestamp::ZERO, &mut batch).await.unwrap();
    }
    assert_eq!((batch.len(), batch.iter().any(Decision::passes)), (2_000, false));
    assert_eq!(server.calls("evalsha").await, before);
    assert!(store.report().cached_rejections_served >= 4_000);
    let other = bucket(4);
    assert!(admits(&store, check(CENTRAL, &other)).await, "the rule has a new limit");
    assert_eq!(server.calls("evalsha").await, before + 1);
}

#[tokio::test]
async fn reset_refund_and_override_on_one_node_free_the_client_on_the_other() {
    let server = Server::start();
    let [here, there] = [open(server.config()), open(server.config())];
    let limit = bucket(2);
    let check = check(CENTRAL, &limit);
    let charged = here.decide(&[check], Timestamp::ZERO).await.unwrap();
    let clock = SystemClock::new();
    let replacement =
        Override { limit: bucket(5), until: tidegate_store::Clock::now(&clock) + TimeSpan::from_secs(600) };
    for change in ["refund", "reset", "override"] {
        exhaust(&there, check).await;
        match change {
            "refund" => {
                here.refund(&charged.refunds(&[check]), Timestamp::ZERO).await.unwrap();
            }
            "reset" => here.reset(check.key).await.unwrap(),
            _ => here.override_limit(check.key, Some(replacement), Timestamp::ZERO).await.unwrap(),
        }
        let freed = async {
            while !admits(&there, check).await {
                tokio::task::yield_now().await;
            }
        };
        within(change, freed).await;
    }
    server.assert_all_keys_expire().await;
}

#[tokio::test]
async fn client_with_a_long_identifier_has_one_counter_for_all_operations() {
    let server = Server::start();
    let stores = [open(server.config()), open(server.config())];
    let (leased, synced) = (RuleId::named("leased"), RuleId::named("synced"));
    for store in &stores {
        store.apply_settings(&[
            settings(STATIC, Coordination::Static, StoreFailureMode::Local),
            settings(leased, Coordination::Lease, StoreFailureMode::Local),
            settings(synced, Coordination::Sync, StoreFailureMode::Local),
        ]);
    }
    let (limit, client) = (bucket(4), vec![b'k'; 64 << 10]);
    for rule in [CENTRAL, STATIC, leased, synced] {
        let check = Check::new(CounterKey::new(rule, &client), &limit);
        let other = Check::new(CounterKey::new(rule, &client[1..]), &limit);
        let [store, _] = &stores;
        let decision = store.decide(&[check], Timestamp::ZERO).await.unwrap();
        assert!(decision.passes(), "{rule:?}");
        let _ = store.try_decide(&[check], Timestamp::ZERO);
        let mut decisions = Vec::new();
        let checks = [check];
        store.decide_batch(&[&checks, &checks], Timestamp::ZERO, &mut decisions).await.unwrap();
        let left = remaining(store, check).await;
        assert!(left <= 1, "{rule:?} has {left} left");
        store.refund(&decisions[1].refunds(&checks), Timestamp::ZERO).await.unwrap();
        assert_eq!(remaining(store, check).await, left + 1, "{rule:?}");
        store.reset(check.key).await.unwrap();
        assert!(remaining(store, other).await == 4 && admits(store, other).await, "{rule:?}");
    }
    let check = Check::new(CounterKey::new(CENTRAL, &client), &limit);
    assert!(admits(&stores[1], check).await);
    assert_eq!(remaining(&stores[0], check).await, 3, "both nodes use one counter");
}

#[tokio::test]
async fn leased_counter_that_was_changed_without_a_message_is_asked_again() {
    let server = Server::start();
    let store = open(server.config());
    let leased = RuleId::named("leased");
    store.apply_settings(&[settings(leased, Coordination::Lease, StoreFailureMode::Local)]);
    let limit = Limit::new(Algorithm::FixedWindow, Spec::new(2, TimeSpan::from_secs(86_400))).unwrap();
    // Rejections are cached once the subscription has begun.
    exhaust(&store, check(CENTRAL, &bucket(1))).await;
    let check = check(leased, &limit);
    let mut raw = server.raw().await;
    for cause in ["a message that names no counter", "a lost subscription"] {
        while admits(&store, check).await {}
        let keys: Vec<Vec<u8>> = raw.keys("*L").await.unwrap();
        raw.del::<_, ()>(&keys).await.unwrap();
        assert!(!admits(&store, check).await, "the node repeats the rejection");
        let mut command = redis::cmd(if cause.starts_with("a message") { "PUBLISH" } else { "CLIENT" });
        match cause {
            "a lost subscription" => command.arg("KILL").arg("TYPE").arg("pubsub"),
            _ => command.arg("tg:invalidate").arg(b"\xff"),
        };
        let freed = async {
            assert_eq!(command.query_async::<u64>(&mut raw).await.unwrap(), 1, "one subscription");
            while !admits(&store, check).await {
                tokio::task::yield_now().await;
            }
        };
        within(cause, freed).await;
    }
}

#[tokio::test]
async fn live_nodes_are_counted() {
    let server = Server::start();
    let stores = [open(server.config()), open(server.config()), open(server.config())];
    eventually("three nodes", || stores.iter().all(|store| store.report().nodes == 3)).await;
    server.assert_all_keys_expire().await;
}

#[tokio::test]
async fn failure_modes_decide_without_redis() {
    let store = open(config(free_address()));
    let (deny, allow) = (RuleId::named("deny"), RuleId::named("allow"));
    store.apply_settings(&[
        settings(STATIC, Coordination::Static, StoreFailureMode::Local),
        settings(deny, Coordination::Central, StoreFailureMode::Deny),
        settings(allow, Coordination::Central, StoreFailureMode::Allow),
    ]);
    let limit = bucket(2);
    let now = Timestamp::from_secs(1_700_000_000);
    let passes = async |checks: &[Check<'_>]| store.decide(checks, now).await.unwrap().passes();
    for _ in 0..3 {
        let decision = store.decide(&[check(allow, &limit)], now).await.unwrap();
        assert!(decision.passes());
        assert_eq!(decision.outcomes[0].remaining, 2);
        let error = store.decide(&[check(STATIC, &limit), check(deny, &limit)], now).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        assert!(passes(&[check(deny, &limit).role(Role::Advisory)]).await);
    }
    assert_eq!(store.peek(&[check(STATIC, &limit)], now).await.unwrap().outcomes[0].remaining, 2);
    let both = [check(STATIC, &limit), check(CENTRAL, &limit), check(allow, &limit)];
    assert_eq!([passes(&both).await, passes(&both).await, passes(&both).await], [true, true, false]);
    let mut other = both;
    other[1].key.client = b"other";
    assert!(!passes(&other).await, "the static share is spent");
    let other = store.peek(&other[1..2], now).await.unwrap();
    assert_eq!(other.outcomes[0].remaining, 2, "the rejected decision charged nothing");
    let report = store.report();
    assert!(report.is_in_fallback);
    let FallbackDecisions { local, allow, deny } = report.fallback_decisions;
    assert_eq!((local, allow, deny, report.fallback_units_charged), (2, 8, 3, 0));
}

#[tokio::test]
async fn decision_future_is_small_although_rare_paths_are_large() {
    let store = open(config(free_address()));
    let limit = bucket(5);
    let checks = [check(CENTRAL, &limit)];
    let bytes = size_of_val(&store.decide(&checks, Timestamp::ZERO));
    assert!(bytes <= 2_048, "{bytes} bytes");
}

#[tokio::test]
async fn two_stores_share_limits_and_changes_through_a_cluster() {
    let cluster = RedisCluster::start();
    let endpoint = Endpoint::parse(&cluster.url()).unwrap();
    let stores = [0; 2].map(|_| open(RedisConfig { timeout: TIMEOUT, ..RedisConfig::new(endpoint.clone()) }));
    eventually("both nodes", || stores.iter().all(|store| store.report().nodes == 2)).await;
    let (narrow, wide) = (bucket(10), bucket(100));
    let all = Check::new(CounterKey::new(RuleId::named("all"), b""), &wide);
    let mut admitted = 0;
    for turn in 0..20 {
        let decision = stores[turn % 2].decide(&[check(CENTRAL, &narrow), all], Timestamp::ZERO).await;
        admitted += u32::from(decision.unwrap().passes());
    }
    assert_eq!(admitted, 10);
    assert_eq!(remaining(&stores[0], all).await, 90, "rejected decisions charge no slot");
    exhaust(&stores[1], check(CENTRAL, &narrow)).await;
    stores[0].reset(check(CENTRAL, &narrow).key).await.unwrap();
    let freed = async {
        while !admits(&stores[1], check(CENTRAL, &narrow)).await {
            tokio::task::yield_now().await;
        }
    };
    within("the reset", freed).await;
    let report = stores[0].report();
    assert_eq!((report.is_in_fallback, report.lost_writes), (false, 0));
}

#[tokio::test]
async fn failed_batch_charges_nothing() {
    let store = open(config(free_address()));
    let deny = RuleId::named("deny");
    store.apply_settings(&[
        settings(STATIC, Coordination::Static, StoreFailureMode::Local),
        settings(deny, Coordination::Central, StoreFailureMode::Deny),
    ]);
    let limit = bucket(5);
    let now = tidegate_store::Clock::now(&SystemClock::new());
    let (local, counted) = ([check(CENTRAL, &limit)], [check(STATIC, &limit)]);
    assert!(store.decide(&local, now).await.unwrap().passes(), "fallback has begun");
    let denied = [check(deny, &limit)];
    let mut decisions = Vec::new();
    let later = now + TimeSpan::from_secs(1);
    for batch in [[&local[..], &denied], [&counted, &denied]] {
        let error = store.decide_batch(&batch, later, &mut decisions).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    }
    assert_eq!(decisions, []);
    let left = store.peek(&[local[0], counted[0]], later).await.unwrap();
    assert_eq!((left.outcomes[0].remaining, left.outcomes[1].remaining), (4, 5));
}

#[tokio::test]
async fn rejection_by_a_central_rule_gives_leased_units_back() {
    let server = Server::start();
    let store = open(server.config());
    let leased = RuleId::named("leased");
    store.apply_settings(&[settings(leased, Coordination::Lease, StoreFailureMode::Local)]);
    let (wide, narrow) = (bucket(10), bucket(3));
    let both = [check(leased, &wide), check(CENTRAL, &narrow)];
    let mut admitted = 0;
    for _ in 0..8 {
        let decision = store.decide(&both, Timestamp::ZERO).await.unwrap();
        admitted += u32::from(decision.passes());
        assert_eq!(decision.outcomes[0].verdict, Verdict::PASS, "{decision:?}");
    }
    assert_eq!(admitted, 3);
    let mut alone = 0;
    for _ in 0..10 {
        alone += u32::from(admits(&store, both[0]).await);
    }
    assert_eq!(alone, 7);
    assert!(store.report().lease.grants >= 1);
    server.assert_all_keys_expire().await;
}

#[tokio::test]
async fn spending_while_redis_was_away_is_charged_when_it_returns() {
    let mut server = Server::start();
    let store = open(server.config());
    let limit = bucket(10);
    for _ in 0..3 {
        assert!(admits(&store, check(CENTRAL, &limit)).await);
    }
    server.kill();
    let now = tidegate_store::Clock::now(&SystemClock::new());
    for _ in 0..4 {
        assert!(store.decide(&[check(CENTRAL, &limit)], now).await.unwrap().passes());
    }
    assert!(store.report().is_in_fallback);
    server.restart();
    eventually("normal operation", || !store.report().is_in_fallback).await;
    let report = store.report();
    assert_eq!((report.fallback_units_charged, report.fallback_decisions.local), (4, 4));
    assert!(!report.fallback_time.is_zero());
    assert_eq!(remaining(&store, check(CENTRAL, &limit)).await, 6, "the server lost the first three units");
    server.assert_all_keys_expire().await;
}

#[tokio::test]
async fn spending_without_redis_is_charged_to_every_coordination_when_it_starts() {
    let mut server = Server::stopped();
    // The first exchange of counts after the start is late.
    let store = open(RedisConfig { sync_interval: Duration::from_secs(1), ..server.config() });
    let (leased, synced) = (RuleId::named("leased"), RuleId::named("synced"));
    store.apply_settings(&[
        settings(leased, Coordination::Lease, StoreFailureMode::Local),
        settings(synced, Coordination::Sync, StoreFailureMode::Local),
    ]);
    let limit = bucket(10);
    let now = tidegate_store::Clock::now(&SystemClock::new());
    for rule in [CENTRAL, leased, synced] {
        for _ in 0..4 {
            assert!(store.decide(&[check(rule, &limit)], now).await.unwrap().passes());
        }
    }
    server.restart();
    eventually("normal operation", || !store.report().is_in_fallback).await;
    let report = store.report();
    assert_eq!((report.fallback_units_charged, report.fallback_units_uncharged), (12, 0));
    for rule in [CENTRAL, leased, synced] {
        assert_eq!(remaining(&store, check(rule, &limit)).await, 6, "{rule:?}");
    }
}

#[tokio::test]
async fn share_admits_again_what_is_refunded_while_redis_fails() {
    let mut server = Server::stopped();
    let store = open(server.config());
    let (leased, synced) = (RuleId::named("leased"), RuleId::named("synced"));
    store.apply_settings(&[
        settings(leased, Coordination::Lease, StoreFailureMode::Local),
        settings(synced, Coordination::Sync, StoreFailureMode::Local),
    ]);
    let limit = bucket(10);
    eventually("fallback", || store.report().is_in_fallback).await;
    let now = tidegate_store::Clock::now(&SystemClock::new());
    for rule in [CENTRAL, leased, synced] {
        let checks = [check(rule, &limit).cost(Cost::new(4))];
        let decision = store.decide(&checks, now).await.unwrap();
        store.refund(&decision.refunds(&checks), now).await.unwrap();
        let left = store.peek(&checks, now).await.unwrap().outcomes[0];
        assert_eq!(left.remaining, 10, "{rule:?} {left:?}");
    }
    server.restart();
    eventually("normal operation", || !store.report().is_in_fallback).await;
    for rule in [CENTRAL, leased, synced] {
        let left = store.peek(&[check(rule, &limit)], now).await.unwrap().outcomes[0];
        assert_eq!(left.remaining, 10, "{rule:?} {left:?}");
    }
}

#[tokio::test]
async fn synced_limit_is_not_lifted_while_redis_replies_with_errors() {
    let server = Server::start();
    let times = Duration::from_millis(50);
    let store = open(RedisConfig { sync_interval: times, timeout: 4 * times, ..server.config() });
    let synced = RuleId::named("synced");
    store.apply_settings(&[settings(synced, Coordination::Sync, StoreFailureMode::Allow)]);
    let limit = bucket(1_000_000);
    assert!(admits(&store, check(synced, &limit)).await);
    // The copy is known; from now on no exchange succeeds.
    let mut full = redis::cmd("CONFIG");
    full.arg("SET").arg("maxmemory").arg(1).exec_async(&mut server.raw().await).await.unwrap();
    let rejected = async {
        while store.report().fallback_decisions.local == 0 {
            admits(&store, check(synced, &limit)).await;
            tokio::task::yield_now().await;
        }
    };
    within("the share of the limit", rejected).await;
    assert_eq!(store.report().fallback_decisions.allow, 0);
}

#[tokio::test]
async fn lost_writes_are_detected_after_a_restart_from_an_old_snapshot() {
    let mut server = Server::start();
    let store = open(server.config());
    let beats = async |least: u64| {
        let mut raw = server.raw().await;
        let polling = async {
            loop {
                let keys: Vec<String> = raw.keys("tg:{nodes}writes:*").await.unwrap();
                if let [key] = &keys[..] {
                    let count: u64 = raw.get(key).await.unwrap();
                    if count >= least {
                        break count;
                    }
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        within("heartbeats", polling).await
    };
    beats(1).await;
    let _: () = redis::cmd("SAVE").query_async(&mut server.raw().await).await.unwrap();
    // The snapshot has at most this count.
    let saved = beats(1).await;
    // The node sends this one after it has received the reply to the one before, which the snapshot does not have.
    beats(saved + 2).await;
    assert_eq!(store.report().lost_writes, 0);
    server.kill();
    server.restart();
    eventually("lost writes", || store.report().lost_writes == 1).await;
    server.assert_all_keys_expire().await;
}

/// The counters of a decision in one map, as in the core.
struct Counters<'a> {
    states: &'a mut HashMap<OwnedKey, CounterState>,
    checks: &'a [Check<'a>],
    now: Timestamp,
}

impl Ledger for Counters<'_> {
    fn evaluate(&self, position: usize, cost: Cost) -> Outcome {
        let Check { key, limit, .. } = self.checks[position];
        let state = self.states.get(&key as &dyn AsKey).cloned().unwrap_or_default();
        limit.evaluate(&state, self.now, cost)
    }

    fn charge(&mut self, position: usize, cost: Cost) {
        let Check { key, limit, .. } = self.checks[position];
        let state = self.states.entry(key.into()).or_default();
        limit.charge(state, self.now, cost);
    }
}

#[tokio::test]
async fn mixed_decisions_equal_those_of_the_core() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let server = Server::start();
    let store = open(RedisConfig { time: TimeSource::Caller, ..server.config() });
    let rules = [("central", 6), ("other", 9), ("static", 7)].map(|(name, requests)| {
        let limit = Limit::new(Algorithm::TokenBucket, Spec::new(requests, TimeSpan::from_secs(20))).unwrap();
        (RuleId::named(name), limit)
    });
    let mut states = HashMap::new();
    let mut now = Timestamp::from_secs(1_700_000_000);
    let (mut passed, mut rejected) = (0, 0);
    for step in 0..1_500 {
        now = now + TimeSpan::from_millis(random.u64(0..1_500));
        let clients: [&[u8]; 3] = [b"a", b"b", b"c"];
        let checks: Vec<Check<'_>> = (0..random.usize(1..5))
            .map(|_| {
                let (rule, limit) = &rules[random.usize(0..3)];
                let candidates = [Role::Binding, Role::Binding, Role::Advisory, Role::Overage];
                let key = CounterKey::new(*rule, clients[random.usize(0..3)]);
                Check::new(key, limit).cost(Cost::new(random.u64(0..9))).role(candidates[random.usize(0..4)])
            })
            .collect();
        let expected = decide(&checks, now, &mut Counters { states: &mut states, checks: &checks, now });
        let got = store.decide(&checks, now).await.unwrap();
        assert_eq!(got, expected, "seed {seed}, step {step}: {checks:?}");
        if got.passes() { passed += 1 } else { rejected += 1 }
    }
    assert!(passed > 100 && rejected > 100, "{passed} passed, {rejected} rejected");
}
