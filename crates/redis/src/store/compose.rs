//! Decisions over several deciders: all or nothing.
//!
//! The groups decide one after another. When one rejects, the earlier ones are refunded and evaluated again, and the later
//! ones are only evaluated, so the outcomes are those of a decision in one store. In between, others may find units charged
//! that are given back: such a decision may reject too much for a moment, but never admits too much.

use smallvec::SmallVec;
use tidegate_core::{Check, Decision, Outcomes, Timestamp};
use tidegate_store::{Store, StoreError};

use super::StoreState;
use super::groups::{Decider, Group, Groups, assemble, group, unlimited};

/// A decision over several groups.
#[derive(Debug)]
pub(super) struct ComposedDecision {
    pub(super) decision: Decision,
    /// Whether a failure mode decided a part.
    pub(super) has_failed: bool,
}

type Parts<'a> = SmallVec<[(Group<'a>, Decision); 2]>;

impl StoreState {
    /// The groups of `checks` while Redis works.
    pub(super) fn groups<'a>(&self, checks: &[Check<'a>]) -> Groups<'a> {
        group(checks.iter().copied().enumerate(), |check| {
            self.settings.of(check.key.rule).coordination.into()
        })
    }

    /// Decides `groups` of `checks` in turn.
    pub(super) async fn decide_groups<'a>(
        &self,
        checks: &[Check<'a>],
        mut waiting: Groups<'a>,
        now: Timestamp,
    ) -> Result<ComposedDecision, StoreError> {
        let (mut done, mut has_failed) = (Parts::new(), false);
        while let Some(group) = waiting.pop() {
            match self.decide_by(group.decider, &group.checks, now).await {
                Ok(decision) if decision.passes() => done.push((group, decision)),
                Ok(decision) => {
                    self.undo(&done, now).await;
                    waiting.extend(done.into_iter().map(|(group, _)| group));
                    let decision = self.reject(checks, (group, decision), waiting, now).await;
                    return Ok(ComposedDecision { decision, has_failed });
                }
                Err(error) => match self.replace_failed(group, error) {
                    Ok(groups) => {
                        has_failed = true;
                        waiting.extend(groups);
                    }
                    Err(error) => {
                        self.undo(&done, now).await;
                        return Err(error);
                    }
                },
            }
        }
        let decision = assemble(checks, done.iter().map(|(group, decision)| (&*group.positions, decision)));
        Ok(ComposedDecision { decision, has_failed })
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
            let decision = match self.peek_by(group.decider, &group.checks, now).await {
                Ok(decision) => decision,
                Err(_) => self.peek_after_failure(&group.checks, now).await,
            };
            parts.push((group, decision));
        }
        parts.push(rejected);
        assemble(checks, parts.iter().map(|(group, decision)| (&*group.positions, decision)))
    }

    /// Gives back what `parts` charged. Parts that were decided by this node cannot fail; Redis decides last, so the
    /// decision of another group never follows its charge.
    async fn undo(&self, parts: &Parts<'_>, now: Timestamp) {
        for (group, decision) in parts {
            let refunds = decision.refunds(&group.checks);
            if refunds.is_empty() {
                continue;
            }
            if let Err(error) = self.refund_by(group.decider, &refunds, now).await {
                tracing::debug!("a refund failed, and the units stay charged: {error}");
            }
            // Others may have been rejected because of these units.
            for refund in &refunds {
                self.rejections.forget(self.link.names().counter(refund.key).as_bytes());
            }
        }
    }

    pub(super) async fn decide_by(
        &self,
        decider: Decider,
        checks: &[Check<'_>],
        now: Timestamp,
    ) -> Result<Decision, StoreError> {
        match decider {
            Decider::Static => self.static_share.decide(checks, now).await,
            Decider::Sync => self.sync.decide(checks, now).await,
            Decider::Lease => self.lease.decide(checks, now).await,
            Decider::Central => self.central.decide(checks, now).await,
            Decider::Fallback => self.fallback.decide(checks, now).await,
            Decider::Nothing => Ok(pass(checks, now)),
        }
    }

    pub(super) async fn peek_by(
        &self,
        decider: Decider,
        checks: &[Check<'_>],
        now: Timestamp,
    ) -> Result<Decision, StoreError> {
        match decider {
            Decider::Static => self.static_share.peek(checks, now).await,
            Decider::Sync => self.sync.peek(checks, now).await,
            Decider::Lease => self.lease.peek(checks, now).await,
            Decider::Central => self.central.peek(checks, now).await,
            Decider::Fallback => self.fallback.peek(checks, now).await,
            Decider::Nothing => Ok(pass(checks, now)),
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
            match self.peek_by(group.decider, &group.checks, now).await {
                Ok(decision) => done.push((group, decision)),
                Err(error) => waiting.extend(self.failure_groups(group, error)?),
            }
        }
        Ok(assemble(checks, done.iter().map(|(group, decision)| (&*group.positions, decision))))
    }
}

/// The decision over checks that nothing limits and nothing counts, so that there is nothing to refund.
fn pass(checks: &[Check<'_>], now: Timestamp) -> Decision {
    let outcomes: Outcomes = checks.iter().map(unlimited).collect();
    Decision::new(now, checks, outcomes).with_charge_times(checks.iter().map(|_| None))
}
