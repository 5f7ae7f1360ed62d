//! Request lines: methods, versions and spaces.

use super::Expected::{Closed, Forwarded, ForwardedThenClosed, Rejected};
use super::{Probe, Row, Then, assert_expected, table};

/// Whole lines; a valid `Host` follows.
const LINES: &[Row<'_>] = &[
    ("version 0.9", b"GET /a HTTP/0.9", Rejected(400)),
    ("version 1.0", b"GET /a HTTP/1.0", ForwardedThenClosed(&["/a"])),
    ("version 1.2", b"GET /a HTTP/1.2", Rejected(400)),
    ("version 1.10", b"GET /a HTTP/1.10", Rejected(400)),
    ("version 01.1", b"GET /a HTTP/01.1", Rejected(400)),
    ("version 1", b"GET /a HTTP/1", Rejected(400)),
    ("version 2", b"GET /a HTTP/2", Rejected(400)),
    ("version 2.0", b"GET /a HTTP/2.0", Rejected(400)),
    ("version 3", b"GET /a HTTP/3", Rejected(400)),
    ("version with a comma", b"GET /a HTTP/1,1", Rejected(400)),
    ("version of three parts", b"GET /a HTTP/1.1.1", Rejected(400)),
    ("lower-case version", b"GET /a http/1.1", Rejected(400)),
    ("empty version", b"GET /a HTTP/", Rejected(400)),
    ("another protocol", b"GET /a ICAP/1.0", Rejected(400)),
    ("HTTPS as the protocol", b"GET /a HTTPS/1.1", Rejected(400)),
    ("space for the slash of the version", b"GET /a HTTP 1.1", Rejected(400)),
    ("space in the version", b"GET /a HTTP/ 1.1", Rejected(400)),
    ("word after the version", b"GET /a HTTP/1.1 x", Rejected(400)),
    ("space after the version", b"GET /a HTTP/1.1 ", Rejected(400)),
    ("tab after the version", b"GET /a HTTP/1.1\t", Rejected(400)),
    ("NUL after the version", b"GET /a HTTP/1.1\0", Rejected(400)),
    ("no version", b"GET /a", Rejected(400)),
    ("no version, but a space", b"GET /a ", Rejected(400)),
    ("two spaces before the target", b"GET  /a HTTP/1.1", Rejected(400)),
    ("two spaces after the target", b"GET /a  HTTP/1.1", Rejected(400)),
    ("space in the target", b"GET /a b HTTP/1.1", Rejected(400)),
    ("tabs for spaces", b"GET\t/a\tHTTP/1.1", Rejected(400)),
    ("vertical tab for a space", b"GET\x0b/a HTTP/1.1", Rejected(400)),
    ("no-break space for a space", b"GET\xa0/a HTTP/1.1", Rejected(400)),
    ("space first", b" GET /a HTTP/1.1", Rejected(400)),
    ("byte order mark first", b"\xef\xbb\xbfGET /a HTTP/1.1", Rejected(400)),
    ("bare CR in the line", b"GET /a\r HTTP/1.1", Rejected(400)),
    ("no method", b"/a HTTP/1.1", Rejected(400)),
    ("no target", b"GET HTTP/1.1", Rejected(400)),
    ("only a method", b"GET", Rejected(400)),
    ("only a version", b"HTTP/1.1", Rejected(400)),
    ("unknown method", b"BREW /a HTTP/1.1", Forwarded(&["/a"])),
    ("method with a hyphen", b"M-SEARCH /a HTTP/1.1", Forwarded(&["/a"])),
    ("method of digits", b"123 /a HTTP/1.1", Forwarded(&["/a"])),
    ("DELETE without a body", b"DELETE /a HTTP/1.1", Forwarded(&["/a"])),
    ("POST without a body", b"POST /a HTTP/1.1", Forwarded(&["/a"])),
    ("TRACE", b"TRACE /a HTTP/1.1", Forwarded(&["/a"])),
    // Rules for `POST` would not match what a lenient service takes for one.
    ("method in lower case", b"get /a HTTP/1.1", Rejected(400)),
    ("method in mixed case", b"Post /a HTTP/1.1", Rejected(400)),
    ("method with a slash", b"GE/T /a HTTP/1.1", Rejected(400)),
    ("method with a colon", b"GET: /a HTTP/1.1", Rejected(400)),
    ("method in quotes", b"\"GET\" /a HTTP/1.1", Rejected(400)),
    ("method with a NUL", b"GE\0T /a HTTP/1.1", Rejected(400)),
    ("method with a byte beyond ASCII", b"G\xc3\x8bT /a HTTP/1.1", Rejected(400)),
    ("method that is a status line", b"HTTP/1.1 200 OK", Rejected(400)),
];

