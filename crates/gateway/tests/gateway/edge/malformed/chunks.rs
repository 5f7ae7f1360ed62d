//! Chunked bodies.

use tidegate_testkit::server::RecordingServer;

use super::{BrokenOff, Case, Forwarded, hold};
use crate::fixture::TestGateway;

const HEAD: &str = "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

fn cases(bodies: &[(&'static str, &str)], law: super::Law) -> Vec<Case> {
    let case = |(name, body): &(&'static str, &str)| -> Case {
        (*name, &*Vec::leak(format!("{HEAD}{body}").into_bytes()), law)
    };
    bodies.iter().map(case).collect()
}

#[tokio::test]
async fn a_body_of_broken_chunks_never_makes_a_whole_request() {
    let long = "a".repeat(20_000);
    let many = (0..40).fold(String::new(), |many, n| format!("{many}X-{n}: a\r\n"));
    let bodies = [
        ("not a number", "x\r\nabc\r\n0\r\n\r\n"),
        ("a minus", "-3\r\nabc\r\n0\r\n\r\n"),
        ("a plus", "+3\r\nabc\r\n0\r\n\r\n"),
        ("0x", "0x3\r\nabc\r\n0\r\n\r\n"),
        ("no size", "\r\nabc\r\n0\r\n\r\n"),
        ("a size beyond 64 bits", "10000000000000003\r\nabc\r\n0\r\n\r\n"),
        ("a size of two words", "3 3\r\nabc\r\n0\r\n\r\n"),
        ("a bare LF after the size", "3\nabc\r\n0\r\n\r\n"),
        ("a bare CR after the size", "3\rabc\r\n0\r\n\r\n"),
        ("a bare LF after a chunk", "3\r\nabc\n0\r\n\r\n"),
        ("longer than its size", "3\r\nabcd\r\n0\r\n\r\n"),
        ("a bare LF in an extension", "3;a\nabc\r\n0\r\n\r\n"),
        ("no end", "3\r\nabc\r\n"),
        ("half an end", "3\r\nabc\r\n0\r\n"),
        ("a long extension", &format!("3;{long}\r\nabc\r\n0\r\n\r\n")),
        ("a long trailer", &format!("3\r\nabc\r\n0\r\nX: {long}\r\n\r\n")),
        ("many trailers", &format!("3\r\nabc\r\n0\r\n{many}\r\n")),
        ("a trailer with a space in its name", "3\r\nabc\r\n0\r\nX Y: a\r\n\r\n"),
        ("a trailer with a NUL", "3\r\nabc\r\n0\r\nX: \0\r\n\r\n"),
        ("a request for a size", "3\r\nabc\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ];
    hold(&cases(&bodies, BrokenOff)).await;
}

#[tokio::test]
async fn a_body_of_odd_chunks_is_forwarded_in_plain_ones() {
    let bodies = [
        ("zeros first", "0003\r\nabc\r\n0\r\n\r\n"),
        ("upper and lower case", "3\r\nabc\r\nA\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n"),
        ("an extension", "3;a=b\r\nabc\r\n0;c\r\n\r\n"),
        ("many zeros at the end", "3\r\nabc\r\n0000\r\n\r\n"),
        ("a trailer", "3\r\nabc\r\n0\r\nX: a\r\n\r\n"),
    ];
    hold(&cases(&bodies, Forwarded(&["/a"]))).await;
}

#[tokio::test]
async fn a_trailer_cannot_say_what_only_a_header_may() {
    let upstream = RecordingServer::start().await;
    let served = TestGateway::with_limit(&[&upstream], 100, super::bounds());
    let trailers = "Content-Length: 9\r\nHost: b\r\nTransfer-Encoding: x\r\nX-Forwarded-For: 1.1.1.1\r\n";
    let request = format!(
        "{}3\r\nabc\r\n0\r\n{trailers}\r\n",
        HEAD.replace("Host: a", "Host: a\r\nTrailer: host, x-forwarded-for")
    );
    assert_eq!(served.send_raw(&request).await.status, 200);
    let seen = upstream.last();
    assert_eq!((seen.header("host"), seen.body.as_slice()), (Some("a"), &b"abc"[..]));
    assert_eq!(seen.trailers, "", "nobody upstream should have to tell them from headers");
}
