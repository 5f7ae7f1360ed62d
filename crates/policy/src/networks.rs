//! A map from networks to values, looked up by address.
//!
//! There is one hash map for each prefix length in use. A lookup costs one hash per prefix length, independent of the
//! number of networks.

use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use ipnet::IpNet;

/// Values by network.
#[derive(Debug)]
pub(crate) struct NetworkMap<V> {
    v4: ByLength<u32, V>,
    v6: ByLength<u128, V>,
}

/// In the order in which the lengths were inserted.
type ByLength<N, V> = Vec<(u8, HashMap<N, V, RandomState>)>;

impl<V> Default for NetworkMap<V> {
    fn default() -> Self {
        Self { v4: Vec::new(), v6: Vec::new() }
    }
}

impl<V> NetworkMap<V> {
    /// Sets the value of `network`, replacing an earlier one.
    pub(crate) fn insert(&mut self, network: IpNet, value: V) {
        match network {
            IpNet::V4(net) => insert(&mut self.v4, net.prefix_len(), net.network().to_bits(), value),
            IpNet::V6(net) => insert(&mut self.v6, net.prefix_len(), net.network().to_bits(), value),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// Calls `look` with the prefix length and the value of every network that contains `address`, and returns its first
    /// result.
    pub(crate) fn find_map<'m, R>(
        &'m self,
        address: IpAddr,
        mut look: impl FnMut(u8, &'m V) -> Option<R>,
    ) -> Option<R> {
        match address {
            IpAddr::V4(address) => self.v4.iter().find_map(|(length, networks)| {
                let mask = u32::MAX.checked_shl(32 - u32::from(*length)).unwrap_or(0);
                look(*length, networks.get(&(address.to_bits() & mask))?)
            }),
            IpAddr::V6(address) => self.v6.iter().find_map(|(length, networks)| {
                let mask = u128::MAX.checked_shl(128 - u32::from(*length)).unwrap_or(0);
                look(*length, networks.get(&(address.to_bits() & mask))?)
            }),
        }
    }

    /// The same for `address` and for the IPv4 address in it.
    pub(crate) fn find_map_banned<'m, R>(
        &'m self,
        address: IpAddr,
        mut look: impl FnMut(u8, &'m V) -> Option<R>,
    ) -> Option<R> {
        self.find_map(address, &mut look).or_else(|| match address {
            IpAddr::V6(address) => self.find_map(embedded_ipv4(address)?.into(), look),
            IpAddr::V4(_) => None,
        })
    }
}

/// The IPv4 address in an IPv6 address that only its owner can use: of NAT64 (`64:ff9b::/96`, and the networks with 96 bits of
/// `64:ff9b:1::/48`, RFC 8215), 6to4 (`2002::/16`) and Teredo (`2001::/32`). By prefix, all clients of a NAT64 gateway or a
/// Teredo server would be one client, and a host with 6to4 65,536. `None` for an IPv4 address that is not used in the Internet:
/// these forms do not prove that the client has it. Shorter networks of `64:ff9b:1::/48` have the IPv4 address further left and
/// end with zeros, at least 24 bits.
pub(crate) fn embedded_ipv4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let bits = address.to_bits();
    let low = u32::try_from(bits & u128::from(u32::MAX)).ok()?;
    let found = match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] => low,
        [0x64, 0xff9b, 1, ..] if low << 8 != 0 => low,
        [0x2002, high, low, ..] => u32::from(high) << 16 | u32::from(low),
        [0x2001, 0, ..] => !low,
        _ => return None,
    };
    let found = Ipv4Addr::from_bits(found);
    let is_special = found.is_private() || found.is_loopback() || found.is_link_local();
    let is_special = is_special || found.is_unspecified() || found.is_broadcast() || found.is_multicast();
    (!is_special).then_some(found)
}

/// Networks without values.
pub(crate) type Networks = NetworkMap<()>;

impl Networks {
    pub(crate) fn new(networks: &[IpNet]) -> Self {
        let mut all = Self::default();
        for network in networks {
            all.insert(*network, ());
        }
        all
    }

