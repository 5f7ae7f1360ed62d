//! Decision services that share limits through Redis, and what they answer while Redis fails.

use tidegate_testkit::folder::Folder;
use tidegate_testkit::process::{PolicyFile, RedisServer, Tidegate};
use tidegate_testkit::wait::eventually_blocking;

use super::protocols::{Answer, ServiceClient, ServiceProtocol, descriptor, descriptor_with_limit};
use crate::program::command;

/// The domain whose descriptors the tests use. A descriptor that carries a limit needs a configured domain.
const ENVOY: &str = "
domain: edge
descriptors:
  - { key: user, rate_limit: { unit: day, requests_per_unit: 6 } }
  - { key: token_bucket, rate_limit: { unit: day, requests_per_unit: 6, algorithm: token_bucket } }
  - { key: leaky_bucket, rate_limit: { unit: day, requests_per_unit: 6, algorithm: leaky_bucket } }
  - { key: fixed_window, rate_limit: { unit: day, requests_per_unit: 6, algorithm: fixed_window } }
  - { key: sliding_window_log, rate_limit: { unit: day, requests_per_unit: 6, algorithm: sliding_window_log } }
  - { key: sliding_window_counter, rate_limit: { unit: day, requests_per_unit: 6, algorithm: sliding_window_counter } }
";

/// The algorithms, which are also keys of descriptors.
const ALGORITHMS: [&str; 5] =
    ["token_bucket", "leaky_bucket", "fixed_window", "sliding_window_log", "sliding_window_counter"];

/// A decision service with a Redis.
struct StoredService {
    client: ServiceClient,
    _server: Tidegate,
    _policy: PolicyFile,
    _envoy: Folder,
}

impl StoredService {
    /// `store` are more keys of the policy's `store`.
    fn start(redis: &RedisServer, store: &str) -> Self {
        let (client, envoy) = (ServiceClient::new(), Folder::new());
        let policy = PolicyFile::new(&format!(
            "admin: off\n{}store: {{ url: '{}', secret_file: store.secret, {store} }}\n\
             rate_limits:\n  default: {{ requests: 10, window: 1h, algorithm: token_bucket }}\n  rules:\n\
             \x20   - {{ name: open, match: {{ path: /open }}, requests: 10, window: 1h, on_store_failure: allow }}\n\
             \x20   - {{ name: closed, match: {{ path: /closed }}, requests: 10, window: 1h, on_store_failure: deny }}\n",
            client.policy_key(),
            redis.url(),
        ));
        std::fs::write(policy.beside("store.secret"), "the secret of all nodes").unwrap();
        envoy.write("edge.yaml", ENVOY);
        let folder = envoy.root().to_str().unwrap();
        let server =
            Tidegate::start(command().args(["serve", "--config", &policy.path(), "--envoy-config", folder]));
        Self { client, _server: server, _policy: policy, _envoy: envoy }
    }

    fn check(&self, protocol: ServiceProtocol, rule: &str, client: &str) -> Answer {
        self.client.check(protocol, rule, client)
    }

    /// The answers of all protocols to a check of `rule`.
    fn check_all(&self, rule: &str, client: &str) -> [Answer; 3] {
        ServiceProtocol::ALL.map(|protocol| self.check(protocol, rule, client))
    }

    /// The answers to requests that carry their limits or use the limits of Envoy's configuration.
    fn ask_carried(&self, name: &str) -> [Answer; 3] {
        [
            self.client.throttle(name, 10),
            self.client.rate_limit("edge", &descriptor(&[("user", name)])),
            self.client.rate_limit("edge", &descriptor_with_limit(&[("user", name)], 10)),
        ]
    }
}

/// Two services that wait long enough for a Redis on a busy machine.
fn two_services(redis: &RedisServer, store: &str) -> [StoredService; 2] {
    [(); 2].map(|()| StoredService::start(redis, &format!("timeout: 5s, {store}")))
}

/// The number of admitted ones of `count` requests; all others must be rejected.
fn admitted(count: usize, ask: impl FnMut(usize) -> Answer) -> usize {
    let answers: Vec<_> = (0..count).map(ask).collect();
    let count_of = |wanted: Answer| answers.iter().filter(|answer| **answer == wanted).count();
    assert_eq!(count_of(Answer::Admitted) + count_of(Answer::Rejected), count, "{answers:?}");
    count_of(Answer::Admitted)
}

#[test]
fn two_services_admit_one_limit_in_total_over_all_protocols() {
    let redis = RedisServer::start();
    let services = two_services(&redis, "");
    let ask = |turn: usize| {
        // Every pair of a service and a protocol occurs.
        services[turn % 2].check(ServiceProtocol::ALL[turn % 3], "default", "user:bob")
    };
    assert_eq!(admitted(20, ask), 10);
}

