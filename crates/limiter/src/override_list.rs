//! The overrides that operators have made, as far as refunds need to know them. The store applies them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use tidegate_core::{AsKey, CounterKey, OwnedKey, Refund, Timestamp};
use tidegate_store::Override;

/// With fewer entries it is not worth removing expired ones.
const MIN_PURGE: usize = 64;

/// Overrides by key. Usually there are none, and then a lookup costs one atomic load.
#[derive(Debug, Default)]
pub(crate) struct OverrideList {
    any: AtomicBool,
    entries: RwLock<OverrideEntries>,
}

#[derive(Debug, Default)]
struct OverrideEntries {
    by_key: HashMap<OwnedKey, Override>,
    /// The number of entries at which expired ones are removed.
    purge_at: usize,
}

impl OverrideList {
    /// Records an override, or with `None` its end at `now`. It may affect refunds for some time after its end.
    pub(crate) fn set(&self, key: CounterKey<'_>, replacement: Option<Override>, now: Timestamp) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.set(key, replacement, now);
        self.any.store(!entries.by_key.is_empty(), Ordering::Release);
    }

    /// Whether the refunded charge may have been made under an override: then the store may give nothing back.
    pub(crate) fn may_affect(&self, refund: &Refund<'_>, now: Timestamp) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let replacement = entries.by_key.get(&refund.key as &dyn AsKey);
        replacement.is_some_and(|replacement| replacement.may_affect(refund, now))
    }
}

impl OverrideEntries {
    fn set(&mut self, key: CounterKey<'_>, replacement: Option<Override>, now: Timestamp) {
        let Some(replacement) = replacement else {
            if let Some(ended) = self.by_key.get_mut(&key as &dyn AsKey) {
                ended.until = ended.until.min(now);
            }
            return;
        };
        if self.by_key.len() >= self.purge_at.max(MIN_PURGE) {
            self.by_key.retain(|_, replacement| !replacement.has_expired(now));
            self.purge_at = 2 * self.by_key.len();
        }
        self.by_key.insert(key.into(), replacement);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Algorithm, Cost, Limit, RuleId, Spec, TimeSpan};

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    #[test]
    fn override_list_expired_entries_are_removed() {
        let limit = Limit::new(Algorithm::FixedWindow, Spec::new(1, TimeSpan::from_secs(60))).unwrap();
        let list = OverrideList::default();
        let override_until = |client: usize, until, now| {
            let client = client.to_be_bytes();
            list.set(CounterKey::new(RuleId::named("r"), &client), Some(Override { limit, until }), now);
        };
        for client in 0..1_000 {
            override_until(client, NOW, NOW);
        }
        let later = NOW + TimeSpan::from_secs(1_000);
        for client in 1_000..1_100 {
            override_until(client, Timestamp::MAX, later);
        }
        assert!(list.entries.read().unwrap().by_key.len() < 1_200);
        let affects = |client: usize| {
            let (client, cost) = (client.to_be_bytes(), Cost::ONE);
            let key = CounterKey::new(RuleId::named("r"), &client);
            list.may_affect(&Refund { key, limit: &limit, cost, charged: later }, later)
        };
        assert_eq!([7, 1_007].map(affects), [false, true]);
    }
}
