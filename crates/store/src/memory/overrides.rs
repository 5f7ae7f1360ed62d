//! LimitRegistry of their own for a few keys. There are none most of the time, and then asking costs one load.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

use tidegate_core::{CounterKey, Limit, Refund, RuleId, Timestamp};

use super::limit_registry::RetainedLimits;
use crate::store::Override;

/// Below this many overrides it is not worth looking for those that are over.
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
    /// At so many those that are over are looked for: idle clients do not ask for theirs.
    purge_at: usize,
}

/// An override, and the number of its limit for as long as it is in force.
#[derive(Debug)]
struct OverrideEntry {
    replacement: Override,
    retained: RetainedLimits,
}

impl OverrideMap {
    fn count(&self) -> usize {
        self.rules.values().map(HashMap::len).sum()
    }

    fn remove_expired(&mut self, now: Timestamp) {
        for clients in self.rules.values_mut() {
            clients.retain(|_, entry| !entry.replacement.has_expired(now));
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

    /// The limit in force for `key`, if it is not the rule's.
    #[inline]
    pub(super) fn in_force(&self, key: &CounterKey<'_>, now: Timestamp) -> Option<Limit> {
        if self.is_used() { self.find_in_force(key, now) } else { None }
    }

    #[cold]
    fn find_in_force(&self, key: &CounterKey<'_>, now: Timestamp) -> Option<Limit> {
        let replacement = self.find(key)?;
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

    /// Whether what is to be refunded may have been charged under an override.
    pub(super) fn may_affect(&self, refund: &Refund<'_>, now: Timestamp) -> bool {
        self.find(&refund.key).is_some_and(|replacement| replacement.may_affect(refund, now))
    }

    fn find(&self, key: &CounterKey<'_>) -> Option<Override> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.rules.get(&key.rule)?.get(key.client).map(|entry| entry.replacement)
    }

    /// Begins an override, whose limit is retained.
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
            clients.insert(key.client.into(), OverrideEntry { replacement, retained });
        });
    }

    /// Ends an override now; that there was one stays known, for refunds.
    pub(super) fn end(&self, key: CounterKey<'_>, now: Timestamp) {
        self.change(|keys| {
            let clients = keys.rules.get_mut(&key.rule);
            if let Some(ended) = clients.and_then(|clients| clients.get_mut(key.client)) {
                ended.replacement.until = ended.replacement.until.min(now);
                ended.retained = RetainedLimits::default();
            }
        });
    }

    /// Gives back the numbers of overrides that are no longer in force.
    pub(super) fn release_ended(&self, now: Timestamp) {
        self.change(|keys| {
            keys.remove_expired(now);
            let all = keys.rules.values_mut().flat_map(HashMap::values_mut);
            for ended in all.filter(|entry| entry.replacement.until <= now) {
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