/// Everything up to the request that follows.
const HEADS: &[Row<'_>] = &[
    ("one empty line first", b"\r\nGET /a HTTP/1.1\r\nHost: a\r\n\r\n", Forwarded(&["/a"])),
    ("two empty lines first", b"\r\n\r\nGET /a HTTP/1.1\r\nHost: a\r\n\r\n", Forwarded(&["/a"])),
    ("bare LF first", b"\nGET /a HTTP/1.1\r\nHost: a\r\n\r\n", Forwarded(&["/a"])),
    ("bare CR first", b"\rGET /a HTTP/1.1\r\nHost: a\r\n\r\n", Rejected(400)),
    ("NUL first", b"\0GET /a HTTP/1.1\r\nHost: a\r\n\r\n", Rejected(400)),
    ("bare CR after the line", b"GET /a HTTP/1.1\rHost: a\r\n\r\n", Rejected(400)),
    ("two CRs after the line", b"GET /a HTTP/1.1\r\r\nHost: a\r\n\r\n", Rejected(400)),
    ("LF CR after the line", b"GET /a HTTP/1.1\n\rHost: a\r\n\r\n", Rejected(400)),
    ("HTTP/0.9", b"GET /a\r\n\r\n", Rejected(400)),
    ("HTTP/0.9 with one line", b"GET /a\r\n", Rejected(400)),
    ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", Rejected(400)),
    ("SSH", b"SSH-2.0-OpenSSH_9.2\r\n", Rejected(400)),
    ("SOCKS", b"\x05\x01\x00", Rejected(400)),
    ("PROXY line", b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\nGET /a HTTP/1.1\r\nHost: a\r\n\r\n", Rejected(400)),
    ("PROXY header", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\0\0\0\0\0\0\0\0\0\0\0\0", Rejected(400)),
    ("HTTP/2 preface cut short", b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", Rejected(400)),
];

/// Where the client ends its side.
const CUT: &[Row<'_>] = &[
    ("nothing at all", b"", Closed),
    ("only an empty line", b"\r\n", Closed),
    ("half a method", b"GE", Closed),
    ("half a line", b"GET /a HT", Closed),
    ("half a head", b"GET /a HTTP/1.1\r\nHost: a\r\n", Closed),
    ("HTTP/0.9 without an end of line", b"GET /a", Closed),
];

pub(super) fn probes() -> Vec<Probe> {
    let theme = "request line";
    let long = "A".repeat(70_000);
    let long_method = format!("{long} /a HTTP/1.1\r\nHost: a\r\n\r\n");
    let long_target = format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut probes = table(theme, b"", LINES, b"\r\nHost: a\r\n\r\n");
    probes.extend(table(theme, b"", HEADS, b""));
    probes.push(Probe::new(theme, "long method", long_method, Rejected(431)));
    probes.push(Probe::new(theme, "long target", long_target, Rejected(431)));
    for probe in table("half-close", b"", CUT, b"") {
        let closed = Probe { name: probe.name.replace("half-close", "close"), ..probe.clone() };
        probes.push(probe.then(Then::HalfClose));
        if !closed.bytes.is_empty() {
            probes.push(closed.then(Then::Close));
        }
    }
    probes
}

#[tokio::test]
async fn invalid_request_line_is_rejected() {
    assert_expected(&probes()).await;
}
