//! Host normalisation.
//!
//! `API.example.org`, `api.example.org.` and `api.example.org:443` are the same virtual host to most servers. Routes
//! and conditions therefore see the normalised host: lower case, without port and without the trailing dot of an absolute
//! name. An IPv6 address has the form of RFC 5952. The forwarded `Host` header is not changed.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::net::Ipv6Addr;

/// Normalises `host`, which may have a port. Returns `None` if it is not a valid host. The result is borrowed unless
/// characters must change.
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
        return normalize_ipv6(host);
    }
    let bytes = host.as_bytes();
    let mut has_upper = false;
    let mut end = bytes.len();
    // Labels must not be empty, so the host must not begin with a dot.
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

/// Splits `text` into the host and the port, if there is one. Neither is validated. Colons inside the brackets of an IPv6
/// address do not separate a port.
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

/// Normalises an IPv6 address in brackets.
fn normalize_ipv6(host: &str) -> Option<Cow<'_, str>> {
    let (inner, rest) = host.strip_prefix('[')?.split_once(']')?;
    if !rest.is_empty() && !rest.strip_prefix(':').is_some_and(|port| is_port(port.as_bytes())) {
        return None;
    }
    let address: Ipv6Addr = inner.parse().ok()?;
    let mut writer = CompareWriter(inner);
    let is_same = write!(writer, "{address}").is_ok() && writer.0.is_empty();
    Some(if is_same {
        Cow::Borrowed(host.get(..inner.len() + 2)?)
    } else {
        Cow::Owned(format!("[{address}]"))
    })
}

/// RFC 3986 allows any number of digits, including none.
fn is_port(port: &[u8]) -> bool {
    port.iter().all(u8::is_ascii_digit)
}

/// Compares written text with an expected text without allocating. Holds the part that is not written yet.
struct CompareWriter<'t>(&'t str);

impl Write for CompareWriter<'_> {
    fn write_str(&mut self, written: &str) -> fmt::Result {
        self.0 = self.0.strip_prefix(written).ok_or(fmt::Error)?;
        Ok(())
    }
}

/// The class of a byte in a host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HostByte {
    /// Kept unchanged.
    Lower,
    Upper,
    Dot,
    Colon,
    /// Not allowed: parsers disagree about where the host ends.
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
    fn normalised_host_is_borrowed() {
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
    fn host_with_uppercase_or_long_ipv6_is_normalised() {
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
    fn ambiguous_host_is_rejected() {
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
