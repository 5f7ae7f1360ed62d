//! Actions in place of a rejection.

use tidegate_testkit::server::{HttpServer, RecordingServer};

use crate::fixture::{ResourceLimits, TestGateway};

const NONE: &[(&str, &str)] = &[];

fn two_upstreams(usual: &str, cheap: &str, rest: &str) -> String {
    format!(
        "upstreams: {{ api: {{ servers: ['{usual}'] }}, cheap: {{ servers: ['{cheap}'] }} }}\n\
         routes: [{{ path: /**, upstream: api }}]\n{rest}"
    )
}

#[tokio::test]
async fn request_above_a_degrading_limit_is_marked_and_clients_cannot_mark_theirs() {
    let server = RecordingServer::start().await;
    let gateway = TestGateway::before(
        &[server.url()],
        "rate_limits: { default: { requests: 2, window: 1h, algorithm: token_bucket, on_exceed: degrade } }",
    );
    let mark = || server.last().header("x-tidegate-degrade").map(str::to_owned);
    let forged = [("x-tidegate-degrade", "0")];
    let removing = [("connection", "x-tidegate-degrade")];
    for (headers, expected) in [(NONE, None), (&forged, None), (&forged, Some("1")), (&removing, Some("1"))] {
        let response = gateway.get_with("/", headers).await;
        assert_eq!(response.status, 200);
        assert_eq!(mark().as_deref(), expected, "{headers:?}");
    }
    assert_eq!(gateway.get("/").await.header("x-ratelimit-remaining"), Some("0"));
    let actions = "rate_limit_actions_total{action=\"degrade\",mode=\"enforce\",rule=\"default\"}";
    assert_eq!(gateway.metric(actions), 3);
    assert_eq!(gateway.metric("rate_limit_requests_total{decision=\"admitted\",protocol=\"gateway\"}"), 5);
}

#[tokio::test]
async fn request_above_the_limit_goes_to_the_cheaper_upstream_and_never_to_the_usual_one() {
    let usual = HttpServer::named("usual").await;
    let cheap = HttpServer::named("cheap").await;
    let limit = "rate_limits: { default: { requests: 1, window: 1h, algorithm: token_bucket, on_exceed: { degrade: { upstream: cheap } } } }";
    let gateway =
        TestGateway::start(&two_upstreams(&usual.url(), &cheap.url(), limit), ResourceLimits::default());
    for expected in ["usual", "cheap", "cheap"] {
        assert_eq!(gateway.get("/").await.text(), expected);
    }
    // The cheaper upstream cannot be reached, and its fallback is the usual one.
    let policy = format!(
        "upstreams:\n  api: {{ servers: ['{}'] }}\n  \
         cheap: {{ servers: ['http://127.0.0.1:1'], breaker: {{ failures: 1 }}, fallback: {{ upstream: api }} }}\n\
         routes: [{{ path: /**, upstream: api }}]\n{limit}",
        usual.url()
    );
    gateway.replace_policy(&policy);
    for _ in 0..4 {
        let response = gateway.get("/").await;
        assert!(response.status == 502 || response.status == 503, "{}", response.status);
    }
}

#[tokio::test]
async fn soft_limit_delays_and_then_rejects() {
    let server = HttpServer::named("served").await;
    let gateway = TestGateway::before(
        &[server.url()],
        "rate_limits: { default: { requests: 4, window: 1h, algorithm: token_bucket, on_exceed: { slow: { from: 50%, max: 2ms } } } }",
    );
    for expected in [200, 200, 200, 200, 429] {
        assert_eq!(gateway.get("/").await.status, expected);
    }
    let actions = "rate_limit_actions_total{action=\"slow\",mode=\"enforce\",rule=\"default\"}";
    assert_eq!(gateway.metric(actions), 2, "the third and the fourth");
}
