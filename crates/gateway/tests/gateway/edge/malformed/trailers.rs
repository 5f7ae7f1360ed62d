//! Trailers of requests.

use tidegate_testkit::server::RecordingServer;

use crate::fixture::{ResourceLimits, TestGateway};

#[tokio::test]
async fn trailer_with_the_name_of_a_framing_or_forwarding_header_is_not_forwarded() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 100, ResourceLimits::default());
    let head =
        "POST /a HTTP/1.1\r\nHost: a\r\nTrailer: host, x-forwarded-for\r\nTransfer-Encoding: chunked\r\n\r\n";
    let trailers = "Content-Length: 9\r\nHost: b\r\nTransfer-Encoding: x\r\nX-Forwarded-For: 1.1.1.1\r\n";
    let request = format!("{head}3\r\nabc\r\n0\r\n{trailers}\r\n");
    assert_eq!(gateway.send_raw(&request).await.status, 200);
    let seen = upstream.last();
    assert_eq!((seen.header("host"), seen.body.as_slice()), (Some("a"), &b"abc"[..]));
    assert_eq!(seen.trailers, "", "the upstream must not take them for headers");
}
