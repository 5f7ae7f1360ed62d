//! Connections: HTTP/2, pipelines, bodies in parts, the end of the service.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tidegate_telemetry::Protocol;
use tidegate_testkit::client::{CollectedResponse, RawClient, http2};

use super::POLICY;
use crate::fixture::TestService;

const BOB: &str = r#"{"rule":"default","client":"user:bob"}"#;

fn post(extra: &str) -> String {
    let head = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    format!("{head}Content-Length: {}\r\n{extra}\r\n{BOB}", BOB.len())
}

#[tokio::test]
async fn http2_with_prior_knowledge_is_served() {
    let service = TestService::start(POLICY);
    let mut client = http2(service.address(Protocol::Http)).await;
    for remaining in [9, 8] {
        let request = Request::post("http://localhost/v1/check").header("content-type", "application/json");
        let request = request.body(Full::new(Bytes::from(BOB))).unwrap();
        let response = CollectedResponse::of(client.send_request(request).await.unwrap()).await;
        assert_eq!((response.status.as_u16(), response.json()["remaining"].as_u64()), (200, Some(remaining)));
    }
}

#[tokio::test]
async fn request_of_this_machine_with_the_name_of_a_web_site_is_rejected() {
    let service = TestService::start(POLICY);
    let address = service.address(Protocol::Http);
    for (host, status) in [("evil.example", 403), ("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:1", 200)]
    {
        // As a plain request, by hyper, and over HTTP/2.
        for extra in ["", "TE: trailers\r\n"] {
            let mut client = RawClient::connect(address).await;
            client.send(post(extra).replace("localhost", host).as_bytes()).await;
            assert_eq!(client.response().await.expect("a response").status, status, "{host} {extra}");
        }
        let request = Request::post(format!("http://{host}/v1/check"));
        let request = request.header("content-type", "application/json").body(Full::new(Bytes::from(BOB)));
        let response = http2(address).await.send_request(request.unwrap()).await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{host}");
    }
    let mut client = RawClient::connect(address).await;
    client.send(post("").replace("localhost", "evil.example").as_bytes()).await;
    assert_eq!(
        client.response().await.expect("a response").json()["detail"]
            .as_str()
            .map(|it| it.contains("127.0.0.1")),
        Some(true)
    );
    client.send(b"GET /v1/authorize HTTP/1.1\r\nHost: evil.example\r\n\r\n").await;
    assert_eq!(client.response().await.expect("a response").status, 400, "no request is described");
}

#[tokio::test]
async fn request_followed_by_the_start_of_another_is_answered() {
    let service = TestService::start(POLICY);
    let mut client = RawClient::connect(service.address(Protocol::Http)).await;
    client.send(format!("{}\r\nP", post("")).as_bytes()).await;
    assert_eq!(client.response().await.expect("a response").json()["remaining"], 9);
}

#[tokio::test]
async fn answer_does_not_wait_for_a_later_request_that_is_delayed() {
    let service = TestService::start(super::authorize::SLOW);
    let mut client = RawClient::connect(service.address(Protocol::Http)).await;
    let authorize = "GET /v1/authorize HTTP/1.1\r\nHost: a\r\nX-Original-Method: GET\r\nX-Original-URI: /\r\n\
                     X-Original-Host: a\r\nX-Real-IP: 192.0.2.7\r\n\r\n";
    client.send(authorize.repeat(2).as_bytes()).await;
    assert_eq!(client.response().await.expect("the answer that is not delayed").status, 200);
}

#[tokio::test]
async fn empty_lines_between_requests_are_ignored() {
    let service = TestService::start(POLICY);
    let mut client = RawClient::connect(service.address(Protocol::Http)).await;
    for remaining in [9, 8] {
        client.send(format!("\r\n{}\r\n\r\n", post("")).as_bytes()).await;
        assert_eq!(client.response().await.expect("a response").json()["remaining"], remaining);
    }
}

#[tokio::test]
async fn http2_after_a_request_of_http1_is_not_served() {
    let service = TestService::start(POLICY);
    let mut client = RawClient::connect(service.address(Protocol::Http)).await;
    client.send(format!("{}PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", post("")).as_bytes()).await;
    assert_eq!(client.response().await.expect("a response").status, 200);
    assert!(client.response().await.is_none(), "closed");
}

#[tokio::test]
async fn head_has_the_length_of_the_body_and_no_body() {
    let service = TestService::start(POLICY);
    let mut client = http2(service.address(Protocol::Http)).await;
    for path in ["healthz", "openapi.json", "v1/check"] {
        let request = Request::head(format!("http://a/{path}")).body(Full::new(Bytes::new())).unwrap();
        let response = CollectedResponse::of(client.send_request(request).await.unwrap()).await;
        let length = response.headers["content-length"].to_str().unwrap().parse::<usize>().unwrap();
        assert!(length > 0 && response.body.is_empty(), "{path}: {length}, {:?}", response.body);
    }
}

