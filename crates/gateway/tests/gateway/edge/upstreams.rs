//! Upstreams that fail: the client gets a clear error, and no request hangs.

use std::time::Duration;

use tidegate_testkit::message::Response;
use tidegate_testkit::server::{RecordingServer, Reply, ResettingServer, ok};
use tidegate_testkit::wait::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::fixture::{MinRate, ResourceLimits, TestGateway};

fn bounds() -> ResourceLimits {
    ResourceLimits {
        response_timeout: Duration::from_millis(150),
        response_min_rate: MinRate { period: Duration::from_millis(150), bytes: 1 },
        ..ResourceLimits::default()
    }
}

fn assert_failed(response: &Response, status: u16, word: &str) {
    assert_eq!(response.status, status, "{}", response.text());
    assert!(response.text().contains(word), "{}", response.text());
    assert_eq!(response.header("content-type"), Some("application/json"));
}

#[tokio::test]
async fn unreachable_upstream_gives_502() {
    let down = RecordingServer::unreachable();
    let gateway = TestGateway::with_limit(&[&down], 100, bounds());
    assert_failed(&gateway.get_raw("/").await, 502, "upstream_unreachable");
}

#[tokio::test]
async fn request_is_sent_to_another_server_if_one_is_unreachable() {
    let (down, up) = (RecordingServer::unreachable(), RecordingServer::start().await);
    let gateway = TestGateway::with_limit(&[&down, &up], 100, bounds());
    for turn in 0..10 {
        let response = gateway.send_raw("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc").await;
        assert_eq!((response.status, response.remaining()), (200, 99 - turn), "charged once");
    }
    assert!(up.requests().iter().all(|request| request.body == b"abc"));
    assert_eq!(up.requests().len(), 10);
}

#[tokio::test]
async fn upstream_without_a_complete_response_head_gives_504() {
    for sent in ["", "HTTP/1.1 200 OK\r\nContent-Le"] {
        let hangs = RecordingServer::scripted(move |_| Reply::Hang(sent.into())).await;
        let gateway = TestGateway::with_limit(&[&hangs], 100, bounds());
        assert_failed(&gateway.get_raw("/").await, 504, "upstream_timeout");
    }
}

