//! The client address behind trusted proxies.
//!
//! A proxy appends the address of its own peer to the right of a forwarding header. Entries further left may be forged.
//! So the addresses are read from right to left, beginning with the peer of the connection, and each is used only if the
//! one that reported it is a trusted proxy. Anything a client writes is left of the entry of the first trusted proxy.
//!
//! An address that cannot be parsed, including a hidden one (`unknown`, `_secret`), ends the search, and the last trusted
//! proxy is used as the client. Clients that hide their address therefore share one counter.

use std::net::{IpAddr, Ipv6Addr};

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};
use ipnet::IpNet;

use super::forwarded;
use super::headers::HeaderError;
use crate::networks::embedded_ipv4;

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// A client with an IPv6 address usually controls its whole /64.
const DEFAULT_IPV6_PREFIX: u8 = 64;

/// Which proxies are trusted, and how addresses are counted.
#[derive(Debug, Clone)]
pub struct Addresses {
    trusted: Vec<IpNet>,
    ipv6_prefix: u8,
    header: ForwardingHeader,
}

/// The forwarding header that trusted proxies write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ForwardingHeader {
    /// Either header. If both are present and lead to different addresses, the client must have sent one of them, as
    /// proxies that write one forward the other unchanged. Then neither is used, and the peer counts as the client.
    #[default]
    Either,
    /// Only `X-Forwarded-For`.
    XForwardedFor,
    /// Only `Forwarded` (RFC 7239).
    Forwarded,
}

/// An invalid prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid IPv6 prefix length {bits}; use 1 to 128 (64 is usual)")]
pub struct PrefixError {
    /// The invalid length.
    pub bits: u8,
}

/// The trusted part of the forwarding headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedChain {
    /// The client, the proxies in between, and the peer of the connection; only the peer if there are no proxies.
    pub chain: Vec<IpAddr>,
    /// The elements of `Forwarded` for all but the peer, as the proxies wrote them; empty if there are none, or if a client may
    /// have written them.
    pub elements: Vec<Vec<u8>>,
}

impl Default for Addresses {
    /// No proxy is trusted.
    fn default() -> Self {
        let header = ForwardingHeader::default();
        Self { trusted: Vec::new(), ipv6_prefix: DEFAULT_IPV6_PREFIX, header }
    }
}

impl Addresses {
    /// Trusts the proxies in these networks.
    pub fn with_trusted_proxies(mut self, proxies: impl IntoIterator<Item = IpNet>) -> Self {
        self.trusted.extend(proxies);
        self
    }

    /// Sets the header that the proxies write.
    pub fn with_header(mut self, header: ForwardingHeader) -> Self {
        self.header = header;
        self
    }

    /// Counts IPv6 clients by the first `bits` of their address.
    pub fn with_ipv6_prefix(mut self, bits: u8) -> Result<Self, PrefixError> {
        if !(1..=128).contains(&bits) {
            return Err(PrefixError { bits });
        }
        self.ipv6_prefix = bits;
        Ok(self)
    }

    /// The address of the client: the peer of the outermost trusted proxy, or of this connection.
    pub fn client(&self, headers: &HeaderMap, peer: IpAddr) -> IpAddr {
        let peer = peer.to_canonical();
        if !self.trusts(peer) {
            return peer;
        }
        let x_lines = headers.get_all(&X_FORWARDED_FOR);
        let forwarded_lines = headers.get_all(FORWARDED);
        let by_x = || {
            let hops = x_lines.iter().rev().flat_map(|line| forwarded::x_forwarded_for(line.as_bytes()));
            self.find_client(peer, hops)
        };
        let by_forwarded = || {
            let hops = forwarded_lines.iter().rev().flat_map(|line| forwarded::forwarded(line.as_bytes()));
            self.find_client(peer, hops)
        };
        match self.header {
            ForwardingHeader::XForwardedFor => by_x(),
            ForwardingHeader::Forwarded => by_forwarded(),
            ForwardingHeader::Either if forwarded_lines.iter().next().is_none() => by_x(),
            ForwardingHeader::Either if x_lines.iter().next().is_none() => by_forwarded(),
            ForwardingHeader::Either => {
                Some(by_x()).filter(|client| *client == by_forwarded()).unwrap_or(peer)
            }
        }
    }

