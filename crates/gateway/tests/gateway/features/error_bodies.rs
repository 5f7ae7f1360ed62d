//! Bodies and statuses of rejections that a policy chooses.

use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use serde_json::json;
use tidegate_testkit::client::CollectedResponse;
use tidegate_testkit::server::HttpServer;

use crate::fixture::{ResourceLimits, TestGateway};

/// The files of examples/error-bodies.yaml.
const EXAMPLES: [(&str, &str); 4] = [
    ("error-bodies/nested.json", include_str!("../../../../../examples/error-bodies/nested.json")),
    ("error-bodies/short.json", include_str!("../../../../../examples/error-bodies/short.json")),
    ("error-bodies/camel-case.json", include_str!("../../../../../examples/error-bodies/camel-case.json")),
    ("error-bodies/plain.txt", include_str!("../../../../../examples/error-bodies/plain.txt")),
];

async fn rejected(gateway: &TestGateway, path: &str) -> CollectedResponse {
    assert_eq!(gateway.get(path).await.status, 200);
    gateway.get(path).await
}

#[tokio::test]
async fn templates_of_the_example_have_the_forms_that_api_owners_want() {
    let server = HttpServer::named("served").await;
    let example = include_str!("../../../../../examples/error-bodies.yaml");
    // The same policy with one request per minute, and with windows that a test does not reach the end of.
    let policy = example
        .replace("http://127.0.0.1:3000", &server.url())
        .replace("default: { requests: 100,", "default: { algorithm: token_bucket, requests: 1,")
        .replace("requests: 50,", "algorithm: token_bucket, requests: 1,")
        .replace("window: 1m", "window: 1h");
    assert_eq!(policy.matches("requests: 1,").count(), 4, "{policy}");
    for (path, status, content_type) in [
        ("/", 429, "application/json"),
        ("/v1/a", 429, "application/json"),
        ("/mobile/a", 429, "application/json"),
        ("/legacy/a", 503, "text/plain; charset=utf-8"),
    ] {
        // Without `default`, which every path shares, an endpoint rejects.
        let policy = if path == "/" {
            policy.clone()
        } else {
            policy.replace("default: {", "global: { mode: shadow,")
        };
        let gateway = TestGateway::with_files(&policy, &EXAMPLES);
        let response = rejected(&gateway, path).await;
        assert_eq!(
            (response.status.as_u16(), response.header("content-type")),
            (status, Some(content_type)),
            "{path}"
        );
        let retry_after = response.number("retry-after");
        assert_eq!(response.number("x-ratelimit-retry-after"), retry_after, "{path}");
        assert_eq!(response.number("x-ratelimit-limit"), 1);
        let message = format!("Too many requests. Please retry after {retry_after} seconds.");
        let expected = match path {
            "/" => {
                json!({ "error": { "code": "RATE_LIMITED", "message": "Rate limit exceeded", "retry_after": retry_after,
                "limit": 1, "window": "1h" } })
            }
            "/v1/a" => json!({ "error": "Rate limit exceeded", "limit": 1, "window": "3600s" }),
            "/mobile/a" => json!({ "error": message, "retryAfter": retry_after }),
            _ => {
                let expected = format!(
                    "Rate limit exceeded: 1 requests per 1h. Please retry in {retry_after} seconds.\n"
                );
                assert_eq!(response.text(), expected);
                continue;
            }
        };
        assert_eq!(response.json(), expected, "{path}");
    }
}

#[tokio::test]
async fn template_is_not_used_for_errors_that_no_limit_causes() {
    let policy = "upstreams: { api: { servers: ['http://127.0.0.1:1'] } }\nroutes: [{ path: /**, upstream: api }]\n\
                  error_body: { template: a.txt, style: nested }\nbans: { networks: [192.0.2.0/24] }\n\
                  rate_limits: { default: { requests: 1, window: 1h, algorithm: token_bucket, status: 503 } }";
    let gateway = TestGateway::with_files(policy, &[("a.txt", "{{status}} {{code}} {{rule}}")]);
    let unreachable = gateway.get("/").await;
    assert_eq!(
        (unreachable.status.as_u16(), unreachable.header("content-type")),
        (502, Some("application/json"))
    );
    assert_eq!(unreachable.json()["error"]["code"], "UPSTREAM_UNREACHABLE");
    // The charge of a request that no server has received is refunded; so exceed the limit by one that is received.
    let server = HttpServer::named("served").await;
    let gateway = TestGateway::with_files(
        &policy.replace("http://127.0.0.1:1", &server.url()),
        &[("a.txt", "{{status}} {{code}} {{rule}}")],
    );
    let response = rejected(&gateway, "/").await;
    assert_eq!((response.status.as_u16(), response.text()), (503, "503 rate_limit_exceeded default"));
    let metric = "rate_limit_requests_total{decision=\"rejected\",protocol=\"gateway\"}";
    assert_eq!(gateway.metric(metric), 1, "it is a rejection, whatever its status");
    gateway.ban("127.0.0.1");
    let banned = gateway.get("/").await;
    assert_eq!((banned.status.as_u16(), &banned.json()["error"]["code"]), (403, &"BANNED".into()));
}

#[tokio::test]
async fn concurrency_limit_and_lock_out_have_the_response_of_their_rule() {
    let server = HttpServer::named("served").await;
    let gateway = TestGateway::with(
        &[server.url()],
        "rate_limits:\n  default: { requests: 1, window: 1h, algorithm: token_bucket, status: 503, error_body: { template: a.txt }, \
         penalty: { after: 2, for: 1h } }\n",
        &[("a.txt", "{{code}}")],
        ResourceLimits::default(),
    );
    assert_eq!(rejected(&gateway, "/").await.text(), "rate_limit_exceeded");
    let locked_out = gateway.get("/").await;
    assert_eq!((locked_out.status.as_u16(), locked_out.text()), (503, "locked_out"));
    let head =
        gateway.send(Request::head("/").header("host", "a").body(Empty::<Bytes>::new()).unwrap()).await;
    assert_eq!((head.status.as_u16(), head.number("content-length"), head.text()), (503, 10, ""));
}

#[tokio::test]
async fn reset_in_milliseconds_is_the_style_x_ratelimit_ms() {
    let server = HttpServer::named("served").await;
    let gateway = TestGateway::before(
        &[server.url()],
        "headers: x_ratelimit_ms\nrate_limits: { default: { requests: 1, window: 1h, algorithm: fixed_window } }",
    );
    let response = rejected(&gateway, "/").await;
    assert_eq!(response.number("x-ratelimit-reset"), response.json()["reset"].as_u64().unwrap() * 1_000);
    assert!(response.header("x-ratelimit-retry-after").is_some());
}
