//! Per-key limit overrides in this process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

use tidegate_core::{AsKey, CounterKey, Limit, OwnedKey, Refund, Timestamp};
use tidegate_store::{Override, StoredOverride};

/// The overrides of this node. Without any, a lookup costs one load.
#[derive(Debug, Default)]
pub(crate) struct LocalOverrides {
    count: AtomicUsize,
    map: RwLock<HashMap<OwnedKey, StoredOverride>>,
}

impl LocalOverrides {
    /// Sets the override of `key`, or ends it at `now`.
    pub(crate) fn set(&self, key: CounterKey<'_>, replacement: Option<Override>, now: Timestamp) {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        map.retain(|_, stored| !stored.replacement.has_expired(now));
        match replacement {
            Some(replacement) => {
                let earlier = map.get(&key as &dyn AsKey).copied();
                map.insert(key.into(), StoredOverride::begin(replacement, earlier, now));
            }
            None => {
                if let Some(StoredOverride { replacement: ended, .. }) = map.get_mut(&key as &dyn AsKey) {
                    ended.until = ended.until.min(now);
                }
            }
        }
        self.count.store(map.len(), Ordering::Release);
    }

    /// Up to `count` overrides that have not ended at `now`, from the one at `start`. The order changes only if overrides do.
    pub(crate) fn page(&self, start: usize, count: usize, now: Timestamp) -> Vec<(OwnedKey, Override)> {
        if self.len() == 0 {
            return Vec::new();
        }
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let page = map.iter().skip(start).take(count);
        let lasting = page.filter(|(_, stored)| !stored.replacement.has_expired(now));
        lasting.map(|(key, stored)| (key.clone(), stored.replacement)).collect()
    }

    /// The number of overrides, some of which may have ended.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The limit that applies to `key` at `now` instead of `limit`, or `limit`.
    pub(crate) fn in_force(&self, key: CounterKey<'_>, limit: &Limit, now: Timestamp) -> Limit {
        let found = self.find(key).map(|stored| stored.replacement);
        found.filter(|replacement| now < replacement.until).map_or(*limit, |found| found.limit)
    }

    /// The limit under which a charge was made and its counter still counts; `None` if that is unknown.
    pub(crate) fn limit_of_charge(&self, refund: &Refund<'_>, now: Timestamp) -> Option<Limit> {
        match self.find(refund.key) {
            None => Some(*refund.limit),
            Some(stored) => stored.limit_of_charge(refund, now),
        }
    }

    fn find(&self, key: CounterKey<'_>) -> Option<StoredOverride> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.map.read().unwrap_or_else(PoisonError::into_inner).get(&key as &dyn AsKey).copied()
    }
}
