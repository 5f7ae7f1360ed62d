//! Per-key limit overrides. Usually there are none, and then a lookup costs one load.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

use tidegate_core::{AsKey, CounterKey, Limit, OwnedKey, Refund, Timestamp};

use super::limit_registry::RetainedLimits;
use crate::store::{Override, StoredOverride};

/// With fewer overrides it is not worth removing expired ones.
const MIN_PURGE: usize = 64;

/// Overrides by key.
#[derive(Debug, Default)]
pub(super) struct Overrides {
    count: AtomicUsize,
    entries: RwLock<OverrideMap>,
}

#[derive(Debug, Default)]
struct OverrideMap {
    by_key: HashMap<OwnedKey, OverrideEntry>,
    /// The number of overrides at which expired ones are removed; those of idle clients are not found otherwise.
    purge_at: usize,
}

/// An override, and its limit's number while the override applies.
#[derive(Debug)]
struct OverrideEntry {
    stored: StoredOverride,
    retained: RetainedLimits,
}

impl OverrideMap {
    fn remove_expired(&mut self, now: Timestamp) {
        self.by_key.retain(|_, entry| !entry.stored.replacement.has_expired(now));
    }
}

impl Overrides {
    /// Whether there are any.
    #[inline]
    pub(super) fn is_used(&self) -> bool {
        self.count.load(Ordering::Acquire) != 0
    }

    /// The override limit that applies to `key`, if any.
    #[inline]
    pub(super) fn in_force(&self, key: &CounterKey<'_>, now: Timestamp) -> Option<Limit> {
        if self.is_used() { self.find_in_force(key, now) } else { None }
    }

    #[cold]
    fn find_in_force(&self, key: &CounterKey<'_>, now: Timestamp) -> Option<Limit> {
        let StoredOverride { replacement, .. } = self.find(key)?;
        if replacement.has_expired(now) {
            self.change(|entries| {
                entries.by_key.remove(key as &dyn AsKey);
            });
        }
        (now < replacement.until).then_some(replacement.limit)
    }

    /// The limit under which a charge was made and its counter still counts; `None` if that is unknown.
    pub(super) fn limit_of_charge(&self, refund: &Refund<'_>, now: Timestamp) -> Option<Limit> {
        match self.find(&refund.key) {
            None => Some(*refund.limit),
            Some(stored) => stored.limit_of_charge(refund, now),
        }
    }

    fn find(&self, key: &CounterKey<'_>) -> Option<StoredOverride> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.by_key.get(key as &dyn AsKey).map(|entry| entry.stored)
    }

    /// Starts an override whose limit is retained.
    pub(super) fn set(
        &self,
        key: CounterKey<'_>,
        replacement: Override,
        retained: RetainedLimits,
        now: Timestamp,
    ) {
        self.change(|entries| {
            if entries.by_key.len() >= entries.purge_at.max(MIN_PURGE) {
                entries.remove_expired(now);
                entries.purge_at = 2 * entries.by_key.len();
            }
            let earlier = entries.by_key.get(&key as &dyn AsKey).map(|entry| entry.stored);
            let stored = StoredOverride::begin(replacement, earlier, now);
            entries.by_key.insert(key.into(), OverrideEntry { stored, retained });
        });
    }

    /// Ends an override now. The entry is kept for later refunds.
    pub(super) fn end(&self, key: CounterKey<'_>, now: Timestamp) {
        self.change(|entries| {
            if let Some(ended) = entries.by_key.get_mut(&key as &dyn AsKey) {
                let replacement = &mut ended.stored.replacement;
                replacement.until = replacement.until.min(now);
                ended.retained = RetainedLimits::default();
            }
        });
    }

    /// Releases the numbers of overrides that no longer apply.
    pub(super) fn release_ended(&self, now: Timestamp) {
        self.change(|entries| {
            entries.remove_expired(now);
            for ended in entries.by_key.values_mut().filter(|entry| entry.stored.replacement.until <= now) {
                ended.retained = RetainedLimits::default();
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut OverrideMap)) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut entries);
        self.count.store(entries.by_key.len(), Ordering::Release);
    }
}
