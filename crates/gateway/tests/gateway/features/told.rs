//! What responses say of limits, in every style and body.

use http::StatusCode;
use serde_json::Value;
use tidegate_store::{Clock, SystemClock};
use tidegate_testkit::client::CollectedResponse;
use tidegate_testkit::server::HttpServer;

use crate::fixture::TestGateway;

const LIMIT: &str = "rate_limits: { default: { requests: 2, window: 1h, algorithm: sliding_window_log } }";

/// Two requests that pass and one that does not.
async fn three(rest: &str) -> [CollectedResponse; 3] {
    let upstream = HttpServer::named("served").await;
    let proxy = TestGateway::before(&[upstream.url()], &format!("{LIMIT}\n{rest}\n"));
    let answers = [proxy.get("/").await, proxy.get("/").await, proxy.get("/").await];
    let status = answers.each_ref().map(|answer| answer.status.as_u16());
    assert_eq!(status, [200, 200, 429]);
    answers
}

fn now() -> u64 {
    SystemClock::new().now().as_secs_ceil()
}

/// The limit's headers, by the beginning of their names.
fn ratelimit_headers(answer: &CollectedResponse) -> Vec<&str> {
    let names = answer.headers.keys().map(http::HeaderName::as_str);
    let mut names: Vec<_> = names.filter(|name| name.contains("ratelimit")).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn x_ratelimit_counts_down_and_names_the_second_of_the_reset() {
    let before = now();
    let answers = three("headers: x_ratelimit").await;
    let after = now();
    for (answer, remaining) in answers.iter().zip([1, 0, 0]) {
        assert_eq!(answer.number("x-ratelimit-limit"), 2);
        assert_eq!(answer.number("x-ratelimit-remaining"), remaining);
        let reset = answer.number("x-ratelimit-reset");
        assert!((before + 3_600..=after + 3_600).contains(&reset), "{reset}");
    }
    let allowed = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
    assert_eq!(ratelimit_headers(&answers[0]), allowed);
    assert_eq!(answers[2].header("x-ratelimit-retry-after"), answers[2].header("retry-after"));
}

#[tokio::test]
async fn ratelimit_epoch_names_a_second_and_delta_counts_from_now() {
    let before = now();
    let epoch = three("headers: ratelimit_epoch").await;
    let delta = three("headers: ratelimit_delta").await;
    let after = now();
    for answers in [&epoch, &delta] {
        for (answer, remaining) in answers.iter().zip([1, 0, 0]) {
            assert_eq!(
                ratelimit_headers(answer),
                ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"]
            );
            assert_eq!(
                (answer.number("ratelimit-limit"), answer.number("ratelimit-remaining")),
                (2, remaining)
            );
        }
    }
    for answer in &epoch {
        assert!((before + 3_600..=after + 3_600).contains(&answer.number("ratelimit-reset")));
    }
    for answer in &delta {
        let reset = answer.number("ratelimit-reset");
        assert!((3_600 - (after - before)..=3_600).contains(&reset), "{reset}");
    }
}

#[tokio::test]
async fn ratelimit_tells_every_policy_that_applied_in_order() {
    let upstream = HttpServer::named("served").await;
    let proxy = TestGateway::before(
        &[upstream.url()],
        "headers: ratelimit\nrate_limits:\n  default: { requests: 9, window: 1h, algorithm: sliding_window_log }\n  \
         endpoints: { /narrow: { requests: 1, window: 1m, algorithm: sliding_window_log } }\n",
    );
    let allowed = proxy.get("/narrow").await;
    assert_eq!(allowed.status, StatusCode::OK);
    assert_eq!(ratelimit_headers(&allowed), ["ratelimit", "ratelimit-policy"]);
    let policy = "\"default\";q=9;w=3600, \"endpoint:/narrow\";q=1;w=60";
    assert_eq!(allowed.header("ratelimit-policy"), Some(policy));
    assert_eq!(allowed.header("ratelimit"), Some("\"default\";r=8;t=3600, \"endpoint:/narrow\";r=0;t=60"));
    let refused = proxy.get("/narrow").await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.header("ratelimit-policy"), Some(policy));
    assert!(refused.header("ratelimit").unwrap().starts_with("\"default\";r=8;"), "{refused:?}");
}

