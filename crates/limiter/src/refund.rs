//! Refunds the charge of a request that was not served.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{
    Algorithm, Check, Cost, CounterKey, CounterState, Decision, Limit, Refund, RuleId, Timestamp,
};
use tidegate_store::{Store, StoreError};

use crate::limiter::SharedStore;
use crate::report::RulingReport;

impl<S: Store> SharedStore<S> {
    /// Refunds units of one charge. Returns false if its counter gave nothing back: it is a leaky bucket, an operator has replaced its
    /// limit, it was reset after the charge, or with `is_uncertain` it may use another limit now or not contain the charge. All others
    /// give back what they still contain, and are not asked.
    ///
    /// The answer is a best effort: the counter is read before and after the refund, so a decision or a refund of another
    /// request between the two can hide what happened, or look like it.
    pub(crate) async fn refund_charge(
        &self,
        refunds: &[Refund<'_>],
        is_uncertain: bool,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        if refunds.first().is_some_and(|refund| self.resets.has_removed(refund)) {
            return Ok(false);
        }
        let is_asked = |refund: &Refund<'_>| {
            is_uncertain
                || refund.limit.algorithm() == Algorithm::LeakyBucket
                || self.overrides.may_affect(refund, now)
        };
        let Some(Refund { key, limit, .. }) = refunds.first().filter(|refund| is_asked(refund)) else {
            return self.store.refund(refunds, now).await.map(|()| true);
        };
        let peek = [Check::new(*key, limit).cost(Cost::ZERO)];
        let before = usage(&self.store.peek(&peek, now).await?);
        self.store.refund(refunds, now).await?;
        let after = usage(&self.store.peek(&peek, now).await?);
        // What remains in a bucket grows between the two readings, if the store has a clock of its own.
        let is_bucket = matches!(limit.algorithm(), Algorithm::LeakyBucket | Algorithm::TokenBucket);
        Ok(after.empty_at < before.empty_at || !is_bucket && after.remaining > before.remaining)
    }

    /// Refunds all charges of a request, or none of them if one of its leaky buckets would give nothing back: otherwise a
    /// client could fill a bucket that others share, and have its own charge back.
    ///
    /// Like [`Self::refund_charge`], this is a best effort: another request can arrive before the refund.
    async fn refund_request(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<(), StoreError> {
        let latest = latest_departures(refunds);
        if latest.is_empty() || are_last(&latest, &self.store.peek(&peeks(&latest), now).await?) {
            self.store.refund(refunds, now).await?;
        }
        Ok(())
    }

    /// Refunds like [`refund_request`](Self::refund_request), if the store need not be awaited.
    fn try_refund_request(&self, refunds: &[Refund<'_>], now: Timestamp) -> Option<Result<(), StoreError>> {
        let latest = latest_departures(refunds);
        if !latest.is_empty() {
            match self.store.try_peek(&peeks(&latest), now)? {
                Ok(decision) if are_last(&latest, &decision) => {}
                peeked => return Some(peeked.map(drop)),
            }
        }
        self.store.try_refund(refunds, now)
    }
}

type LatestDepartures<'r, 'a> = SmallVec<[&'r Refund<'a>; 4]>;

/// The latest charge of each leaky bucket, if there are several charges; of several charges of one bucket it is the first.
fn latest_departures<'r, 'a>(refunds: &'r [Refund<'a>]) -> LatestDepartures<'r, 'a> {
    let mut latest = LatestDepartures::new();
    if refunds.len() < 2 {
        return latest;
    }
    for refund in refunds.iter().filter(|refund| refund.limit.algorithm() == Algorithm::LeakyBucket) {
        if latest.iter().all(|other| other.key != refund.key) {
            latest.push(refund);
        }
    }
    latest
}

fn peeks<'a>(latest: &[&Refund<'a>]) -> SmallVec<[Check<'a>; 4]> {
    latest.iter().map(|Refund { key, limit, .. }| Check::new(*key, limit).cost(Cost::ZERO)).collect()
}

/// Whether each charge is the last to depart from its bucket. A bucket with another limit than that of the charge may look as
/// if it was not.
fn are_last(latest: &[&Refund<'_>], decision: &Decision) -> bool {
    let mut buckets = latest.iter().zip(&decision.outcomes);
    buckets.all(|(refund, outcome)| {
        drained_by(refund).is_some_and(|drained| decision.at + outcome.reset_after <= drained)
    })
}

/// What the counter of the only check contains.
struct CounterUsage {
    remaining: Option<u64>,
    /// When the counter is unused.
    empty_at: Option<Timestamp>,
}

fn usage(decision: &Decision) -> CounterUsage {
    let outcome = decision.outcomes.first();
    CounterUsage {
        remaining: outcome.map(|outcome| outcome.remaining),
        empty_at: outcome.map(|outcome| decision.at + outcome.reset_after),
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
        let refunds: Vec<_> = charges.iter().map(PendingCharge::as_refund).collect();
        // If the store fails, the charge stays: it rejects too much, never too little. Tried before this thread charges the next
        // request: behind that one, a leaky bucket would give nothing back.
        if self.shared.try_refund_request(&refunds, self.shared.clock.now()).is_some() {
            return;
        }
        // Without a runtime the process is ending; the charge stays.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let shared = Arc::clone(&self.shared);
        runtime.spawn(async move {
            let refunds: Vec<_> = charges.iter().map(PendingCharge::as_refund).collect();
            let _ = shared.refund_request(&refunds, shared.clock.now()).await;
        });
    }
}
