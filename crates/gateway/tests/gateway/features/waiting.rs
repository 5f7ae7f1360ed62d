//! Requests that wait for their turn at a counter.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use tidegate_core::{Check, Cost, CounterKey, Decision, Refund, Role, RuleId, TimeSpan, Timestamp};
use tidegate_gateway::Gateway;
use tidegate_limiter::Limiter;
use tidegate_listener::Listener;
use tidegate_store::{Clock, MemoryStore, Override, Store, StoreError, SystemClock};
use tidegate_testkit::client::{RawClient, http2};
use tidegate_testkit::server::{HttpServer, RecordingServer};
use tidegate_testkit::wait::{eventually, soon, within};
use tokio::sync::watch;

use crate::fixture::{ResourceLimits, TestGateway, active};

/// One request departs, and the next departure is an hour away.
const HOURLY: &str =
    "rate_limits: { default: { requests: 1, window: 1h, algorithm: token_bucket, on_exceed: { wait: 1d } } }";

/// A store that records who is admitted, and when.
#[derive(Debug)]
struct OrderedStore {
    memory: MemoryStore,
    admitted: Mutex<Vec<(String, Timestamp)>>,
}

impl Store for OrderedStore {
    async fn decide(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        let decision = self.memory.decide(checks, now).await?;
        if decision.passes() {
            let who = checks.iter().find(|check| check.key.rule == RuleId::named("who"));
            let name = who.map(|check| String::from_utf8_lossy(check.key.client).into_owned());
            self.admitted.lock().unwrap().extend(name.map(|name| (name, now)));
        }
        Ok(decision)
    }

    async fn decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        self.memory.decide_batch(batch, now, decisions).await
    }

    async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        self.memory.peek(checks, now).await
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<bool, StoreError> {
        self.memory.refund(refunds, now).await
    }

    async fn reset(&self, key: CounterKey<'_>) -> Result<(), StoreError> {
        self.memory.reset(key).await
    }

    async fn override_limit(
        &self,
        key: CounterKey<'_>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.memory.override_limit(key, replacement, now).await
    }
}

#[tokio::test]
async fn thousand_requests_over_two_workers_depart_in_order_of_arrival_without_those_that_left() {
    let server = HttpServer::named("served").await;
    let policy = active(
        &[server.url()],
        "clients: { api_key: { header: X-API-Key, verify: none } }\nrate_limits:\n  rules:\n    \
         - { name: lane, per: everybody, requests: 1000, window: 1s, algorithm: token_bucket, burst: 1, on_exceed: { wait: 1d } }\n    \
         - { name: who, per: [api_key], requests: 5, window: 1h, algorithm: token_bucket }\n",
        &[],
    );
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let store = Arc::new(OrderedStore { memory: MemoryStore::with_cap(1 << 22), admitted: Mutex::default() });
    let limiter = Arc::new(Limiter::new(policy, Arc::clone(&store), Arc::clone(&clock)).unwrap());
    let lane = CounterKey::new(RuleId::named("lane"), b"");
    // The counter is in debt for an hour, until it is reset.
    let limit = limiter.policy().matcher.plan().rate_limits.rules[0].rule.limit;
    let debt = Check::new(lane, &limit).cost(Cost::new(3_600_000)).role(Role::Overage);
    store.memory.decide(&[debt], clock.now()).await.unwrap();
    let gateway = Gateway::builder(Arc::clone(&limiter)).build().unwrap();
    let listener = Listener::bind("127.0.0.1:0", 2).unwrap();
    let (address, (stop, stopping)) = (listener.address(), watch::channel(false));
    let threads = gateway.start(&[listener], &stopping, Duration::ZERO).unwrap();

    let mut connections = Vec::new();
    for _ in 0..20 {
        connections.push(http2::<Empty<Bytes>>(address).await);
    }
    let (mut staying, mut leaving) = (Vec::new(), Vec::new());
    for number in 0..1_000 {
        let key = format!("key-{number:04}");
        let request = Request::get("http://test/").header("x-api-key", &key).body(Empty::new()).unwrap();
        let response = tokio::spawn(connections[number % 20].send_request(request));
        within("a place", async {
            while limiter.waits().len() <= number {
                tokio::task::yield_now().await;
            }
        })
        .await;
        if number % 2 == 0 { staying.push((key, response)) } else { leaving.push(response) }
    }
    for response in leaving {
        response.abort();
    }
    eventually("half of them have left", || limiter.waits().len() == 500).await;
    limiter.reset(lane).await.unwrap();
    let mut expected = Vec::new();
    for (key, response) in staying {
        assert_eq!(soon(response).await.unwrap().unwrap().status(), 200);
        expected.push(key);
    }
    let admitted = store.admitted.lock().unwrap().clone();
    let names: Vec<_> = admitted.iter().map(|(name, _)| name[name.len() - 8..].to_owned()).collect();
    assert_eq!(names, expected, "in order of arrival, and nobody else");
    let is_within_limit =
        |pair: &[(String, Timestamp)]| pair[1].1.since(pair[0].1) >= TimeSpan::from_millis(1);
    assert!(admitted.windows(2).all(is_within_limit), "{admitted:?}");
    stop.send_replace(true);
    for thread in threads {
        soon(tokio::task::spawn_blocking(|| thread.join())).await.unwrap().expect("no worker panics");
    }
}

