//! Limits the number of connections, in total and per address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Counts the connections of all workers.
#[derive(Debug)]
pub struct ConnectionLimiter {
    max: usize,
    max_per_address: usize,
    count: AtomicUsize,
    /// The keys are [`address_key`]s.
    by_address: Mutex<HashMap<IpAddr, usize>>,
}

impl ConnectionLimiter {
    /// Allows `max` connections, and `max_per_address` of one address (of one /64 network for IPv6).
    pub fn new(max: usize, max_per_address: usize) -> Arc<Self> {
        let (count, by_address) = (AtomicUsize::new(0), Mutex::default());
        Arc::new(Self { max, max_per_address, count, by_address })
    }

    /// A permit for one more connection of `address`; `None` if a limit is reached.
    pub fn acquire(self: &Arc<Self>, address: IpAddr) -> Option<ConnectionPermit> {
        // Created before the counts change: dropping the permit decrements them on every path.
        let permit = ConnectionPermit { limiter: Arc::clone(self), address };
        let before = self.count.fetch_add(1, Ordering::Relaxed);
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let of_address = by_address.entry(address_key(address)).or_default();
        *of_address += 1;
        let is_allowed = before < self.max && *of_address <= self.max_per_address;
        drop(by_address);
        is_allowed.then_some(permit)
    }

    /// The number of connections.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

/// Counts one connection in [`ConnectionLimiter`] until it is dropped.
#[derive(Debug)]
pub struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    address: IpAddr,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limiter.count.fetch_sub(1, Ordering::Relaxed);
        let mut by_address = self.limiter.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let key = address_key(self.address);
        if let Some(of_address) = by_address.get_mut(&key) {
            *of_address = of_address.saturating_sub(1);
            if *of_address == 0 {
                by_address.remove(&key);
            }
        }
    }
}

/// An IPv4 address as it is; an IPv6 address truncated to its /64, the smallest network that providers assign.
fn address_key(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_limit_total_or_per_address_reached_rejects_connection() {
        let limiter = ConnectionLimiter::new(3, 2);
        let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let first = limiter.acquire(a).unwrap();
        let _second = limiter.acquire(a).unwrap();
        assert!(limiter.acquire(a).is_none(), "limit per address");
        let _third = limiter.acquire(b).unwrap();
        assert!(limiter.acquire(b).is_none(), "total limit");
        drop(first);
        assert!(limiter.acquire(a).is_some());
        assert_eq!(limiter.count(), 2);
    }

    #[test]
    fn connection_limit_addresses_of_one_ipv6_network_share_a_count() {
        let limiter = ConnectionLimiter::new(9, 1);
        let acquire = |address: &str| limiter.acquire(address.parse().unwrap());
        let _first = acquire("2001:db8::1").unwrap();
        assert!(acquire("2001:db8::2").is_none());
        assert!(acquire("2001:db8:0:1::1").is_some());
        let _v4 = acquire("10.0.0.1").unwrap();
        assert!(acquire("::ffff:10.0.0.1").is_none(), "an IPv4-mapped address is the same address");
        assert!(acquire("10.0.0.2").is_some());
    }
}
