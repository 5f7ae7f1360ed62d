//! Gives charges back to the store.

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Check, Cost, CounterState, Decision, Refund, Timestamp};
use tidegate_store::{Store, StoreError};

use crate::limiter::SharedStore;

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
    ///
    /// This is a best effort: another request can arrive before the refund.
    pub(super) async fn refund_request(
        &self,
        refunds: &[Refund<'_>],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let latest = latest_departures(refunds);
        if latest.is_empty() || are_last(&latest, &self.store.peek(&peeks(&latest), now).await?) {
            self.store.refund(refunds, now).await?;
        }
        Ok(())
    }

    /// Refunds like [`refund_request`](Self::refund_request), if the store need not be awaited.
    pub(super) fn try_refund_request(
        &self,
        refunds: &[Refund<'_>],
        now: Timestamp,
    ) -> Option<Result<(), StoreError>> {
        let latest = latest_departures(refunds);
        if !latest.is_empty() {
            match self.store.try_peek(&peeks(&latest), now)? {
                Ok(decision) if are_last(&latest, &decision) => {}
                peeked => return Some(peeked.map(drop)),
            }
        }
        self.store.try_refund(refunds, now).map(|refunded| refunded.map(drop))
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

/// When a leaky bucket is empty from which nothing departs after this charge; `None` if the bucket never gives a departure
/// back.
fn drained_by(&Refund { limit, cost, charged, .. }: &Refund<'_>) -> Option<Timestamp> {
    let mut alone = CounterState::default();
    limit.charge(&mut alone, charged, cost);
    let drained = charged + limit.evaluate(&alone, charged, Cost::ZERO).reset_after;
    limit.refund(&mut alone, charged, charged, cost);
    limit.is_fresh(&alone, charged).then_some(drained)
}
