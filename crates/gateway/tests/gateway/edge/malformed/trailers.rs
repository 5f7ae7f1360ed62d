//! Trailers of requests.

use tidegate_testkit::server::RecordingServer;

use crate::fixture::{ResourceLimits, TestGateway};

#[tokio::test]
async fn a_trailer_cannot_say_what_only_a_header_may() {
    let upstream = RecordingServer::start().await;
    let served = TestGateway::with_limit(&[&upstream], 100, ResourceLimits::default());
    let head =
        "POST /a HTTP/1.1\r\nHost: a\r\nTrailer: host, x-forwarded-for\r\nTransfer-Encoding: chunked\r\n\r\n";
    let trailers = "Content-Length: 9\r\nHost: b\r\nTransfer-Encoding: x\r\nX-Forwarded-For: 1.1.1.1\r\n";
    let request = format!("{head}3\r\nabc\r\n0\r\n{trailers}\r\n");
    assert_eq!(served.send_raw(&request).await.status, 200);
    let seen = upstream.last();
    assert_eq!((seen.header("host"), seen.body.as_slice()), (Some("a"), &b"abc"[..]));
    assert_eq!(seen.trailers, "", "nobody upstream should have to tell them from headers");
}
