//! Decisions over several deciders: all or nothing.
//!
//! The groups decide one after another. When one rejects, the earlier ones are refunded and evaluated again, and the later
//! ones are only evaluated, so the outcomes are those of a decision in one store. In between, others may find units charged
//! that are given back: such a decision may reject too much for a moment, but never admits too much.

use futures_util::FutureExt;
use smallvec::{SmallVec, smallvec};
use tidegate_core::{Check, Decision, Refund, Timestamp};
use tidegate_store::StoreError;
use tokio::sync::oneshot;

use super::StoreState;
use super::groups::{Decider, Group, Groups, assemble, group};
use crate::central::{SlotDecision, SlotFailure};

/// A decision over several groups.
#[derive(Debug)]
pub(super) struct ComposedDecision {
    pub(super) decision: Decision,
    /// Whether a failure mode decided a part.
    pub(super) has_failed: bool,
}

type Parts<'a> = SmallVec<[(Group<'a>, Decision); 2]>;
type GroupResults<'a> = SmallVec<[(Group<'a>, Result<Decision, StoreError>); 2]>;

/// The parts of a decision that are charged so far. They are given back on drop: the caller may go away before the decision
/// is made.
struct ChargedParts<'s, 'a> {
    state: &'s StoreState,
    parts: Parts<'a>,
    now: Timestamp,
}

impl<'a> ChargedParts<'_, 'a> {
    /// The request is admitted.
    fn keep(mut self) -> Parts<'a> {
        std::mem::take(&mut self.parts)
    }

    /// Gives everything back, and waits for Redis.
    async fn undo(mut self) -> Parts<'a> {
        let (state, parts) = (self.state, std::mem::take(&mut self.parts));
        let start = |(group, decision): &(Group<'a>, Decision)| state.start_undo(group, decision, self.now);
        let started: SmallVec<[_; 2]> = parts.iter().map(start).collect();
        for (refund, (group, decision)) in started.into_iter().zip(&parts) {
            if let Some(ended) = refund {
                // An error means that the link has stopped.
                let _ = ended.await;
                state.forget_rejections(&decision.refunds(&group.checks));
            }
        }
        parts
    }
}

impl Drop for ChargedParts<'_, '_> {
    fn drop(&mut self) {
        for (group, decision) in &self.parts {
            let _ = self.state.start_undo(group, decision, self.now);
        }
    }
}

impl StoreState {
    /// The groups of `checks` while Redis works.
    pub(super) fn groups<'a>(&self, checks: &[Check<'a>]) -> Groups<'a> {
        group(checks.iter().copied().enumerate(), |check| {
            self.settings.coordination(check.key.rule, check.limit).into()
        })
    }

    /// Decides `groups` of `checks` in turn.
    pub(super) async fn decide_groups<'a>(
        &self,
        checks: &[Check<'a>],
        mut waiting: Groups<'a>,
        now: Timestamp,
    ) -> Result<ComposedDecision, StoreError> {
        let mut charged = ChargedParts { state: self, parts: Parts::new(), now };
        let mut has_failed = false;
        while let Some(group) = waiting.pop() {
            let (mut rejected, mut failed) = (None, None);
            for (group, result) in self.decide_group(group, now).await {
                match result {
                    Ok(decision) if decision.passes() => charged.parts.push((group, decision)),
                    Ok(decision) => rejected = Some((group, decision)),
                    Err(error) => failed = Some((group, error)),
                }
            }
            has_failed |= failed.is_some();
            if let Some(rejected) = rejected {
                // A rejection stands, whatever the slots that failed would have said.
                if let Some((group, error)) = failed {
                    waiting.extend(self.peek_groups_of_failed(group, &error));
                }
                waiting.extend(charged.undo().await.into_iter().map(|(group, _)| group));
                let decision = self.reject(checks, rejected, waiting, now).await;
                return Ok(ComposedDecision { decision, has_failed });
            }
            if let Some((group, error)) = failed {
                match self.replace_failed(group, error) {
                    Ok(groups) => waiting.extend(groups),
                    Err(error) => {
                        charged.undo().await;
                        return Err(error);
                    }
                }
            }
        }
        let done = charged.keep();
        let decision = assemble(checks, done.iter().map(|(group, decision)| (&*group.positions, decision)));
        Ok(ComposedDecision { decision, has_failed })
    }

    /// Decides one group. If some hash slots fail, their checks are a group of their own.
    async fn decide_group<'a>(&self, group: Group<'a>, now: Timestamp) -> GroupResults<'a> {
        if group.decider != Decider::Central || !self.central.needs_attempts(&group.checks) {
            let result = self.store_of(group.decider).decide(&group.checks, now).await;
            return smallvec![(group, result)];
        }
        let SlotDecision { positions, decision, failure } =
            self.central.decide_slots(&group.checks, now).await;
        let mut results = GroupResults::new();
        if !positions.is_empty() {
            results.push((group.part(&positions), Ok(decision)));
        }
        if let Some(SlotFailure { positions, error }) = failure {
            results.push((group.part(&positions), Err(error)));
        }
        results
    }

    /// The rejection by one group, with the outcomes of the `others` as they are.
    async fn reject<'a>(
        &self,
        checks: &[Check<'a>],
        rejected: (Group<'a>, Decision),
        others: Groups<'a>,
        now: Timestamp,
    ) -> Decision {
        let mut parts = Parts::new();
        for group in others {
            let decision = match self.store_of(group.decider).peek(&group.checks, now).await {
                Ok(decision) => decision,
                Err(error) => self.peek_after_failure(&group.checks, &error, now).await,
            };
            parts.push((group, decision));
        }
        parts.push(rejected);
        assemble(checks, parts.iter().map(|(group, decision)| (&*group.positions, decision)))
    }

    /// Gives back what a part charged. Counters of this node are changed at once; for Redis there is a receiver to wait for,
    /// but the refund happens in any case.
    fn start_undo(
        &self,
        group: &Group<'_>,
        decision: &Decision,
        now: Timestamp,
    ) -> Option<oneshot::Receiver<()>> {
        let refunds = decision.refunds(&group.checks);
        if refunds.is_empty() {
            return None;
        }
        if group.decider == Decider::Central {
            return Some(self.central.start_refund(&refunds, now));
        }
        if group.decider == Decider::Lease {
            // Most units are those of this node; the decision does not wait for the others.
            drop(self.lease.start_refund(&refunds, now));
        } else if let Some(Err(error)) = self.store_of(group.decider).refund(&refunds, now).now_or_never() {
            tracing::debug!("a refund failed, and the units stay charged: {error}");
        }
        self.forget_rejections(&refunds);
        None
    }

    /// Others may have been rejected because of units that were given back.
    fn forget_rejections(&self, refunds: &[Refund<'_>]) {
        for refund in refunds {
            self.rejections.forget(self.link.names().counter(refund.key).as_bytes());
        }
    }

    /// Evaluates every group.
    pub(super) async fn peek_groups(
        &self,
        checks: &[Check<'_>],
        mut waiting: Groups<'_>,
        now: Timestamp,
    ) -> Result<Decision, StoreError> {
        let mut done = Parts::new();
        while let Some(group) = waiting.pop() {
            match self.store_of(group.decider).peek(&group.checks, now).await {
                Ok(decision) => done.push((group, decision)),
                Err(error) => waiting.extend(self.failure_groups(group, error)?),
            }
        }
        Ok(assemble(checks, done.iter().map(|(group, decision)| (&*group.positions, decision))))
    }
}
