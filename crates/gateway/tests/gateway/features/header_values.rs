//! The values in the rate-limit headers for each kind of limit, on admitted and on rejected requests.

use std::sync::Arc;

use http::Response;
use tidegate_core::{TimeSpan, Timestamp};
use tidegate_store::ManualClock;
use tidegate_testkit::client::{CollectedResponse, http1};
use tidegate_testkit::server::{HttpServer, full};
use tidegate_testkit::wait::soon;
use tokio::sync::Semaphore;

use crate::fixture::{ResourceLimits, TestGateway, active};

const START: u64 = 1_800_000_000;
const EVERY_STYLE: &str = "headers: [x_ratelimit, ratelimit, ratelimit_delta]\n";

struct Setup {
    clock: Arc<ManualClock>,
    gateway: TestGateway,
    _upstream: HttpServer,
}

impl Setup {
    async fn new(policy: &str) -> Self {
        let upstream = HttpServer::named("served").await;
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(START)));
        let policy = format!("{EVERY_STYLE}{policy}\n");
        let gateway = TestGateway::with_clock(
            clock.clone(),
            active(&[upstream.url()], &policy, &[]),
            ResourceLimits::default(),
        );
        Self { clock, gateway, _upstream: upstream }
    }

    async fn get(&self) -> CollectedResponse {
        self.gateway.get("/").await
    }

    async fn exhaust(&self) -> CollectedResponse {
        for _ in 0..30 {
            let response = self.get().await;
            if response.status == 429 {
                return response;
            }
        }
        panic!("30 requests at once and none is rejected");
    }
}

/// The numbers of the single-valued styles: limit, remaining, seconds until the reset; both styles agree.
fn single_values(response: &CollectedResponse) -> (u64, u64, u64) {
    let delta = response.number("ratelimit-reset");
    let numbers = |prefix: &str| {
        (response.number(&format!("{prefix}-limit")), response.number(&format!("{prefix}-remaining")))
    };
    let (limit, remaining) = numbers("ratelimit");
    assert_eq!((limit, remaining), numbers("x-ratelimit"));
    (limit, remaining, delta)
}

/// Asserts that the body has the numbers of the headers.
fn assert_body_agrees(rejected: &CollectedResponse, now: u64) {
    assert_eq!(rejected.status, 429);
    let body = rejected.json();
    let (limit, remaining, reset) = single_values(rejected);
    assert_eq!((&body["limit"], &body["remaining"]), (&limit.into(), &remaining.into()), "{body}");
    assert_eq!(body["reset"], now + reset, "{body}");
    assert_eq!(rejected.number("x-ratelimit-reset"), now + reset);
    assert_eq!(body["retry_after"], rejected.number("retry-after"), "{body}");
    assert_eq!(rejected.number("x-ratelimit-retry-after"), rejected.number("retry-after"));
    assert!(reset <= rejected.number("retry-after"));
    let seconds = rejected.number("retry-after");
    let sentence = format!("Please retry after {seconds} second{}.", if seconds == 1 { "" } else { "s" });
    assert!(body["message"].as_str().unwrap().ends_with(&sentence), "{body}");
    assert!(body.as_object().unwrap().contains_key("window"), "{body}");
}

#[tokio::test]
async fn token_bucket_with_burst_reports_the_time_in_which_the_burst_refills() {
    let setup = Setup::new(
        "rate_limits: { default: { requests: 30, window: 1m, algorithm: token_bucket, burst: 10 } }",
    )
    .await;
    let admitted = setup.get().await;
    assert_eq!(admitted.header("ratelimit-policy"), Some("\"default\";q=10;w=20"));
    assert_eq!(admitted.header("ratelimit"), Some("\"default\";r=9;t=2"));
    assert_eq!(single_values(&admitted), (10, 9, 2));
    let rejected = setup.exhaust().await;
    assert_eq!(rejected.header("ratelimit-policy"), Some("\"default\";q=10;w=20"));
    assert_eq!(rejected.header("ratelimit"), Some("\"default\";r=0;t=2"), "a token is added in 2 s");
    assert_eq!(rejected.number("retry-after"), 2);
    assert_body_agrees(&rejected, START);
    assert_eq!(rejected.json()["window"], "20s");
}

