//! Counts the requests in progress per client.
//!
//! Only keys with requests in progress have a count, so memory is bounded by the number of those requests. Keys are
//! identified by a seeded 64-bit hash: among 100,000 keys the probability that any two collide is about one in four
//! thousand million.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use tidegate_core::CounterKey;

use crate::memory::hash::KeyHasher;

/// The number of shards.
const SHARDS: usize = 64;

/// The requests in progress of this process.
#[derive(Debug)]
pub struct Permits {
    hasher: KeyHasher,
    shards: Box<[Mutex<HashTable<PermitCount>>]>,
}

#[derive(Clone, Copy, Debug)]
struct PermitCount {
    hash: u64,
    count: u32,
}

impl Default for Permits {
    fn default() -> Self {
        Self { hasher: KeyHasher::random(), shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl Permits {
    /// Acquires a permit for one more request of `key`, if fewer than `max` are in use. Dropping the permit releases it.
    pub fn acquire(self: &Arc<Self>, key: CounterKey<'_>, max: u32) -> Option<Permit> {
        let hash = self.hasher.hash(&key);
        let mut shard = self.shard(hash)?;
        match shard.entry(hash, |in_use| in_use.hash == hash, |in_use| in_use.hash) {
            Entry::Occupied(mut entry) if entry.get().count < max => entry.get_mut().count += 1,
            Entry::Vacant(entry) if max > 0 => {
                entry.insert(PermitCount { hash, count: 1 });
            }
            Entry::Occupied(_) | Entry::Vacant(_) => return None,
        }
        Some(Permit { permits: Arc::clone(self), hash, shared: None })
    }

    /// The permits of this node that `key` uses.
    pub fn in_use_by(&self, key: CounterKey<'_>) -> u32 {
        let hash = self.hasher.hash(&key);
        let count = |part: &HashTable<PermitCount>| {
            part.find(hash, |in_use| in_use.hash == hash).map_or(0, |in_use| in_use.count)
        };
        self.shard(hash).map_or(0, |part| count(&part))
    }

    /// The permits in use by all keys.
    pub fn in_use(&self) -> u64 {
        let taken =
            |part: &HashTable<PermitCount>| part.iter().map(|in_use| u64::from(in_use.count)).sum::<u64>();
        self.shards.iter().map(|part| taken(&part.lock().unwrap_or_else(PoisonError::into_inner))).sum()
    }

    fn release(&self, hash: u64) {
        let Some(mut shard) = self.shard(hash) else { return };
        if let Ok(mut entry) = shard.find_entry(hash, |in_use| in_use.hash == hash) {
            entry.get_mut().count = entry.get().count.saturating_sub(1);
            if entry.get().count == 0 {
                entry.remove();
            }
        }
    }

    fn shard(&self, hash: u64) -> Option<MutexGuard<'_, HashTable<PermitCount>>> {
        // The hash table of a shard uses the other bits.
        let part = self.shards.get((hash >> 32) as usize % SHARDS)?;
        Some(part.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A permit for one request in progress, released on drop.
#[derive(Debug)]
pub struct Permit {
    permits: Arc<Permits>,
    hash: u64,
    /// Released with it.
    shared: Option<SharedPermit>,
}

impl Permit {
    /// Keeps `shared` as long as this permit.
    pub fn set_shared(&mut self, shared: SharedPermit) {
        self.shared = Some(shared);
    }
}

/// A permit that all nodes share, granted by a [`Store`](crate::Store). Dropping it releases it and does not block.
pub struct SharedPermit {
    /// The store's own guard, which releases on drop.
    _guard: Box<dyn Send + Sync>,
}

impl SharedPermit {
    /// A permit that `guard` releases when it is dropped.
    pub fn new(guard: impl Send + Sync + 'static) -> Self {
        Self { _guard: Box::new(guard) }
    }
}

impl fmt::Debug for SharedPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedPermit")
    }
}

/// The result of [`Store::acquire_permit`](crate::Store::acquire_permit).
#[derive(Debug)]
pub enum PermitGrant {
    /// All nodes together have fewer requests in progress than the maximum.
    Shared(SharedPermit),
    /// All permits are in use.
    Exhausted,
    /// This node decides alone: it may have this many requests in progress.
    Local {
        /// The maximum of this node.
        max: u32,
    },
    /// The limit does not apply now.
    Unlimited,
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
    fn permits_at_the_maximum_are_rejected_until_one_is_released() {
        let permits = Arc::new(Permits::default());
        let first = permits.acquire(key(b"bob"), 2).unwrap();
        let _second = permits.acquire(key(b"bob"), 2).unwrap();
        assert!(permits.acquire(key(b"bob"), 2).is_none());
        assert!(permits.acquire(key(b"ann"), 2).is_some(), "another client; released at once");
        assert_eq!((permits.in_use_by(key(b"bob")), permits.in_use()), (2, 2));
        drop(first);
        let _third = permits.acquire(key(b"bob"), 2).unwrap();
        assert!(permits.acquire(key(b"bob"), 2).is_none());
        assert!(permits.acquire(key(b"bob"), 0).is_none(), "a maximum of 0");
    }

    #[test]
    fn permits_under_contention_never_exceed_the_maximum_and_are_all_released() {
        let permits = Arc::new(Permits::default());
        let clients: Vec<_> = (0_u32..500).map(u32::to_be_bytes).collect();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..50 {
                        let acquired: Vec<_> =
                            clients.iter().filter_map(|client| permits.acquire(key(client), 2)).collect();
                        assert!(clients.iter().all(|client| permits.in_use_by(key(client)) <= 2), "{round}");
                        drop(acquired);
                    }
                });
            }
        });
        assert_eq!(permits.in_use(), 0);
        assert!(permits.shards.iter().all(|part| part.lock().unwrap().is_empty()), "no memory is kept");
    }
}
