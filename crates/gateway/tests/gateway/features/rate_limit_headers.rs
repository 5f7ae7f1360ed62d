//! Rate-limit headers and error bodies, in every style.

use http::StatusCode;
use serde_json::Value;
use tidegate_store::{Clock, SystemClock};
use tidegate_testkit::client::CollectedResponse;
use tidegate_testkit::server::HttpServer;

use crate::fixture::TestGateway;

const LIMIT: &str = "rate_limits: { default: { requests: 2, window: 1h, algorithm: sliding_window_log } }";

/// The responses to two admitted requests and a rejected one.
async fn two_admitted_and_one_rejected(rest: &str) -> [CollectedResponse; 3] {
    let upstream = HttpServer::named("served").await;
    let gateway = TestGateway::before(&[upstream.url()], &format!("{LIMIT}\n{rest}\n"));
    let responses = [gateway.get("/").await, gateway.get("/").await, gateway.get("/").await];
    let status = responses.each_ref().map(|response| response.status.as_u16());
    assert_eq!(status, [200, 200, 429]);
    responses
}

fn now() -> u64 {
    SystemClock::new().now().as_secs_ceil()
}

/// The sorted names of the rate-limit headers.
fn ratelimit_headers(response: &CollectedResponse) -> Vec<&str> {
    let names = response.headers.keys().map(http::HeaderName::as_str);
    let mut names: Vec<_> = names.filter(|name| name.contains("ratelimit")).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn x_ratelimit_headers_count_down_and_name_the_second_of_the_reset() {
    let before = now();
    let responses = two_admitted_and_one_rejected("headers: x_ratelimit").await;
    let after = now();
    for (response, remaining) in responses.iter().zip([1, 0, 0]) {
        assert_eq!(response.number("x-ratelimit-limit"), 2);
        assert_eq!(response.number("x-ratelimit-remaining"), remaining);
        let reset = response.number("x-ratelimit-reset");
        assert!((before + 3_600..=after + 3_600).contains(&reset), "{reset}");
    }
    let allowed = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
    assert_eq!(ratelimit_headers(&responses[0]), allowed);
    assert_eq!(responses[2].header("x-ratelimit-retry-after"), responses[2].header("retry-after"));
}

#[tokio::test]
async fn ratelimit_reset_is_a_unix_time_in_epoch_style_and_seconds_in_delta_style() {
    let before = now();
    let epoch = two_admitted_and_one_rejected("headers: ratelimit_epoch").await;
    let delta = two_admitted_and_one_rejected("headers: ratelimit_delta").await;
    let after = now();
    for responses in [&epoch, &delta] {
        for (response, remaining) in responses.iter().zip([1, 0, 0]) {
            assert_eq!(
                ratelimit_headers(response),
                ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"]
            );
            assert_eq!(
                (response.number("ratelimit-limit"), response.number("ratelimit-remaining")),
                (2, remaining)
            );
        }
    }
    for response in &epoch {
        assert!((before + 3_600..=after + 3_600).contains(&response.number("ratelimit-reset")));
    }
    for response in &delta {
        let reset = response.number("ratelimit-reset");
        assert!((3_600 - (after - before)..=3_600).contains(&reset), "{reset}");
    }
}

#[tokio::test]
async fn ratelimit_header_lists_every_applied_limit_in_order() {
    let upstream = HttpServer::named("served").await;
    let gateway = TestGateway::before(
        &[upstream.url()],
        "headers: ratelimit\nrate_limits:\n  default: { requests: 9, window: 1h, algorithm: sliding_window_log }\n  \
         endpoints: { /narrow: { requests: 1, window: 1m, algorithm: sliding_window_log } }\n",
    );
    let allowed = gateway.get("/narrow").await;
    assert_eq!(allowed.status, StatusCode::OK);
    assert_eq!(ratelimit_headers(&allowed), ["ratelimit", "ratelimit-policy"]);
    let policy = "\"default\";q=9;w=3600, \"endpoint:/narrow\";q=1;w=60";
    assert_eq!(allowed.header("ratelimit-policy"), Some(policy));
    assert_eq!(allowed.header("ratelimit"), Some("\"default\";r=8;t=3600, \"endpoint:/narrow\";r=0;t=60"));
    let rejected = gateway.get("/narrow").await;
    assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejected.header("ratelimit-policy"), Some(policy));
    assert!(rejected.header("ratelimit").unwrap().starts_with("\"default\";r=8;"), "{rejected:?}");
}