#[tokio::test]
async fn invalid_upstream_response_gives_502() {
    let responses = [
        "HTTP/1.1 200 OK\r\nContent-Le",
        "\0\0\0\0",
        "220 mail.example ESMTP\r\n",
        "HTTP/1.1 2x0 OK\r\n\r\n",
        "HTTP/9.9 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nNo colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX : a\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    ];
    for response in responses {
        let upstream = RecordingServer::scripted(move |_| Reply::Close(response.into())).await;
        let gateway = TestGateway::with_limit(&[&upstream], 100, bounds());
        assert_failed(&gateway.get_raw("/").await, 502, "upstream_failed");
        assert_eq!(
            upstream.requests().len(),
            1,
            "{response:?}: the upstream may have acted on it, so it is not sent to another server"
        );
    }
}

#[tokio::test]
async fn truncated_upstream_response_is_truncated_for_the_client() {
    let responses = [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ];
    for response in responses {
        for hangs in [false, true] {
            let upstream = RecordingServer::scripted(move |_| {
                let bytes = response.into();
                if hangs { Reply::Hang(bytes) } else { Reply::Close(bytes) }
            });
            let upstream = upstream.await;
            let gateway = TestGateway::with_limit(&[&upstream], 100, bounds());
            let mut client = gateway.client().await;
            client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
            let seen = String::from_utf8_lossy(&client.rest().await).into_owned();
            assert!(seen.starts_with("HTTP/1.1 200 "), "{response:?}: {seen}");
            assert!(!seen.ends_with("0\r\n\r\n"), "{response:?}: the response looks complete: {seen}");
        }
    }
}

#[tokio::test]
async fn pooled_connection_closed_by_the_upstream_fails_no_request() {
    let upstream = RecordingServer::scripted(|_| {
        let Reply::Keep(bytes) = ok("ok") else { unreachable!("`ok` keeps the connection") };
        Reply::Close(bytes)
    })
    .await;
    let gateway = TestGateway::with_limit(&[&upstream], 100, ResourceLimits::default());
    let mut client = gateway.client().await;
    let requests: [&[u8]; 2] =
        [b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"];
    for turn in 1..=20 {
        client.send(requests[turn % 2]).await;
        let response = client.response().await.expect("a response");
        assert_eq!(response.status, 200, "{turn}: {}", response.text());
        assert_eq!((upstream.requests().len(), upstream.connections()), (turn, turn));
    }
}

#[tokio::test]
async fn upstream_connection_with_surplus_bytes_is_not_reused() {
    let upstream = RecordingServer::scripted(|turn| match turn {
        // More bytes than the response has: they must not become the next response.
        2 => Reply::Keep(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
                .into(),
        ),
        _ => ok("ok"),
    })
    .await;
    let gateway = TestGateway::with_limit(&[&upstream], 100, bounds());
    for _ in 0..6 {
        assert_eq!(gateway.get_raw("/").await.body, b"ok");
    }
    assert_eq!(upstream.connections(), 2, "another connection after the surplus bytes");
}

#[tokio::test]
async fn upstream_connection_is_reused_after_every_kind_of_response() {
    let large = "x".repeat(300_000);
    let script: Vec<(String, String)> = vec![
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nplain".to_owned(), "plain".to_owned()),
        (format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{large}", large.len()), large),
        ("HTTP/1.1 204 No Content\r\n\r\n".to_owned(), String::new()),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned(), String::new()),
        ("HTTP/1.1 404 Nowhere\r\nContent-Length: 2\r\n\r\nno".to_owned(), "no".to_owned()),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n".to_owned(),
            "abcd".to_owned(),
        ),
        (
            "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nreal".to_owned(),
            "real".to_owned(),
        ),
    ];
    // Every kind is the first of a connection once.
    for first in 0..script.len() {
        let responses = script.clone();
        let turns = script.len();
        let upstream = RecordingServer::scripted(move |turn| {
            Reply::Keep(responses[(first + turn) % turns].0.clone().into())
        })
        .await;
        let gateway = TestGateway::with_limit(&[&upstream], 100, ResourceLimits::default());
        for turn in 0..2 * turns {
            let (response, body) = &script[(first + turn) % turns];
            let seen = gateway.get_raw("/").await;
            assert_eq!(seen.body.len(), body.len(), "{first} {turn}");
            assert_eq!(seen.text(), *body, "{first} {turn}");
            assert!(
                response.contains(&format!("HTTP/1.1 {}", seen.status)),
                "{first} {turn}: {}",
                seen.status
            );
        }
        assert_eq!(upstream.connections(), 1, "{first}");
    }
}

#[tokio::test]
async fn informational_responses_are_skipped_before_the_final_one() {
    let upstream = RecordingServer::scripted(|_| {
        Reply::Keep(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
              HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
                .into(),
        )
    })
    .await;
    let gateway = TestGateway::with_limit(&[&upstream], 100, bounds());
    for _ in 0..2 {
        let response = gateway.get_raw("/").await;
        assert_eq!((response.status, response.body.as_slice()), (200, &b"ok"[..]));
    }
}

#[tokio::test]
async fn trailers_are_forwarded_to_a_client_that_accepts_them() {
    let upstream = RecordingServer::scripted(|_| {
        Reply::Keep(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
              3\r\nabc\r\n0\r\nX-Sum: 6\r\n\r\n"
                .into(),
        )
    })
    .await;
    let gateway = TestGateway::with_limit(&[&upstream], 100, bounds());
    let mut client = gateway.client().await;
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: te, close\r\n\r\n").await;
    let seen = String::from_utf8_lossy(&client.rest().await).to_ascii_lowercase();
    assert!(seen.ends_with("3\r\nabc\r\n0\r\nx-sum: 6\r\n\r\n"), "{seen}");
}

#[tokio::test]
async fn upgrade_is_forwarded_only_on_request_and_never_to_http_or_tls() {
    let upstream = RecordingServer::scripted(|_| {
        Reply::Keep(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n".into())
    })
    .await;
    let gateway = TestGateway::with_limit(&[&upstream], 100, bounds());
    for protocol in ["h2c", "H2C", "websocket, h2c", "HTTP/2.0", "TLS/1.0"] {
        let response = gateway
            .send_raw(&format!(
                "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade, HTTP2-Settings\r\nUpgrade: {protocol}\r\n\
                 HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n"
            ))
            .await;
        assert_eq!(response.status, 502, "{protocol}");
        let seen = upstream.last();
        assert_eq!((seen.header("upgrade"), seen.header("http2-settings")), (None, None), "{protocol}");
    }
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(gateway.send_raw(request).await.status, 101);
    assert_eq!(upstream.last().header("upgrade"), Some("websocket"));
}

#[tokio::test]
async fn upgraded_connection_counts_as_an_open_connection() {
    let upstream = RecordingServer::scripted(|_| {
        Reply::Hang(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n".into())
    })
    .await;
    let gateway = TestGateway::with_limit(&[&upstream], 1, bounds());
    let mut client = gateway.client().await;
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n").await;
    assert_eq!(client.response().await.map(|response| response.status), Some(101));
    // Another client gets two responses: by then the gateway has completed the upgrade.
    let mut other = gateway.client().await;
    for _ in 0..2 {
        other.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert_eq!(other.response().await.map(|response| response.status), Some(429));
    }
    assert_eq!(gateway.connections(), 2, "the upgraded connection and the other");
    drop(other);
    drop(client);
    eventually("the upgraded connection is closed", || gateway.connections() == 0).await;
}

#[tokio::test]
async fn unsolicited_upstream_response_is_discarded() {
    let requests =
        ["GET / HTTP/1.1\r\nHost: a\r\n\r\n", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na"];
    for request in requests {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let policy = format!(
            "upstreams: {{ app: {{ servers: [\"http://{}\"] }} }}\nroutes: [{{ upstream: app }}]\n\
             rate_limits: {{ default: {{ requests: 100, window: 1h }} }}\n",
            listener.local_addr().expect("an address")
        );
        let gateway = TestGateway::start(&policy, ResourceLimits::default());
        let mut kept = Vec::new();
        for _ in 0..3 {
            let responding = async {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                stream.read_buf(&mut Vec::with_capacity(4 << 10)).await.expect("a request");
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.expect("capacity");
                stream
            };
            let both = async { tokio::join!(gateway.send_raw(request), responding) };
            let (response, mut stream) = within("another connection is used", both).await;
            assert_eq!(response.text(), "ok");
            // The connection is kept for the next request, and then an unsolicited response arrives.
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil").await.expect("capacity");
            kept.push(stream);
        }
    }
}

#[tokio::test]
async fn request_body_of_any_method_reaches_the_upstream() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 100, ResourceLimits::default());
    for method in ["GET", "HEAD", "DELETE", "OPTIONS", "POST", "QUERY"] {
        let mut client = gateway.client().await;
        let head = format!("{method} / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.send(format!("{head}3\r\nabc\r\n0\r\n\r\n").as_bytes()).await;
        client.first_bytes().await;
        let seen = upstream.last();
        assert_eq!((seen.method.as_str(), seen.body.as_slice()), (method, &b"abc"[..]));
    }
}

#[tokio::test]
async fn upstream_that_resets_every_connection_gives_502_at_once() {
    let resetting = ResettingServer::start().await;
    let policy = format!(
        "upstreams: {{ app: {{ servers: [\"{}\"] }} }}\nroutes: [{{ upstream: app }}]\n\
         rate_limits: {{ default: {{ requests: 100, window: 1h }} }}\n",
        resetting.url()
    );
    let gateway = TestGateway::start(&policy, ResourceLimits::default());
    for request in
        ["GET / HTTP/1.1\r\nHost: a\r\n\r\n", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"]
    {
        let before = resetting.accepted();
        assert_eq!(gateway.send_raw(request).await.status, 502);
        assert!(resetting.accepted() - before <= 4);
    }
}

#[tokio::test]
async fn request_body_of_unknown_length_reaches_an_upstream_that_responds_in_http_1_0() {
    let upstream = RecordingServer::scripted(|_| {
        Reply::Keep(b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok".into())
    })
    .await;
    let gateway = TestGateway::with_limit(&[&upstream], 100, ResourceLimits::default());
    for _ in 0..3 {
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(gateway.send_raw(&format!("{head}3\r\nabc\r\n0\r\n\r\n")).await.status, 200);
        assert_eq!(upstream.last().body, b"abc");
    }
}
