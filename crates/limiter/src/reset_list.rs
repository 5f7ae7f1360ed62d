//! When counters were reset, as far as refunds need to know it: a counter no longer contains what was charged before.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use tidegate_core::{AsKey, CounterKey, OwnedKey, Refund, TimeSpan, Timestamp};

/// The largest number of resets that are known at once. Beyond it a refund may take units of later charges.
const MAX_RESETS: usize = 65_536;
/// How long a reset is known: at least as long as a charge may wait for its final cost.
const KEPT: TimeSpan = TimeSpan::from_secs(2 * 3_600);

/// The last resets by key. Without any, a lookup costs one atomic load.
#[derive(Debug, Default)]
pub(crate) struct ResetList {
    any: AtomicBool,
    resets: Mutex<HashMap<OwnedKey, Timestamp>>,
}

impl ResetList {
    /// Records a reset at `now`.
    pub(crate) fn add(&self, key: CounterKey<'_>, now: Timestamp) {
        let mut resets = self.resets.lock().unwrap_or_else(PoisonError::into_inner);
        if resets.len() >= MAX_RESETS {
            resets.retain(|_, at| now < *at + KEPT);
        }
        if resets.len() < MAX_RESETS {
            resets.insert(key.into(), now);
        }
        self.any.store(true, Ordering::Release);
    }

    /// Whether the refunded units were charged before the last reset of their counter.
    pub(crate) fn has_removed(&self, refund: &Refund<'_>) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let resets = self.resets.lock().unwrap_or_else(PoisonError::into_inner);
        resets.get(&refund.key as &dyn AsKey).is_some_and(|at| refund.charged < *at)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Algorithm, Cost, Limit, RuleId, Spec};

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(100_000);

    #[test]
    fn reset_list_is_bounded_and_forgets_old_resets() {
        let limit = Limit::new(Algorithm::FixedWindow, Spec::new(1, TimeSpan::from_secs(60))).unwrap();
        let list = ResetList::default();
        let add = |client: usize, now| {
            list.add(CounterKey::new(RuleId::named("r"), &client.to_be_bytes()), now);
        };
        let has_removed = |client: usize, charged| {
            let client = client.to_be_bytes();
            let key = CounterKey::new(RuleId::named("r"), &client);
            list.has_removed(&Refund { key, limit: &limit, cost: Cost::ONE, charged })
        };
        assert!(!has_removed(1, NOW));
        for client in 0..=MAX_RESETS {
            add(client, NOW);
        }
        assert_eq!(list.resets.lock().unwrap().len(), MAX_RESETS);
        let later = NOW + KEPT;
        add(MAX_RESETS, later);
        assert_eq!(list.resets.lock().unwrap().len(), 1);
        assert!(has_removed(MAX_RESETS, NOW));
        assert!(!has_removed(MAX_RESETS, later));
    }
}
