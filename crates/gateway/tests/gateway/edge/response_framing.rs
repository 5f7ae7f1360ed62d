//! Responses whose framing can be read in more than one way.

use std::time::Duration;

use bytes::BytesMut;
use http::{Method, Request};
use tidegate_testkit::client::http2_streams;
use tidegate_testkit::server::{RecordingServer, Reply, ok};
use tidegate_testkit::wait::within;

use crate::fixture::{ResourceLimits, TestGateway};

/// The status, the `Content-Length` and the body of a response.
type ClientResponse = (u16, Option<String>, String);

/// The response of an upstream that sends `raw` and closes, over HTTP/1.1.
async fn over_http1(gateway: &TestGateway, method: &Method) -> ClientResponse {
    let mut client = gateway.client().await;
    let length = if *method == Method::POST { "Content-Length: 0\r\n" } else { "" };
    let request = format!("{method} / HTTP/1.1\r\nHost: a\r\n{length}Connection: close\r\n\r\n");
    client.send(request.as_bytes()).await;
    let raw = String::from_utf8(client.rest().await).expect("text");
    let (head, _) = raw.split_once("\r\n\r\n").expect("a head");
    let lengths: Vec<_> =
        head.lines().filter_map(|line| line.strip_prefix("content-length: ").map(str::to_owned)).collect();
    assert!(lengths.len() <= 1, "{raw}");
    let status = raw[9..12].parse().expect("a status");
    if *method == Method::HEAD {
        assert!(raw.ends_with("\r\n\r\n"), "no body follows: {raw}");
        return (status, lengths.into_iter().next(), String::new());
    }
    let mut again = gateway.client().await;
    again.send(request.as_bytes()).await;
    let response = again.response().await.expect("a complete response");
    assert_eq!(response.status, status);
    (status, lengths.into_iter().next(), response.text())
}

/// The same over HTTP/2.
async fn over_http2(gateway: &TestGateway, method: &Method) -> ClientResponse {
    let (client, _connection) = http2_streams(gateway.address).await;
    let mut client = within("capacity", client.ready()).await.expect("capacity");
    let request = Request::builder().method(method).uri("http://a/").body(()).expect("a request");
    let (response, _) = client.send_request(request, true).expect("a stream");
    let response = within("a response", response).await.expect("a response");
    let lengths: Vec<_> = response.headers().get_all("content-length").iter().collect();
    assert!(lengths.len() <= 1, "{response:?}");
    let length = lengths.first().map(|length| length.to_str().expect("text").to_owned());
    let (status, mut body, mut text) = (response.status().as_u16(), response.into_body(), BytesMut::new());
    while let Some(data) = within("its body", body.data()).await {
        text.extend_from_slice(&data.expect("a complete body"));
    }
    (status, length, String::from_utf8(text.to_vec()).expect("text"))
}

async fn upstream(raw: &'static str) -> (RecordingServer, TestGateway) {
    let upstream = RecordingServer::scripted(move |_| Reply::Close(raw.into())).await;
    let bounds = ResourceLimits { response_timeout: Duration::from_secs(5), ..ResourceLimits::default() };
    let gateway = TestGateway::with_limit(&[&upstream], 1_000, bounds);
    (upstream, gateway)
}

/// Asserts what clients of every protocol get if the upstream sends `raw`.
async fn assert_every_client_gets(raw: &'static str, method: Method, expected: (u16, Option<&str>, &str)) {
    let (_upstream, gateway) = upstream(raw).await;
    let expected = (expected.0, expected.1.map(str::to_owned), expected.2.to_owned());
    assert_eq!(over_http1(&gateway, &method).await, expected, "HTTP/1.1, {method}: {raw:?}");
    assert_eq!(over_http2(&gateway, &method).await, expected, "HTTP/2, {method}: {raw:?}");
}

#[tokio::test]
async fn response_with_length_and_chunks_is_forwarded_without_the_length() {
    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n\
        5\r\nhello\r\n0\r\n\r\n";
    const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: Chunked\r\n\r\n";
    for method in [Method::GET, Method::POST] {
        assert_every_client_gets(CHUNKED, method, (200, None, "hello")).await;
    }
    assert_every_client_gets(HEAD, Method::HEAD, (200, None, "")).await;
}

#[tokio::test]
async fn response_with_length_and_chunks_closes_its_upstream_connection() {
    let upstream = RecordingServer::scripted(|turn| match turn {
        0 => Reply::Keep(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
                .into(),
        ),
        _ => ok("ok"),
    })
    .await;
    let gateway = TestGateway::with_limit(&[&upstream], 100, ResourceLimits::default());
    for _ in 0..3 {
        let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na";
        assert_eq!(gateway.send_raw(post).await.body, b"ok");
    }
    assert_eq!(upstream.connections(), 2);
}