    /// Checks that the forwarding headers of a request from a trusted peer lead to the same client. If they do not, the
    /// client has sent one of them and could evade a ban behind the address of the proxy.
    pub fn check(&self, headers: &HeaderMap, peer: IpAddr) -> Result<(), HeaderError> {
        // Fast path: few proxies write `Forwarded`.
        if self.header != ForwardingHeader::Either || !headers.contains_key(FORWARDED) {
            return Ok(());
        }
        if !headers.contains_key(&X_FORWARDED_FOR) || !self.trusts(peer) {
            return Ok(());
        }
        let only = |header| Self { header, ..self.clone() }.client(headers, peer);
        if only(ForwardingHeader::XForwardedFor) == only(ForwardingHeader::Forwarded) {
            Ok(())
        } else {
            Err(HeaderError::Forwarding)
        }
    }

    /// The part of the forwarding headers that leads to [`Addresses::client`], without the entries left of it. Only the
    /// peer if the two headers lead to different clients.
    pub fn trusted_chain(&self, headers: &HeaderMap, peer: IpAddr) -> TrustedChain {
        let (client, peer) = (self.client(headers, peer), peer.to_canonical());
        let mut trusted = TrustedChain { chain: vec![peer], elements: Vec::new() };
        if client == peer {
            return trusted;
        }
        let x_hops = headers.get_all(&X_FORWARDED_FOR).iter().rev();
        let by_x =
            self.collect_chain(peer, x_hops.flat_map(|line| forwarded::x_forwarded_for(line.as_bytes())));
        let forwarded = || headers.get_all(FORWARDED).iter().rev();
        let by_forwarded =
            self.collect_chain(peer, forwarded().flat_map(|line| forwarded::forwarded(line.as_bytes())));
        let leads = |chain: &[IpAddr]| chain.first() == Some(&client);
        // Proxies that write `X-Forwarded-For` forward `Forwarded` unchanged, so beside it an element may be that of the client,
        // with its own address and any host and scheme.
        let is_of_proxy =
            self.header == ForwardingHeader::Forwarded || !headers.contains_key(&X_FORWARDED_FOR);
        if is_of_proxy && leads(&by_forwarded) {
            let elements = forwarded().flat_map(|line| forwarded::elements(line.as_bytes()));
            trusted.elements = elements.take(by_forwarded.len() - 1).map(<[u8]>::to_vec).collect();
            trusted.elements.reverse();
        }
        trusted.chain = if leads(&by_x) { by_x } else { by_forwarded };
        trusted
    }

    /// All addresses from the client to `peer`.
    fn collect_chain(&self, peer: IpAddr, hops: impl Iterator<Item = Option<IpAddr>>) -> Vec<IpAddr> {
        let mut chain = vec![peer];
        for hop in hops {
            match (hop, chain.last()) {
                (Some(address), Some(last)) if self.trusts(*last) => chain.push(address.to_canonical()),
                _ => break,
            }
        }
        chain.reverse();
        chain
    }

    /// The address that a client is counted by: IPv4 addresses in full, also those in IPv6 addresses; other IPv6 addresses by
    /// prefix.
    #[inline]
    pub fn counter_address(&self, address: IpAddr) -> IpAddr {
        match address.to_canonical() {
            IpAddr::V6(address) => self.counter_address_v6(address),
            v4 @ IpAddr::V4(_) => v4,
        }
    }

    fn counter_address_v6(&self, address: Ipv6Addr) -> IpAddr {
        if let Some(address) = embedded_ipv4(address) {
            return address.into();
        }
        let unused = u32::from(128_u8.saturating_sub(self.ipv6_prefix));
        let mask = u128::MAX.checked_shl(unused).unwrap_or(0);
        IpAddr::V6((address.to_bits() & mask).into())
    }

