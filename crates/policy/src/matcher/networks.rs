//! Whether an address lies in one of many networks.
//!
//! A set of addresses for each length of prefix that there is: a lookup costs as many hashes as there are lengths,
//! however many networks a file of bans lists.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use foldhash::fast::RandomState;
use hashbrown::HashSet;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Networks, found by address.
#[derive(Debug, Default)]
pub(super) struct Networks {
    v4: Vec<(u8, HashSet<u32, RandomState>)>,
    v6: Vec<(u8, HashSet<u128, RandomState>)>,
}

impl Networks {
    pub(super) fn new(networks: &[IpNet]) -> Self {
        let mut all = Self::default();
        for network in networks {
            match network {
                IpNet::V4(net) => add(&mut all.v4, net.prefix_len(), net.network().to_bits()),
                IpNet::V6(net) => add(&mut all.v6, net.prefix_len(), net.network().to_bits()),
            }
        }
        all
    }

    pub(super) fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// A network that holds `address`.
    pub(super) fn find(&self, address: IpAddr) -> Option<IpNet> {
        match address {
            IpAddr::V4(address) => self.v4.iter().find_map(|(length, nets)| {
                let mask = u32::MAX.checked_shl(32 - u32::from(*length)).unwrap_or(0);
                let network = address.to_bits() & mask;
                let found =
                    nets.contains(&network).then(|| Ipv4Net::new(Ipv4Addr::from_bits(network), *length));
                found.and_then(Result::ok).map(IpNet::V4)
            }),
            IpAddr::V6(address) => self.v6.iter().find_map(|(length, nets)| {
                let mask = u128::MAX.checked_shl(128 - u32::from(*length)).unwrap_or(0);
                let network = address.to_bits() & mask;
                let found =
                    nets.contains(&network).then(|| Ipv6Net::new(Ipv6Addr::from_bits(network), *length));
                found.and_then(Result::ok).map(IpNet::V6)
            }),
        }
    }
}

fn add<T: std::hash::Hash + Eq>(sets: &mut Vec<(u8, HashSet<T, RandomState>)>, length: u8, network: T) {
    match sets.iter_mut().find(|(known, _)| *known == length) {
        Some((_, set)) => {
            set.insert(network);
        }
        None => sets.push((length, std::iter::once(network).collect())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_in_its_network_and_in_no_other() {
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
