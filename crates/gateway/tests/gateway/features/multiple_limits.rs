//! Several limits in one decision.

use tidegate_testkit::client::CollectedResponse;
use tidegate_testkit::server::HttpServer;

use crate::fixture::{ResourceLimits, TestGateway};

const POLICY: &str = "
headers: [ratelimit, x_ratelimit]
clients: { identify_by: [api_key, ip], tiers: { file: keys.csv } }
rate_limits:
  global: { requests: 100, window: 1h, algorithm: sliding_window_log }
  tiers:
    free: { requests: 3, window: 1h, algorithm: sliding_window_log }
    premium: { requests: 50, window: 1h, algorithm: sliding_window_log }
  rules:
    - { name: writes, match: { header: { X-Write: yes } }, requests: 20, window: 1h, algorithm: sliding_window_log }
  endpoints:
    /search: { requests: 2, window: 1h, algorithm: sliding_window_log }
";

async fn gateway() -> (TestGateway, HttpServer) {
    let upstream = HttpServer::named("served").await;
    let keys = "key,tier\nfred,free\npaula,premium\n";
    let gateway =
        TestGateway::with(&[upstream.url()], POLICY, &[("keys.csv", keys)], ResourceLimits::default());
    (gateway, upstream)
}

async fn get_as(gateway: &TestGateway, key: &str, path: &str) -> CollectedResponse {
    gateway.get_with(path, &[("x-api-key", key)]).await
}

/// The name and the remaining quota of each limit, in the order of the header.
fn remaining(response: &CollectedResponse) -> Vec<(String, u64)> {
    let header = response.header("ratelimit").unwrap();
    let each = header.split(", ").map(|item| {
        let mut parts = item.split(';');
        let name = parts.next().unwrap().trim_matches('"').to_owned();
        (name, parts.next().unwrap().strip_prefix("r=").unwrap().parse().unwrap())
    });
    each.collect()
}

fn expect(names: [(&str, u64); 3]) -> Vec<(String, u64)> {
    names.map(|(name, remaining)| (name.to_owned(), remaining)).to_vec()
}

#[tokio::test]
async fn limits_are_reported_in_the_documented_order() {
    let (gateway, _upstream) = gateway().await;
    let response = gateway.get_with("/search", &[("x-api-key", "fred"), ("x-write", "yes")]).await;
    let names: Vec<_> = remaining(&response).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["global", "tier:free", "writes", "endpoint:/search"]);
}

#[tokio::test]
async fn request_rejected_by_the_endpoint_limit_is_charged_to_no_limit() {
    let (gateway, _upstream) = gateway().await;
    for used in 1..=2 {
        let response = get_as(&gateway, "paula", "/search").await;
        assert_eq!(response.status, 200);
        let all = [("global", 100 - used), ("tier:premium", 50 - used), ("endpoint:/search", 2 - used)];
        assert_eq!(remaining(&response), expect(all));
    }
    for _ in 0..5 {
        let rejected = get_as(&gateway, "paula", "/search").await;
        assert_eq!(rejected.status, 429);
        assert_eq!(rejected.json()["rule"], "endpoint:/search");
        let unchanged = [("global", 98), ("tier:premium", 48), ("endpoint:/search", 0)];
        assert_eq!(remaining(&rejected), expect(unchanged));
    }
    let elsewhere = get_as(&gateway, "paula", "/").await;
    assert_eq!(remaining(&elsewhere), [("global".to_owned(), 97), ("tier:premium".to_owned(), 47)]);
}

#[tokio::test]
async fn request_rejected_by_the_tier_limit_is_not_charged_to_the_endpoint_or_other_tiers() {
    let (gateway, _upstream) = gateway().await;
    for _ in 0..3 {
        assert_eq!(get_as(&gateway, "fred", "/").await.status, 200);
    }
    let rejected = get_as(&gateway, "fred", "/search").await;
    assert_eq!((rejected.status.as_u16(), &rejected.json()["rule"]), (429, &"tier:free".into()));
    assert_eq!(remaining(&rejected), expect([("global", 97), ("tier:free", 0), ("endpoint:/search", 2)]));
    let other = get_as(&gateway, "paula", "/search").await;
    assert_eq!(other.status, 200);
    assert_eq!(remaining(&other), expect([("global", 96), ("tier:premium", 49), ("endpoint:/search", 1)]));
}

#[tokio::test]
async fn single_valued_headers_report_the_tightest_limit() {
    let (gateway, _upstream) = gateway().await;
    let wide = get_as(&gateway, "paula", "/").await;
    assert_eq!((wide.number("x-ratelimit-limit"), wide.number("x-ratelimit-remaining")), (50, 49));
    let narrow = get_as(&gateway, "paula", "/search").await;
    assert_eq!((narrow.number("x-ratelimit-limit"), narrow.number("x-ratelimit-remaining")), (2, 1));
}