#[test]
fn limits_that_requests_carry_are_shared_by_two_services() {
    let redis = RedisServer::start();
    let services = two_services(&redis, "");
    let client = |turn: usize| &services[turn % 2].client;
    assert_eq!(admitted(8, |turn| client(turn).throttle("key", 5)), 5);
    let carried = descriptor_with_limit(&[("user", "bob")], 4);
    assert_eq!(admitted(8, |turn| client(turn).rate_limit("edge", &carried)), 4);
    // The configured limit has another counter.
    let configured = descriptor(&[("user", "bob")]);
    assert_eq!(admitted(8, |turn| client(turn).rate_limit("edge", &configured)), 6);
}

#[test]
fn configured_limits_of_every_algorithm_are_shared_under_every_coordination() {
    for coordination in ["central", "lease", "sync"] {
        let redis = RedisServer::start();
        let services = two_services(&redis, &format!("coordination: {coordination}"));
        let client = |turn: usize| &services[turn % 2].client;
        for algorithm in ALGORITHMS {
            let configured = descriptor(&[(algorithm, "bob")]);
            let count = admitted(16, |turn| client(turn).rate_limit("edge", &configured));
            let is_central = ["leaky_bucket", "sliding_window_log"].contains(&algorithm);
            let expected = match coordination {
                // One service may have leased what the other one needs.
                "lease" if !is_central => 1..=6,
                // The services may not have exchanged their counts yet.
                "sync" if !is_central => 6..=12,
                _ => 6..=6,
            };
            assert!(expected.contains(&count), "{algorithm}, {coordination}: {count}");
        }
    }
}

#[test]
fn limits_that_requests_carry_are_never_exceeded_with_leases() {
    let redis = RedisServer::start();
    let services = two_services(&redis, "coordination: lease");
    let client = |turn: usize| &services[turn % 2].client;
    // One service may have leased what the other one needs.
    let is_within = |limit: usize, count: usize| (1..=limit).contains(&count);
    assert!(is_within(5, admitted(8, |turn| client(turn).throttle("key", 5))));
    let carried = descriptor_with_limit(&[("user", "bob")], 4);
    assert!(is_within(4, admitted(8, |turn| client(turn).rate_limit("edge", &carried))));
    let configured = descriptor(&[("user", "bob")]);
    assert!(is_within(6, admitted(8, |turn| client(turn).rate_limit("edge", &configured))));
}

#[test]
fn rules_are_answered_by_their_failure_modes_while_redis_is_killed() {
    let mut redis = RedisServer::start();
    let service = StoredService::start(&redis, "timeout: 200ms");
    let is_normal = || service.check_all("closed", "user:first") == [(); 3].map(|()| Answer::Admitted);
    eventually_blocking("Redis decides", is_normal);
    redis.kill();
    assert_eq!(service.check_all("closed", "user:bob"), [(); 3].map(|()| Answer::StoreFailed));
    let ask = |rule: &'static str| {
        let service = &service;
        move |turn: usize| service.check(ServiceProtocol::ALL[turn % 3], rule, "user:bob")
    };
    assert_eq!(admitted(12, ask("open")), 12);
    assert_eq!(admitted(12, ask("default")), 5, "half of the limit");
    redis.restart();
    let is_normal = || service.check_all("closed", "user:eve") == [(); 3].map(|()| Answer::Admitted);
    eventually_blocking("Redis decides again", is_normal);
}

#[test]
fn requests_that_carry_limits_are_answered_by_the_failure_mode_of_the_store() {
    for (mode, expected) in [("local", [5, 3, 5]), ("allow", [8, 8, 8]), ("deny", [0; 3])] {
        let mut redis = RedisServer::start();
        let service = StoredService::start(&redis, &format!("timeout: 200ms, on_store_failure: {mode}"));
        let is_normal = || service.ask_carried("first") == [(); 3].map(|()| Answer::Admitted);
        eventually_blocking("Redis decides", is_normal);
        redis.kill();
        let answers: Vec<_> = (0..8).map(|_| service.ask_carried("bob")).collect();
        for (kind, expected) in expected.into_iter().enumerate() {
            let count = |wanted: Answer| answers.iter().filter(|answer| answer[kind] == wanted).count();
            assert_eq!(count(Answer::Admitted), expected, "{mode}: {answers:?}");
            let failed = if mode == "deny" { 8 } else { 0 };
            assert_eq!(count(Answer::StoreFailed), failed, "{mode}: {answers:?}");
        }
    }
}

#[test]
fn redis_that_hangs_delays_no_protocol_for_long() {
    let redis = RedisServer::start();
    let service = StoredService::start(&redis, "timeout: 200ms");
    let is_normal = || service.check_all("closed", "user:first") == [(); 3].map(|()| Answer::Admitted);
    eventually_blocking("Redis decides", is_normal);
    redis.stop();
    // Each client gives up after seconds and would fail the test.
    assert_eq!(service.check_all("closed", "user:bob"), [(); 3].map(|()| Answer::StoreFailed));
    assert_eq!(service.check_all("open", "user:bob"), [(); 3].map(|()| Answer::Admitted));
    assert_eq!(service.check_all("default", "user:bob"), [(); 3].map(|()| Answer::Admitted));
    redis.resume();
    let is_normal = || service.check_all("closed", "user:eve") == [(); 3].map(|()| Answer::Admitted);
    eventually_blocking("Redis decides again", is_normal);
}
