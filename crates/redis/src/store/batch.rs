//! Decisions over many requests at once.

use tidegate_core::{Check, Coordination, Decision, Timestamp};
use tidegate_store::{Store, StoreError};

use super::StoreState;
use super::failure::is_outage;
use super::groups::Decider;

impl StoreState {
    /// Decides several requests in order. If one fails, the units charged for the others stay charged: like those of a
    /// client that leaves.
    pub(super) async fn decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        let mut coordinations = batch.iter().map(|checks| self.settings.coordination_of(checks));
        let first = coordinations.next().flatten();
        match first.filter(|_| coordinations.all(|other| other == first)) {
            Some(Coordination::Central) => self.decide_central_batch(batch, now, decisions).await,
            Some(coordination) => {
                match self.decide_batch_by(coordination.into(), batch, now, decisions).await {
                    Err(error) if is_outage(&error) => self.decide_each(batch, now, decisions).await,
                    result => result,
                }
            }
            None => self.decide_each(batch, now, decisions).await,
        }
    }

    /// Known rejections are served; the rest is one batch.
    async fn decide_central_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        let asked = self.asked_at();
        let mut known: Vec<Option<Decision>> = batch.iter().map(|checks| self.cached(checks)).collect();
        let unknown: Vec<&[Check<'_>]> = batch
            .iter()
            .zip(&known)
            .filter(|(_, known)| known.is_none())
            .map(|(checks, _)| *checks)
            .collect();
        let mut decided = Vec::with_capacity(unknown.len());
        if !unknown.is_empty() {
            match self.central.decide_batch(&unknown, now, &mut decided).await {
                Ok(()) => {}
                Err(error) if is_outage(&error) => {
                    for checks in &unknown {
                        decided.push(self.decide_failed(checks, repeat(&error), now).await?);
                    }
                }
                Err(error) => return Err(error),
            }
            if self.failures.since().is_none() {
                for (checks, decision) in unknown.iter().zip(&decided) {
                    self.remember(checks, decision, asked);
                }
            }
        }
        let mut decided = decided.into_iter();
        decisions.extend(known.iter_mut().filter_map(|known| known.take().or_else(|| decided.next())));
        Ok(())
    }

    async fn decide_each(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        let mut decided = Vec::with_capacity(batch.len());
        for checks in batch {
            decided.push(self.decide(checks, now).await?);
        }
        decisions.append(&mut decided);
        Ok(())
    }

    pub(super) async fn decide_batch_by(
        &self,
        decider: Decider,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        match decider {
            Decider::Static => self.static_share.decide_batch(batch, now, decisions).await,
            Decider::Sync => self.sync.decide_batch(batch, now, decisions).await,
            Decider::Lease => self.lease.decide_batch(batch, now, decisions).await,
            Decider::Central => self.central.decide_batch(batch, now, decisions).await,
            Decider::Fallback | Decider::Nothing => self.fallback.decide_batch(batch, now, decisions).await,
        }
    }
}

/// The same error for another decision.
fn repeat(error: &StoreError) -> StoreError {
    match error {
        StoreError::Protocol { reason } => StoreError::Protocol { reason: reason.clone() },
        error => StoreError::Unavailable(error.to_string().into()),
    }
}
