//! Who is asking: an API key where one is sent, the address otherwise.

use std::net::IpAddr;

use hyper::HeaderMap;

const API_KEY: &str = "x-api-key";
/// Whoever has an IPv6 address usually has all of its /64.
const IPV6_PREFIX: u32 = 64;

/// The bytes a client is counted by. A key never equals an address: they begin with different letters.
pub(crate) fn identify(headers: &HeaderMap, peer: IpAddr) -> Vec<u8> {
    match headers.get(API_KEY).filter(|key| !key.is_empty()) {
        Some(key) => [b"k", key.as_bytes()].concat(),
        None => match peer.to_canonical() {
            IpAddr::V4(address) => [&b"a"[..], &address.octets()].concat(),
            IpAddr::V6(address) => {
                let network = address.to_bits() & (u128::MAX << (u128::BITS - IPV6_PREFIX));
                [&b"a"[..], &network.to_be_bytes()].concat()
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn with_key(key: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(
            hyper::header::HeaderName::from_static(API_KEY),
            HeaderValue::from_static(key),
        )])
    }

    fn by_address(address: &str) -> Vec<u8> {
        identify(&HeaderMap::new(), address.parse().unwrap())
    }

    #[test]
    fn a_key_counts_wherever_it_comes_from() {
        let [here, there] = ["192.0.2.1", "192.0.2.2"].map(|address| address.parse().unwrap());
        assert_eq!(identify(&with_key("alice"), here), identify(&with_key("alice"), there));
        assert_ne!(identify(&with_key("alice"), here), identify(&with_key("bob"), here));
    }

    #[test]
    fn an_empty_key_is_no_key() {
        assert_eq!(identify(&with_key(""), "192.0.2.1".parse().unwrap()), by_address("192.0.2.1"));
    }

    #[test]
    fn ipv6_is_counted_by_its_64_bit_prefix_and_mapped_ipv4_as_ipv4() {
        assert_eq!(by_address("2001:db8:1:2::1"), by_address("2001:db8:1:2:ffff::9"));
        assert_ne!(by_address("2001:db8:1:2::1"), by_address("2001:db8:1:3::1"));
        assert_eq!(by_address("::ffff:192.0.2.1"), by_address("192.0.2.1"));
    }
}
