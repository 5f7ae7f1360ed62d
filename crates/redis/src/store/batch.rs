//! Decisions over many requests at once.

use std::sync::Arc;

use futures_util::future::join_all;
use tidegate_core::{Check, Coordination, Cost, Decision, Limit, OwnedKey, Refund, Timestamp};
use tidegate_store::{Store, StoreError};
use tokio::sync::oneshot;

use super::StoreState;
use super::failure::is_outage;

/// A refund that owns its key and its limit.
struct OwnedRefund {
    key: OwnedKey,
    limit: Limit,
    cost: Cost,
    charged: Timestamp,
}

impl OwnedRefund {
    fn of(refund: &Refund<'_>) -> Self {
        let Refund { key, limit, cost, charged } = *refund;
        Self { key: key.into(), limit: *limit, cost, charged }
    }

    fn as_refund(&self) -> Refund<'_> {
        Refund { key: self.key.as_key(), limit: &self.limit, cost: self.cost, charged: self.charged }
    }
}

impl StoreState {
    /// Decides several requests in order. If one fails, the others are refunded.
    pub(super) async fn decide_batch(
        self: &Arc<Self>,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        let mut coordinations = batch.iter().map(|checks| self.settings.coordination_of(checks));
        let first = coordinations.next().flatten();
        match first.filter(|_| coordinations.all(|other| other == first)) {
            Some(Coordination::Central) => self.decide_central_batch(batch, now, decisions).await,
            Some(coordination) => {
                match self.store_of(coordination.into()).decide_batch(batch, now, decisions).await {
                    Err(error) if is_outage(&error) => self.decide_each(batch, now, decisions).await,
                    result => result,
                }
            }
            None => self.decide_each(batch, now, decisions).await,
        }
    }

    /// Known rejections are served; Redis decides the rest together. Failure modes decide only the requests that failed.
    async fn decide_central_batch(
        self: &Arc<Self>,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        if batch.iter().any(|checks| self.central.needs_attempts(checks)) {
            return self.decide_each(batch, now, decisions).await;
        }
        let asked = self.asked_at();
        let mut known: Vec<Option<Decision>> = batch.iter().map(|checks| self.cached(checks)).collect();
        let unknown: Vec<&[Check<'_>]> = batch
            .iter()
            .zip(&known)
            .filter(|(_, known)| known.is_none())
            .map(|(checks, _)| *checks)
            .collect();
        // Polled in order, so that they are sent in order; all that wait at the same moment share a call.
        let results = join_all(unknown.iter().map(|checks| self.central.decide(checks, now))).await;
        let mut decided = Vec::with_capacity(unknown.len());
        for (checks, result) in unknown.iter().zip(results) {
            decided.push(match result {
                Err(error) if is_outage(&error) => Box::pin(self.decide_failed(checks, error, now)).await,
                result => result.inspect(|decision| self.remember(checks, decision, asked)),
            });
        }
        let mut decided = self.complete_batch(&unknown, decided, now).await?.into_iter();
        decisions.extend(known.iter_mut().filter_map(|known| known.take().or_else(|| decided.next())));
        Ok(())
    }

    async fn decide_each(
        self: &Arc<Self>,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        let mut decided = Vec::with_capacity(batch.len());
        for checks in batch {
            let result = self.decide(checks, now).await;
            let has_failed = result.is_err();
            decided.push(result);
            if has_failed {
                break;
            }
        }
        decisions.append(&mut self.complete_batch(batch, decided, now).await?);
        Ok(())
    }

    /// The decisions of a batch. If one failed, refunds the others and returns why it failed.
    async fn complete_batch(
        self: &Arc<Self>,
        batch: &[&[Check<'_>]],
        decided: Vec<Result<Decision, StoreError>>,
        now: Timestamp,
    ) -> Result<Vec<Decision>, StoreError> {
        if decided.iter().any(Result::is_err) {
            let decisions = batch.iter().zip(&decided);
            let refunds = decisions.filter_map(|(checks, decision)| {
                let refunds = decision.as_ref().ok()?.refunds(checks);
                Some(refunds.iter().map(OwnedRefund::of).collect())
            });
            // An error means that the link has stopped.
            let _ = self.start_refunds(refunds.collect(), now).await;
        }
        decided.into_iter().collect()
    }

    /// Starts refunds that happen even if the caller does not wait for them. The receiver is ready when they have ended.
    fn start_refunds(
        self: &Arc<Self>,
        decisions: Vec<Vec<OwnedRefund>>,
        now: Timestamp,
    ) -> oneshot::Receiver<()> {
        let (sender, ended) = oneshot::channel();
        let state = Arc::clone(self);
        self.link.spawn(async move {
            for refunds in &decisions {
                let refunds: Vec<Refund<'_>> = refunds.iter().map(OwnedRefund::as_refund).collect();
                if let Err(error) = state.refund(&refunds, now).await {
                    tracing::debug!("a refund failed, and the units stay charged: {error}");
                }
            }
            // The caller may no longer wait.
            let _ = sender.send(());
        });
        ended
    }
}
