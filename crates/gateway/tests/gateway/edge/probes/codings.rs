//! `Transfer-Encoding`: `chunked` once, in HTTP/1.1. A `Content-Length` beside it does not count.

use super::Expected::{Forwarded, ForwardedThenClosed, Rejected};
use super::{Probe, Row, assert_expected, table};

/// The field, or fields; the body is an empty one in chunks.
const FIELDS: &[Row<'_>] = &[
    ("plain", b"Transfer-Encoding: chunked", Forwarded(&["/a"])),
    ("mixed case", b"tRANSFER-eNCODING: CHUNKED", Forwarded(&["/a"])),
    ("spaces and tabs around it", b"Transfer-Encoding:\t chunked \t", Forwarded(&["/a"])),
    ("no space", b"Transfer-Encoding:chunked", Forwarded(&["/a"])),
    ("xchunked", b"Transfer-Encoding: xchunked", Rejected(400)),
    ("chunkedx", b"Transfer-Encoding: chunkedx", Rejected(400)),
    ("identity", b"Transfer-Encoding: identity", Rejected(400)),
    ("gzip", b"Transfer-Encoding: gzip", Rejected(400)),
    ("empty", b"Transfer-Encoding:", Rejected(400)),
    ("comma", b"Transfer-Encoding: ,", Rejected(400)),
    ("chunked, identity", b"Transfer-Encoding: chunked, identity", Rejected(400)),
    ("identity, chunked", b"Transfer-Encoding: identity, chunked", Rejected(400)),
    ("gzip, chunked", b"Transfer-Encoding: gzip, chunked", Rejected(400)),
    ("chunked, gzip", b"Transfer-Encoding: chunked, gzip", Rejected(400)),
    ("chunked twice in a list", b"Transfer-Encoding: chunked, chunked", Rejected(400)),
    ("comma first", b"Transfer-Encoding: ,chunked", Rejected(400)),
    ("comma last", b"Transfer-Encoding: chunked,", Rejected(400)),
    ("parameter", b"Transfer-Encoding: chunked;a=b", Rejected(400)),
    ("quotes", b"Transfer-Encoding: \"chunked\"", Rejected(400)),
    ("single quotes", b"Transfer-Encoding: 'chunked'", Rejected(400)),
    ("space within", b"Transfer-Encoding: chun ked", Rejected(400)),
    ("vertical tab before it", b"Transfer-Encoding: \x0bchunked", Rejected(400)),
    ("form feed before it", b"Transfer-Encoding: \x0cchunked", Rejected(400)),
    ("NUL after it", b"Transfer-Encoding: chunked\0", Rejected(400)),
    ("no-break space after it", b"Transfer-Encoding: chunked\xa0", Rejected(400)),
    ("two fields", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", Rejected(400)),
    ("chunked, then another field", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x", Rejected(400)),
    ("another field, then chunked", b"Transfer-Encoding: x\r\nTransfer-Encoding: chunked", Rejected(400)),
    ("chunked, then an empty field", b"Transfer-Encoding: chunked\r\nTransfer-Encoding:", Rejected(400)),
    ("space before the colon", b"Transfer-Encoding : chunked", Rejected(400)),
    ("tab before the colon", b"Transfer-Encoding\t: chunked", Rejected(400)),
    ("space before the name", b"X: a\r\n Transfer-Encoding: chunked", Rejected(400)),
    ("folded", b"Transfer-Encoding:\r\n chunked", Rejected(400)),
    ("bare CR before the name", b"X: a\rTransfer-Encoding: chunked", Rejected(400)),
    ("length first", b"Content-Length: 5\r\nTransfer-Encoding: chunked", ForwardedThenClosed(&["/a"])),
    ("length last", b"Transfer-Encoding: chunked\r\nContent-Length: 5", ForwardedThenClosed(&["/a"])),
    ("length of zero", b"Transfer-Encoding: chunked\r\nContent-Length: 0", ForwardedThenClosed(&["/a"])),
    (
        "length that is no number",
        b"Transfer-Encoding: chunked\r\nContent-Length: x",
        ForwardedThenClosed(&["/a"]),
    ),
    ("length and identity", b"Content-Length: 5\r\nTransfer-Encoding: identity", Rejected(400)),
    ("length and an empty coding", b"Content-Length: 5\r\nTransfer-Encoding:", Rejected(400)),
];

pub(super) fn probes() -> Vec<Probe> {
    let theme = "transfer-encoding";
    let end = b"\r\n\r\n0\r\n\r\n";
    let mut probes = table(theme, b"POST /a HTTP/1.1\r\nHost: a\r\n", FIELDS, end);
    let old: &[Row<'_>] = &[
        ("in HTTP/1.0", b"Transfer-Encoding: chunked", Rejected(400)),
        ("in HTTP/1.0 with a length", b"Content-Length: 5\r\nTransfer-Encoding: chunked", Rejected(400)),
        (
            "in HTTP/1.0 that stays open",
            b"Connection: keep-alive\r\nTransfer-Encoding: chunked",
            Rejected(400),
        ),
    ];
    probes.extend(table(theme, b"POST /a HTTP/1.0\r\nHost: a\r\n", old, end));
    let get: &[Row<'_>] = &[("of a GET", b"Transfer-Encoding: chunked", Forwarded(&["/a"]))];
    probes.extend(table(theme, b"GET /a HTTP/1.1\r\nHost: a\r\n", get, end));
    probes
}

#[tokio::test]
async fn transfer_encoding_other_than_chunked_once_is_rejected() {
    assert_expected(&probes()).await;
}