#[tokio::test]
async fn several_header_styles_are_sent_together() {
    let [allowed, ..] =
        two_admitted_and_one_rejected("headers: [x_ratelimit, ratelimit, ratelimit_delta]").await;
    assert_eq!(
        ratelimit_headers(&allowed),
        [
            "ratelimit",
            "ratelimit-limit",
            "ratelimit-policy",
            "ratelimit-remaining",
            "ratelimit-reset",
            "x-ratelimit-limit",
            "x-ratelimit-remaining",
            "x-ratelimit-reset"
        ]
    );
}

fn seconds_of_message(message: &Value) -> u64 {
    let message = message.as_str().unwrap();
    let number = message.strip_prefix("Too many requests. Please retry after ").unwrap();
    number.split(' ').next().unwrap().parse().unwrap()
}

/// Asserts that headers and body agree on the wait, which is never too short and at most a tenth too long.
fn assert_agreed_wait(rejected: &CollectedResponse, fields: &Value, message: &Value) {
    let retry_after = rejected.number("retry-after");
    assert!((3_590..=3_960).contains(&retry_after), "{retry_after}");
    assert_eq!(fields["retry_after"], retry_after);
    assert_eq!(seconds_of_message(message), retry_after);
    assert_eq!((&fields["limit"], &fields["remaining"]), (&Value::from(2), &Value::from(0)));
    assert_eq!(fields["reset"], rejected.number("x-ratelimit-reset"));
    assert_eq!(fields["window"], "1h");
}

#[tokio::test]
async fn flat_error_body_agrees_with_the_headers() {
    let [allowed, _, rejected] = two_admitted_and_one_rejected("error_body: flat").await;
    assert_eq!(allowed.text(), "served");
    assert_eq!(allowed.header("retry-after"), None);
    assert_eq!(rejected.header("content-type"), Some("application/json"));
    let body = rejected.json();
    assert_eq!((&body["error"], &body["rule"]), (&"rate_limit_exceeded".into(), &"default".into()));
    assert_agreed_wait(&rejected, &body, &body["message"]);
}

#[tokio::test]
async fn nested_error_body_agrees_with_the_headers() {
    let [.., rejected] = two_admitted_and_one_rejected("error_body: nested").await;
    assert_eq!(rejected.header("content-type"), Some("application/json"));
    let body = &rejected.json()["error"];
    assert_eq!((&body["code"], &body["rule"]), (&"RATE_LIMITED".into(), &"default".into()));
    assert_agreed_wait(&rejected, body, &body["message"]);
}

#[tokio::test]
async fn problem_error_body_agrees_with_the_headers() {
    let [.., rejected] = two_admitted_and_one_rejected("error_body: problem").await;
    assert_eq!(rejected.header("content-type"), Some("application/problem+json"));
    let body = rejected.json();
    assert!(body["type"].as_str().unwrap().ends_with("#quota-exceeded"));
    assert_eq!((&body["status"], &body["violated-policies"]), (&429.into(), &vec!["default"].into()));
    assert_agreed_wait(&rejected, &body, &body["detail"]);
}

#[tokio::test]
async fn retry_after_of_one_client_is_the_same_each_time() {
    let upstream = HttpServer::named("served").await;
    let gateway = TestGateway::before(
        &[upstream.url()],
        "rate_limits: { default: { requests: 1, window: 1d, algorithm: fixed_window } }\n",
    );
    gateway.get("/").await;
    let first = gateway.get("/").await.number("retry-after");
    let second = gateway.get("/").await.number("retry-after");
    assert!(first.abs_diff(second) <= 2, "{first} and then {second}");
}

#[tokio::test]
async fn cost_above_the_limit_has_no_retry_after_in_any_body() {
    for style in ["flat", "nested", "problem"] {
        let upstream = HttpServer::named("served").await;
        let gateway = TestGateway::before(
            &[upstream.url()],
            &format!(
                "error_body: {style}\nrate_limits: {{ rules: [{{ name: tokens, requests: 5, window: 1h, \
                 algorithm: token_bucket, cost: {{ header: X-Cost }} }}] }}\n"
            ),
        );
        let rejected = gateway.get_with("/", &[("x-cost", "6")]).await;
        assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(rejected.header("retry-after"), None);
        assert_eq!(rejected.header("x-ratelimit-retry-after"), None);
        assert_eq!(rejected.number("x-ratelimit-remaining"), 5, "nothing is charged");
        let body = rejected.text();
        assert!(body.contains("Retrying will not help"), "{body}");
        assert!(!body.contains("retry_after"), "{body}");
        assert_eq!(gateway.get_with("/", &[("x-cost", "5")]).await.status, StatusCode::OK);
    }
}
