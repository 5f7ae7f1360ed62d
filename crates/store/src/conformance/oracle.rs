//! The reference store: the core over a plain map, single-threaded, without eviction.

use std::collections::HashMap;

use tidegate_core::{
    AsKey, Check, Cost, CounterKey, Decision, Ledger, Outcome, OwnedKey, Refund, Timestamp, decide, peek,
};

use super::oracle_entry::OracleEntry;
use crate::store::Override;

#[derive(Debug, Default)]
pub(crate) struct Oracle {
    entries: HashMap<OwnedKey, OracleEntry>,
}

impl Oracle {
    pub(crate) fn decide(&mut self, checks: &[Check<'_>], now: Timestamp) -> Decision {
        for check in checks {
            self.entry(check.key).adopt(check.limit, now);
        }
        decide(checks, now, &mut OracleLedger { oracle: self, checks, now })
    }

    pub(crate) fn peek(&mut self, checks: &[Check<'_>], now: Timestamp) -> Decision {
        peek(checks, now, &OracleLedger { oracle: self, checks, now })
    }

    pub(crate) fn refund(&mut self, refunds: &[Refund<'_>], now: Timestamp) -> bool {
        refunds.iter().fold(false, |any, refund| self.entry(refund.key).refund(refund, now) | any)
    }

    pub(crate) fn reset(&mut self, key: CounterKey<'_>) {
        self.entry(key).reset();
    }

    pub(crate) fn override_limit(
        &mut self,
        key: CounterKey<'_>,
        replacement: Option<Override>,
        now: Timestamp,
    ) {
        self.entry(key).override_limit(replacement, now);
    }

    fn entry(&mut self, key: CounterKey<'_>) -> &mut OracleEntry {
        self.entries.entry(key.into()).or_default()
    }
}

struct OracleLedger<'a> {
    oracle: &'a mut Oracle,
    checks: &'a [Check<'a>],
    now: Timestamp,
}

impl Ledger for OracleLedger<'_> {
    fn evaluate(&self, check: usize, cost: Cost) -> Outcome {
        let Check { key, limit, .. } = self.checks[check];
        let entry = self.oracle.entries.get(&key as &dyn AsKey);
        entry.unwrap_or(&OracleEntry::default()).evaluate(limit, self.now, cost)
    }

    fn charge(&mut self, check: usize, cost: Cost) {
        let Check { key, limit, .. } = self.checks[check];
        self.oracle.entry(key).charge(limit, self.now, cost);
    }
}