#[tokio::test]
async fn head_that_cannot_be_parsed_is_answered() {
    let service = TestService::start(POLICY);
    let many = "X-A: 1\r\n".repeat(120);
    for header in ["X-A: \u{1}\r\n", &*many] {
        let mut client = RawClient::connect(service.address(Protocol::Http)).await;
        client.send(format!("GET /healthz HTTP/1.1\r\nHost: a\r\n{header}\r\n").as_bytes()).await;
        let status = client.response().await.expect("a response").status;
        assert!([400, 431].contains(&status), "{status}");
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let service = TestService::start(POLICY);
    let mut client = RawClient::connect(service.address(Protocol::Http)).await;
    client.send(post("").repeat(12).as_bytes()).await;
    for number in 1..=12_u64 {
        let response = client.response().await.expect("a response");
        let json = response.json();
        assert_eq!(json["remaining"], 10_u64.saturating_sub(number), "{number}: {json}");
        assert_eq!(json["admitted"], number <= 10);
    }
}

#[tokio::test]
async fn body_in_parts_is_joined() {
    let service = TestService::start(POLICY);
    let mut client = RawClient::connect(service.address(Protocol::Http)).await;
    let (first, second) = BOB.split_at(9);
    let head = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = |part: &str| format!("{:x}\r\n{part}\r\n", part.len());
    client.send(format!("{head}{}", chunk(first)).as_bytes()).await;
    client.send(format!("{}0\r\n\r\n", chunk(second)).as_bytes()).await;
    assert_eq!(client.response().await.expect("a response").json()["remaining"], 9);
}

#[tokio::test]
async fn request_without_one_valid_host_gets_400_and_closes_the_connection() {
    let service = TestService::start(POLICY);
    let health = |version: &str, host: &str| format!("GET /healthz HTTP/{version}\r\n{host}\r\n");
    let cases = [
        ("1.1", "", 400),
        ("1.1", "Host: a\r\nHost: a\r\n", 400),
        ("1.1", "Host: a\r\nhOST: b\r\n", 400),
        ("1.1", "Host:\r\n", 400),
        ("1.1", "Host: a b\r\n", 400),
        ("1.1", "Host: user@a\r\n", 400),
        ("1.1", "Host: a..b\r\n", 400),
        ("1.0", "", 200),
        ("1.0", "Host: a\r\nHost: b\r\n", 400),
        ("1.1", "Host: A.example:80\r\n", 200),
        ("1.1", "Host: [::1]:80\r\n", 200),
    ];
    for (version, host, status) in cases {
        // As a plain request, and by hyper.
        for extra in ["", "TE: trailers\r\n"] {
            let mut client = RawClient::connect(service.address(Protocol::Http)).await;
            client.send(health(version, &format!("{extra}{host}")).as_bytes()).await;
            assert_eq!(client.response().await.expect("a response").status, status, "{version} {host:?}");
            if status == 400 {
                assert!(client.rest().await.is_empty(), "{host:?}");
            }
        }
    }
    let mut client = RawClient::connect(service.address(Protocol::Http)).await;
    client.send(health("1.1", "Host: a\r\n").as_bytes()).await;
    assert_eq!(client.response().await.expect("a response").status, 200);
    client.send(b"POST /v1/check HTTP/1.1\r\nContent-Length: 0\r\n\r\n").await;
    assert_eq!(client.response().await.expect("a response").status, 400, "after a plain request too");
}

#[tokio::test]
async fn malformed_chunks_and_codings_get_400() {
    let service = TestService::start(POLICY);
    let head = |coding: &str| {
        format!(
            "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: {coding}\r\n\r\n"
        )
    };
    let size = format!("{:x}", BOB.len());
    for (coding, body, status) in [
        ("chunked", format!("{size};a=\"b\"\r\n{BOB}\r\n0\r\nX: y\r\n\r\n"), 200),
        ("Chunked", format!("{size}\r\n{BOB}\r\n0\r\n\r\n"), 200),
        ("chunked", format!("{size}\n{BOB}\r\n0\r\n\r\n"), 400),
        ("chunked", format!("{size} \r\n{BOB}\r\n0\r\n\r\n"), 400),
        ("chunked", format!("{size};\x01\r\n{BOB}\r\n0\r\n\r\n"), 400),
        ("chunked", format!("{size}\r\n{BOB}\r\n0\r\n\nGET /healthz HTTP/1.1\r\n\r\n"), 400),
        ("chunked", format!("0x{size}\r\n{BOB}\r\n0\r\n\r\n"), 400),
        ("chunked", "7fffffffffffffff\r\n".to_owned(), 413),
        ("gzip, chunked", format!("{size}\r\n{BOB}\r\n0\r\n\r\n"), 400),
        ("chunked\r\nTransfer-Encoding: chunked", format!("{size}\r\n{BOB}\r\n0\r\n\r\n"), 400),
    ] {
        for parts in [1, 2] {
            let mut client = RawClient::connect(service.address(Protocol::Http)).await;
            let head = head(coding);
            let whole = format!("{head}{body}");
            // In one packet, or with the body behind the head.
            let (first, second) = whole.split_at(if parts == 1 { whole.len() } else { head.len() });
            client.send(first.as_bytes()).await;
            client.send(second.as_bytes()).await;
            let response = client.response().await.expect("a response");
            assert_eq!(response.status, status, "{coding} {body:?}");
        }
    }
}

#[tokio::test]
async fn stop_closes_idle_connections() {
    let service = TestService::start(POLICY);
    let mut client = RawClient::connect(service.address(Protocol::Http)).await;
    client.send(post("").as_bytes()).await;
    assert_eq!(client.response().await.expect("a response").status, 200);
    let stopping = std::thread::spawn(move || drop(service));
    assert!(client.rest().await.is_empty());
    stopping.join().expect("it stops");
}

#[tokio::test]
async fn head_too_large_or_malformed_is_rejected() {
    let service = TestService::start(POLICY);
    let long = format!("GET /healthz HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(40 << 10));
    let many = format!("GET /healthz HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(200));
    let malformed = "GET /\x01 HTTP/1.1\r\n\r\n".to_owned();
    for (head, status) in [(long, 431), (many, 431), (malformed, 400)] {
        let mut client = RawClient::connect(service.address(Protocol::Http)).await;
        client.send(head.as_bytes()).await;
        // A client that is still sending may find the connection closed before it reads the response.
        let received = client.response().await.map(|response| response.status);
        assert!(received.is_none_or(|received| received == status), "{head:.40}: {received:?}");
    }
}
