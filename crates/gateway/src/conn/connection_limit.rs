//! How many connections there are, in all and of one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Connections of all cores.
#[derive(Debug)]
pub(crate) struct Guests {
    most: usize,
    most_of_one: usize,
    count: AtomicUsize,
    /// By what an address is counted as.
    by_address: Mutex<HashMap<IpAddr, usize>>,
}

impl Guests {
    pub(crate) fn new(most: usize, most_of_one: usize) -> Arc<Self> {
        let (count, by_address) = (AtomicUsize::new(0), Mutex::default());
        Arc::new(Self { most, most_of_one, count, by_address })
    }

    /// Lets a connection in until the guard is dropped, if there is room.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Guest> {
        // From here on the count is right whatever happens: dropping a guest takes it back.
        let guest = Guest { guests: Arc::clone(self), address };
        let before = self.count.fetch_add(1, Ordering::Relaxed);
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let of_one = by_address.entry(counted(address)).or_default();
        *of_one += 1;
        let has_room = before < self.most && *of_one <= self.most_of_one;
        drop(by_address);
        has_room.then_some(guest)
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

/// A connection's place: counted among the guests, and waited for when its core drains.
#[derive(Debug)]
pub(crate) struct Place {
    _guest: Guest,
    _inside: Rc<()>,
}

impl Place {
    pub(crate) fn new(guest: Guest, inside: &Rc<()>) -> Self {
        Self { _guest: guest, _inside: Rc::clone(inside) }
    }
}

/// A connection that was let in.
#[derive(Debug)]
pub(crate) struct Guest {
    guests: Arc<Guests>,
    address: IpAddr,
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.guests.count.fetch_sub(1, Ordering::Relaxed);
        let mut by_address = self.guests.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = counted(self.address);
        if let Some(of_one) = by_address.get_mut(&counted) {
            *of_one = of_one.saturating_sub(1);
            if *of_one == 0 {
                by_address.remove(&counted);
            }
        }
    }
}

/// IPv4 whole; IPv6 by the network of 64 bits that one customer has at least, all of whose addresses are theirs.
fn counted(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_so_many_in_all_and_of_one() {
        let guests = Guests::new(3, 2);
        let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let first = guests.enter(a).unwrap();
        let _second = guests.enter(a).unwrap();
        assert!(guests.enter(a).is_none(), "two of one address are enough");
        let _third = guests.enter(b).unwrap();
        assert!(guests.enter(b).is_none(), "three are enough");
        drop(first);
        assert!(guests.enter(a).is_some());
        assert_eq!(guests.count(), 2);
    }

    #[test]
    fn all_addresses_of_one_ipv6_customer_are_one() {
        let guests = Guests::new(9, 1);
        let enter = |address: &str| guests.enter(address.parse().unwrap());
        let _first = enter("2001:db8::1").unwrap();
        assert!(enter("2001:db8::2").is_none());
        assert!(enter("2001:db8:0:1::1").is_some());
        let _v4 = enter("10.0.0.1").unwrap();
        assert!(enter("::ffff:10.0.0.1").is_none(), "the same in another spelling");
        assert!(enter("10.0.0.2").is_some());
    }
}
