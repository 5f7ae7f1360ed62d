//! The counters of a node: a sharded table of blocks.

use std::hash::BuildHasher;
use std::sync::{Mutex, MutexGuard, PoisonError};

use foldhash::quality::RandomState;
use hashbrown::HashTable;
use smallvec::SmallVec;
use tidegate_core::{CounterKey, RuleId, Timestamp};
use tokio::sync::oneshot;

use super::block::LeaseBlock;
use super::contact::ContactFailure;
use crate::key::KeyName;

/// The number of shards.
const SHARDS: usize = 128;
/// The estimated memory of a counter.
const SLOT_BYTES: usize = 512;
/// How many counters of a full shard are compared to find the one to drop.
const CANDIDATES: usize = 16;

/// Notifies decisions that wait for the same request.
pub(super) type LeaseWaiter = oneshot::Sender<Result<(), ContactFailure>>;

/// All counters of the node.
#[derive(Debug)]
pub(super) struct LeaseTable {
    hasher: RandomState,
    shards: Box<[Mutex<LeaseShard>]>,
}

/// One shard.
#[derive(Debug)]
pub(super) struct LeaseShard {
    slots: HashTable<IndexedSlot>,
    /// Every slot by its central name: a change on another node is known only by the name, from which the client cannot be
    /// derived.
    names: HashTable<NamedSlot>,
    hasher: RandomState,
    max: usize,
}

/// A slot in the table. The table itself stays small: most decisions find its part in the cache, and it grows without moving
/// the slots.
#[derive(Debug)]
struct IndexedSlot {
    hash: u64,
    slot: Box<LeaseSlot>,
}

/// The hashes of a slot's central name and of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NamedSlot {
    name: u64,
    key: u64,
}

/// A counter and the decisions that wait for it. The fields that every decision reads are in the first cache lines: here the
/// address, then those of the block.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct LeaseSlot {
    pub(super) address: SlotAddress,
    pub(super) block: LeaseBlock,
    /// The name of the counter's leases.
    pub(super) name: KeyName,
    pub(super) waiters: Vec<LeaseWaiter>,
}

/// Finds a slot again.
#[derive(Clone, Debug)]
pub(super) struct SlotAddress {
    hash: u64,
    rule: RuleId,
    client: SmallVec<[u8; 16]>,
}

impl SlotAddress {
    /// The address of `key`, whose hash is `hash`.
    pub(super) fn new(hash: u64, key: CounterKey<'_>) -> Self {
        Self { hash, rule: key.rule, client: key.client.into() }
    }

    /// The counter's key.
    pub(super) fn key(&self) -> CounterKey<'_> {
        CounterKey::new(self.rule, &self.client)
    }
}

impl LeaseTable {
    /// A table that takes about `max_memory` bytes at most.
    pub(super) fn new(max_memory: usize) -> Self {
        let max = (max_memory / SLOT_BYTES / SHARDS).max(1);
        let hasher = RandomState::default();
        let shards = (0..SHARDS).map(|_| Mutex::new(LeaseShard::new(hasher.clone(), max))).collect();
        Self { hasher, shards }
    }

    /// The hash of a key.
    pub(super) fn hash(&self, key: CounterKey<'_>) -> u64 {
        self.hasher.hash_one((key.rule.as_u64(), key.client))
    }

    /// The number of shards.
    pub(super) fn len(&self) -> usize {
        self.shards.len()
    }

    /// The shard of a hash. The table uses the other bits.
    pub(super) fn shard_index(hash: u64) -> usize {
        (hash >> 32) as usize % SHARDS
    }

    /// Locks a shard.
    pub(super) fn lock(&self, index: usize) -> Option<MutexGuard<'_, LeaseShard>> {
        self.shards.get(index).map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks the shard of an address and calls `change` with the slot, if it exists.
    pub(super) fn with_slot<T>(
        &self,
        address: &SlotAddress,
        change: impl FnOnce(&mut LeaseSlot) -> T,
    ) -> Option<T> {
        self.lock(Self::shard_index(address.hash))?.find(address.hash, address.key()).map(change)
    }

