//! Where a request comes from, behind proxies that may be believed.
//!
//! A proxy adds the address of its own peer to the right of a header; whatever stands left of that is hearsay.
//! So the addresses are read from right to left, beginning with the peer of the connection, and each is
//! believed only while the one that reported it is a trusted proxy. A client can write into these headers
//! what it likes: it only ever stands left of what the first trusted proxy wrote.
//!
//! An address that cannot be read, a hidden one (`unknown`, `_secret`) among them, ends the walk: the last
//! trusted proxy stands for the client, so hiding leads into a counter shared with all who hide, never to a
//! counter of one's own.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};
use ipnet::IpNet;

use super::forwarded;
use super::headers::HeaderError;

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Whoever has an IPv6 address usually has all of its /64.
const DEFAULT_IPV6_PREFIX: u8 = 64;

/// Which proxies are believed, and how addresses are counted.
#[derive(Debug, Clone)]
pub struct Addresses {
    trusted: Vec<IpNet>,
    ipv6_prefix: u8,
    header: ForwardingHeader,
}

/// Which header the trusted proxies write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ForwardingHeader {
    /// Whichever is there. If both are and lead to different addresses, one of them must be the client's own
    /// work, as proxies that write one pass the other on: neither is believed, and the peer stands for the
    /// client.
    #[default]
    Either,
    /// Only `X-Forwarded-For`.
    XForwardedFor,
    /// Only `Forwarded` (RFC 7239).
    Forwarded,
}

/// No such prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid IPv6 prefix length {bits}; use 1 to 128 (64 is usual)")]
pub struct PrefixError {
    /// What was asked for.
    pub bits: u8,
}

/// What trusted proxies said of a client, as far as it is believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedChain {
    /// The client, the proxies between, and the peer of the connection; one address if there are no proxies.
    pub chain: Vec<IpAddr>,
    /// The elements of `Forwarded` for all but the peer, in the words of the proxies; empty if they wrote none.
    pub elements: Vec<Vec<u8>>,
}

impl Default for Addresses {
    /// Nobody is believed but the connection itself.
    fn default() -> Self {
        let header = ForwardingHeader::default();
        Self { trusted: Vec::new(), ipv6_prefix: DEFAULT_IPV6_PREFIX, header }
    }
}

impl Addresses {
    /// Believes the proxies in these networks.
    pub fn with_trusted_proxies(mut self, proxies: impl IntoIterator<Item = IpNet>) -> Self {
        self.trusted.extend(proxies);
        self
    }

    /// Reads only what these proxies write.
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

    /// The address of whoever sent the request to the outermost trusted proxy, or to us.
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

    /// Whether the forwarding headers of a request from a trusted peer lead to one client. If they lead to two, one of
    /// them is the client's own work: it could hide from a ban behind the address of the proxy.
    pub fn check(&self, headers: &HeaderMap, peer: IpAddr) -> Result<(), HeaderError> {
        // Few proxies write it.
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

    /// What is believed of what the proxies said: as much as led to [`Addresses::client`], and nothing left of it. If
    /// the two headers lead to different clients, nothing is.
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
        if leads(&by_forwarded) {
            let elements = forwarded().flat_map(|line| forwarded::elements(line.as_bytes()));
            trusted.elements = elements.take(by_forwarded.len() - 1).map(<[u8]>::to_vec).collect();
            trusted.elements.reverse();
        }
        trusted.chain = if leads(&by_x) { by_x } else { by_forwarded };
        trusted
    }

    /// Everybody from the client to `peer`.
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

