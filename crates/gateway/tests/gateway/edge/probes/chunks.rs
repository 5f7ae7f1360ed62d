//! Chunked bodies: sizes, extensions, line ends and trailers.

use super::Expected::{Aborted, Forwarded};
use super::{Probe, Row, Then, assert_expected, table};

const HEAD: &[u8] = b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

const VALID: &[Row<'_>] = &[
    ("one", b"3\r\nabc\r\n0\r\n\r\n", Forwarded(&["/a"])),
    ("leading zeros", b"0003\r\nabc\r\n0\r\n\r\n", Forwarded(&["/a"])),
    ("hexadecimal in both cases", b"A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n", Forwarded(&["/a"])),
    ("extension", b"3;a=b\r\nabc\r\n0;c\r\n\r\n", Forwarded(&["/a"])),
    ("quoted extension", b"3;a=\"b c\"\r\nabc\r\n0\r\n\r\n", Forwarded(&["/a"])),
    ("many zeros at the end", b"3\r\nabc\r\n0000\r\n\r\n", Forwarded(&["/a"])),
    ("trailer", b"3\r\nabc\r\n0\r\nX: a\r\n\r\n", Forwarded(&["/a"])),
    ("trailer that frames", b"3\r\nabc\r\n0\r\nContent-Length: 9\r\n\r\n", Forwarded(&["/a"])),
    ("request as data", b"1c\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n\r\n0\r\n\r\n", Forwarded(&["/a"])),
];

const INVALID: &[Row<'_>] = &[
    ("size that is no number", b"x\r\nabc\r\n0\r\n\r\n", Aborted(400)),
    ("minus", b"-3\r\nabc\r\n0\r\n\r\n", Aborted(400)),
    ("plus", b"+3\r\nabc\r\n0\r\n\r\n", Aborted(400)),
    ("0x", b"0x3\r\nabc\r\n0\r\n\r\n", Aborted(400)),
    ("no size", b"\r\nabc\r\n0\r\n\r\n", Aborted(400)),
    ("only an extension", b";a\r\nabc\r\n0\r\n\r\n", Aborted(400)),
    ("space before the size", b" 3\r\nabc\r\n0\r\n\r\n", Aborted(400)),
    ("size beyond 64 bits", b"10000000000000003\r\nabc\r\n0\r\n\r\n", Aborted(400)),
    ("size beyond 64 bits, all ones", b"fffffffffffffffff\r\nabc\r\n0\r\n\r\n", Aborted(400)),
    ("size of two words", b"3 3\r\nabc\r\n0\r\n\r\n", Aborted(400)),
    ("size with an underscore", b"0_3\r\nabc\r\n0\r\n\r\n", Aborted(400)),
    ("NUL in a size", b"3\0\r\nabc\r\n0\r\n\r\n", Aborted(400)),
    ("bare LF after a size", b"3\nabc\r\n0\r\n\r\n", Aborted(400)),
    ("bare CR after a size", b"3\rabc\r\n0\r\n\r\n", Aborted(400)),
    ("bare LF in an extension", b"3;a\nabc\r\n0\r\n\r\n", Aborted(400)),
    ("bare CR in an extension", b"3;a\rb\r\nabc\r\n0\r\n\r\n", Aborted(400)),
    ("bare LF after data", b"3\r\nabc\n0\r\n\r\n", Aborted(400)),
    ("bare CR after data", b"3\r\nabc\r0\r\n\r\n", Aborted(400)),
    ("no line end after data", b"3\r\nabc0\r\n\r\n", Aborted(400)),
    ("data longer than its size", b"3\r\nabcd\r\n0\r\n\r\n", Aborted(400)),
    ("data shorter than its size", b"4\r\nabc\r\n0\r\n\r\n", Aborted(400)),
    ("bare LF after the last size", b"3\r\nabc\r\n0\n\r\n", Aborted(400)),
    ("trailer with a space in its name", b"3\r\nabc\r\n0\r\nX Y: a\r\n\r\n", Aborted(400)),
    ("trailer with a NUL", b"3\r\nabc\r\n0\r\nX: \0\r\n\r\n", Aborted(400)),
    ("trailer without a colon", b"3\r\nabc\r\n0\r\nX\r\n\r\n", Aborted(400)),
    ("space after a size", b"3 \r\nabc\r\n0\r\n\r\n", Aborted(400)),
    ("tab after the last size", b"3\r\nabc\r\n0\t\r\n\r\n", Aborted(400)),
    ("NUL in an extension", b"3;a\0\r\nabc\r\n0\r\n\r\n", Aborted(400)),
    ("escape in an extension", b"3;a=\"\x1b\"\r\nabc\r\n0\r\n\r\n", Aborted(400)),
    ("DEL in the last extension", b"3\r\nabc\r\n0;\x7f\r\n\r\n", Aborted(400)),
    ("bare LF for the end", b"3\r\nabc\r\n0\r\n\n", Aborted(400)),
    (
        "request behind a bare LF for the end",
        b"0\r\n\nPOST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 32\r\n\r\nGET /inner HTTP/1.1\r\nHost: a\r\n\r\n",
        Aborted(400),
    ),
    ("bare LF after a trailer", b"3\r\nabc\r\n0\r\nX: a\n\r\n", Aborted(400)),
    ("two bare LFs after a trailer", b"0\r\nX: a\n\nY: b\r\n\r\n", Aborted(400)),
    ("bare LF for the end after a trailer", b"0\r\nX: a\r\n\n", Aborted(400)),
    ("bare CR in a trailer", b"0\r\nX: a\rb\r\n\r\n", Aborted(400)),
    ("bare CR for the end", b"0\r\n\rX: a\r\n\r\n", Aborted(400)),
    ("folded trailer", b"0\r\nX: a\r\n b\r\n\r\n", Aborted(400)),
    ("trailer with an escape", b"0\r\nX: \x1b\r\n\r\n", Aborted(400)),
    ("largest size of 64 bits", b"ffffffffffffffff\r\nabc", Aborted(413)),
    ("size of 2^63", b"8000000000000000\r\nabc", Aborted(413)),
    ("size beyond the limit of a body", b"3\r\nabc\r\n200000000\r\nabc", Aborted(413)),
    ("request for a size", b"3\r\nabc\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n", Aborted(400)),
];

