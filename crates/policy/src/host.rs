//! One spelling for every host.
//!
//! `API.example.org`, `api.example.org.` and `api.example.org:443` are one virtual host to most servers, so routes and
//! conditions see one spelling: lower case, without port and without the trailing dot of an absolute name. An IPv6
//! address is written as RFC 5952 says. The `Host` that is forwarded keeps the client's spelling.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::net::Ipv6Addr;

/// The one spelling of `host`, which may have a port; `None` if it is not a host. Borrowed if it is spelled so already,
/// but for the port and the trailing dot.
///
/// ```
/// use tidegate_policy::normalize_host;
///
/// assert_eq!(normalize_host("API.example.org.:443").as_deref(), Some("api.example.org"));
/// assert_eq!(normalize_host("[2001:DB8:0::1]:80").as_deref(), Some("[2001:db8::1]"));
/// assert_eq!(normalize_host("user@example.org"), None);
/// ```
pub fn normalize_host(host: &str) -> Option<Cow<'_, str>> {
    if host.starts_with('[') {
        return address(host);
    }
    let bytes = host.as_bytes();
    let mut has_upper = false;
    let mut end = bytes.len();
    // No label is empty, so a dot must not be the first byte.
    let mut before = HostByte::Dot;
    for (at, &byte) in bytes.iter().enumerate() {
        let class = CLASSES[usize::from(byte)];
        match class {
            HostByte::Upper => has_upper = true,
            HostByte::Dot if before == HostByte::Dot => return None,
            HostByte::Lower | HostByte::Dot => {}
            HostByte::Colon if at > 0 && is_port(bytes.get(at + 1..)?) => {
                end = at;
                break;
            }
            HostByte::Colon | HostByte::Other => return None,
        }
        before = class;
    }
    let name = host.get(..end)?;
    let name = name.strip_suffix('.').unwrap_or(name);
    Some(if has_upper { Cow::Owned(name.to_ascii_lowercase()) } else { Cow::Borrowed(name) })
}

/// A host and the text after the colon that ends it, if there is one. Neither is checked; colons in the brackets of an
/// IPv6 address do not count.
///
/// ```
/// use tidegate_policy::split_port;
///
/// assert_eq!(split_port("api.example.org:443"), ("api.example.org", Some("443")));
/// assert_eq!(split_port("[::1]:80"), ("[::1]", Some("80")));
/// assert_eq!(split_port("[::1]"), ("[::1]", None));
/// ```
pub fn split_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((host, port)) if !text.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    }
}

/// An IPv6 address in brackets.
fn address(host: &str) -> Option<Cow<'_, str>> {
    let (inner, rest) = host.strip_prefix('[')?.split_once(']')?;
    if !rest.is_empty() && !rest.strip_prefix(':').is_some_and(|port| is_port(port.as_bytes())) {
        return None;
    }
    let address: Ipv6Addr = inner.parse().ok()?;
    let mut rest = CompareWriter(inner);
    let is_same = write!(rest, "{address}").is_ok() && rest.0.is_empty();
    Some(if is_same {
        Cow::Borrowed(host.get(..inner.len() + 2)?)
    } else {
        Cow::Owned(format!("[{address}]"))
    })
}

/// Digits, as many as one likes: RFC 3986 allows none.
fn is_port(port: &[u8]) -> bool {
    port.iter().all(u8::is_ascii_digit)
}

/// Compares what is written with a text: what is left of it.
struct CompareWriter<'t>(&'t str);

impl Write for CompareWriter<'_> {
    fn write_str(&mut self, written: &str) -> fmt::Result {
        self.0 = self.0.strip_prefix(written).ok_or(fmt::Error)?;
        Ok(())
    }
}

/// What a byte means in a host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HostByte {
    /// It stands for itself.
    Lower,
    Upper,
    Dot,
    Colon,
    /// Not allowed: readers would disagree where the host ends.
    Other,
}

static CLASSES: [HostByte; 256] = {
    let mut classes = [HostByte::Other; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        classes[byte as usize] = match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' => HostByte::Lower,
            b'A'..=b'Z' => HostByte::Upper,
            b'.' => HostByte::Dot,
            b':' => HostByte::Colon,
            _ => HostByte::Other,
        };
        byte += 1;
    }
    classes
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_normalised_is_borrowed() {
        for (host, expected) in [
            ("", ""),
            ("api.x", "api.x"),
            ("api.x.", "api.x"),
            ("api.x:8080", "api.x"),
            ("api.x.:", "api.x"),
            ("192.0.2.1:80", "192.0.2.1"),
            ("my_host-1~", "my_host-1~"),
            ("[::1]", "[::1]"),
            ("[2001:db8::1]:443", "[2001:db8::1]"),
        ] {
            assert!(matches!(normalize_host(host), Some(Cow::Borrowed(same)) if same == expected), "{host}");
        }
    }

    #[test]
    fn host_in_another_spelling_is_normalised() {
        for (host, expected) in [
            ("API.X", "api.x"),
            ("Api.X.:80", "api.x"),
            ("[::FFFF:C000:201]", "[::ffff:192.0.2.1]"),
            ("[2001:DB8:0:0::1]:80", "[2001:db8::1]"),
        ] {
            assert_eq!(normalize_host(host).as_deref(), Some(expected), "{host}");
        }
    }

    #[test]
    fn host_that_readers_disagree_about_is_none() {
        for host in [
            ".",
            ".api.x",
            "api..x",
            "api.x..",
            ":80",
            "a:b",
            "a:80:80",
            "a:80x",
            "u@a",
            "a/b",
            "a b",
            "a,b",
            "é",
            "a%2eb",
            "[",
            "[]",
            "[::1",
            "::1",
            "a[::1]",
            "[::1]a",
            "[::1]:a",
            "[::1]]",
            "[a]",
            "[::1%25eth0]",
            "a\\b",
        ] {
            assert_eq!(normalize_host(host), None, "{host}");
        }
    }
}
