//! The central store: Redis makes every decision.

mod slots;

use std::sync::Arc;

use futures_util::future::join_all;
use tidegate_core::{Check, CounterKey, Decision, Outcome, Outcomes, Refund, Timestamp};
use tidegate_store::{Clock, Override, Store, StoreError};
use tokio::sync::oneshot;

use crate::config::RedisConfig;
use crate::link::{Link, LinkError, LinkReport};
use crate::operation::{AttemptId, CounterCheck, CounterRefund, FOREIGN_ENTRY, Operation, OperationReply};
pub(crate) use slots::{SlotDecision, SlotFailure};
use slots::{SlotGroup, merge};

/// Counters in Redis; one script call decides.
#[derive(Clone, Debug)]
pub struct CentralStore {
    link: Arc<Link>,
}

impl CentralStore {
    /// A store that connects when it is first used.
    pub fn new(config: RedisConfig, clock: Arc<dyn Clock>) -> Self {
        Self::with_link(Arc::new(Link::new(config, clock)))
    }

    /// Waits until every server is connected. The store can be used before that: decisions then wait, or fail.
    pub async fn connected(&self) {
        self.link.wait_until_connected().await;
    }

    /// The state and the counts of the connection.
    pub fn link_report(&self) -> LinkReport {
        self.link.report()
    }

    pub(crate) fn with_link(link: Arc<Link>) -> Self {
        Self { link }
    }