#[tokio::test]
async fn window_below_one_second_reports_an_equal_quota_per_second() {
    let policy = "rate_limits: { default: { requests: 10, window: 100ms, algorithm: fixed_window } }";
    let setup = Setup::new(policy).await;
    let admitted = setup.get().await;
    assert_eq!(admitted.header("ratelimit-policy"), Some("\"default\";q=100;w=1"));
    assert_eq!(admitted.header("ratelimit"), Some("\"default\";r=90;t=1"));
    assert_eq!(single_values(&admitted), (100, 90, 1));
    let rejected = setup.exhaust().await;
    assert_eq!(rejected.header("ratelimit"), Some("\"default\";r=0;t=1"));
    assert_body_agrees(&rejected, START);
    assert_eq!(rejected.json()["window"], "1s");
}

#[tokio::test]
async fn leaky_bucket_reports_no_more_than_requests_or_burst() {
    for (burst, policy) in [("", "q=10;w=60"), (", burst: 4", "q=4;w=24"), (", burst: 50", "q=10;w=60")] {
        let limit = format!("requests: 10, window: 1m, algorithm: leaky_bucket, max_wait: 1ms{burst}");
        let setup = Setup::new(&format!("rate_limits: {{ default: {{ {limit} }} }}")).await;
        let expected = format!("\"default\";{policy}");
        assert_eq!(setup.get().await.header("ratelimit-policy"), Some(&*expected));
        let rejected = setup.exhaust().await;
        assert_eq!(rejected.header("ratelimit-policy"), Some(&*expected));
        assert_eq!(rejected.header("ratelimit"), Some("\"default\";r=0;t=6"));
        assert_body_agrees(&rejected, START);
    }
}

#[tokio::test]
async fn sliding_window_counter_reports_no_longer_time_than_its_window() {
    let setup = Setup::new("rate_limits: { default: { requests: 4, window: 1m } }").await;
    let admitted = setup.get().await;
    assert_eq!(
        admitted.header("ratelimit"),
        Some("\"default\";r=3;t=60"),
        "though it also counts in the next window"
    );
    let rejected = setup.exhaust().await;
    assert_eq!(rejected.header("ratelimit"), Some("\"default\";r=0;t=60"));
    // Four of the last window count until its share falls below four.
    assert!((61..=67).contains(&rejected.number("retry-after")), "{rejected:?}");
    assert_body_agrees(&rejected, START);
}

#[tokio::test]
async fn rejection_by_two_limits_reports_when_each_admits_again() {
    let setup = Setup::new(
        "rate_limits: { default: { requests: 2, window: 20s, algorithm: sliding_window_log }, \
         endpoints: { /: { requests: 2, window: 8s, algorithm: sliding_window_log } } }",
    )
    .await;
    setup.get().await;
    setup.clock.advance(TimeSpan::from_secs(5));
    setup.get().await;
    let rejected = setup.get().await;
    assert_eq!(rejected.header("ratelimit"), Some("\"default\";r=0;t=15, \"endpoint:/\";r=0;t=3"));
    assert!(rejected.number("retry-after") >= 15);
    assert_body_agrees(&rejected, START + 5);
}

#[tokio::test]
async fn rejection_by_a_short_and_a_long_limit_is_about_the_one_that_sets_retry_after() {
    let setup = Setup::new(
        "rate_limits: { default: { requests: 2, window: 10s, algorithm: fixed_window }, \
         endpoints: { /x: { requests: 1, window: 1h, algorithm: fixed_window } } }",
    )
    .await;
    setup.gateway.get("/").await;
    setup.gateway.get("/x").await;
    let rejected = setup.gateway.get("/x").await;
    assert_eq!(single_values(&rejected), (1, 0, 3_600));
    assert_body_agrees(&rejected, START);
    let body = rejected.json();
    assert_eq!((&body["rule"], &body["window"]), (&"endpoint:/x".into(), &"1h".into()));
    assert!((3_600..=3_630).contains(&rejected.number("retry-after")), "a jitter of 30 s at most");
}

