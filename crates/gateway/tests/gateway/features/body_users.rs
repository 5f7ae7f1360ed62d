//! Rules that count the user that a body names: `user: { body: FIELD }`.

use std::time::Duration;

use tidegate_testkit::client::RawClient;
use tidegate_testkit::message::Response;
use tidegate_testkit::server::RecordingServer;

use crate::fixture::{ResourceLimits, TestGateway, hourly, policy_before};

const FORM: &str = "Content-Type: application/x-www-form-urlencoded\r\n";
const JSON: &str = "Content-Type: application/json\r\n";

/// Two logins an hour for each user and each address; one request an hour for each address elsewhere.
fn gateway(server: &RecordingServer, limits: ResourceLimits) -> TestGateway {
    gateway_with(server, limits, 2)
}

/// The same with this many logins.
fn gateway_with(server: &RecordingServer, limits: ResourceLimits, logins: u32) -> TestGateway {
    let limit = hourly(logins);
    let more = format!(
        "rate_limits:\n  endpoints: {{ /other: {{ {} }} }}\n  rules:\n    \
         - {{ name: login, match: {{ method: POST, path: /login }}, per_each: [ip, user], user: {{ body: username }}, {limit} }}\n    \
         - {{ name: bytes, match: {{ path: /measured }}, per_each: [ip, user], user: {{ body: username }}, cost: {{ body: 1KiB }}, {} }}\n",
        hourly(1),
        hourly(1_000),
    );
    TestGateway::start(&policy_before(&[server], &more), limits)
}

