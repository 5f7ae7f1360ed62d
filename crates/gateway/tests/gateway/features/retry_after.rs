//! `Retry-After` is the first second at which the rejected request is admitted: a client that waits exactly that long is
//! never rejected again, whatever rejected it, as long as no other request is charged meanwhile.

use std::sync::Arc;

use http::Response;
use tidegate_core::{TimeSpan, Timestamp};
use tidegate_store::ManualClock;
use tidegate_testkit::client::CollectedResponse;
use tidegate_testkit::server::{HttpServer, full};
use tidegate_testkit::wait::soon;
use tokio::sync::Semaphore;

use crate::fixture::{ResourceLimits, TestGateway, active};

struct Setup {
    clock: Arc<ManualClock>,
    gateway: TestGateway,
    _upstream: HttpServer,
}

impl Setup {
    async fn new(policy: &str) -> Self {
        let upstream = HttpServer::named("served").await;
        // In the middle of windows of every length.
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_800_000_017_300_000)));
        let gateway = TestGateway::with_clock(
            clock.clone(),
            active(&[upstream.url()], policy, &[]),
            ResourceLimits::default(),
        );
        Self { clock, gateway, _upstream: upstream }
    }

    async fn get(&self) -> CollectedResponse {
        self.gateway.get_with("/a", &[("x-cost", "2"), ("x-user", "ann"), ("user-agent", "browser")]).await
    }

    /// Sends requests until one is rejected.
    async fn exhaust(&self) -> CollectedResponse {
        for _ in 0..30 {
            let response = self.get().await;
            if response.status == 429 {
                return response;
            }
            assert_eq!(response.status, 200, "{response:?}");
        }
        panic!("30 requests at once and none is rejected");
    }
}

/// One policy for each way to reject a request.
const POLICIES: [(&str, &str); 14] = [
    (
        "lock-out shorter than the window",
        "default: { requests: 1, window: 60, algorithm: sliding_window_log, penalty: { after: 1, for: 10s } }",
    ),
    (
        "lock-out longer than the window",
        "default: { requests: 1, window: 5, algorithm: sliding_window_log, penalty: { after: 1, for: 40s } }",
    ),
    (
        "lock-out after several violations",
        "default: { requests: 2, window: 1m, algorithm: token_bucket, penalty: { after: 3, for: 2s } }",
    ),
    (
        "lock-out, sliding window counter",
        "default: { requests: 3, window: 60, penalty: { after: 1, for: 7s } }",
    ),
    (
        "lock-out, fixed window",
        "default: { requests: 2, window: 1h, algorithm: fixed_window, penalty: { after: 1, for: 10s } }",
    ),
    (
        "lock-out and a longer limit beside it",
        "{ default: { requests: 2, window: 20s, algorithm: sliding_window_log, penalty: { after: 1, for: 10s } }, endpoints: { /a: { requests: 2, window: 90s, algorithm: token_bucket } } }",
    ),
    (
        "two lock-outs",
        "{ default: { requests: 2, window: 20s, algorithm: sliding_window_log, penalty: { after: 1, for: 10s } }, endpoints: { /a: { requests: 2, window: 90s, algorithm: token_bucket, penalty: { after: 1, for: 70s } } } }",
    ),
    (
        "lock-out of each identity",
        "rules: [{ name: each, per_each: [ip, user, fingerprint], requests: 2, window: 30s, algorithm: token_bucket, penalty: { after: 1, for: 3s } }]",
    ),
    (
        "lock-out, costs of two",
        "rules: [{ name: cost, requests: 5, window: 30s, algorithm: sliding_window_log, cost: { header: X-Cost }, penalty: { after: 1, for: 3s } }]",
    ),
    ("leaky bucket, full", "default: { requests: 100, window: 10s, algorithm: leaky_bucket, burst: 2 }"),
    (
        "leaky bucket, wait too long",
        "default: { requests: 10, window: 1h, algorithm: leaky_bucket, max_wait: 50ms }",
    ),
    (
        "leaky bucket, wait too long and lock-out",
        "default: { requests: 10, window: 10m, algorithm: leaky_bucket, max_wait: 50ms, penalty: { after: 1, for: 10s } }",
    ),
    (
        "several limits",
        "{ global: { requests: 4, window: 1m }, default: { requests: 3, window: 90s, algorithm: fixed_window }, endpoints: { /a: { requests: 3, window: 7s, algorithm: sliding_window_log } } }",
    ),
    ("window below one second", "default: { requests: 3, window: 100ms, algorithm: token_bucket }"),
];

#[tokio::test]
async fn retry_after_waited_exactly_request_is_admitted_for_every_reason() {
    const CLIENTS: &str = "clients: { user: { header: X-User } }\n";
    for (name, limits) in POLICIES {
        let setup = Setup::new(&format!("{CLIENTS}rate_limits: {}\n", braced(limits))).await;
        for round in 0..3 {
            let first = setup.exhaust().await;
            // Another rejected attempt changes nothing.
            let second = setup.get().await;
            assert_eq!(second.status, 429, "{name}, round {round}");
            assert!(second.number("retry-after") >= first.number("retry-after"), "{name}, round {round}");
            let last = setup.get().await;
            setup.clock.advance(TimeSpan::from_secs(last.number("retry-after")));
            let admitted = setup.get().await;
            assert_eq!(admitted.status, 200, "{name}, round {round}: {admitted:?}");
        }
    }
}

fn braced(limits: &str) -> String {
    if limits.starts_with('{') { limits.to_owned() } else { format!("{{ {limits} }}") }
}

#[tokio::test]
async fn retry_after_during_lock_out_counts_the_limit_too() {
    let setup = Setup::new(&format!("rate_limits: {}\n", braced(POLICIES[0].1))).await;
    let waits = [setup.exhaust().await, setup.get().await, setup.get().await];
    let waits =
        waits.map(|response| (response.number("retry-after"), response.json()["retry_after"].clone()));
    let (first, _) = waits[0];
    assert!((60..=66).contains(&first), "{first}: a window, and up to a tenth of it");
    for (header, body) in waits {
        assert_eq!(
            (header, body),
            (first, first.into()),
            "a client gets the same time in every header and body"
        );
    }
}

#[tokio::test]
async fn retry_after_at_full_concurrency_limit_counts_the_limit_too() {
    let release = Arc::new(Semaphore::new(0));
    let released = Arc::clone(&release);
    let upstream = HttpServer::start(move |_| {
        let released = Arc::clone(&released);
        async move {
            released.acquire().await.unwrap().forget();
            Response::new(full("served"))
        }
    })
    .await;
    let policy = "rate_limits: { default: { requests: 1, window: 5, algorithm: sliding_window_log }, \
                  rules: [{ name: exports, concurrent: 1 }] }\n";
    let gateway = TestGateway::before(&[upstream.url()], policy);
    let address = gateway.address;
    let first_request = tokio::spawn(async move {
        let request = http::Request::get("/").header("host", "test");
        let request = request.body(http_body_util::Empty::<bytes::Bytes>::new()).unwrap();
        tidegate_testkit::client::http1(address).await.send_request(request).await.unwrap().status()
    });
    soon(upstream.first_request()).await;
    let rejected = gateway.get("/").await;
    assert_eq!(rejected.json()["rule"], "default");
    assert_eq!(rejected.number("retry-after"), 5, "after 1 s the limit would reject it");
    release.add_permits(1);
    assert_eq!(soon(first_request).await.unwrap(), 200);
}
