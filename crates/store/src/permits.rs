//! How many requests of a client are under way.
//!
//! A count for each key that has any, and nothing for the rest, so it takes no more room than there are requests under
//! way. Keys are known by a seeded 64-bit hash: among 100,000 of them the odds that any two are taken for one are about
//! one in four thousand million.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use tidegate_core::Key;

use crate::memory::hash::KeyHasher;

/// Parts that are locked on their own.
const PARTS: usize = 64;

/// Requests under way, of this process.
#[derive(Debug)]
pub struct Permits {
    hasher: KeyHasher,
    parts: Box<[Mutex<HashTable<InUse>>]>,
}

#[derive(Clone, Copy, Debug)]
struct InUse {
    hash: u64,
    count: u32,
}

impl Default for Permits {
    fn default() -> Self {
        Self { hasher: KeyHasher::random(), parts: (0..PARTS).map(|_| Mutex::default()).collect() }
    }
}

impl Permits {
    /// Lets one more request of `key` through, if there are fewer than `most`. Dropping the permit gives it back.
    pub fn take(self: &Arc<Self>, key: Key<'_>, most: u32) -> Option<Permit> {
        let hash = self.hasher.hash(&key);
        let mut part = self.part(hash)?;
        match part.entry(hash, |in_use| in_use.hash == hash, |in_use| in_use.hash) {
            Entry::Occupied(mut entry) if entry.get().count < most => entry.get_mut().count += 1,
            Entry::Vacant(entry) if most > 0 => {
                entry.insert(InUse { hash, count: 1 });
            }
            Entry::Occupied(_) | Entry::Vacant(_) => return None,
        }
        Some(Permit { permits: Arc::clone(self), hash })
    }

    /// How many requests of `key` are under way.
    #[cfg(test)]
    fn in_use(&self, key: Key<'_>) -> u32 {
        let hash = self.hasher.hash(&key);
        let count = |part: &HashTable<InUse>| {
            part.find(hash, |in_use| in_use.hash == hash).map_or(0, |in_use| in_use.count)
        };
        self.part(hash).map_or(0, |part| count(&part))
    }

    /// How many permits are taken in all.
    pub fn taken(&self) -> u64 {
        let taken = |part: &HashTable<InUse>| part.iter().map(|in_use| u64::from(in_use.count)).sum::<u64>();
        self.parts.iter().map(|part| taken(&part.lock().unwrap_or_else(PoisonError::into_inner))).sum()
    }

    fn give_back(&self, hash: u64) {
        let Some(mut part) = self.part(hash) else { return };
        if let Ok(mut entry) = part.find_entry(hash, |in_use| in_use.hash == hash) {
            entry.get_mut().count = entry.get().count.saturating_sub(1);
            if entry.get().count == 0 {
                entry.remove();
            }
        }
    }

    fn part(&self, hash: u64) -> Option<MutexGuard<'_, HashTable<InUse>>> {
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
        self.permits.give_back(self.hash);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use tidegate_core::RuleId;

    use super::*;

    fn key(client: &[u8]) -> Key<'_> {
        Key::new(RuleId::named("exports"), client)
    }

    #[test]
    fn so_many_and_no_more_until_one_is_given_back() {
        let permits = Arc::new(Permits::default());
        let first = permits.take(key(b"bob"), 2).unwrap();
        let _second = permits.take(key(b"bob"), 2).unwrap();
        assert!(permits.take(key(b"bob"), 2).is_none());
        assert!(permits.take(key(b"ann"), 2).is_some(), "and it is given back at once");
        assert_eq!((permits.in_use(key(b"bob")), permits.taken()), (2, 2));
        drop(first);
        let _third = permits.take(key(b"bob"), 2).unwrap();
        assert!(permits.take(key(b"bob"), 2).is_none());
        assert!(permits.take(key(b"bob"), 0).is_none(), "none at all");
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
                            clients.iter().filter_map(|client| permits.take(key(client), 2)).collect();
                        assert!(clients.iter().all(|client| permits.in_use(key(client)) <= 2), "{round}");
                        drop(held);
                    }
                });
            }
        });
        assert_eq!(permits.taken(), 0);
        assert!(permits.parts.iter().all(|part| part.lock().unwrap().is_empty()), "no room is kept");
    }
}
