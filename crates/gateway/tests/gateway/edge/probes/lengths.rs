//! `Content-Length`: one decimal number.

use super::Expected::{Aborted, Forwarded, Rejected};
use super::{Probe, Row, Then, assert_expected, table};

/// What follows `Content-Length`; the body is `abc`.
const LENGTHS: &[Row<'_>] = &[
    ("plain", b": 3", Forwarded(&["/a"])),
    ("no space", b":3", Forwarded(&["/a"])),
    ("spaces and tabs around it", b": \t 3 \t", Forwarded(&["/a"])),
    ("leading zeros", b": 003", Forwarded(&["/a"])),
    ("two that are equal", b": 3\r\nContent-Length: 3", Forwarded(&["/a"])),
    ("two that are equal, in another case", b": 3\r\ncontent-LENGTH: 3", Forwarded(&["/a"])),
    ("two that differ in zeros", b": 3\r\nContent-Length: 03", Forwarded(&["/a"])),
    ("plus", b": +3", Rejected(400)),
    ("minus", b": -3", Rejected(400)),
    ("minus zero", b": -0", Rejected(400)),
    ("space within", b": 1 3", Rejected(400)),
    ("hexadecimal", b": 0x3", Rejected(400)),
    ("fraction", b": 3.0", Rejected(400)),
    ("exponent", b": 3e0", Rejected(400)),
    ("word", b": three", Rejected(400)),
    ("empty", b":", Rejected(400)),
    ("quotes", b": \"3\"", Rejected(400)),
    ("semicolon", b": 3;", Rejected(400)),
    ("trailing comma", b": 3,", Rejected(400)),
    ("digit beyond ASCII", b": \xd9\xa3", Rejected(400)),
    ("NUL", b": 3\0", Rejected(400)),
    ("underscore", b": 0_3", Rejected(400)),
    ("list of equals", b": 3, 3", Rejected(400)),
    ("list that differs", b": 3, 0", Rejected(400)),
    ("two that differ", b": 3\r\nContent-Length: 0", Rejected(400)),
    ("two that differ, smaller first", b": 0\r\nContent-Length: 3", Rejected(400)),
    ("valid one and an empty one", b": 3\r\nContent-Length:", Rejected(400)),
    ("beyond 64 bits", b": 18446744073709551619", Rejected(400)),
    ("beyond 128 bits", b": 340282366920938463463374607431768211459", Rejected(400)),
    ("space before the colon", b" : 3", Rejected(400)),
    ("tab before the colon", b"\t: 3", Rejected(400)),
    ("folded", b":\r\n 3", Rejected(400)),
    // The parser reserves the largest numbers.
    ("largest of 64 bits", b": 18446744073709551615", Rejected(431)),
    ("largest of signed 64 bits", b": 9223372036854775807", Rejected(413)),
    ("above the bound for bodies", b": 8589934593", Rejected(413)),
];

pub(super) fn probes() -> Vec<Probe> {
    let theme = "content-length";
    let mut probes = table(theme, b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length", LENGTHS, b"\r\n\r\nabc");
    let rest: &[Row<'_>] = &[
        (
            "of a GET",
            b"GET /a HTTP/1.1\r\nHost: a\r\nContent-Length: 32\r\n\r\nGET /smuggled HTTP/1.1\r\nHost:a\r\n",
            Forwarded(&["/a"]),
        ),
        ("zero", b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", Forwarded(&["/a"])),
        ("of a HEAD", b"HEAD /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", Forwarded(&["/a"])),
    ];
    probes.extend(table(theme, b"", rest, b""));
    let short: &[Row<'_>] = &[
        ("body cut short", b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nabc", Aborted(400)),
        ("no body", b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n", Aborted(400)),
    ];
    probes.extend(table(theme, b"", short, b"").into_iter().map(|probe| probe.then(Then::HalfClose)));
    probes
}

#[tokio::test]
async fn content_length_other_than_one_number_is_rejected() {
    assert_expected(&probes()).await;
}