#[tokio::test]
async fn lock_out_reports_its_rule_in_all_headers_and_fields() {
    for style in ["flat", "nested", "problem"] {
        let setup = Setup::new(&format!(
            "error_body: {style}\nrate_limits: {{ default: {{ requests: 100, window: 1m, algorithm: fixed_window }}, \
             rules: [{{ name: login, requests: 1, window: 10s, algorithm: sliding_window_log, penalty: {{ after: 1, for: 40s }} }}] }}"
        ))
        .await;
        setup.exhaust().await;
        setup.clock.advance(TimeSpan::from_secs(20));
        let locked_out = setup.get().await;
        assert_eq!(locked_out.header("ratelimit-policy"), Some("\"default\";q=100;w=60, \"login\";q=1;w=10"));
        assert_eq!(locked_out.header("ratelimit"), Some("\"default\";r=99;t=40, \"login\";r=0;t=10"));
        assert_eq!(single_values(&locked_out), (1, 0, 20));
        let body = locked_out.json();
        let fields = if style == "nested" { &body["error"] } else { &body };
        for (key, value) in [("limit", 1), ("remaining", 0), ("reset", START + 40)] {
            assert_eq!(fields[key], value, "{body}");
        }
        assert_eq!((&fields["rule"], &fields["window"]), (&"login".into(), &"10s".into()), "{body}");
        let retry_after = locked_out.number("retry-after");
        assert!((20..=22).contains(&retry_after), "20 s, and up to a tenth");
        assert_eq!(fields["retry_after"], retry_after);
        assert_eq!(locked_out.number("x-ratelimit-retry-after"), retry_after);
    }
}

#[tokio::test]
async fn concurrency_limit_is_reported_in_all_headers_and_fields() {
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
    let policy = format!(
        "{EVERY_STYLE}rate_limits: {{ default: {{ requests: 9, window: 1m, algorithm: fixed_window }}, \
         rules: [{{ name: exports, concurrent: 1 }}] }}\n"
    );
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(START)));
    let gateway =
        TestGateway::with_clock(clock, active(&[upstream.url()], &policy, &[]), ResourceLimits::default());
    let address = gateway.address;
    let first_request = tokio::spawn(async move {
        let request = http::Request::get("/").header("host", "test");
        let request = request.body(http_body_util::Empty::<bytes::Bytes>::new()).unwrap();
        http1(address).await.send_request(request).await.unwrap().status()
    });
    soon(upstream.first_request()).await;
    let rejected = gateway.get("/").await;
    assert_eq!(
        rejected.header("ratelimit-policy"),
        Some("\"exports\";q=1;qu=\"concurrent-requests\", \"default\";q=9;w=60")
    );
    assert_eq!(rejected.header("ratelimit"), Some("\"exports\";r=0;t=1, \"default\";r=8;t=60"));
    assert_eq!(single_values(&rejected), (1, 0, 1));
    assert_eq!(rejected.number("retry-after"), 1);
    assert_body_agrees(&rejected, START);
    let body = rejected.json();
    assert_eq!((&body["rule"], &body["window"]), (&"exports".into(), &serde_json::Value::Null));
    release.add_permits(1);
    assert_eq!(soon(first_request).await.unwrap(), 200);
}

#[tokio::test]
async fn quota_unit_is_reported_if_a_limit_does_not_count_requests() {
    let setup = Setup::new(
        "rate_limits: { rules: [{ name: bytes, requests: 1000, window: 1m, algorithm: fixed_window, cost: { body: 1 } }, \
         { name: pages, requests: 100, window: 1m, algorithm: fixed_window, cost: { body: 4KiB } }, \
         { name: tokens, requests: 90, window: 1m, algorithm: fixed_window, cost: { header: X-Cost } }, \
         { name: heavy, requests: 90, window: 1m, algorithm: fixed_window, cost: 3 }, \
         { name: plain, requests: 9, window: 1m, algorithm: fixed_window }] }",
    )
    .await;
    let policy = "\"bytes\";q=1000;qu=\"content-bytes\";w=60, \"pages\";q=100;qu=\"content-4KiB\";w=60, \
                  \"tokens\";q=90;qu=\"cost-units\";w=60, \"heavy\";q=90;qu=\"cost-units\";w=60, \
                  \"plain\";q=9;w=60";
    assert_eq!(setup.get().await.header("ratelimit-policy"), Some(policy));
}
