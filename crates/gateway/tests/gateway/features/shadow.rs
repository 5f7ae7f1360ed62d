//! Rules in shadow mode, and canary rules that apply to some clients.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use tidegate_core::Timestamp;
use tidegate_store::ManualClock;
use tidegate_testkit::server::HttpServer;
use tidegate_testkit::wait::soon;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{ResourceLimits, TestGateway, active};

/// The raw response to each request, without its `Date`. The clock stands still, so two runs can differ only by a rule.
async fn raw_responses(gateway: &TestGateway, requests: &[&str]) -> Vec<Bytes> {
    let mut responses = Vec::new();
    for request in requests {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        let head = format!("{request}\r\nhost: test\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut response = Vec::new();
        soon(stream.read_to_end(&mut response)).await.unwrap();
        responses.push(without_date_and_id(&response));
    }
    responses
}

fn without_date_and_id(response: &[u8]) -> Bytes {
    let text = String::from_utf8(response.to_vec()).unwrap();
    let is_kept =
        |line: &&str| !["date:", "x-request-id:"].iter().any(|name| line.to_lowercase().starts_with(name));
    let lines = text.split_inclusive("\r\n").filter(is_kept);
    lines.collect::<String>().into()
}

const ENFORCED: &str = "\
headers: [x_ratelimit, ratelimit, ratelimit_delta]
rate_limits:
  default: { requests: 3, window: 1h, algorithm: sliding_window_log }
";

/// Tighter in every way than the enforced limit: they would reject, delay and be the tightest.
const SHADOWS: &str = "  global: { requests: 2, window: 1d, mode: shadow }
  tenant: { requests: 1, window: 1h, algorithm: leaky_bucket, burst: 9, mode: shadow }
  endpoints: { /a: { requests: 1, window: 1h, mode: { canary: 0.0001% } } }
  rules:
    - { name: watching, per_each: [ip, fingerprint], requests: 1, window: 1d, mode: shadow }
    - { name: never, cost: { header: X-Cost }, requests: 5, window: 1d, mode: shadow }
";

#[tokio::test]
async fn shadow_rules_leave_responses_byte_identical() {
    let upstream = HttpServer::named("served").await;
    let requests = [
        "GET /a HTTP/1.1",
        "GET /a HTTP/1.1\r\nX-Cost: 7",
        "GET /b HTTP/1.1\r\nUser-Agent: x",
        "GET /a HTTP/1.1",
        "POST /a HTTP/1.1\r\nX-Cost: 1",
    ];
    for body in ["flat", "nested", "problem"] {
        let enforced = format!("error_body: {body}\n{ENFORCED}");
        let mut responses = Vec::new();
        for rest in [enforced.clone(), format!("{enforced}{SHADOWS}")] {
            let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_800_000_000)));
            let gateway = TestGateway::with_clock(
                clock,
                active(&[upstream.url()], &rest, &[]),
                ResourceLimits::default(),
            );
            responses.push(raw_responses(&gateway, &requests).await);
        }
        let [without, with] = responses.try_into().unwrap();
        let rejected = without.iter().filter(|response| response.starts_with(b"HTTP/1.1 429")).count();
        assert_eq!(rejected, 2, "the fourth and the fifth");
        assert_eq!(without, with);
    }
}

#[tokio::test]
async fn policy_with_shadow_rules_only_responds_like_one_without_limits() {
    let upstream = HttpServer::named("served").await;
    let mut responses = Vec::new();
    for rest in ["", "rate_limits: { default: { requests: 1, window: 1d, mode: shadow } }"] {
        let gateway = TestGateway::before(&[upstream.url()], rest);
        responses.push(raw_responses(&gateway, &["GET / HTTP/1.1"; 3]).await);
    }
    assert_eq!(responses[0], responses[1]);
}

#[tokio::test]
async fn canary_rule_rejects_the_same_clients_after_a_restart_and_no_others() {
    let upstream = HttpServer::named("served").await;
    let rest = "clients: { api_key: { verify: none } }\n\
                rate_limits: { default: { requests: 1, window: 1d, mode: { canary: 20% } } }";
    let mut rejected_clients = Vec::new();
    for _ in 0..2 {
        let gateway = TestGateway::before(&[upstream.url()], rest);
        let mut rejected = BTreeSet::new();
        for client in 0..100 {
            let key = format!("client-{client}");
            let lines = [("x-api-key", key.as_str())];
            let first = gateway.get_with("/", &lines).await;
            assert_eq!(first.status, 200);
            let second = gateway.get_with("/", &lines).await;
            let is_limited = second.status == 429;
            assert_eq!(
                first.header("x-ratelimit-limit").is_some(),
                is_limited,
                "only limited clients get limit headers"
            );
            if is_limited {
                rejected.insert(client);
            }
        }
        rejected_clients.push(rejected);
    }
    assert_eq!(rejected_clients[0], rejected_clients[1]);
    assert!((8..=35).contains(&rejected_clients[0].len()), "{} of 100", rejected_clients[0].len());
}

#[tokio::test]
async fn shadow_rule_enforced_by_a_reload_keeps_its_counters() {
    let upstream = HttpServer::named("served").await;
    let rest = |mode| format!("rate_limits: {{ default: {{ requests: 3, window: 1d, mode: {mode} }} }}");
    let gateway = TestGateway::before(&[upstream.url()], &rest("shadow"));
    for _ in 0..5 {
        assert_eq!(gateway.get("/").await.status, 200);
    }
    gateway.replace(&[upstream.url()], &rest("enforce"));
    assert_eq!(gateway.get("/").await.status, 429);
}
