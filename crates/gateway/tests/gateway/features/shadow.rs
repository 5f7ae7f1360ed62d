//! Rules that only watch, and rules that bind some clients.

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

/// All that a connection brings, and nothing that two runs may differ in but by a rule: the clock stands still, and the
/// upstream's `Date` is its own.
async fn bytes_of(proxy: &TestGateway, requests: &[&str]) -> Vec<Bytes> {
    let mut answers = Vec::new();
    for request in requests {
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        let head = format!("{request}\r\nhost: test\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        soon(stream.read_to_end(&mut answer)).await.unwrap();
        answers.push(without_date(&answer));
    }
    answers
}

fn without_date(answer: &[u8]) -> Bytes {
    let text = String::from_utf8(answer.to_vec()).unwrap();
    let lines = text.split_inclusive("\r\n").filter(|line| !line.to_lowercase().starts_with("date:"));
    lines.collect::<String>().into()
}

const BINDING: &str = "\
headers: [x_ratelimit, ratelimit, ratelimit_delta]
rate_limits:
  default: { requests: 3, window: 1h, algorithm: sliding_window_log }
";

/// Tighter in every way than what binds: it would refuse, hold and be the tightest.
const SHADOWS: &str = "  global: { requests: 2, window: 1d, mode: shadow }
  tenant: { requests: 1, window: 1h, algorithm: leaky_bucket, burst: 9, mode: shadow }
  endpoints: { /a: { requests: 1, window: 1h, mode: { canary: 0.0001% } } }
  rules:
    - { name: watching, per_each: [ip, fingerprint], requests: 1, window: 1d, mode: shadow }
    - { name: never, cost: { header: X-Cost }, requests: 5, window: 1d, mode: shadow }
";

#[tokio::test]
async fn responses_are_byte_identical_with_and_without_a_shadow() {
    let upstream = HttpServer::named("served").await;
    let requests = [
        "GET /a HTTP/1.1",
        "GET /a HTTP/1.1\r\nX-Cost: 7",
        "GET /b HTTP/1.1\r\nUser-Agent: x",
        "GET /a HTTP/1.1",
        "POST /a HTTP/1.1\r\nX-Cost: 1",
    ];
    for body in ["flat", "nested", "problem"] {
        let binding = format!("error_body: {body}\n{BINDING}");
        let mut answers = Vec::new();
        for rest in [binding.clone(), format!("{binding}{SHADOWS}")] {
            let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_800_000_000)));
            let proxy = TestGateway::with_clock(
                clock,
                active(&[upstream.url()], &rest, &[]),
                ResourceLimits::default(),
            );
            answers.push(bytes_of(&proxy, &requests).await);
        }
        let [without, with] = answers.try_into().unwrap();
        let refused = without.iter().filter(|answer| answer.starts_with(b"HTTP/1.1 429")).count();
        assert_eq!(refused, 2, "the fourth and the fifth");
        assert_eq!(without, with);
    }
}

#[tokio::test]
async fn a_policy_of_shadows_alone_answers_as_one_without_limits() {
    let upstream = HttpServer::named("served").await;
    let mut answers = Vec::new();
    for rest in ["", "rate_limits: { default: { requests: 1, window: 1d, mode: shadow } }"] {
        let proxy = TestGateway::before(&[upstream.url()], rest);
        answers.push(bytes_of(&proxy, &["GET / HTTP/1.1"; 3]).await);
    }
    assert_eq!(answers[0], answers[1]);
}

#[tokio::test]
async fn a_canary_refuses_the_same_clients_after_a_restart_and_nobody_else() {
    let upstream = HttpServer::named("served").await;
    let rest = "clients: { api_key: { verify: none } }\n\
                rate_limits: { default: { requests: 1, window: 1d, mode: { canary: 20% } } }";
    let mut slices = Vec::new();
    for _ in 0..2 {
        let proxy = TestGateway::before(&[upstream.url()], rest);
        let mut refused = BTreeSet::new();
        for client in 0..100 {
            let key = format!("client-{client}");
            let lines = [("x-api-key", key.as_str())];
            let first = proxy.get_with("/", &lines).await;
            assert_eq!(first.status, 200);
            let second = proxy.get_with("/", &lines).await;
            let bound = second.status == 429;
            assert_eq!(first.header("x-ratelimit-limit").is_some(), bound, "only they are told");
            if bound {
                refused.insert(client);
            }
        }
        slices.push(refused);
    }
    assert_eq!(slices[0], slices[1]);
    assert!((8..=35).contains(&slices[0].len()), "{} of 100", slices[0].len());
}

#[tokio::test]
async fn a_shadow_becomes_binding_by_a_reload_and_keeps_its_counters() {
    let upstream = HttpServer::named("served").await;
    let rest = |mode| format!("rate_limits: {{ default: {{ requests: 3, window: 1d, mode: {mode} }} }}");
    let proxy = TestGateway::before(&[upstream.url()], &rest("shadow"));
    for _ in 0..5 {
        assert_eq!(proxy.get("/").await.status, 200);
    }
    proxy.replace(&[upstream.url()], &rest("enforce"));
    assert_eq!(proxy.get("/").await.status, 429);
}