#[tokio::test]
async fn client_that_leaves_behind_an_unread_body_or_a_pipelined_request_frees_its_place() {
    let server = RecordingServer::start().await;
    let gateway = TestGateway::before(&[server.url()], HOURLY);
    assert_eq!(gateway.get("/first").await.status, 200);
    let large = "POST /large HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n";
    let partial = [large.as_bytes(), &vec![b'x'; 200_000]].concat();
    let single = b"GET /one HTTP/1.1\r\nHost: a\r\n\r\n";
    let pipelined = [&single[..], &single[..]].concat();
    let mut clients = Vec::new();
    // The kernel buffers the start of the body, so the end of the connection behind it arrives.
    let short = &partial[..10_000];
    for bytes in [&partial[..], short, &pipelined[..], &pipelined[..], &single[..]] {
        let mut client = RawClient::connect(gateway.address).await;
        assert!(client.send(bytes).await);
        clients.push(client);
        let count = clients.len();
        eventually("the request waits", || gateway.waiting() == count).await;
    }
    for (index, client) in clients.into_iter().enumerate() {
        // Some crash, and some close the connection.
        if index % 2 == 0 {
            client.reset();
        } else {
            drop(client);
        }
        eventually("the place is free", || gateway.waiting() == 4 - index).await;
    }
    assert_eq!(server.count(), 1, "nothing else reached the server");
}

#[tokio::test]
async fn stop_refuses_at_once_what_would_depart_after_the_drain() {
    let server = HttpServer::named("served").await;
    let policy = active(&[server.url()], HOURLY, &[]);
    let gateway = TestGateway::draining(policy, ResourceLimits::default(), Duration::from_mins(1));
    assert_eq!(gateway.get("/").await.status, 200);
    let mut client = http2::<Empty<Bytes>>(gateway.address).await;
    let request = Request::get("http://test/").body(Empty::new()).unwrap();
    let waiting = tokio::spawn(client.send_request(request));
    eventually("the request waits", || gateway.waiting() == 1).await;
    gateway.stop().await;
    let refused = soon(waiting).await.unwrap().unwrap();
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn waiting_request_is_admitted_with_its_headers_and_named_in_the_metrics() {
    let server = HttpServer::named("served").await;
    let gateway = TestGateway::before(
        &[server.url()],
        "rate_limits: { default: { requests: 20, window: 1s, algorithm: token_bucket, burst: 1, on_exceed: { wait: 1m } } }",
    );
    for _ in 0..4 {
        let response = gateway.get("/").await;
        assert_eq!(response.status, 200);
        assert_eq!(response.header("x-ratelimit-remaining"), Some("0"));
    }
    let waits = "rate_limit_actions_total{action=\"wait\",mode=\"enforce\",rule=\"default\"}";
    assert!(gateway.metric(waits) >= 1);
    assert_eq!(gateway.metric("rate_limit_requests_total{decision=\"admitted\",protocol=\"gateway\"}"), 4);
    assert!(!gateway.metrics().contains("decision=\"rejected\",protocol=\"gateway\"} 1"));
}
