//! A map from networks to values, looked up by address.
//!
//! There is one hash map for each prefix length in use. A lookup costs one hash per prefix length, independent of the
//! number of networks.

use std::hash::Hash;
use std::net::IpAddr;

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
    use std::net::Ipv6Addr;

    use super::*;

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
