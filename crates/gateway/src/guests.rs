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
        let of_one = by_address.entry(address).or_default();
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
        if let Some(of_one) = by_address.get_mut(&self.address) {
            *of_one = of_one.saturating_sub(1);
            if *of_one == 0 {
                by_address.remove(&self.address);
            }
        }
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
}