/// A request whose body has a known length.
fn post(path: &str, headers: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: a.example\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A request whose body is sent in chunks.
fn post_chunked(headers: &str, chunks: &[&str]) -> String {
    let chunk = |chunk: &&str| format!("{:x}\r\n{chunk}\r\n", chunk.len());
    let chunks = chunks.iter().chain(&[""]).map(chunk).collect::<Vec<_>>().concat();
    format!("POST /login HTTP/1.1\r\nHost: a.example\r\n{headers}Transfer-Encoding: chunked\r\n\r\n{chunks}")
}

/// Sends each request from an address of its own; returns the status of each response.
async fn statuses(gateway: &TestGateway, requests: &[String]) -> Vec<u16> {
    let mut all = Vec::new();
    for (number, request) in (2..).zip(requests) {
        let mut client = gateway.client_from([127, 0, 1, number]).await;
        client.send(request.as_bytes()).await;
        all.push(client.response().await.expect("a response").status);
    }
    all
}

#[tokio::test]
async fn user_of_a_body_is_limited_from_any_address_in_any_form() {
    let server = RecordingServer::start().await;
    let gateway = gateway(&server, ResourceLimits::default());
    let requests = [
        post("/login", FORM, "username=bob&password=1"),
        post("/login", JSON, "{\"user\\u006eame\": \"Bob\"}"),
        post("/login", FORM, "a=b&user%6eame=b%6fb"),
        post_chunked(JSON, &["{\"username\"", ": \"b", "ob\"}"]),
        post("/LOGIN", FORM, "username=BOB"),
        post("/login", FORM, "username=eve"),
        post("/login", FORM, "password=1"),
        post("/login", "", ""),
    ];
    assert_eq!(statuses(&gateway, &requests).await, [200, 200, 429, 429, 429, 200, 200, 200]);
}

#[tokio::test]
async fn address_is_limited_whatever_its_bodies_say() {
    let server = RecordingServer::start().await;
    let gateway = gateway(&server, ResourceLimits::default());
    let mut client = gateway.client().await;
    for (body, status) in
        [("username=a", 200), ("username=b", 200), ("username=c", 429), ("", 429), ("a&", 429)]
    {
        client.send(post("/login", FORM, body).as_bytes()).await;
        assert_eq!(client.response().await.unwrap().status, status, "{body}");
    }
}

#[tokio::test]
async fn bodies_that_cannot_be_read_are_counted_together_and_charge_no_user() {
    let server = RecordingServer::start().await;
    let gateway = gateway(&server, ResourceLimits::default());
    let large = format!("username=bob&a={}", "x".repeat(20_000));
    let requests = [
        post("/login", FORM, "username=bob&username=eve"),
        post("/login", &format!("{FORM}Content-Encoding: gzip\r\n"), "username=bob"),
        post("/login", FORM, &large),
        post_chunked(FORM, &[&large]),
        post("/login", &format!("{FORM}{JSON}"), "username=bob"),
        post("/login", "Content-Type: multipart/form-data; boundary=a\r\n", "--a"),
        post("/login", JSON, "{\"username\": [\"bob\"]}"),
        post("/login", FORM, "username=bob"),
    ];
    assert_eq!(statuses(&gateway, &requests).await, [200, 200, 429, 429, 429, 429, 429, 200]);
}

#[tokio::test]
async fn body_is_forwarded_unchanged() {
    let server = RecordingServer::start().await;
    let gateway = gateway_with(&server, ResourceLimits::default(), 100);
    let sizes = [0, 1, 16_384 - 11, 16_384 - 10, 70_000, 1_000_000];
    for (number, size) in (2..).zip(sizes) {
        let body = format!("username={number}&{}", "x".repeat(size));
        for (source, request) in
            [(number, post("/login", FORM, &body)), (number + 50, post_chunked(FORM, &[&body]))]
        {
            let mut client = gateway.client_from([127, 0, 1, source]).await;
            client.send(request.as_bytes()).await;
            assert_eq!(client.response().await.unwrap().status, 200, "{size}");
            assert!(server.last().body == body.as_bytes(), "{size}: {} bytes", server.last().body.len());
            // The connection can be used for another request.
            client.send(post("/login", FORM, &format!("username=u{source}")).as_bytes()).await;
            assert_eq!(client.response().await.unwrap().status, 200, "{size}");
        }
    }
}

async fn send_late(gateway: &TestGateway, source: u8, body: &str) -> RawClient {
    let mut client = gateway.client_from([127, 0, 1, source]).await;
    let (head, rest) = (post("/login", FORM, body), body.len() - 3);
    let at = head.len() - rest;
    client.send(&head.as_bytes()[..at]).await;
    client
}

#[tokio::test]
async fn late_body_is_counted_with_the_unreadable_ones_and_forwarded_when_it_arrives() {
    let server = RecordingServer::start().await;
    let limits = ResourceLimits { head_timeout: Duration::from_millis(60), ..ResourceLimits::default() };
    let gateway = gateway(&server, limits);
    let body = "username=bob";
    for (source, status) in [(2, 200), (3, 200), (4, 429)] {
        let bytes = server.bytes();
        let mut client = send_late(&gateway, source, body).await;
        if status == 200 {
            server.until("the forwarded head", |counts| counts.bytes > bytes).await;
            client.send(&body.as_bytes()[3..]).await;
        }
        assert_eq!(client.response().await.unwrap().status, status, "{source}");
    }
    assert_eq!(server.last().body, body.as_bytes());
    assert_eq!(server.count(), 2);
}

#[tokio::test]
async fn body_of_another_endpoint_is_not_awaited() {
    let server = RecordingServer::start().await;
    let gateway = gateway(&server, ResourceLimits::default());
    assert_eq!(gateway.send_raw(&post("/other", FORM, "username=bob")).await.status, 200);
    // The limit is used up: the response comes before the body.
    let head = "POST /other HTTP/1.1\r\nHost: a.example\r\nContent-Length: 12\r\n\r\n";
    assert_eq!(gateway.send_raw(head).await.status, 429);
    let malformed =
        format!("POST /login HTTP/1.1\r\nHost: a.example\r\n{FORM}Transfer-Encoding: chunked\r\n\r\nzz\r\n");
    assert_eq!(gateway.send_raw(&malformed).await.status, 400);
}

#[tokio::test]
async fn body_that_was_read_early_is_measured_once() {
    let server = RecordingServer::start().await;
    let gateway = gateway(&server, ResourceLimits::default());
    let body = format!("username=bob&a={}", "x".repeat(5_000));
    let request = post_chunked(FORM, &[&body]).replace("/login", "/measured");
    let response = gateway.send_raw(&request).await;
    assert_eq!(response.status, 200);
    // One unit was reserved; the other four are charged as the body arrives.
    let remaining =
        |response: &Response| -> u64 { response.header("x-ratelimit-remaining").unwrap().parse().unwrap() };
    assert_eq!(remaining(&response), 999);
    let mut left = 0;
    for sent in 1..100 {
        left = remaining(&gateway.send_raw(&post("/measured", FORM, "username=eve")).await);
        if left == 995 - sent {
            return;
        }
    }
    panic!("{left} are left");
}