#[tokio::test]
async fn response_with_the_same_length_twice_is_forwarded_with_one() {
    const TWICE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello";
    const LISTED: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello";
    const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\nContent-Length: 5\r\n\r\n";
    assert_every_client_gets(TWICE, Method::GET, (200, Some("5"), "hello")).await;
    assert_every_client_gets(LISTED, Method::POST, (200, Some("5"), "hello")).await;
    assert_every_client_gets(HEAD, Method::HEAD, (200, Some("5"), "")).await;
}

#[tokio::test]
async fn response_with_framing_that_cannot_be_forwarded_gives_502() {
    let responses = [
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: a\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;\x1b\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 2\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: 5, 2\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
        "HTTP/1.2 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    ];
    for raw in responses {
        for method in [Method::GET, Method::POST] {
            let (upstream, gateway) = upstream(raw).await;
            for got in [over_http1(&gateway, &method).await, over_http2(&gateway, &method).await] {
                assert_eq!(got.0, 502, "{method}: {raw:?}");
                assert!(got.2.contains("upstream_failed"), "{}", got.2);
            }
            assert_eq!(upstream.requests().len(), 3, "it is not sent again");
        }
    }
}

#[tokio::test]
async fn response_to_head_that_announces_chunks_leaves_its_connection_usable() {
    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let upstream = RecordingServer::replying(|request| match request.method.as_str() {
        "HEAD" => Reply::Keep(HEAD.to_vec()),
        "POST" => Reply::Keep([HEAD, b"2 \r\nok\r\n0\r\n\r\n"].concat()),
        _ => ok("ok"),
    })
    .await;
    let gateway = TestGateway::with_limit(&[&upstream], 100, ResourceLimits::default());
    for method in ["POST", "HEAD", "HEAD", "POST", "GET", "HEAD", "GET", "POST", "POST"] {
        let mut client = gateway.client().await;
        let request =
            format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        client.send(request.as_bytes()).await;
        let response = String::from_utf8(client.rest().await).expect("text");
        assert!(response.starts_with("HTTP/1.1 200 "), "{method}: {response}");
        assert_eq!(response.contains("ok"), method != "HEAD", "{method}: {response}");
    }
    assert_eq!(upstream.connections(), 1);
}

#[tokio::test]
async fn error_response_to_head_has_no_body() {
    let (_upstream, gateway) = upstream("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n").await;
    let http1 = over_http1(&gateway, &Method::HEAD).await;
    assert_eq!(http1.0, 502);
    assert!(http1.1.is_some(), "the length of the response to GET");
    assert_eq!(over_http2(&gateway, &Method::HEAD).await, http1);
}

#[tokio::test]
async fn response_that_must_not_have_a_body_is_forwarded_without_it() {
    const NO_CONTENT: &str = "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello";
    const CHUNKED: &str =
        "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    const NOT_MODIFIED: &str = "HTTP/1.1 304 Not Modified\r\n\r\nhello";
    const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    for method in [Method::GET, Method::POST] {
        assert_every_client_gets(NO_CONTENT, method.clone(), (204, None, "")).await;
        assert_every_client_gets(CHUNKED, method.clone(), (204, None, "")).await;
        assert_every_client_gets(NOT_MODIFIED, method, (304, None, "")).await;
    }
    assert_every_client_gets(HEAD, Method::HEAD, (200, Some("5"), "")).await;
}

#[tokio::test]
async fn response_bytes_beyond_its_length_never_become_the_next_response() {
    const EVIL: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    let firsts = [
        ("GET", format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok{EVIL}")),
        ("POST", format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok{EVIL}")),
        ("GET", format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n{EVIL}")),
        ("POST", format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n{EVIL}")),
        ("GET", format!("HTTP/1.1 204 No Content\r\nContent-Length: {}\r\n\r\n{EVIL}", EVIL.len())),
        ("POST", format!("HTTP/1.1 204 No Content\r\nContent-Length: {}\r\n\r\n{EVIL}", EVIL.len())),
        ("GET", format!("HTTP/1.1 304 Not Modified\r\n\r\n{EVIL}")),
        ("POST", format!("HTTP/1.1 304 Not Modified\r\n\r\n{EVIL}")),
        ("HEAD", format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{EVIL}", EVIL.len())),
    ];
    for (method, first) in firsts {
        let raw = first.clone();
        let upstream =
            RecordingServer::scripted(
                move |turn| if turn == 0 { Reply::Keep(raw.clone().into()) } else { ok("ok") },
            );
        let upstream = upstream.await;
        let gateway = TestGateway::with_limit(&[&upstream], 100, ResourceLimits::default());
        let mut client = gateway.client().await;
        let length = if method == "POST" { "Content-Length: 1\r\n\r\na" } else { "\r\n" };
        client
            .send(format!("{method} / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{length}").as_bytes())
            .await;
        let got = String::from_utf8(client.rest().await).expect("text");
        assert!(!got.contains("evil"), "{got}");
        let path = if method == "POST" { "POST" } else { "GET" };
        for _ in 0..2 {
            let request = format!("{path} / HTTP/1.1\r\nHost: a\r\n{length}");
            assert_eq!(gateway.send_raw(&request).await.text(), "ok", "{method}: {first:?}");
        }
    }
}
