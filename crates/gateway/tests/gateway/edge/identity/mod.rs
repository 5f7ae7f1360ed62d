//! Headers that identify a client: limits count the client that the upstream sees, or the request is rejected.

mod keys;
mod names;
mod users;
mod values;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use tidegate_testkit::client::http2_streams;
use tidegate_testkit::message::Response;
use tidegate_testkit::server::RecordingServer;
use tidegate_testkit::wait::within;

use crate::fixture::TestGateway;

type Lines<'a> = &'a [(&'a str, &'a str)];

/// A keys file with the keys `k` and `other`.
const KEYS: [(&str, &str); 1] = [("keys.csv", "k,known\nother,known\n")];

/// A gateway with a keys file and these settings of `clients`: 100 requests an hour for each client.
fn with_keys(upstream: &RecordingServer, clients: &str) -> TestGateway {
    let limit = "{ requests: 100, window: 1h, algorithm: fixed_window }";
    let more = format!(
        "clients: {{ tiers: {{ file: keys.csv }}{clients} }}\n\
         rate_limits: {{ default: {limit}, tiers: {{ known: {limit} }} }}"
    );
    TestGateway::with_files(&crate::fixture::policy_before(&[upstream], &more), &KEYS)
}

/// The response to a request over HTTP/1.1 whose header lines are sent as they are.
async fn over_http1(gateway: &TestGateway, lines: Lines<'_>) -> Response {
    let lines: Vec<_> = lines.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    gateway.send_raw(&format!("GET / HTTP/1.1\r\nHost: a.example\r\n{}\r\n", lines.concat())).await
}

/// The response to a request over HTTP/2 whose header values are sent as they are.
async fn over_http2(gateway: &TestGateway, lines: Lines<'_>) -> Response {
    send_http2(gateway, lines, None).await
}

async fn send_http2(gateway: &TestGateway, lines: Lines<'_>, trailers: Option<Lines<'_>>) -> Response {
    let map = |lines: Lines<'_>| -> HeaderMap {
        let field = |(name, value): &(&str, &str)| {
            let name = HeaderName::from_bytes(name.to_lowercase().as_bytes()).expect("a name");
            (name, HeaderValue::from_bytes(value.as_bytes()).expect("a value"))
        };
        lines.iter().map(field).collect()
    };
    let (client, connection) = http2_streams(gateway.address).await;
    let mut client = within("capacity", client.ready()).await.expect("capacity");
    let mut request = Request::post("http://a.example/").body(()).expect("a request");
    *request.headers_mut() = map(lines);
    let (response, mut body) = client.send_request(request, trailers.is_none()).expect("a stream");
    if let Some(trailers) = trailers {
        body.send_data(Bytes::from_static(b"abc"), false).expect("a body");
        body.send_trailers(map(trailers)).expect("trailers");
    }
    let (parts, mut body) = within("a response", response).await.expect("a response").into_parts();
    let mut bytes = Vec::new();
    while let Some(piece) = within("a body", body.data()).await {
        bytes.extend_from_slice(&piece.expect("a body"));
    }
    connection.abort();
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = parts.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    Response { status: parts.status.as_u16(), headers, body: bytes }
}

/// The same request over both protocols.
async fn over_both(gateway: &TestGateway, lines: Lines<'_>) -> [Response; 2] {
    [over_http1(gateway, lines).await, over_http2(gateway, lines).await]
}

/// Asserts that a request is rejected over both protocols with a body that names `header`, that no upstream sees it and
/// that no limit is charged.
async fn assert_rejected(gateway: &TestGateway, upstream: &RecordingServer, lines: Lines<'_>, header: &str) {
    let (before, seen) = (gateway.get_raw("/").await.remaining(), upstream.requests().len());
    for response in over_both(gateway, lines).await {
        assert_eq!(response.status, 400, "{lines:?}: {}", response.text());
        assert!(response.text().contains(&format!("`{header}`")), "{lines:?}: {}", response.text());
    }
    assert_eq!(upstream.requests().len(), seen, "{lines:?} reached the upstream");
    assert_eq!(gateway.get_raw("/").await.remaining(), before - 1, "{lines:?} was charged");
}
