//! Giving back what was charged for a request that was not served.

use std::sync::Arc;

use tidegate_core::{Cost, CounterKey, Limit, Refund, RuleId, Timestamp};
use tidegate_store::Store;

use crate::limiter::SharedStore;
use crate::report::RulingReport;

/// What a request was charged, given back when this is dropped: while the request waits, and whenever it is not served for
/// a reason that is not its client's.
#[derive(Debug)]
pub struct RefundGuard<S: Store + 'static> {
    shared: Arc<SharedStore<S>>,
    charges: Vec<PendingCharge>,
}

/// A refund that borrows nothing.
#[derive(Debug)]
struct PendingCharge {
    rule: RuleId,
    client: Vec<u8>,
    limit: Limit,
    cost: Cost,
    charged: Timestamp,
}

impl PendingCharge {
    fn as_refund(&self) -> Refund<'_> {
        let key = CounterKey::new(self.rule, &self.client);
        Refund { key, limit: &self.limit, cost: self.cost, charged: self.charged }
    }
}

impl<S: Store + 'static> RefundGuard<S> {
    pub(crate) fn new(shared: &Arc<SharedStore<S>>, report: &RulingReport<'_>) -> Self {
        let pending = |refund: &Refund<'_>| PendingCharge {
            rule: refund.key.rule,
            client: refund.key.client.to_vec(),
            limit: *refund.limit,
            cost: refund.cost,
            charged: refund.charged,
        };
        let checks: Vec<_> = report.rules.checks().collect();
        let charged = report.decision.iter().flat_map(|decision| decision.refunds(&checks));
        Self { shared: Arc::clone(shared), charges: charged.map(|refund| pending(&refund)).collect() }
    }

    /// The request is served: what was charged stays charged.
    pub fn keep(mut self) {
        self.charges.clear();
    }
}

impl<S: Store + 'static> Drop for RefundGuard<S> {
    fn drop(&mut self) {
        let charges = std::mem::take(&mut self.charges);
        if charges.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        // The runtime may be gone already when a process ends; its counters end with it or stay charged.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let refunds: Vec<_> = charges.iter().map(PendingCharge::as_refund).collect();
            // A store that gives no answer keeps what it has: it rejects too much, never too little.
            let _ = shared.store.refund(&refunds, shared.clock.now()).await;
        });
    }
}
