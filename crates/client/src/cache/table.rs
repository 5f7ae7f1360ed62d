//! Stored responses in the order of their last use.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_cache_semantics::CachePolicy;

#[derive(Default)]
pub(super) struct CacheTable {
    entries: BTreeMap<CacheKey, CacheEntry>,
    /// The keys in the order of their last use.
    order: BTreeMap<u64, CacheKey>,
    uses: u64,
    /// What the entries occupy, and the bodies that are being read.
    bytes: usize,
    changes: u64,
}

/// What a response is stored for. Partitions are accounts, so each has responses of its own, as has each user.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CacheKey {
    pub(super) url: Arc<str>,
    pub(super) partition: Arc<str>,
    /// All headers of the request that might identify a user.
    pub(super) user: Arc<str>,
}

#[derive(Clone)]
pub(super) struct CacheEntry {
    pub(super) policy: Arc<CachePolicy>,
    pub(super) status: StatusCode,
    /// All headers; the policy serves only one of each name.
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// What the entry occupies.
    pub(super) size: usize,
    pub(super) last_use: u64,
}

impl CacheTable {
    /// How many times a resource may have been changed so far.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn get(&mut self, key: &CacheKey) -> Option<CacheEntry> {
        let entry = self.entries.get_mut(key)?;
        self.uses += 1;
        if let Some(key) = self.order.remove(&entry.last_use) {
            self.order.insert(self.uses, key);
        }
        entry.last_use = self.uses;
        Some(entry.clone())
    }

    pub(super) fn insert(&mut self, key: CacheKey, mut entry: CacheEntry) {
        self.remove(&key);
        self.uses += 1;
        self.bytes += entry.size;
        self.order.insert(self.uses, key.clone());
        entry.last_use = self.uses;
        self.entries.insert(key, entry);
    }

    pub(super) fn remove(&mut self, key: &CacheKey) {
        if let Some(entry) = self.entries.remove(key) {
            self.order.remove(&entry.last_use);
            self.bytes -= entry.size;
        }
    }

    /// Removes the responses of all partitions and users: a change of a resource is one for all.
    pub(super) fn remove_url(&mut self, url: &str) {
        self.changes += 1;
        let first = CacheKey { url: url.into(), partition: "".into(), user: "".into() };
        let keys = self.entries.range(first..).map(|(key, _)| key);
        let keys: Vec<_> = keys.take_while(|key| *key.url == *url).cloned().collect();
        for key in &keys {
            self.remove(key);
        }
    }

    /// Makes room for `bytes` of a body that is being read. Returns whether there is as much.
    pub(super) fn reserve(&mut self, bytes: usize, max_bytes: usize) -> bool {
        self.bytes += bytes;
        self.shrink_to(max_bytes);
        let has_room = self.bytes <= max_bytes;
        if !has_room {
            self.release(bytes);
        }
        has_room
    }

    /// Returns what was reserved for a body.
    pub(super) fn release(&mut self, bytes: usize) {
        self.bytes -= bytes;
    }

    pub(super) fn shrink_to(&mut self, max_bytes: usize) {
        while self.bytes > max_bytes {
            let Some((_, oldest)) = self.order.first_key_value() else { return };
            let oldest = oldest.clone();
            self.remove(&oldest);
        }
    }
}
