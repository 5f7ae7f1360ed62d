//! `Connection` and what it names, `Keep-Alive`, `Expect`, `Upgrade`, `TE`.

use super::Expected::{Forwarded, ForwardedThenClosed, Rejected};
use super::{Probe, Row, assert_expected, table};

/// What follows a valid `Host` in a GET.
const FIELDS: &[Row<'_>] = &[
    ("close", b"Connection: close\r\n", ForwardedThenClosed(&["/a"])),
    ("close in capitals", b"CONNECTION: CLOSE\r\n", ForwardedThenClosed(&["/a"])),
    ("close in a list", b"Connection: x, close\r\n", ForwardedThenClosed(&["/a"])),
    ("close in a second field", b"Connection: keep-alive\r\nConnection: close\r\n", ForwardedThenClosed(&["/a"])),
    ("keep-alive", b"Connection: keep-alive\r\n", Forwarded(&["/a"])),
    ("keep-alive and parameters", b"Connection: keep-alive\r\nKeep-Alive: timeout=5\r\n", Forwarded(&["/a"])),
    ("empty", b"Connection:\r\n", Forwarded(&["/a"])),
    ("commas", b"Connection: ,,\r\n", Forwarded(&["/a"])),
    ("names no token", b"Connection: @, a b\r\n", Forwarded(&["/a"])),
    ("names the host", b"Connection: host\r\n", Forwarded(&["/a"])),
    ("names the host and closes", b"Connection: host, close\r\n", ForwardedThenClosed(&["/a"])),
    ("names itself", b"Connection: connection\r\n", Forwarded(&["/a"])),
    ("names a header", b"Connection: x-secret\r\nX-Secret: a\r\n", Forwarded(&["/a"])),
    ("names what the gateway adds", b"Connection: x-request-id\r\n", Forwarded(&["/a"])),
    ("names a forwarding header", b"Connection: x-forwarded-for\r\n", Rejected(400)),
    ("of a proxy", b"Proxy-Connection: keep-alive\r\n", Forwarded(&["/a"])),
    ("TE of trailers", b"TE: trailers\r\n", Forwarded(&["/a"])),
    ("TE of gzip", b"TE: gzip\r\nConnection: TE\r\n", Forwarded(&["/a"])),
    ("upgrade to h2c", b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n", Forwarded(&["/a"])),
    ("upgrade to h2c, settings missing", b"Connection: Upgrade\r\nUpgrade: h2c\r\n", Forwarded(&["/a"])),
    ("upgrade that Connection does not name", b"Upgrade: websocket\r\n", Forwarded(&["/a"])),
    ("upgrade named, but missing", b"Connection: Upgrade\r\n", Forwarded(&["/a"])),
    ("upgrade to TLS", b"Connection: Upgrade\r\nUpgrade: TLS/1.0\r\n", Forwarded(&["/a"])),
    ("websocket without a key", b"Connection: Upgrade\r\nUpgrade: websocket\r\n", Forwarded(&["/a"])),
    (
        "websocket of version 0",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 0\r\n",
        Forwarded(&["/a"]),
    ),
    (
        "websocket that the upstream declines",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
        Forwarded(&["/a"]),
    ),
    ("expect without a body", b"Expect: 100-continue\r\n", Forwarded(&["/a"])),
];

/// What follows a valid `Host` in a POST with three bytes.
const POSTS: &[Row<'_>] = &[
    ("expect 100-continue", b"Expect: 100-continue\r\n", Forwarded(&["/a"])),
    ("expect in capitals", b"Expect: 100-CONTINUE\r\n", Forwarded(&["/a"])),
    ("expect something else", b"Expect: 200-ok\r\n", Forwarded(&["/a"])),
    ("expect twice", b"Expect: 100-continue\r\nExpect: 100-continue\r\n", Forwarded(&["/a"])),
    ("names the length", b"Connection: content-length\r\n", Forwarded(&["/a"])),
    ("close with a body", b"Connection: close\r\n", ForwardedThenClosed(&["/a"])),
    (
        "upgrade with a body",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
        Forwarded(&["/a"]),
    ),
];

/// Whole requests.
const REQUESTS: &[Row<'_>] = &[
    (
        "names the coding",
        b"POST /a HTTP/1.1\r\nHost: a\r\nConnection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        Forwarded(&["/a"]),
    ),
    (
        "expect and two lengths",
        b"POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\nContent-Length: 0\r\n\r\nabc",
        Rejected(400),
    ),
    (
        "upgrade without a Host",
        b"GET /a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        Rejected(400),
    ),
    (
        "keep-alive in HTTP/1.0",
        b"GET /a HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
        Forwarded(&["/a"]),
    ),
    (
        "keep-alive and close in HTTP/1.0",
        b"GET /a HTTP/1.0\r\nHost: a\r\nConnection: keep-alive, close\r\n\r\n",
        ForwardedThenClosed(&["/a"]),
    ),
    (
        "upgrade in HTTP/1.0",
        b"GET /a HTTP/1.0\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        ForwardedThenClosed(&["/a"]),
    ),
    (
        "expect in HTTP/1.0",
        b"POST /a HTTP/1.0\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
        ForwardedThenClosed(&["/a"]),
    ),
];

pub(super) fn probes() -> Vec<Probe> {
    let theme = "connection";
    let mut probes = table(theme, b"GET /a HTTP/1.1\r\nHost: a\r\n", FIELDS, b"\r\n");
    probes.extend(table(theme, b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n", POSTS, b"\r\nabc"));
    probes.extend(table(theme, b"", REQUESTS, b""));
    probes
}

#[tokio::test]
async fn connection_options_never_change_the_forwarded_request() {
    assert_expected(&probes()).await;
}
