//! Gives charges back to the store.

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Check, Cost, CounterState, Decision, Refund, Timestamp};
use tidegate_store::{Store, StoreError};

use crate::limiter::SharedStore;

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
        if self.has_reset(refunds) {
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

    /// Refunds units of one charge, without saying whether its counter gave them back.
    pub(super) async fn refund_part(&self, refunds: &[Refund<'_>]) -> Result<(), StoreError> {
        if self.has_reset(refunds) {
            return Ok(());
        }
        self.store.refund(refunds, self.clock.now()).await
    }

    /// Whether the counter of a charge was reset after it.
    fn has_reset(&self, refunds: &[Refund<'_>]) -> bool {
        refunds.first().is_some_and(|refund| self.resets.has_removed(refund))
    }

    /// Refunds all charges of a request, or none of them if one of its leaky buckets would give nothing back: otherwise a
    /// client could fill a bucket that others share, and have its own charge back.
    ///
    /// Like [`Self::refund_charge`], this is a best effort: another request can arrive before the refund.
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
