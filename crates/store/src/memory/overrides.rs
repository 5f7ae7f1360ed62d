//! Limits of their own for a few keys. There are none most of the time, and then asking costs one load.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

use tidegate_core::{Key, Limit, Refund, RuleId, Timestamp};

use super::limit_registry::RetainedLimits;
use crate::store::Override;

/// Below this many overrides it is not worth looking for those that are over.
const FORGET_AT_LEAST: usize = 64;

/// Overrides by key.
#[derive(Debug, Default)]
pub(super) struct Overrides {
    count: AtomicUsize,
    keys: RwLock<Keys>,
}

#[derive(Debug, Default)]
struct Keys {
    rules: HashMap<RuleId, HashMap<Box<[u8]>, OverrideEntry>>,
    /// At so many those that are over are looked for: idle clients do not ask for theirs.
    forget_at: usize,
}

/// An override, and the number of its limit for as long as it is in force.
#[derive(Debug)]
struct OverrideEntry {
    replacement: Override,
    retained: RetainedLimits,
}

impl Keys {
    fn count(&self) -> usize {
        self.rules.values().map(HashMap::len).sum()
    }

    fn forget_over(&mut self, now: Timestamp) {
        for clients in self.rules.values_mut() {
            clients.retain(|_, entry| !entry.replacement.is_over(now));
        }
        self.rules.retain(|_, clients| !clients.is_empty());
    }
}

impl Overrides {
    /// Whether there are any.
    #[inline]
    pub(super) fn are_any(&self) -> bool {
        self.count.load(Ordering::Acquire) != 0
    }

    /// The limit in force for `key`, if it is not the rule's.
    #[inline]
    pub(super) fn in_force(&self, key: &Key<'_>, now: Timestamp) -> Option<Limit> {
        if self.are_any() { self.find_in_force(key, now) } else { None }
    }

    #[cold]
    fn find_in_force(&self, key: &Key<'_>, now: Timestamp) -> Option<Limit> {
        let replacement = self.find(key)?;
        if replacement.is_over(now) {
            self.forget(key);
        }
        (now < replacement.until).then_some(replacement.limit)
    }

    fn forget(&self, key: &Key<'_>) {
        self.change(|keys| {
            if let Some(clients) = keys.rules.get_mut(&key.rule) {
                clients.remove(key.client);
            }
        });
    }

    /// Whether what is to be refunded may have been charged under an override.
    pub(super) fn touch(&self, refund: &Refund<'_>, now: Timestamp) -> bool {
        self.find(&refund.key).is_some_and(|replacement| replacement.touches(refund, now))
    }

    fn find(&self, key: &Key<'_>) -> Option<Override> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.rules.get(&key.rule)?.get(key.client).map(|entry| entry.replacement)
    }

    /// Begins an override, whose limit is retained.
    pub(super) fn set(&self, key: Key<'_>, replacement: Override, retained: RetainedLimits, now: Timestamp) {
        self.change(|keys| {
            if keys.count() >= keys.forget_at.max(FORGET_AT_LEAST) {
                keys.forget_over(now);
                keys.forget_at = 2 * keys.count();
            }
            let clients = keys.rules.entry(key.rule).or_default();
            clients.insert(key.client.into(), OverrideEntry { replacement, retained });
        });
    }

    /// Ends an override now; that there was one stays known, for refunds.
    pub(super) fn end(&self, key: Key<'_>, now: Timestamp) {
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
            keys.forget_over(now);
            let all = keys.rules.values_mut().flat_map(HashMap::values_mut);
            for ended in all.filter(|entry| entry.replacement.until <= now) {
                ended.retained = RetainedLimits::default();
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut Keys)) {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut keys);
        self.count.store(keys.count(), Ordering::Release);
    }
}
