//! Several messages over one connection: pipelines, and what follows a rejected or odd message.

use super::Expected::{Abandoned, Forwarded, ForwardedThenClosed, ForwardedThenRejected, Rejected};
use super::{Probe, Row, Then, assert_expected, table};

const SEQUENCES: &[Row<'_>] = &[
    (
        "two GETs",
        b"GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        Forwarded(&["/a", "/b"]),
    ),
    (
        "two GETs with empty lines between them",
        b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        Forwarded(&["/a", "/b"]),
    ),
    (
        "body of a length and a GET",
        b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        Forwarded(&["/a", "/b"]),
    ),
    (
        "chunked body and a GET",
        b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        Forwarded(&["/a", "/b"]),
    ),
    (
        "body of a GET and a GET",
        b"GET /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        Forwarded(&["/a", "/b"]),
    ),
    (
        "HEAD and a GET",
        b"HEAD /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        Forwarded(&["/a", "/b"]),
    ),
    (
        "GET and an invalid line",
        b"GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET  /b HTTP/1.1\r\nHost: a\r\n\r\n",
        ForwardedThenRejected(&["/a"], 400),
    ),
    (
        "GET and an invalid path",
        b"GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /%00 HTTP/1.1\r\nHost: a\r\n\r\n",
        ForwardedThenRejected(&["/a"], 400),
    ),
    (
        "GET and two lengths",
        b"GET /a HTTP/1.1\r\nHost: a\r\n\r\nPOST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        ForwardedThenRejected(&["/a"], 400),
    ),
    (
        "GET without a Host, then a GET",
        b"GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        Rejected(400),
    ),
    (
        "body one byte longer than its length",
        b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc GET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        ForwardedThenRejected(&["/a"], 400),
    ),
    (
        "letter between two requests",
        b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc\r\nxGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        // `xGET` is parsed as a method, and methods must be in capitals.
        ForwardedThenRejected(&["/a"], 400),
    ),
    (
        "capital letter between two requests",
        b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcXGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        Forwarded(&["/a", "/b"]),
    ),
    ("NULs after a request", b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n\0\0\0\0", ForwardedThenRejected(&["/a"], 400)),
    (
        "request of HTTP/1.0, then a GET",
        b"GET /a HTTP/1.0\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        ForwardedThenClosed(&["/a"]),
    ),
    (
        "close, then a GET",
        b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        ForwardedThenClosed(&["/a"]),
    ),
    (
        "length and coding with a request behind them",
        b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        ForwardedThenClosed(&["/a"]),
    ),
    (
        "length that hides a request from a chunked reader",
        b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\nContent-Length: 36\r\n\r\n0\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        Rejected(400),
    ),
];

/// Where the client ends its side.
const CUT: &[Row<'_>] = &[
    ("GET", b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n", Abandoned(&["/a"])),
    (
        "POST with its body",
        b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
        Abandoned(&["/a"]),
    ),
    (
        "POST with chunks",
        b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        Abandoned(&["/a"]),
    ),
    (
        "two GETs",
        b"GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        Abandoned(&["/a", "/b"]),
    ),
    ("GET and half a GET", b"GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HT", Abandoned(&["/a"])),
    ("invalid GET", b"GET /a%00 HTTP/1.1\r\nHost: a\r\n\r\n", Abandoned(&[])),
];

pub(super) fn probes() -> Vec<Probe> {
    let mut probes = table("sequence", b"", SEQUENCES, b"");
    let hundred = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n".repeat(100);
    probes.push(Probe::new("sequence", "hundred GETs", hundred, Forwarded(&["/a"; 100])));
    let cut = table("half-close after a", b"", CUT, b"");
    probes.extend(cut.into_iter().map(|probe| probe.then(Then::HalfClose)));
    probes
}

#[tokio::test]
async fn message_after_a_rejected_one_is_not_forwarded() {
    assert_expected(&probes()).await;
}