    fn checks<'a>(&self, checks: impl IntoIterator<Item = &'a Check<'a>>) -> Vec<CounterCheck> {
        let named = |check: &Check<'_>| CounterCheck {
            key: self.link.names().counter(check.key),
            limit: *check.limit,
            cost: check.cost,
            role: check.role,
        };
        checks.into_iter().map(named).collect()
    }

    async fn outcomes(
        &self,
        operation: Operation,
        now: Timestamp,
    ) -> Result<(Timestamp, Outcomes), StoreError> {
        match self.link.call(operation, now).await? {
            OperationReply::Outcomes(at, outcomes) => Ok((at, outcomes)),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Returns whether the operation had an effect: a refund may have none.
    async fn change(&self, operation: Operation, now: Timestamp) -> Result<bool, StoreError> {
        match self.link.call(operation, now).await? {
            OperationReply::Done(_) => Ok(true),
            OperationReply::Unchanged => Ok(false),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Whether the checks may be in several hash slots. The counters of one client share a slot.
    pub(crate) fn needs_attempts(&self, checks: &[Check<'_>]) -> bool {
        let client = checks.first().map(|check| check.key.client);
        self.link.has_slots() && checks.iter().any(|check| Some(check.key.client) != client)
    }

    /// Runs `operation` on the checks of each hash slot, all slots at the same time.
    async fn per_slot(
        &self,
        groups: &[SlotGroup],
        operation: impl Fn(&SlotGroup) -> Option<Operation>,
        now: Timestamp,
    ) -> Vec<Option<Result<(Timestamp, Outcomes), StoreError>>> {
        let calls = groups.iter().map(|group| {
            let operation = operation(group);
            async {
                match operation {
                    Some(operation) => Some(self.outcomes(operation, now).await),
                    None => None,
                }
            }
        });
        join_all(calls).await
    }

    /// Decides checks of several hash slots: charges them where they fit, and takes that back if any slot rejects. It may
    /// briefly reject too much, but never admits too much.
    ///
    /// A slot that fails says nothing about the others: if one of them rejects, the decision is a rejection; otherwise they
    /// stay charged, and the caller decides the checks of the failed slot.
    pub(crate) async fn decide_slots(&self, checks: &[Check<'_>], now: Timestamp) -> SlotDecision {
        let mut groups = SlotGroup::split(self.checks(checks));
        if let [group] = groups.as_mut_slice() {
            let operation = Operation::Decide(std::mem::take(&mut group.checks));
            group.reply = Some(self.outcomes(operation, now).await);
            return SlotDecision::new(checks, groups, now);
        }
        let (sender, receiver) = oneshot::channel();
        let attempt = AttemptId::random();
        let mut attempted = AttemptGuard { store: self.clone(), groups, attempt, now };
        // In a task of its own, so that it ends in a defined state even if the caller goes away.
        self.link.spawn(async move {
            let AttemptGuard { store, groups, .. } = &mut attempted;
            store.attempt(groups, attempt, now).await;
            // If the caller no longer waits, dropping the attempt cancels it.
            let _ = sender.send(attempted);
        });
        match receiver.await {
            Ok(attempted) => SlotDecision::new(checks, attempted.keep(), now),
            Err(_) => SlotDecision::failed(checks, LinkError::Stopped.into(), now),
        }
    }

    /// Charges the checks of each slot if they fit there, and takes that back if any slot rejects.
    async fn attempt(&self, groups: &mut [SlotGroup], attempt: AttemptId, now: Timestamp) {
        let replies =
            self.per_slot(groups, |group| Some(Operation::Attempt(group.checks.clone(), attempt)), now).await;
        for (group, reply) in groups.iter_mut().zip(replies) {
            group.reply = reply;
        }
        if !groups.iter().any(SlotGroup::rejects) {
            return;
        }
        let cancelled = self.per_slot(groups, |group| group.cancellation(attempt), now).await;
        for (group, reply) in groups.iter_mut().zip(cancelled) {
            match (reply, &mut group.reply) {
                // The verdicts stay; what is left is what was left before.
                (Some(Ok((_, left))), Some(Ok((_, outcomes)))) => {
                    for (outcome, left) in outcomes.iter_mut().zip(left) {
                        *outcome = Outcome { verdict: outcome.verdict, ..left };
                    }
                }
                (Some(Err(error)), _) => {
                    tracing::debug!("a cancellation failed, and the units stay charged: {error}");
                }
                _ => {}
            }
        }
    }

    /// Sets an override again, in case Redis has lost it.
    pub(crate) async fn restore_override(
        &self,
        key: CounterKey<'_>,
        replacement: Override,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let operation = Operation::RestoreOverride(self.link.names().counter(key), replacement);
        self.change(operation, now).await.map(drop)
    }

    /// Starts a refund that happens even if the caller does not wait for it. The receiver is ready when it has ended.
    pub(crate) fn start_refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> oneshot::Receiver<()> {
        let (sender, ended) = oneshot::channel();
        let (store, operations) = (self.clone(), self.refund_operations(refunds));
        self.link.spawn(async move {
            let calls = operations.into_iter().map(|operation| store.change(operation, now));
            for error in join_all(calls).await.into_iter().filter_map(Result::err) {
                tracing::debug!("a refund failed, and the units stay charged: {error}");
            }
            // The caller may no longer wait.
            let _ = sender.send(());
        });
        ended
    }

    /// One operation per hash slot.
    fn refund_operations(&self, refunds: &[Refund<'_>]) -> Vec<Operation> {
        let named = |refund: &Refund<'_>| CounterRefund {
            key: self.link.names().counter(refund.key),
            limit: *refund.limit,
            cost: refund.cost,
            charged: refund.charged,
        };
        let mut named: Vec<CounterRefund> = refunds.iter().map(named).collect();
        if !self.link.has_slots() {
            return vec![Operation::Refund(named)];
        }
        named.sort_by_key(|refund| refund.key.slot());
        let per_slot = named.chunk_by(|a, b| a.key.slot() == b.key.slot());
        per_slot.map(|refunds| Operation::Refund(refunds.to_vec())).collect()
    }
}

/// An attempt whose result the caller has not taken yet. Dropping it cancels what it charged.
struct AttemptGuard {
    store: CentralStore,
    groups: Vec<SlotGroup>,
    attempt: AttemptId,
    now: Timestamp,
}

impl AttemptGuard {
    /// The result; the charge stays.
    fn keep(mut self) -> Vec<SlotGroup> {
        std::mem::take(&mut self.groups)
    }
}

impl Drop for AttemptGuard {
    fn drop(&mut self) {
        let groups = std::mem::take(&mut self.groups);
        // A rejected attempt has been cancelled already.
        if groups.is_empty() || groups.iter().any(SlotGroup::rejects) {
            return;
        }
        let (store, attempt, now) = (self.store.clone(), self.attempt, self.now);
        self.store.link.spawn(async move {
            store.per_slot(&groups, |group| group.cancellation(attempt), now).await;
        });
    }
}

fn unexpected(reply: &OperationReply) -> StoreError {
    let reason = match reply {
        OperationReply::NewerFormat => FOREIGN_ENTRY,
        _ => "the reply does not match the operation",
    };
    StoreError::Protocol { reason: reason.to_owned() }
}

impl Store for CentralStore {
    async fn decide(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        if checks.is_empty() {
            return Ok(Decision::of_none(now));
        }
        if self.needs_attempts(checks) {
            let SlotDecision { positions, decision, failure } = self.decide_slots(checks, now).await;
            let Some(SlotFailure { error, .. }) = failure else { return Ok(decision) };
            let decided: Vec<Check<'_>> =
                positions.iter().filter_map(|place| checks.get(*place)).copied().collect();
            if decision.passes() {
                // If the caller goes away, the refund happens nevertheless.
                let _ = self.start_refund(&decision.refunds(&decided), now).await;
                return Err(error);
            }
            return Ok(slots::rejection(checks, &positions, &decision));
        }
        let (at, outcomes) = self.outcomes(Operation::Decide(self.checks(checks)), now).await?;
        Ok(Decision::new(at, checks, outcomes))
    }

    async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        if checks.is_empty() {
            return Ok(Decision::of_none(now));
        }
        let named = self.checks(checks);
        let mut groups =
            if self.link.has_slots() { SlotGroup::split(named) } else { vec![SlotGroup::all(named)] };
        let replies = self.per_slot(&groups, |group| Some(Operation::Peek(group.checks.clone())), now).await;
        for (group, reply) in groups.iter_mut().zip(replies) {
            group.reply = Some(Ok(reply.transpose()?.unwrap_or_default()));
        }
        Ok(merge(checks, &groups, now))
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<bool, StoreError> {
        if refunds.is_empty() {
            return Ok(false);
        }
        let operations = self.refund_operations(refunds).into_iter();
        let results = join_all(operations.map(|operation| self.change(operation, now))).await;
        results.into_iter().try_fold(false, |any, result| Ok(any | result?))
    }

    async fn reset(&self, key: CounterKey<'_>) -> Result<(), StoreError> {
        self.change(Operation::Reset(self.link.names().counter(key)), Timestamp::ZERO).await.map(drop)
    }

    async fn override_limit(
        &self,
        key: CounterKey<'_>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.change(Operation::Override(self.link.names().counter(key), replacement), now).await.map(drop)
    }
}
