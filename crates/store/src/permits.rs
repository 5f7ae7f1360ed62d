//! How many requests of a client are under way.
//!
//! A count for each key that has any, and nothing for the rest, so it takes no more room than there are requests under
//! way. Keys are known by a seeded 64-bit hash: among 100,000 of them the odds that any two are taken for one are about
//! one in four thousand million.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use tidegate_core::CounterKey;

use crate::memory::hash::KeyHasher;

/// Parts that are locked on their own.
const PARTS: usize = 64;

/// Requests under way, of this process.
#[derive(Debug)]
pub struct Permits {
    hasher: KeyHasher,
    parts: Box<[Mutex<HashTable<PermitCount>>]>,
}

#[derive(Clone, Copy, Debug)]
struct PermitCount {
    hash: u64,
    count: u32,
}

impl Default for Permits {
    fn default() -> Self {
        Self { hasher: KeyHasher::random(), parts: (0..PARTS).map(|_| Mutex::default()).collect() }
    }
}

impl Permits {
    /// Lets one more request of `key` through, if there are fewer than `max`. Dropping the permit gives it back.
    pub fn acquire(self: &Arc<Self>, key: CounterKey<'_>, max: u32) -> Option<Permit> {
        let hash = self.hasher.hash(&key);
        let mut part = self.part(hash)?;
        match part.entry(hash, |in_use| in_use.hash == hash, |in_use| in_use.hash) {
            Entry::Occupied(mut entry) if entry.get().count < max => entry.get_mut().count += 1,
            Entry::Vacant(entry) if max > 0 => {
                entry.insert(PermitCount { hash, count: 1 });
            }
            Entry::Occupied(_) | Entry::Vacant(_) => return None,
        }
        Some(Permit { permits: Arc::clone(self), hash })
    }

    /// How many requests of `key` are under way.
    #[cfg(test)]
    fn in_use_by(&self, key: CounterKey<'_>) -> u32 {
        let hash = self.hasher.hash(&key);
        let count = |part: &HashTable<PermitCount>| {
            part.find(hash, |in_use| in_use.hash == hash).map_or(0, |in_use| in_use.count)
        };
        self.part(hash).map_or(0, |part| count(&part))
    }

    /// How many permits are taken in all.
    pub fn in_use(&self) -> u64 {
        let taken =
            |part: &HashTable<PermitCount>| part.iter().map(|in_use| u64::from(in_use.count)).sum::<u64>();
        self.parts.iter().map(|part| taken(&part.lock().unwrap_or_else(PoisonError::into_inner))).sum()
    }

    fn release(&self, hash: u64) {
        let Some(mut part) = self.part(hash) else { return };
        if let Ok(mut entry) = part.find_entry(hash, |in_use| in_use.hash == hash) {
            entry.get_mut().count = entry.get().count.saturating_sub(1);
            if entry.get().count == 0 {
                entry.remove();
            }
        }
    }

    fn part(&self, hash: u64) -> Option<MutexGuard<'_, HashTable<PermitCount>>> {
        // The table within a part uses the other bits.
        let part = self.parts.get((hash >> 32) as usize % PARTS)?;
        Some(part.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One request under way. Dropping it is the end of it.
#[derive(Debug)]
pub struct Permit {
    permits: Arc<Permits>,
    hash: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.release(self.hash);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use tidegate_core::RuleId;

    use super::*;

    fn key(client: &[u8]) -> CounterKey<'_> {
        CounterKey::new(RuleId::named("exports"), client)
    }

    #[test]
    fn so_many_and_no_more_until_one_is_given_back() {
        let permits = Arc::new(Permits::default());
        let first = permits.acquire(key(b"bob"), 2).unwrap();
        let _second = permits.acquire(key(b"bob"), 2).unwrap();
        assert!(permits.acquire(key(b"bob"), 2).is_none());
        assert!(permits.acquire(key(b"ann"), 2).is_some(), "and it is given back at once");
        assert_eq!((permits.in_use_by(key(b"bob")), permits.in_use()), (2, 2));
        drop(first);
        let _third = permits.acquire(key(b"bob"), 2).unwrap();
        assert!(permits.acquire(key(b"bob"), 2).is_none());
        assert!(permits.acquire(key(b"bob"), 0).is_none(), "none at all");
    }

    #[test]
    fn nothing_is_left_behind_and_never_too_many_are_let_through() {
        let permits = Arc::new(Permits::default());
        let clients: Vec<_> = (0_u32..500).map(u32::to_be_bytes).collect();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..50 {
                        let held: Vec<_> =
                            clients.iter().filter_map(|client| permits.acquire(key(client), 2)).collect();
                        assert!(clients.iter().all(|client| permits.in_use_by(key(client)) <= 2), "{round}");
                        drop(held);
                    }
                });
            }
        });
        assert_eq!(permits.in_use(), 0);
        assert!(permits.parts.iter().all(|part| part.lock().unwrap().is_empty()), "no room is kept");
    }
}
