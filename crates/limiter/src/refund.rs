//! Refunds the charge of a request that was not served.

use std::sync::Arc;
use std::task::{Context, Waker};

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Check, Cost, CounterKey, CounterState, Limit, Refund, RuleId, Timestamp};
use tidegate_store::{Store, StoreError};

use crate::limiter::SharedStore;
use crate::report::RulingReport;

impl<S: Store> SharedStore<S> {
    /// Refunds units of one charge. Returns whether its counters contained any of them; what was charged before a reset is gone.
    pub(crate) async fn refund_charge(
        &self,
        refunds: &[Refund<'_>],
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        if refunds.first().is_some_and(|refund| self.resets.has_removed(refund)) {
            return Ok(false);
        }
        self.store.refund(refunds, now).await
    }

    /// Refunds all charges of a request, or none of them if one of its leaky buckets would give nothing back: otherwise a
    /// client could fill a bucket that others share, and have its own charge back.
    async fn refund_request(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<(), StoreError> {
        if self.can_refund_all(refunds, now).await? {
            self.store.refund(refunds, now).await?;
        }
        Ok(())
    }

    /// Whether the request is the last to depart from each of its leaky buckets. Of several charges of one bucket the first
    /// in the list is the latest. This is a best effort: another request can arrive before the refund. A bucket with another
    /// limit than that of the charge may look as if one had.
    async fn can_refund_all(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<bool, StoreError> {
        if refunds.len() < 2 {
            return Ok(true);
        }
        let mut latest = SmallVec::<[&Refund<'_>; 4]>::new();
        for refund in refunds.iter().filter(|refund| refund.limit.algorithm() == Algorithm::LeakyBucket) {
            if latest.iter().all(|other| other.key != refund.key) {
                latest.push(refund);
            }
        }
        if latest.is_empty() {
            return Ok(true);
        }
        let peeks = latest.iter().map(|Refund { key, limit, .. }| Check::new(*key, limit).cost(Cost::ZERO));
        let peeks: SmallVec<[_; 4]> = peeks.collect();
        let decision = self.store.peek(&peeks, now).await?;
        let mut buckets = latest.iter().zip(&decision.outcomes);
        Ok(buckets.all(|(refund, outcome)| {
            drained_by(refund).is_some_and(|drained| decision.at + outcome.reset_after <= drained)
        }))
    }
}

/// When a leaky bucket is empty from which nothing departs after this charge; `None` if the bucket never gives a departure
/// back.
fn drained_by(&Refund { limit, cost, charged, .. }: &Refund<'_>) -> Option<Timestamp> {
    let mut alone = CounterState::default();
    limit.charge(&mut alone, charged, cost);
    let drained = charged + limit.evaluate(&alone, charged, Cost::ZERO).reset_after;
    limit.refund(&mut alone, charged, charged, cost);
    limit.is_fresh(&alone, charged).then_some(drained)
}

/// Refunds the charge of a request on drop: while the request is delayed, and if it is not served for a reason that is not
/// the client's. Nothing is refunded if another request waits behind it in a leaky bucket.
#[derive(Debug)]
pub struct RefundGuard<S: Store + 'static> {
    shared: Arc<SharedStore<S>>,
    charges: Vec<PendingCharge>,
}

/// An owned refund.
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

    /// Adds the charges of a later decision. They are refunded first: a leaky bucket gives back only its last departure.
    pub fn join(&mut self, later: Self) {
        let mut later = later;
        let earlier = std::mem::take(&mut self.charges);
        self.charges.append(&mut later.charges);
        self.charges.extend(earlier);
    }

    /// Keeps the charge: the request is served.
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
        let is_immediate = shared.store.is_immediate();
        let mut refund = Box::pin(async move {
            let refunds: Vec<_> = charges.iter().map(PendingCharge::as_refund).collect();
            // If the store fails, the charge stays: it rejects too much, never too little.
            let _ = shared.refund_request(&refunds, shared.clock.now()).await;
        });
        // Before this thread charges the next request: behind that one, a leaky bucket would give nothing back.
        if is_immediate && refund.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return;
        }
        // Without a runtime the process is ending; the charge stays.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(refund);
    }
}
