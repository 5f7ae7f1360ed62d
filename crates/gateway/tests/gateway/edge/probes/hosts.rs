//! `Host`: exactly one, and a valid one.

use super::Expected::{Forwarded, ForwardedThenClosed, Rejected};
use super::{Probe, Row, assert_expected, table};

/// Everything between the request line and the end of the head.
const HOSTS: &[Row<'_>] = &[
    ("none", b"", Rejected(400)),
    ("two that differ", b"Host: a\r\nHost: b\r\n", Rejected(400)),
    ("two that are equal", b"Host: a\r\nHost: a\r\n", Rejected(400)),
    ("two with a header between them", b"Host: a\r\nX: b\r\nhost: a\r\n", Rejected(400)),
    ("list", b"Host: a, b\r\n", Rejected(400)),
    ("path", b"Host: a/b\r\n", Rejected(400)),
    ("query", b"Host: a?b\r\n", Rejected(400)),
    ("user", b"Host: u@a\r\n", Rejected(400)),
    ("space", b"Host: a b\r\n", Rejected(400)),
    ("tab", b"Host: a\tb\r\n", Rejected(400)),
    ("NUL", b"Host: a\0b\r\n", Rejected(400)),
    ("backslash", b"Host: a\\b\r\n", Rejected(400)),
    ("scheme", b"Host: http://a\r\n", Rejected(400)),
    ("quotes", b"Host: \"a\"\r\n", Rejected(400)),
    ("byte beyond ASCII", b"Host: \xc3\xa9\r\n", Rejected(400)),
    ("space before the colon", b"Host : a\r\n", Rejected(400)),
    ("folded", b"Host:\r\n a\r\n", Rejected(400)),
    ("empty", b"Host:\r\n", Rejected(400)),
    ("port", b"Host: a:80\r\n", Forwarded(&["/a"])),
    ("IPv4 address", b"Host: 127.0.0.1:80\r\n", Forwarded(&["/a"])),
    ("IPv6 address", b"Host: [::1]:80\r\n", Forwarded(&["/a"])),
    ("capitals", b"HOST: A.Example\r\n", Forwarded(&["/a"])),
    ("spaces around it", b"Host: \t a \t\r\n", Forwarded(&["/a"])),
    ("underscore", b"Host: a_b\r\n", Forwarded(&["/a"])),
    ("trailing dot", b"Host: a.\r\n", Forwarded(&["/a"])),
];

pub(super) fn probes() -> Vec<Probe> {
    let mut probes = table("host", b"GET /a HTTP/1.1\r\n", HOSTS, b"\r\n");
    probes.extend(table("host beside a target", b"GET http://a/a HTTP/1.1\r\n", HOSTS, b"\r\n"));
    let old_target = b"GET http://b/a HTTP/1.0\r\n\r\n";
    let old_target_two = b"GET http://b/a HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n";
    let old_target_empty = b"GET http://b/a HTTP/1.0\r\nHost:\r\n\r\n";
    let old = ForwardedThenClosed(&["/a"]);
    probes.push(Probe::new("host", "only in the target of HTTP/1.0", old_target, old));
    probes.push(Probe::new("host", "two beside the target of HTTP/1.0", old_target_two, Rejected(400)));
    probes.push(Probe::new("host", "empty beside the target of HTTP/1.0", old_target_empty, Rejected(400)));
    let other = b"GET http://b/a HTTP/1.1\r\nHost: a\r\n\r\n";
    let none = b"GET http://b/a HTTP/1.1\r\n\r\n";
    let old = b"GET /a HTTP/1.0\r\n\r\n";
    let old_two = b"GET /a HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n";
    probes.push(Probe::new("host", "another in the target", other, Forwarded(&["/a"])));
    probes.push(Probe::new("host", "only in the target", none, Rejected(400)));
    probes.push(Probe::new("host", "none in HTTP/1.0", old, ForwardedThenClosed(&["/a"])));
    probes.push(Probe::new("host", "two in HTTP/1.0", old_two, Rejected(400)));
    probes
}

#[tokio::test]
async fn host_missing_repeated_or_invalid_is_rejected() {
    assert_expected(&probes()).await;
}
