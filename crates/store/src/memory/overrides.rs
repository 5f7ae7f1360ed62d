//! Per-key limit overrides. Usually there are none, and then a lookup costs one load.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

use tidegate_core::{CounterKey, Limit, Refund, RuleId, Timestamp};

use super::limit_registry::RetainedLimits;
use crate::store::{Override, StoredOverride};

/// With fewer overrides it is not worth removing expired ones.
const MIN_PURGE: usize = 64;

/// Overrides by key.
#[derive(Debug, Default)]
pub(super) struct Overrides {
    count: AtomicUsize,
    keys: RwLock<OverrideMap>,
}

#[derive(Debug, Default)]
struct OverrideMap {
    rules: HashMap<RuleId, HashMap<Box<[u8]>, OverrideEntry>>,
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
    fn count(&self) -> usize {
        self.rules.values().map(HashMap::len).sum()
    }

    fn remove_expired(&mut self, now: Timestamp) {
        for clients in self.rules.values_mut() {
            clients.retain(|_, entry| !entry.stored.replacement.has_expired(now));
        }
        self.rules.retain(|_, clients| !clients.is_empty());
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
            self.remove(key);
        }
        (now < replacement.until).then_some(replacement.limit)
    }

    fn remove(&self, key: &CounterKey<'_>) {
        self.change(|keys| {
            if let Some(clients) = keys.rules.get_mut(&key.rule) {
                clients.remove(key.client);
            }
        });
    }

    /// The limit under which a charge was made and its counter still counts; `None` if that is unknown.
    pub(super) fn limit_of_charge(&self, refund: &Refund<'_>, now: Timestamp) -> Option<Limit> {
        match self.find(&refund.key) {
            None => Some(*refund.limit),
            Some(stored) => stored.limit_of_charge(refund, now),
        }
    }

    fn find(&self, key: &CounterKey<'_>) -> Option<StoredOverride> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.rules.get(&key.rule)?.get(key.client).map(|entry| entry.stored)
    }

    /// Starts an override whose limit is retained.
    pub(super) fn set(
        &self,
        key: CounterKey<'_>,
        replacement: Override,
        retained: RetainedLimits,
        now: Timestamp,
    ) {
        self.change(|keys| {
            if keys.count() >= keys.purge_at.max(MIN_PURGE) {
                keys.remove_expired(now);
                keys.purge_at = 2 * keys.count();
            }
            let clients = keys.rules.entry(key.rule).or_default();
            let earlier = clients.get(key.client).map(|entry| entry.stored);
            let stored = StoredOverride::begin(replacement, earlier, now);
            clients.insert(key.client.into(), OverrideEntry { stored, retained });
        });
    }

    /// Ends an override now. The entry is kept for later refunds.
    pub(super) fn end(&self, key: CounterKey<'_>, now: Timestamp) {
        self.change(|keys| {
            let clients = keys.rules.get_mut(&key.rule);
            if let Some(ended) = clients.and_then(|clients| clients.get_mut(key.client)) {
                let replacement = &mut ended.stored.replacement;
                replacement.until = replacement.until.min(now);
                ended.retained = RetainedLimits::default();
            }
        });
    }

    /// Releases the numbers of overrides that no longer apply.
    pub(super) fn release_ended(&self, now: Timestamp) {
        self.change(|keys| {
            keys.remove_expired(now);
            let all = keys.rules.values_mut().flat_map(HashMap::values_mut);
            for ended in all.filter(|entry| entry.stored.replacement.until <= now) {
                ended.retained = RetainedLimits::default();
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut OverrideMap)) {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut keys);
        self.count.store(keys.count(), Ordering::Release);
    }
}