    fn find_client(&self, peer: IpAddr, hops: impl Iterator<Item = Option<IpAddr>>) -> IpAddr {
        let mut current = peer;
        for hop in hops {
            match hop {
                Some(address) if self.trusts(current) => current = address.to_canonical(),
                _ => break,
            }
        }
        current
    }

    /// Whether `address` is a trusted proxy.
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.trusted.iter().any(|network| network.contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&HeaderName, &str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| ((*name).clone(), value.parse().unwrap())).collect()
    }

    fn trusting_private_networks() -> Addresses {
        Addresses::default()
            .with_trusted_proxies(["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()])
    }

    #[track_caller]
    fn client(lines: &[(&HeaderName, &str)], peer: &str) -> String {
        trusting_private_networks().client(&headers(lines), peer.parse().unwrap()).to_string()
    }

    fn x(value: &str) -> String {
        client(&[(&X_FORWARDED_FOR, value)], "10.0.0.1")
    }

    fn forwarded(value: &str) -> String {
        client(&[(&FORWARDED, value)], "10.0.0.1")
    }

    #[test]
    fn forwarding_headers_of_untrusted_peer_are_ignored() {
        let spoof = [(&X_FORWARDED_FOR, "1.1.1.1"), (&FORWARDED, "for=1.1.1.1")];
        assert_eq!(client(&spoof, "192.0.2.7"), "192.0.2.7");
        assert_eq!(client(&spoof, "::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(client(&spoof, "::ffff:10.1.2.3"), "1.1.1.1");
        assert_eq!(client(&spoof, "fd00::1"), "1.1.1.1");
        assert_eq!(client(&[], "10.0.0.1"), "10.0.0.1");
    }

    #[test]
    fn client_is_the_first_untrusted_address_from_the_right() {
        assert_eq!(x("192.0.2.7"), "192.0.2.7");
        assert_eq!(x("1.1.1.1, 192.0.2.7"), "192.0.2.7");
        assert_eq!(x("1.1.1.1, 192.0.2.7, 10.9.9.9"), "192.0.2.7");
        assert_eq!(x("10.2.2.2, 10.3.3.3"), "10.2.2.2");
        assert_eq!(x("1.1.1.1,192.0.2.7:4711"), "192.0.2.7");
        assert_eq!(x("[2001:db8::7]:443, [fd00::2]"), "2001:db8::7");
        assert_eq!(x("2001:db8::7, ::ffff:10.1.1.1"), "2001:db8::7");
        assert_eq!(x("192.0.2.7, , "), "192.0.2.7");
    }

    #[test]
    fn repeated_header_lines_form_one_list() {
        let lines = [(&X_FORWARDED_FOR, "1.1.1.1"), (&X_FORWARDED_FOR, "192.0.2.7, 10.2.2.2")];
        assert_eq!(client(&lines, "10.0.0.1"), "192.0.2.7");
        let lines = [(&X_FORWARDED_FOR, "1.1.1.1, 192.0.2.7"), (&X_FORWARDED_FOR, "10.2.2.2")];
        assert_eq!(client(&lines, "10.0.0.1"), "192.0.2.7");
    }

    #[test]
    fn unparsable_address_ends_the_search() {
        assert_eq!(x("192.0.2.7, unknown, 10.2.2.2"), "10.2.2.2");
        assert_eq!(x("192.0.2.7, 10.2.2.999"), "10.0.0.1");
        assert_eq!(x("garbage"), "10.0.0.1");
        assert_eq!(forwarded("for=192.0.2.7, for=_hidden, for=10.2.2.2"), "10.2.2.2");
        assert_eq!(forwarded("for=192.0.2.7, proto=https"), "10.0.0.1");
    }

    #[test]
    fn forwarded_header_gives_the_same_client() {
        assert_eq!(forwarded("for=1.1.1.1, For=\"192.0.2.7:80\";proto=https;by=_x"), "192.0.2.7");
        assert_eq!(forwarded("for=\"[2001:db8::7]:4711\", for=10.2.2.2"), "2001:db8::7");
        assert_eq!(forwarded("for=\"evil, for=192.0.2.7"), "192.0.2.7", "an open quote hides nothing");
    }

    #[test]
    fn conflicting_headers_give_the_peer() {
        let agreeing = [(&X_FORWARDED_FOR, "192.0.2.7"), (&FORWARDED, "for=192.0.2.7")];
        assert_eq!(client(&agreeing, "10.0.0.1"), "192.0.2.7");
        let lines = [(&X_FORWARDED_FOR, "192.0.2.7"), (&FORWARDED, "for=1.1.1.1")];
        assert_eq!(client(&lines, "10.0.0.1"), "10.0.0.1");
        let only = |header| {
            trusting_private_networks().with_header(header).client(&headers(&lines), [10, 0, 0, 1].into())
        };
        assert_eq!(only(ForwardingHeader::XForwardedFor).to_string(), "192.0.2.7");
        assert_eq!(only(ForwardingHeader::Forwarded).to_string(), "1.1.1.1");
    }

    #[test]
    fn trusted_chain_begins_with_the_client() {
        let trusted_chain = |lines: &[(&HeaderName, &str)]| {
            let TrustedChain { chain, elements } =
                trusting_private_networks().trusted_chain(&headers(lines), [10, 0, 0, 1].into());
            let chain: Vec<_> = chain.iter().map(IpAddr::to_string).collect();
            (chain.join(" "), String::from_utf8(elements.join(&b" "[..])).unwrap())
        };
        let x = |value| trusted_chain(&[(&X_FORWARDED_FOR, value)]);
        assert_eq!(x("9.9.9.9, 1.1.1.1, 10.0.0.2"), ("1.1.1.1 10.0.0.2 10.0.0.1".to_owned(), String::new()));
        assert_eq!(x("9.9.9.9, unknown"), ("10.0.0.1".to_owned(), String::new()));
        let forwarded = (&FORWARDED, "for=9.9.9.9, for=1.1.1.1;proto=https");
        let expected = ("1.1.1.1 10.0.0.1".to_owned(), "for=1.1.1.1;proto=https".to_owned());
        assert_eq!(trusted_chain(&[forwarded]), expected);
        let both = trusted_chain(&[forwarded, (&X_FORWARDED_FOR, "8.8.8.8, 1.1.1.1")]);
        assert_eq!(both, (expected.0, String::new()), "the client may have written `Forwarded`");
        let conflict = trusted_chain(&[forwarded, (&X_FORWARDED_FOR, "8.8.8.8")]);
        assert_eq!(conflict, ("10.0.0.1".to_owned(), String::new()));
        let spoof = headers(&[forwarded]);
        let stranger = trusting_private_networks().trusted_chain(&spoof, [192, 0, 2, 7].into());
        assert_eq!((stranger.chain, stranger.elements), (vec![[192, 0, 2, 7].into()], vec![]));
    }

    #[test]
    fn ipv6_address_is_counted_by_prefix() {
        let counted = |bits, address: &str| {
            let addresses = Addresses::default().with_ipv6_prefix(bits).unwrap();
            addresses.counter_address(address.parse().unwrap()).to_string()
        };
        assert_eq!(counted(64, "2001:db8:1:2:3::9"), "2001:db8:1:2::");
        assert_eq!(counted(56, "2001:db8:1:2ff:3::9"), "2001:db8:1:200::");
        assert_eq!(counted(128, "2001:db8::9"), "2001:db8::9");
        assert_eq!(counted(64, "::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(counted(64, "192.0.2.7"), "192.0.2.7");
        for form in ["64:ff9b::192.0.2.7", "2002:c000:207::1", "2002:c000:207:9::1"] {
            assert_eq!(counted(64, form), "192.0.2.7", "{form}");
        }
        assert!(Addresses::default().with_ipv6_prefix(0).is_err());
        assert!(Addresses::default().with_ipv6_prefix(129).is_err());
    }
}
