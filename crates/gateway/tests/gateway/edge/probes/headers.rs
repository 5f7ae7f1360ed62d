//! Header fields: names, values, folding and sizes.

use super::Expected::{Forwarded, Rejected};
use super::{Probe, Row, assert_expected, table};

/// What follows a valid `Host`.
const FIELDS: &[Row<'_>] = &[
    ("bare CR in a value", b"X: a\rb\r\n", Rejected(400)),
    ("bare CR before a name", b"\rX: b\r\n", Rejected(400)),
    ("bare CR for a line end", b"X: a\rY: b\r\n", Rejected(400)),
    ("two CRs before an LF", b"X: a\r\r\n", Rejected(400)),
    ("NUL in a value", b"X: a\0b\r\n", Rejected(400)),
    ("NUL in a name", b"X\0: a\r\n", Rejected(400)),
    ("backspace in a value", b"X: a\x08b\r\n", Rejected(400)),
    ("vertical tab in a value", b"X: a\x0bb\r\n", Rejected(400)),
    ("escape in a value", b"X: a\x1bb\r\n", Rejected(400)),
    ("DEL in a value", b"X: a\x7fb\r\n", Rejected(400)),
    ("space in a name", b"X Y: a\r\n", Rejected(400)),
    ("space before the colon", b"X : a\r\n", Rejected(400)),
    ("tab before the colon", b"X\t: a\r\n", Rejected(400)),
    ("no name", b": a\r\n", Rejected(400)),
    ("only a colon", b":\r\n", Rejected(400)),
    ("no colon", b"X\r\n", Rejected(400)),
    ("request line for a header", b"GET /b HTTP/1.1\r\n", Rejected(400)),
    ("byte beyond ASCII in a name", b"\xc3\xa9: a\r\n", Rejected(400)),
    ("brackets in a name", b"X(): a\r\n", Rejected(400)),
    ("slash in a name", b"X/Y: a\r\n", Rejected(400)),
    ("quotes in a name", b"\"X\": a\r\n", Rejected(400)),
    ("at sign in a name", b"X@Y: a\r\n", Rejected(400)),
    ("semicolon in a name", b"X;Y: a\r\n", Rejected(400)),
    ("folded with a space", b"X: a\r\n b\r\n", Rejected(400)),
    ("folded with a tab", b"X: a\r\n\tb\r\n", Rejected(400)),
    ("folded into an empty line", b"X: a\r\n \r\n", Rejected(400)),
    ("folded name", b"X\r\n : a\r\n", Rejected(400)),
    ("empty value", b"X:\r\n", Forwarded(&["/a"])),
    ("value of spaces", b"X:   \t \r\n", Forwarded(&["/a"])),
    ("no space after the colon", b"X:a\r\n", Forwarded(&["/a"])),
    ("spaces around a value", b"X: \t a \t\r\n", Forwarded(&["/a"])),
    ("tab in a value", b"X: a\tb\r\n", Forwarded(&["/a"])),
    ("colons in a value", b"X: a: b: c\r\n", Forwarded(&["/a"])),
    ("UTF-8 in a value", b"X: \xc3\xa9\r\n", Forwarded(&["/a"])),
    ("byte of no UTF-8 in a value", b"X: \xff\r\n", Forwarded(&["/a"])),
    ("name of one digit", b"1: a\r\n", Forwarded(&["/a"])),
    ("name of all token characters", b"!#$%&'*+-.^`|~aZ9: a\r\n", Forwarded(&["/a"])),
    ("underscore in a name", b"X_Y: a\r\n", Forwarded(&["/a"])),
    ("one name twice", b"X: a\r\nX: b\r\n", Forwarded(&["/a"])),
    // One reading only: the gateway writes whole lines again with CR LF.
    ("bare LF after a value", b"X: a\n", Forwarded(&["/a"])),
];

/// Whole heads.
const HEADS: &[Row<'_>] = &[
    ("bare LFs throughout", b"GET /a HTTP/1.1\nHost: a\n\n", Forwarded(&["/a"])),
    ("bare LF at the end of the head", b"GET /a HTTP/1.1\r\nHost: a\r\n\n", Forwarded(&["/a"])),
    ("bare CR at the end of the head", b"GET /a HTTP/1.1\r\nHost: a\r\n\r", Rejected(400)),
    ("space before the first name", b"GET /a HTTP/1.1\r\n Host: a\r\nX: a\r\n\r\n", Rejected(400)),
    ("space in the empty line", b"GET /a HTTP/1.1\r\nHost: a\r\n \r\n\r\n", Rejected(400)),
];

pub(super) fn probes() -> Vec<Probe> {
    let theme = "header";
    let mut probes = table(theme, b"GET /a HTTP/1.1\r\nHost: a\r\n", FIELDS, b"\r\n");
    probes.extend(table(theme, b"", HEADS, b""));
    let long = "a".repeat(70_000);
    let fields = |count: usize| (0..count).fold(String::new(), |many, n| format!("{many}X-{n}: a\r\n"));
    let sizes = [
        ("long value", format!("X: {long}\r\n"), Rejected(431)),
        ("long name", format!("{long}: a\r\n"), Rejected(431)),
        ("long head of short fields", format!("X: {}\r\n", "a".repeat(1_000)).repeat(80), Rejected(431)),
        ("more fields than allowed", fields(100), Rejected(431)),
        ("as many fields as allowed", fields(99), Forwarded(&["/a"])),
        ("value of 6,000 bytes", format!("X: {}\r\n", &long[..6_000]), Forwarded(&["/a"])),
    ];
    for (name, fields, expected) in sizes {
        let bytes = format!("GET /a HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        probes.push(Probe::new(theme, name, bytes, expected));
    }
    let endless = format!("GET /a HTTP/1.1\r\nHost: a\r\nX: {long}");
    probes.push(Probe::new(theme, "long value without an end", endless, Rejected(431)));
    probes
}

#[tokio::test]
async fn invalid_header_is_rejected() {
    assert_expected(&probes()).await;
}