/// Where the client ends its side.
const CUT: &[Row<'_>] = &[
    ("no end", b"3\r\nabc\r\n", Aborted(400)),
    ("half an end", b"3\r\nabc\r\n0\r\n", Aborted(400)),
    ("half a chunk", b"3\r\na", Aborted(400)),
    ("half a size", b"3", Aborted(400)),
    ("nothing", b"", Aborted(400)),
    ("huge size", b"7fffffffffffffff\r\nabc", Aborted(413)),
];

pub(super) fn probes() -> Vec<Probe> {
    let theme = "chunks";
    let mut probes = table(theme, HEAD, VALID, b"");
    probes.extend(table(theme, HEAD, INVALID, b""));
    probes.extend(table(theme, HEAD, CUT, b"").into_iter().map(|probe| probe.then(Then::HalfClose)));
    let long = "a".repeat(20_000);
    let many = (0..200).fold(String::new(), |many, n| format!("{many}X-{n}: a\r\n"));
    let sizes = [
        ("long extension", format!("3;{long}\r\nabc\r\n0\r\n\r\n")),
        ("long trailer", format!("3\r\nabc\r\n0\r\nX: {long}\r\n\r\n")),
        ("many trailers", format!("3\r\nabc\r\n0\r\n{many}\r\n")),
    ];
    for (name, body) in sizes {
        probes.push(Probe::new(theme, name, [HEAD, body.as_bytes()].concat(), Aborted(400)));
    }
    let zeros = format!("{}3\r\nabc\r\n0\r\n\r\n", "0".repeat(20_000));
    probes.push(Probe::new(
        theme,
        "many leading zeros",
        [HEAD, zeros.as_bytes()].concat(),
        Forwarded(&["/a"]),
    ));
    probes
}

#[tokio::test]
async fn invalid_chunked_body_never_completes_a_request() {
    assert_expected(&probes()).await;
}

/// Every line end of a chunked body with trailers, replaced by everything that a lenient reader may take for one.
#[tokio::test]
async fn chunked_body_with_any_other_line_end_never_completes_a_request() {
    const LINES: [&str; 6] = ["3", "abc", "0;e", "X: a", "Y: b", ""];
    const OTHERS: [&str; 6] = ["\n", "\r", "\r\r\n", "\n\r\n", " \n", "\r\n\n"];
    let ends = LINES.len();
    let body = |replaced: usize, other: &str| {
        let line = |end: usize| [LINES[end], if end == replaced { other } else { "\r\n" }].concat();
        (0..ends).map(line).collect::<String>()
    };
    let mut probes =
        vec![Probe::new("line end", "none", [HEAD, body(ends, "").as_bytes()].concat(), Forwarded(&["/a"]))];
    for replaced in 0..ends {
        for other in OTHERS {
            // After the empty line that ends the body, a bare LF is an empty line before the next request.
            let is_valid = replaced + 1 == ends && other == "\r\n\n";
            let expected = if is_valid { Forwarded(&["/a"]) } else { Aborted(400) };
            let bytes = [HEAD, body(replaced, other).as_bytes()].concat();
            probes.push(Probe::new("line end", &format!("{other:?} at {replaced}"), bytes, expected));
        }
    }
    assert_expected(&probes).await;
}
