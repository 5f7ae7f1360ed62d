//! The hosts that a browser resolves without the name of a web site.
//!
//! A web site can let its name resolve to a loopback address (DNS rebinding). For a browser its pages then have the same
//! origin as a service on that address, so they may send any request. Such a request has the name of the site as its host.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Whether `host`, with or without a port, is `localhost` or an address.
pub(super) fn is_local(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    let (name, after) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, after)) if address.parse::<Ipv6Addr>().is_ok() => ("localhost", after),
        Some(_) => return false,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    (after.is_empty() || after.strip_prefix(':').is_some_and(is_port))
        && (name.parse::<Ipv4Addr>().is_ok() || name.eq_ignore_ascii_case("localhost"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_local_if_it_is_localhost_or_an_address() {
        for host in ["127.0.0.1", "127.0.0.1:8082", "10.0.0.5:80", "[::1]", "[::1]:8082", "LocalHost:1"] {
            assert!(is_local(host.as_bytes()), "{host}");
        }
        for host in [
            "",
            "example.org",
            "example.org:8082",
            "127.0.0.1.example.org",
            "localhost.example.org",
            "[example.org]",
            "[::1",
            "127.0.0.1@example.org",
            "[::1].example.org",
            "[::1]:80@example.org",
            "localhost:80@example.org",
            "\u{e9}",
        ] {
            assert!(!is_local(host.as_bytes()), "{host}");
        }
        assert!(!is_local(b"\xff"));
    }
}
