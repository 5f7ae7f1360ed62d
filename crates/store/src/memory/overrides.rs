//! Limits of their own for a few keys. There are none most of the time, and then asking costs one load.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

use tidegate_core::{Key, Limit, Refund, RuleId, Timestamp};

use crate::entry::Override;

type Keys = HashMap<RuleId, HashMap<Box<[u8]>, Override>>;

/// Overrides by key.
#[derive(Debug, Default)]
pub(super) struct Overrides {
    count: AtomicUsize,
    keys: RwLock<Keys>,
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
        let instead = self.find(key)?;
        if instead.is_over(now) {
            self.forget(key);
        }
        (now < instead.until).then_some(instead.limit)
    }

    fn forget(&self, key: &Key<'_>) {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(clients) = keys.get_mut(&key.rule) {
            clients.remove(key.client);
        }
        self.count.store(keys.values().map(HashMap::len).sum(), Ordering::Release);
    }

    /// Whether what is to be refunded may have been charged under an override.
    pub(super) fn touch(&self, refund: &Refund<'_>, now: Timestamp) -> bool {
        self.find(&refund.key).is_some_and(|instead| instead.touches(refund, now))
    }

    fn find(&self, key: &Key<'_>) -> Option<Override> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.get(&key.rule)?.get(key.client).copied()
    }

    /// Begins an override, or with `None` ends it now.
    pub(super) fn set(&self, key: Key<'_>, instead: Option<Override>, now: Timestamp) {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(instead) = instead {
            keys.entry(key.rule).or_default().insert(key.client.into(), instead);
        } else if let Some(ended) = keys.get_mut(&key.rule).and_then(|clients| clients.get_mut(key.client)) {
            ended.until = ended.until.min(now);
        }
        self.count.store(keys.values().map(HashMap::len).sum(), Ordering::Release);
    }
}