    /// A network that contains `address`.
    pub(crate) fn find(&self, address: IpAddr) -> Option<IpNet> {
        self.find_map(address, |length, ()| IpNet::new(address, length).ok()).map(|net| net.trunc())
    }

    /// A network that contains `address` or the IPv4 address in it.
    pub(crate) fn find_banned(&self, address: IpAddr) -> Option<IpNet> {
        self.find(address).or_else(|| match address {
            IpAddr::V6(address) => self.find(embedded_ipv4(address)?.into()),
            IpAddr::V4(_) => None,
        })
    }
}

fn insert<N: Hash + Eq, V>(lengths: &mut ByLength<N, V>, length: u8, network: N, value: V) {
    let known = lengths.iter().position(|(known, _)| *known == length);
    let at = known.unwrap_or_else(|| {
        lengths.push((length, HashMap::default()));
        lengths.len() - 1
    });
    lengths[at].1.insert(network, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_address_in_an_address_of_the_internet_is_found() {
        let embedded = |address: &str| embedded_ipv4(address.parse().unwrap()).map(|found| found.to_string());
        for address in [
            "64:ff9b::203.0.113.7",
            "64:ff9b:1::203.0.113.7",
            "64:ff9b:1:2:3:4:203.0.113.7",
            "2002:cb00:7107:5::1",
            "2001:0:4136:e378:8000:63bf:34ff:8ef8",
        ] {
            assert_eq!(embedded(address).as_deref(), Some("203.0.113.7"), "{address}");
        }
        for address in [
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::10.0.0.1",
            "64:ff9b:2::203.0.113.7",
            "2002:7f00:1::1",
            "2001:db8::203.0.113.7",
            "::1",
        ] {
            assert_eq!(embedded(address), None, "{address}");
        }
    }

    #[test]
    fn nat64_network_shorter_than_96_bits_has_no_ipv4_address_at_its_end() {
        // 203.0.113.7 in 64:ff9b:1::/48, 64:ff9b:1:200::/56 and 64:ff9b:1:2::/64 (RFC 6052, section 2.2).
        for address in ["64:ff9b:1:cb00:71:700::", "64:ff9b:1:2cb:0:7107::", "64:ff9b:1:2:cb:71:700:0"] {
            assert_eq!(embedded_ipv4(address.parse().unwrap()), None, "{address}");
        }
    }

    #[test]
    fn banned_ipv4_network_contains_the_forms_of_its_addresses() {
        let networks = Networks::new(&["203.0.113.0/24".parse().unwrap(), "2002::/16".parse().unwrap()]);
        let find = |address: &str| networks.find_banned(address.parse().unwrap()).map(|net| net.to_string());
        assert_eq!(find("64:ff9b::203.0.113.7").as_deref(), Some("203.0.113.0/24"));
        assert_eq!(find("2002:c633:6401::1").as_deref(), Some("2002::/16"), "the network itself");
        assert_eq!(find("64:ff9b::198.51.100.1").or(find("2001:db8::1")), None);
        assert!(networks.find("64:ff9b::203.0.113.7".parse().unwrap()).is_none());
    }

    #[test]
    fn address_is_found_only_in_networks_that_contain_it() {
        let nets = ["10.1.0.0/16", "192.0.2.7/32", "2001:db8::/32"].map(|net| net.parse().unwrap());
        let networks = Networks::new(&nets);
        let find = |address: &str| networks.find(address.parse().unwrap()).map(|net| net.to_string());
        assert_eq!(find("10.1.255.1").as_deref(), Some("10.1.0.0/16"));
        assert_eq!(find("192.0.2.7").as_deref(), Some("192.0.2.7/32"));
        assert_eq!(find("2001:db8:1::1").as_deref(), Some("2001:db8::/32"));
        assert_eq!(find("10.2.0.1").or(find("192.0.2.8")).or(find("2001:db9::1")), None);
        let all = Networks::new(&["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()]);
        assert!(
            all.find([8, 8, 8, 8].into()).is_some() && all.find(IpAddr::V6(Ipv6Addr::LOCALHOST)).is_some()
        );
        assert!(Networks::default().is_empty() && !all.is_empty());
    }
}
