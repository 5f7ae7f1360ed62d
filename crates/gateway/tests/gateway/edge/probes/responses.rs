//! Responses without a body: the next response begins where the client expects it.

use super::Expected::Forwarded;
use super::{Probe, Row, assert_expected, table};

const REQUESTS: &[Row<'_>] = &[
    ("to HEAD", b"HEAD /a HTTP/1.1\r\nHost: a\r\n\r\n", Forwarded(&["/a"])),
    (
        "to HEAD twice",
        b"HEAD /a HTTP/1.1\r\nHost: a\r\n\r\nHEAD /b HTTP/1.1\r\nHost: a\r\n\r\n",
        Forwarded(&["/a", "/b"]),
    ),
    ("204", b"GET /204 HTTP/1.1\r\nHost: a\r\n\r\n", Forwarded(&["/204"])),
    ("204 to HEAD", b"HEAD /204 HTTP/1.1\r\nHost: a\r\n\r\n", Forwarded(&["/204"])),
    (
        "204 to POST",
        b"POST /204 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
        Forwarded(&["/204"]),
    ),
    ("304 with a length", b"GET /304 HTTP/1.1\r\nHost: a\r\n\r\n", Forwarded(&["/304"])),
    ("304 with a length to HEAD", b"HEAD /304 HTTP/1.1\r\nHost: a\r\n\r\n", Forwarded(&["/304"])),
    (
        "200, 204, 304 and HEAD in a row",
        b"GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /204 HTTP/1.1\r\nHost: a\r\n\r\nGET /304 HTTP/1.1\r\nHost: a\r\n\r\nHEAD /b HTTP/1.1\r\nHost: a\r\n\r\n",
        Forwarded(&["/a", "/204", "/304", "/b"]),
    ),
];

pub(super) fn probes() -> Vec<Probe> {
    table("response", b"", REQUESTS, b"")
}

#[tokio::test]
async fn response_without_a_body_is_followed_by_the_next() {
    assert_expected(&probes()).await;
}
