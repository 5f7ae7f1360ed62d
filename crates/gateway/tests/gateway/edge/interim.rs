//! Interim responses (102, 103): hyper's server cannot send them, so the gateway drops them.

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use tidegate_testkit::client::http2_streams;
use tidegate_testkit::server::{AcceptLoop, RecordingServer, Reply};
use tidegate_testkit::wait::within;

use crate::fixture::{ResourceLimits, TestGateway};

const INTERIM: &str = "HTTP/1.1 102 Processing\r\n\r\n\
    HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\nContent-Length: 3\r\n\r\n\
    HTTP/1.1 103 Early Hints\r\nLink: </b.css>; rel=preload\r\nTransfer-Encoding: chunked\r\n\r\n";
const FINALS: [(&str, &str); 3] = [
    ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "ok"),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "ok"),
    ("HTTP/1.1 204 No Content\r\n\r\n", ""),
];

/// Everything a client gets over a connection that ends after the response.
async fn raw_response(gateway: &TestGateway, request: &str) -> String {
    let mut client = gateway.client().await;
    client.send(request.as_bytes()).await;
    String::from_utf8(client.rest().await).expect("text")
}

fn requests() -> [String; 2] {
    [
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_owned(),
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 1\r\n\r\na".to_owned(),
    ]
}

/// The final response over HTTP/2. `h2` would give an interim one to `poll_informational` only.
async fn over_http2(gateway: &TestGateway) -> (StatusCode, bool) {
    let (client, _connection) = http2_streams(gateway.address).await;
    let mut client = within("capacity", client.ready()).await.expect("capacity");
    let request = Request::get("http://a/").body(()).expect("a request");
    let (mut response, _) = client.send_request(request, true).expect("a stream");
    let final_response = within("a response", &mut response).await.expect("a response");
    (final_response.status(), final_response.headers().contains_key("link"))
}

#[tokio::test]
async fn interim_response_of_an_http1_upstream_is_dropped() {
    for (last, body) in FINALS {
        let interim_and_final = format!("{INTERIM}{last}");
        let upstream =
            RecordingServer::scripted(move |_| Reply::Keep(interim_and_final.clone().into())).await;
        let gateway = TestGateway::with_limit(&[&upstream], 100, ResourceLimits::default());
        for _ in 0..2 {
            for request in requests() {
                let got = raw_response(&gateway, &request).await;
                assert_eq!(&got[..12], &last[..12], "{got}");
                assert!(!got.contains("link:") && !got[12..].contains("HTTP/1.1"), "{got}");
                let (_, got_body) = got.split_once("\r\n\r\n").expect("a head");
                assert!(got_body.contains(body), "{got}");
            }
            let (status, has_link) = over_http2(&gateway).await;
            assert_eq!((status.as_str(), has_link), (&last[9..12], false));
        }
    }
}

#[tokio::test]
async fn interim_response_of_an_http2_upstream_is_dropped() {
    let upstream = AcceptLoop::start(|_, stream| async move {
        let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            for status in [102, 103, 103] {
                let hint = Response::builder().status(status).header("link", "</a.css>; rel=preload");
                respond.send_informational(hint.body(()).expect("a response")).expect("a stream");
            }
            let mut body = respond.send_response(Response::new(()), false).expect("a stream");
            body.send_data(Bytes::from_static(b"ok"), true).expect("capacity");
        }
    })
    .await;
    let policy = format!(
        "upstreams: {{ app: {{ servers: [\"{}\"] }} }}\nroutes: [{{ upstream: app }}]\n\
         rate_limits: {{ default: {{ requests: 100, window: 1h }} }}\n",
        upstream.h2c()
    );
    let gateway = TestGateway::start(&policy, ResourceLimits::default());
    for _ in 0..2 {
        for request in requests() {
            let got = raw_response(&gateway, &request).await;
            assert!(got.starts_with("HTTP/1.1 200 ") && !got.contains("link:"), "{got}");
            assert!(!got[12..].contains("HTTP/1.1") && got.contains("ok"), "{got}");
        }
        assert_eq!(over_http2(&gateway).await, (StatusCode::OK, false));
    }
}