    /// What an address is counted as: IPv4 whole, IPv6 by its prefix.
    pub fn counter_address(&self, address: IpAddr) -> IpAddr {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let unused = u32::from(128_u8.saturating_sub(self.ipv6_prefix));
                let mask = u128::MAX.checked_shl(unused).unwrap_or(0);
                IpAddr::V6((address.to_bits() & mask).into())
            }
            v4 @ IpAddr::V4(_) => v4,
        }
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

    /// Whether the word of a peer at `address` is believed.
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

    fn behind_tens() -> Addresses {
        Addresses::default()
            .with_trusted_proxies(["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()])
    }

    #[track_caller]
    fn found(lines: &[(&HeaderName, &str)], peer: &str) -> String {
        behind_tens().client(&headers(lines), peer.parse().unwrap()).to_string()
    }

    fn x(value: &str) -> String {
        found(&[(&X_FORWARDED_FOR, value)], "10.0.0.1")
    }

    fn forwarded(value: &str) -> String {
        found(&[(&FORWARDED, value)], "10.0.0.1")
    }

    #[test]
    fn nobody_but_a_trusted_peer_is_believed() {
        let spoof = [(&X_FORWARDED_FOR, "1.1.1.1"), (&FORWARDED, "for=1.1.1.1")];
        assert_eq!(found(&spoof, "192.0.2.7"), "192.0.2.7");
        assert_eq!(found(&spoof, "::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(found(&spoof, "::ffff:10.1.2.3"), "1.1.1.1");
        assert_eq!(found(&spoof, "fd00::1"), "1.1.1.1");
        assert_eq!(found(&[], "10.0.0.1"), "10.0.0.1");
    }

    #[test]
    fn the_walk_goes_from_right_to_left_through_trusted_proxies() {
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
    fn header_lines_are_one_list() {
        let lines = [(&X_FORWARDED_FOR, "1.1.1.1"), (&X_FORWARDED_FOR, "192.0.2.7, 10.2.2.2")];
        assert_eq!(found(&lines, "10.0.0.1"), "192.0.2.7");
        let lines = [(&X_FORWARDED_FOR, "1.1.1.1, 192.0.2.7"), (&X_FORWARDED_FOR, "10.2.2.2")];
        assert_eq!(found(&lines, "10.0.0.1"), "192.0.2.7");
    }

    #[test]
    fn what_cannot_be_read_ends_the_walk() {
        assert_eq!(x("192.0.2.7, unknown, 10.2.2.2"), "10.2.2.2");
        assert_eq!(x("192.0.2.7, 10.2.2.999"), "10.0.0.1");
        assert_eq!(x("garbage"), "10.0.0.1");
        assert_eq!(forwarded("for=192.0.2.7, for=_hidden, for=10.2.2.2"), "10.2.2.2");
        assert_eq!(forwarded("for=192.0.2.7, proto=https"), "10.0.0.1");
    }

    #[test]
    fn rfc_7239_is_read_the_same_way() {
        assert_eq!(forwarded("for=1.1.1.1, For=\"192.0.2.7:80\";proto=https;by=_x"), "192.0.2.7");
        assert_eq!(forwarded("for=\"[2001:db8::7]:4711\", for=10.2.2.2"), "2001:db8::7");
        assert_eq!(forwarded("for=\"evil, for=192.0.2.7"), "192.0.2.7", "an open quote swallows nothing");
    }

    #[test]
    fn two_headers_must_agree() {
        let agreeing = [(&X_FORWARDED_FOR, "192.0.2.7"), (&FORWARDED, "for=192.0.2.7")];
        assert_eq!(found(&agreeing, "10.0.0.1"), "192.0.2.7");
        let lines = [(&X_FORWARDED_FOR, "192.0.2.7"), (&FORWARDED, "for=1.1.1.1")];
        assert_eq!(found(&lines, "10.0.0.1"), "10.0.0.1");
        let only = |header| behind_tens().with_header(header).client(&headers(&lines), [10, 0, 0, 1].into());
        assert_eq!(only(ForwardingHeader::XForwardedFor).to_string(), "192.0.2.7");
        assert_eq!(only(ForwardingHeader::Forwarded).to_string(), "1.1.1.1");
    }

    #[test]
    fn what_is_believed_begins_with_the_client() {
        let believed = |lines: &[(&HeaderName, &str)]| {
            let TrustedChain { chain, elements } =
                behind_tens().trusted_chain(&headers(lines), [10, 0, 0, 1].into());
            let chain: Vec<_> = chain.iter().map(IpAddr::to_string).collect();
            (chain.join(" "), String::from_utf8(elements.join(&b" "[..])).unwrap())
        };
        let x = |value| believed(&[(&X_FORWARDED_FOR, value)]);
        assert_eq!(x("9.9.9.9, 1.1.1.1, 10.0.0.2"), ("1.1.1.1 10.0.0.2 10.0.0.1".to_owned(), String::new()));
        assert_eq!(x("9.9.9.9, unknown"), ("10.0.0.1".to_owned(), String::new()));
        let forwarded = (&FORWARDED, "for=9.9.9.9, for=1.1.1.1;proto=https");
        let told = ("1.1.1.1 10.0.0.1".to_owned(), "for=1.1.1.1;proto=https".to_owned());
        assert_eq!(believed(&[forwarded]), told);
        assert_eq!(believed(&[forwarded, (&X_FORWARDED_FOR, "8.8.8.8, 1.1.1.1")]), told);
        let conflict = believed(&[forwarded, (&X_FORWARDED_FOR, "8.8.8.8")]);
        assert_eq!(conflict, ("10.0.0.1".to_owned(), String::new()));
        let spoof = headers(&[forwarded]);
        let stranger = behind_tens().trusted_chain(&spoof, [192, 0, 2, 7].into());
        assert_eq!((stranger.chain, stranger.elements), (vec![[192, 0, 2, 7].into()], vec![]));
    }

    #[test]
    fn ipv6_is_counted_by_its_prefix() {
        let counted = |bits, address: &str| {
            let addresses = Addresses::default().with_ipv6_prefix(bits).unwrap();
            addresses.counter_address(address.parse().unwrap()).to_string()
        };
        assert_eq!(counted(64, "2001:db8:1:2:3::9"), "2001:db8:1:2::");
        assert_eq!(counted(56, "2001:db8:1:2ff:3::9"), "2001:db8:1:200::");
        assert_eq!(counted(128, "2001:db8::9"), "2001:db8::9");
        assert_eq!(counted(64, "::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(counted(64, "192.0.2.7"), "192.0.2.7");
        assert!(Addresses::default().with_ipv6_prefix(0).is_err());
        assert!(Addresses::default().with_ipv6_prefix(129).is_err());
    }
}
