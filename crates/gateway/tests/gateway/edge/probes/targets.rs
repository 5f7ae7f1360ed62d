//! Targets: their forms and the characters in them.

use super::Expected::{Forwarded, Rejected, RespondedByGateway};
use super::{Probe, Row, assert_expected, table};

/// The target of a GET.
const TARGETS: &[Row<'_>] = &[
    ("authority", b"b:443", Rejected(400)),
    ("asterisk", b"*", Rejected(400)),
    ("no slash first", b"a/b", Rejected(400)),
    ("question mark first", b"?a", Rejected(400)),
    ("absolute form", b"http://a/b?c", Forwarded(&["/b?c"])),
    ("absolute form with https", b"https://a/b", Forwarded(&["/b"])),
    ("absolute form in capitals", b"HTTP://A/b", Forwarded(&["/b"])),
    ("absolute form with a port", b"http://a:80/b", Forwarded(&["/b"])),
    ("absolute form without a path", b"http://a", Forwarded(&["/"])),
    ("absolute form with a query only", b"http://a?b", Forwarded(&["/?b"])),
    ("absolute form with a user", b"http://u@a/b", Rejected(400)),
    ("absolute form without a host", b"http:///b", Rejected(400)),
    ("absolute form with a space", b"http://a b/", Rejected(400)),
    ("scheme without slashes", b"http:a", Rejected(400)),
    ("network path", b"//b/c", Forwarded(&["/b/c"])),
    ("dot segments", b"/a/./b/../c", Forwarded(&["/a/c"])),
    ("dot segments above the root", b"/../../a", Forwarded(&["/a"])),
    ("encoded dot segments", b"/a/%2e%2E/b", Forwarded(&["/b"])),
    ("double slashes", b"/a//b", Forwarded(&["/a/b"])),
    ("trailing slash", b"/a/", Forwarded(&["/a/"])),
    ("encoded letter", b"/%61", Forwarded(&["/a"])),
    ("encoded tilde", b"/%7Ea", Forwarded(&["/~a"])),
    ("encoded percent", b"/a%25b", Forwarded(&["/a%25b"])),
    ("encoded twice", b"/%2561", Forwarded(&["/%2561"])),
    ("encoded space", b"/a%20b", Forwarded(&["/a%20b"])),
    ("encoded question mark", b"/a%3Fb", Forwarded(&["/a%3Fb"])),
    ("encoded UTF-8", b"/%e2%82%ac", Forwarded(&["/%E2%82%AC"])),
    ("parameters", b"/a;b=c", Forwarded(&["/a;b=c"])),
    ("colon, at sign and plus", b"/a:b@c+d", Forwarded(&["/a:b@c+d"])),
    ("sub-delimiters", b"/!$&'()*,=", Forwarded(&["/!$&'()*,="])),
    ("query with a slash and dots", b"/a?b=/../c&d=%2e", Forwarded(&["/a?b=/../c&d=%2e"])),
    ("query with an encoded line feed", b"/a?b=%0A", Forwarded(&["/a?b=%0A"])),
    ("empty query", b"/a?", Forwarded(&["/a?"])),
    ("fragment", b"/a#b", Forwarded(&["/a"])),
    ("encoded slash", b"/a%2Fb", Rejected(400)),
    ("encoded slash in lower case", b"/a%2fb", Rejected(400)),
    ("encoded slash after dots", b"/a/..%2fb", Rejected(400)),
    ("encoded backslash", b"/a%5Cb", Rejected(400)),
    ("encoded backslash in lower case", b"/a%5cb", Rejected(400)),
    ("encoded NUL", b"/a%00", Rejected(400)),
    ("encoded line feed", b"/a%0A", Rejected(400)),
    ("encoded carriage return and line feed", b"/a%0d%0aX:%20b", Rejected(400)),
    ("encoded tab", b"/a%09", Rejected(400)),
    ("encoded escape", b"/a%1b", Rejected(400)),
    ("encoded DEL", b"/a%7F", Rejected(400)),
    ("broken escape", b"/%zz", Rejected(400)),
    ("escape of one digit", b"/%6", Rejected(400)),
    ("percent alone", b"/%", Rejected(400)),
    ("escape of a wide character", b"/%u002e", Rejected(400)),
    ("overlong escape", b"/%c0%ae%c0%ae/a", Rejected(400)),
    ("escape that is no UTF-8", b"/%ff", Rejected(400)),
    ("escape of a surrogate", b"/%ed%a0%80", Rejected(400)),
    ("dot segment with parameters", b"/..;/a", Rejected(400)),
    ("NUL", b"/a\0b", Rejected(400)),
    ("control character", b"/a\x01b", Rejected(400)),
    ("DEL", b"/a\x7fb", Rejected(400)),
    ("backslash", b"/a\\..\\b", Rejected(400)),
    ("space in the query", b"/a?b c", Rejected(400)),
    ("control character in the query", b"/a?b\x01", Rejected(400)),
];

/// Whole lines.
const LINES: &[Row<'_>] = &[
    ("CONNECT", b"CONNECT b:443 HTTP/1.1", Rejected(400)),
    ("CONNECT to a path", b"CONNECT /a HTTP/1.1", Rejected(400)),
    ("OPTIONS of an asterisk", b"OPTIONS * HTTP/1.1", RespondedByGateway(404)),
    ("OPTIONS of a path", b"OPTIONS /a HTTP/1.1", Forwarded(&["/a"])),
    ("asterisk with a path", b"OPTIONS */a HTTP/1.1", Rejected(400)),
];

pub(super) fn probes() -> Vec<Probe> {
    let mut probes = table("target", b"GET ", TARGETS, b" HTTP/1.1\r\nHost: a\r\n\r\n");
    probes.extend(table("target", b"", LINES, b"\r\nHost: a\r\n\r\n"));
    probes
}

#[tokio::test]
async fn ambiguous_target_is_rejected() {
    assert_expected(&probes()).await;
}