    /// Locks the shards of all `hashes`, in the order of the shards: two decisions never wait for each other.
    pub(super) fn lock_all(&self, hashes: &[u64]) -> LockedShards<'_> {
        let mut indexes: SmallVec<[usize; 4]> = hashes.iter().map(|hash| Self::shard_index(*hash)).collect();
        indexes.sort_unstable();
        indexes.dedup();
        LockedShards(indexes.into_iter().filter_map(|index| Some((index, self.lock(index)?))).collect())
    }
}

/// Several locked shards.
pub(super) struct LockedShards<'a>(SmallVec<[(usize, MutexGuard<'a, LeaseShard>); 4]>);

impl LockedShards<'_> {
    /// The shard of a hash that was passed to [`LeaseTable::lock_all`].
    pub(super) fn shard(&mut self, hash: u64) -> Option<&mut LeaseShard> {
        let index = LeaseTable::shard_index(hash);
        self.0.iter_mut().find(|(locked, _)| *locked == index).map(|(_, shard)| &mut **shard)
    }

    /// The slot of a key.
    pub(super) fn slot(&self, hash: u64, key: CounterKey<'_>) -> Option<&LeaseSlot> {
        let index = LeaseTable::shard_index(hash);
        let (_, shard) = self.0.iter().find(|(locked, _)| *locked == index)?;
        shard.slots.find(hash, is_at(hash, key)).map(|indexed| &*indexed.slot)
    }
}

impl LeaseShard {
    fn new(hasher: RandomState, max: usize) -> Self {
        Self { slots: HashTable::new(), names: HashTable::new(), hasher, max }
    }

    /// The slot of a key.
    #[inline]
    pub(super) fn find(&mut self, hash: u64, key: CounterKey<'_>) -> Option<&mut LeaseSlot> {
        self.slots.find_mut(hash, is_at(hash, key)).map(|indexed| &mut *indexed.slot)
    }

    /// The slot of a key, new if there is none; `None` if the shard is full of counters with pending requests or debts.
    pub(super) fn find_or_insert(
        &mut self,
        hash: u64,
        key: CounterKey<'_>,
        now: Timestamp,
        new_block: impl FnOnce() -> (KeyName, LeaseBlock),
    ) -> Option<&mut LeaseSlot> {
        if self.slots.find(hash, is_at(hash, key)).is_none() {
            if self.slots.len() >= self.max {
                self.drop_one(now)?;
            }
            let address = SlotAddress::new(hash, key);
            let (name, block) = new_block();
            let slot = Box::new(LeaseSlot { address, block, name, waiters: Vec::new() });
            let named = slot.named(&self.hasher);
            self.names.insert_unique(named.name, named, |named| named.name);
            self.slots.insert_unique(hash, IndexedSlot { hash, slot }, |indexed| indexed.hash);
        }
        self.find(hash, key)
    }

    /// All slots.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut LeaseSlot> {
        self.slots.iter_mut().map(|indexed| &mut *indexed.slot)
    }

    /// Drops the slots of which nothing would be lost.
    pub(super) fn drop_idle(&mut self, now: Timestamp) {
        let Self { slots, names, hasher, .. } = self;
        slots.retain(|IndexedSlot { slot, .. }| {
            let is_kept = !slot.waiters.is_empty() || !slot.block.is_idle(now);
            if !is_kept {
                remove_name(names, slot.named(hasher));
            }
            is_kept
        });
    }

    /// Calls `change` with the slot of a counter with this central name, if there is one.
    pub(super) fn change_named(&mut self, central: &[u8], change: impl FnOnce(&mut LeaseSlot)) {
        let name = self.hasher.hash_one(central);
        let is_it = |indexed: &IndexedSlot| indexed.slot.central_name() == central;
        let slots = &self.slots;
        let found =
            self.names.find(name, |named| named.name == name && slots.find(named.key, is_it).is_some());
        if let Some(NamedSlot { key, .. }) = found.copied()
            && let Some(indexed) = self.slots.find_mut(key, is_it)
        {
            change(&mut indexed.slot);
        }
    }

    /// Drops the counter with the fewest units among a few. Units that are lost with it return when they expire. A debt
    /// exists nowhere else.
    fn drop_one(&mut self, now: Timestamp) -> Option<()> {
        let is_droppable =
            |slot: &&LeaseSlot| slot.waiters.is_empty() && !slot.block.is_pending() && !slot.block.has_debt();
        let droppable = self.slots.iter().map(|indexed| &*indexed.slot).filter(is_droppable);
        let least = droppable.take(CANDIDATES).min_by_key(|slot| slot.block.units(now))?;
        let address = least.address.clone();
        let entry = self.slots.find_entry(address.hash, is_at(address.hash, address.key())).ok()?;
        let (IndexedSlot { slot, .. }, _) = entry.remove();
        remove_name(&mut self.names, slot.named(&self.hasher));
        Some(())
    }
}