#[tokio::test]
async fn several_styles_stand_side_by_side() {
    let [allowed, ..] = three("headers: [x_ratelimit, ratelimit, ratelimit_delta]").await;
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

/// Never early, and at most a tenth late.
fn assert_agreed_wait(refused: &CollectedResponse, fields: &Value, message: &Value) {
    let retry_after = refused.number("retry-after");
    assert!((3_590..=3_960).contains(&retry_after), "{retry_after}");
    assert_eq!(fields["retry_after"], retry_after);
    assert_eq!(seconds_of_message(message), retry_after);
    assert_eq!((&fields["limit"], &fields["remaining"]), (&Value::from(2), &Value::from(0)));
    assert_eq!(fields["reset"], refused.number("x-ratelimit-reset"));
    assert_eq!(fields["window"], "1h");
}

#[tokio::test]
async fn the_flat_body_agrees_with_its_headers() {
    let [allowed, _, refused] = three("error_body: flat").await;
    assert_eq!(allowed.text(), "served");
    assert_eq!(allowed.header("retry-after"), None);
    assert_eq!(refused.header("content-type"), Some("application/json"));
    let body = refused.json();
    assert_eq!((&body["error"], &body["rule"]), (&"rate_limit_exceeded".into(), &"default".into()));
    assert_agreed_wait(&refused, &body, &body["message"]);
}

#[tokio::test]
async fn the_nested_body_agrees_with_its_headers() {
    let [.., refused] = three("error_body: nested").await;
    assert_eq!(refused.header("content-type"), Some("application/json"));
    let body = &refused.json()["error"];
    assert_eq!((&body["code"], &body["rule"]), (&"RATE_LIMITED".into(), &"default".into()));
    assert_agreed_wait(&refused, body, &body["message"]);
}

#[tokio::test]
async fn the_problem_body_agrees_with_its_headers() {
    let [.., refused] = three("error_body: problem").await;
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    let body = refused.json();
    assert!(body["type"].as_str().unwrap().ends_with("#quota-exceeded"));
    assert_eq!((&body["status"], &body["violated-policies"]), (&429.into(), &vec!["default"].into()));
    assert_agreed_wait(&refused, &body, &body["detail"]);
}

#[tokio::test]
async fn one_client_is_told_the_same_wait_each_time() {
    let upstream = HttpServer::named("served").await;
    let proxy = TestGateway::before(
        &[upstream.url()],
        "rate_limits: { default: { requests: 1, window: 1d, algorithm: fixed_window } }\n",
    );
    proxy.get("/").await;
    let first = proxy.get("/").await.number("retry-after");
    let second = proxy.get("/").await.number("retry-after");
    assert!(first.abs_diff(second) <= 2, "{first} and then {second}");
}

#[tokio::test]
async fn a_cost_that_can_never_fit_has_no_retry_after_in_any_body() {
    for style in ["flat", "nested", "problem"] {
        let upstream = HttpServer::named("served").await;
        let proxy = TestGateway::before(
            &[upstream.url()],
            &format!(
                "error_body: {style}\nrate_limits: {{ rules: [{{ name: tokens, requests: 5, window: 1h, \
                 algorithm: token_bucket, cost: {{ header: X-Cost }} }}] }}\n"
            ),
        );
        let refused = proxy.get_with("/", &[("x-cost", "6")]).await;
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.header("retry-after"), None);
        assert_eq!(refused.header("x-ratelimit-retry-after"), None);
        assert_eq!(refused.number("x-ratelimit-remaining"), 5, "nothing is charged");
        let body = refused.text();
        assert!(body.contains("Retrying will not help"), "{body}");
        assert!(!body.contains("retry_after"), "{body}");
        assert_eq!(proxy.get_with("/", &[("x-cost", "5")]).await.status, StatusCode::OK);
    }
}
