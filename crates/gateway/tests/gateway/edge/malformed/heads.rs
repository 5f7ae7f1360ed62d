//! Request lines, headers and hosts.

use super::{Case, Forwarded, Refused, hold};

#[tokio::test]
async fn a_request_line_is_one_or_nothing_is_forwarded() {
    let cases: &[Case] = &[
        ("HTTP/0.9", b"GET /a\r\n\r\n", Refused),
        ("HTTP/0.9 with a header", b"GET /a\r\nHost: a\r\n\r\n", Refused),
        ("version 1.2", b"GET /a HTTP/1.2\r\nHost: a\r\n\r\n", Refused),
        ("version 2.0", b"GET /a HTTP/2.0\r\nHost: a\r\n\r\n", Refused),
        ("version 3", b"GET /a HTTP/3\r\nHost: a\r\n\r\n", Refused),
        ("lower-case version", b"GET /a http/1.1\r\nHost: a\r\n\r\n", Refused),
        ("no version", b"GET /a HTTP/\r\nHost: a\r\n\r\n", Refused),
        ("two spaces before the target", b"GET  /a HTTP/1.1\r\nHost: a\r\n\r\n", Refused),
        ("two spaces after the target", b"GET /a  HTTP/1.1\r\nHost: a\r\n\r\n", Refused),
        ("a space in the target", b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", Refused),
        ("a tab for a space", b"GET\t/a\tHTTP/1.1\r\nHost: a\r\n\r\n", Refused),
        ("a space first", b" GET /a HTTP/1.1\r\nHost: a\r\n\r\n", Refused),
        ("no method", b"/a HTTP/1.1\r\nHost: a\r\n\r\n", Refused),
        ("no target", b"GET HTTP/1.1\r\nHost: a\r\n\r\n", Refused),
        ("a method with a slash", b"GE/T /a HTTP/1.1\r\nHost: a\r\n\r\n", Refused),
        ("a method with a NUL", b"GE\0T /a HTTP/1.1\r\nHost: a\r\n\r\n", Refused),
        ("a bare CR in the line", b"GET /a\r HTTP/1.1\r\nHost: a\r\n\r\n", Refused),
        ("a bare CR after the line", b"GET /a HTTP/1.1\rHost: a\r\n\r\n", Refused),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", Refused),
        (
            "a proxy protocol line",
            b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\nGET /a HTTP/1.1\r\nHost: a\r\n\r\n",
            Refused,
        ),
        ("empty lines first", b"\r\n\r\nGET /a HTTP/1.1\r\nHost: a\r\n\r\n", Forwarded(&["/a"])),
        ("a method of one's own", b"BREW /a HTTP/1.1\r\nHost: a\r\n\r\n", Forwarded(&["/a"])),
        // Rules for `POST` would not see what a lenient service takes for one.
        ("a method in lower case", b"get /a HTTP/1.1\r\nHost: a\r\n\r\n", Refused),
        ("a method in mixed case", b"Post /a HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", Refused),
    ];
    hold(cases).await;
}

#[tokio::test]
async fn a_target_means_one_thing_or_nothing_is_forwarded() {
    let cases: &[Case] = &[
        ("CONNECT", b"CONNECT b:443 HTTP/1.1\r\nHost: b:443\r\n\r\n", Refused),
        ("CONNECT to a path", b"CONNECT /a HTTP/1.1\r\nHost: a\r\n\r\n", Refused),
        ("GET of an authority", b"GET b:443 HTTP/1.1\r\nHost: b\r\n\r\n", Refused),
        ("no slash first", b"GET a/b HTTP/1.1\r\nHost: a\r\n\r\n", Refused),
        ("a NUL", b"GET /a\0b HTTP/1.1\r\nHost: a\r\n\r\n", Refused),
        ("a control byte", b"GET /a\x01b HTTP/1.1\r\nHost: a\r\n\r\n", Refused),
        ("DEL", b"GET /a\x7fb HTTP/1.1\r\nHost: a\r\n\r\n", Refused),
        ("an escaped NUL", b"GET /a%00 HTTP/1.1\r\nHost: a\r\n\r\n", Refused),
        ("a backslash", b"GET /a\\..\\b HTTP/1.1\r\nHost: a\r\n\r\n", Refused),
        ("a broken escape", b"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", Refused),
        ("an asterisk", b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", Refused),
        ("an asterisk with GET", b"GET * HTTP/1.1\r\nHost: a\r\n\r\n", Refused),
        ("a whole URL", b"GET http://a/b?c HTTP/1.1\r\nHost: a\r\n\r\n", Forwarded(&["/b?c"])),
        ("a whole URL, another Host", b"GET http://b/b HTTP/1.1\r\nHost: a\r\n\r\n", Forwarded(&["/b"])),
        ("a URL with a user", b"GET http://u@a/b HTTP/1.1\r\nHost: a\r\n\r\n", Refused),
        ("a URL without a path", b"GET http://a HTTP/1.1\r\nHost: a\r\n\r\n", Forwarded(&["/"])),
        ("a fragment", b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", Forwarded(&["/a"])),
    ];
    hold(cases).await;
}

#[tokio::test]
async fn headers_are_clean_or_nothing_is_forwarded() {
    let cases: &[Case] = &[
        ("a bare CR in a value", b"GET /a HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n", Refused),
        ("a bare CR before a header", b"GET /a HTTP/1.1\r\nHost: a\r\n\rX: b\r\n\r\n", Refused),
        ("a NUL in a value", b"GET /a HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", Refused),
        ("a NUL in a name", b"GET /a HTTP/1.1\r\nHost: a\r\nX\0: a\r\n\r\n", Refused),
        ("a control byte in a value", b"GET /a HTTP/1.1\r\nHost: a\r\nX: a\x08b\r\n\r\n", Refused),
        ("DEL in a value", b"GET /a HTTP/1.1\r\nHost: a\r\nX: a\x7fb\r\n\r\n", Refused),
        ("a space in a name", b"GET /a HTTP/1.1\r\nHost: a\r\nX Y: a\r\n\r\n", Refused),
        ("a space before the colon", b"GET /a HTTP/1.1\r\nHost: a\r\nX : a\r\n\r\n", Refused),
        ("a tab before the colon", b"GET /a HTTP/1.1\r\nHost: a\r\nX\t: a\r\n\r\n", Refused),
        ("no name", b"GET /a HTTP/1.1\r\nHost: a\r\n: a\r\n\r\n", Refused),
        ("no colon", b"GET /a HTTP/1.1\r\nHost: a\r\nX\r\n\r\n", Refused),
        ("a name beyond ASCII", b"GET /a HTTP/1.1\r\nHost: a\r\n\xc3\xa9: a\r\n\r\n", Refused),
        ("a bracket in a name", b"GET /a HTTP/1.1\r\nHost: a\r\nX(): a\r\n\r\n", Refused),
        ("obs-fold with a space", b"GET /a HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", Refused),
        ("obs-fold with a tab", b"GET /a HTTP/1.1\r\nHost: a\r\nX: a\r\n\tb\r\n\r\n", Refused),
        ("a folded first header", b"GET /a HTTP/1.1\r\n Host: a\r\nX: a\r\n\r\n", Refused),
        (
            "a folded Transfer-Encoding",
            b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
            Refused,
        ),
        ("a value beyond ASCII", b"GET /a HTTP/1.1\r\nHost: a\r\nX: \xc3\xa9\r\n\r\n", Forwarded(&["/a"])),
        // One reading only: whole lines are rewritten with CR LF.
        ("bare LF throughout", b"GET /a HTTP/1.1\nHost: a\n\n", Forwarded(&["/a"])),
        ("one bare LF", b"GET /a HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", Forwarded(&["/a"])),
    ];
    hold(cases).await;
}

#[tokio::test]
async fn a_request_has_one_host_or_nothing_is_forwarded() {
    let cases: &[Case] = &[
        ("none", b"GET /a HTTP/1.1\r\n\r\n", Refused),
        ("two", b"GET /a HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", Refused),
        ("the same twice", b"GET /a HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", Refused),
        ("two in one line", b"GET /a HTTP/1.1\r\nHost: a, b\r\n\r\n", Refused),
        ("with a path", b"GET /a HTTP/1.1\r\nHost: a/b\r\n\r\n", Refused),
        ("with a user", b"GET /a HTTP/1.1\r\nHost: u@a\r\n\r\n", Refused),
        ("with a space", b"GET /a HTTP/1.1\r\nHost: a b\r\n\r\n", Refused),
        ("beyond ASCII", b"GET /a HTTP/1.1\r\nHost: \xc3\xa9\r\n\r\n", Refused),
        ("none in HTTP/1.0", b"GET /a HTTP/1.0\r\n\r\n", Forwarded(&["/a"])),
        ("with a port", b"GET /a HTTP/1.1\r\nHost: a:80\r\n\r\n", Forwarded(&["/a"])),
        ("an IPv6 address", b"GET /a HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", Forwarded(&["/a"])),
    ];
    hold(cases).await;
}

#[tokio::test]
async fn a_head_beyond_its_bounds_is_refused() {
    let long = "a".repeat(9_000);
    let many = (0..21).fold(String::new(), |many, n| format!("{many}X-{n}: a\r\n"));
    let heads = [
        ("a long request line", format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n")),
        ("a long method", format!("{long} / HTTP/1.1\r\nHost: a\r\n\r\n")),
        ("a long value", format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n")),
        ("a long name", format!("GET / HTTP/1.1\r\nHost: a\r\n{long}: a\r\n\r\n")),
        ("many headers", format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n")),
        ("a long head without end", format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}")),
    ];
    let heads: Vec<Case> =
        heads.into_iter().map(|(name, head)| (name, &*Vec::leak(head.into_bytes()), Refused)).collect();
    hold(&heads).await;
}