impl LeaseSlot {
    /// The counter's name under central coordination: that of its leases without the suffix.
    fn central_name(&self) -> &[u8] {
        self.name.as_bytes().split_last().map_or(&[], |(_, central)| central)
    }

    fn named(&self, hasher: &RandomState) -> NamedSlot {
        NamedSlot { name: hasher.hash_one(self.central_name()), key: self.address.hash }
    }
}

/// Whether a slot is that of `key`, whose hash is `hash`.
fn is_at(hash: u64, key: CounterKey<'_>) -> impl Fn(&IndexedSlot) -> bool {
    move |indexed| indexed.hash == hash && indexed.slot.address.key() == key
}

fn remove_name(names: &mut HashTable<NamedSlot>, slot: NamedSlot) {
    if let Ok(entry) = names.find_entry(slot.name, |other| *other == slot) {
        entry.remove();
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Algorithm, Cost, Limit, Spec, TimeSpan};

    use super::*;
    use crate::key::KeyNames;

    const RULE: RuleId = RuleId::named("default");
    const NOW: Timestamp = Timestamp::from_secs(1);

    fn insert<'s>(shard: &'s mut LeaseShard, names: &KeyNames, client: &[u8]) -> Option<&'s mut LeaseSlot> {
        let key = CounterKey::new(RULE, client);
        let limit = Limit::new(Algorithm::TokenBucket, Spec::new(10, TimeSpan::from_secs(60))).unwrap();
        let hash = shard.hasher.hash_one((key.rule.as_u64(), key.client));
        shard.find_or_insert(hash, key, NOW, || (names.lease(key), LeaseBlock::new(limit, 1)))
    }

    fn find_named(shard: &mut LeaseShard, names: &KeyNames, client: &[u8]) -> Option<Vec<u8>> {
        let mut found = None;
        let name = names.counter(CounterKey::new(RULE, client));
        shard.change_named(name.as_bytes(), |slot| found = Some(slot.address.client.to_vec()));
        found
    }

    #[test]
    fn slot_is_found_by_its_central_name_until_it_is_dropped() {
        let names = KeyNames::new("tg:", b"secret");
        let mut shard = LeaseShard::new(RandomState::default(), 2);
        for client in [b"a", b"b"] {
            assert!(insert(&mut shard, &names, client).is_some());
        }
        for client in [b"a", b"b"] {
            assert_eq!(find_named(&mut shard, &names, client).as_deref(), Some(&client[..]));
        }
        assert_eq!(find_named(&mut shard, &names, b"c"), None);
        // One of the two makes room.
        assert!(insert(&mut shard, &names, b"c").is_some());
        assert_eq!(find_named(&mut shard, &names, b"c").as_deref(), Some(&b"c"[..]));
        assert_eq!((shard.slots.len(), shard.names.len()), (2, 2));
        shard.drop_idle(NOW);
        assert_eq!((shard.slots.len(), shard.names.len()), (0, 0));
    }
    #[test]
    fn slot_with_a_debt_is_not_dropped_for_another() {
        let names = KeyNames::new("tg:", b"secret");
        let mut shard = LeaseShard::new(RandomState::default(), 2);
        for client in [b"a", b"b"] {
            insert(&mut shard, &names, client).unwrap().block.charge(Cost::new(3), NOW);
        }
        assert!(insert(&mut shard, &names, b"c").is_none(), "both have a debt");
        assert_eq!(shard.slots.len(), 2);
    }
}
