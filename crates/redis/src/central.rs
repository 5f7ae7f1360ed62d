//! The central store: Redis makes every decision.

use std::sync::Arc;

use futures_util::future::join_all;
use tidegate_core::{Check, Cost, CounterKey, Decision, Outcome, Outcomes, Refund, Role, Timestamp};
use tidegate_store::{Clock, Override, Store, StoreError};

use crate::config::RedisConfig;
use crate::link::{Link, LinkReport};
use crate::operation::{AttemptId, CounterCheck, CounterRefund, Operation, OperationReply};

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

    async fn change(&self, operation: Operation, now: Timestamp) -> Result<(), StoreError> {
        match self.link.call(operation, now).await? {
            OperationReply::Done(_) => Ok(()),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Whether the checks may be in several hash slots. The counters of one client share a slot.
    fn needs_attempts(&self, checks: &[Check<'_>]) -> bool {
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

    /// Decides checks of several hash slots: charges them where they fit, and takes that back if any slot rejects or fails.
    /// It may briefly reject too much, but never admits too much.
    async fn decide_across_slots(
        &self,
        checks: &[Check<'_>],
        mut groups: Vec<SlotGroup>,
        now: Timestamp,
    ) -> Result<Decision, StoreError> {
        let attempt = AttemptId::random();
        let replies = self
            .per_slot(&groups, |group| Some(Operation::Attempt(group.checks.clone(), attempt)), now)
            .await;
        let mut failure = None;
        for (group, reply) in groups.iter_mut().zip(replies) {
            match reply {
                Some(Ok((at, outcomes))) => group.reply = Some((at, outcomes)),
                Some(Err(error)) => failure = Some(error),
                None => {}
            }
        }
        let passes = groups.iter().all(SlotGroup::passes);
        if failure.is_some() || !passes {
            let cancelled = self.per_slot(&groups, |group| group.cancellation(attempt), now).await;
            for (group, reply) in groups.iter_mut().zip(cancelled) {
                match (reply, &mut group.reply) {
                    // The verdicts stay; what is left is what was left before.
                    (Some(Ok((_, left))), Some((_, outcomes))) => {
                        for (outcome, left) in outcomes.iter_mut().zip(left) {
                            *outcome = Outcome { verdict: outcome.verdict, ..left };
                        }
                    }
                    (Some(Err(error)), _) => failure = failure.or(Some(error)),
                    _ => {}
                }
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }
        Ok(merge(checks, groups, now))
    }
}

/// The checks of one hash slot.
struct SlotGroup {
    /// Their positions in the decision.
    positions: Vec<usize>,
    checks: Vec<CounterCheck>,
    reply: Option<(Timestamp, Outcomes)>,
}

impl SlotGroup {
    fn all(checks: Vec<CounterCheck>) -> Self {
        Self { positions: (0..checks.len()).collect(), checks, reply: None }
    }

    fn split(checks: Vec<CounterCheck>) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for (position, check) in checks.into_iter().enumerate() {
            let slot = check.key.slot();
            let same = |group: &&mut Self| group.checks.first().is_some_and(|first| first.key.slot() == slot);
            match groups.iter_mut().find(same) {
                Some(group) => {
                    group.positions.push(position);
                    group.checks.push(check);
                }
                None => groups.push(Self { positions: vec![position], checks: vec![check], reply: None }),
            }
        }
        groups
    }

    /// Whether every binding check fits.
    fn passes(&self) -> bool {
        self.reply.as_ref().is_some_and(|(_, outcomes)| {
            let mut pairs = self.checks.iter().zip(outcomes);
            pairs.all(|(check, outcome)| check.role != Role::Binding || outcome.verdict.is_pass())
        })
    }

    /// What takes back the charge of an attempt; `None` if it has charged nothing.
    fn cancellation(&self, attempt: AttemptId) -> Option<Operation> {
        let (charged, outcomes) = self.reply.as_ref().filter(|_| self.passes())?;
        let charged_cost = |(check, outcome): (&CounterCheck, &Outcome)| {
            let is_charged = outcome.verdict.is_pass() || check.role == Role::Overage;
            CounterCheck { cost: if is_charged { check.cost } else { Cost::ZERO }, ..check.clone() }
        };
        let checks = self.checks.iter().zip(outcomes).map(charged_cost).collect();
        Some(Operation::Cancel { checks, charged: *charged, attempt })
    }
}

/// Puts the outcomes of all slots in the order of `checks`. Each check keeps the time of its own server.
fn merge(checks: &[Check<'_>], groups: Vec<SlotGroup>, now: Timestamp) -> Decision {
    let at = groups.iter().filter_map(|group| group.reply.as_ref()).map(|(at, _)| *at).max().unwrap_or(now);
    let mut placed: Vec<(usize, Timestamp, Outcome)> = Vec::with_capacity(checks.len());
    for SlotGroup { positions, reply, .. } in groups {
        let (charged, outcomes) = reply.unwrap_or_default();
        placed.extend(positions.into_iter().zip(outcomes).map(|(place, outcome)| (place, charged, outcome)));
    }
    placed.sort_unstable_by_key(|(position, ..)| *position);
    let outcomes = placed.iter().map(|(.., outcome)| *outcome).collect();
    Decision::new(at, checks, outcomes).with_charge_times(placed.iter().map(|(_, charged, _)| Some(*charged)))
}

fn unexpected(reply: &OperationReply) -> StoreError {
    let reason = match reply {
        OperationReply::NewerFormat => "a newer version wrote this counter; update this node",
        _ => "the reply does not match the operation",
    };
    StoreError::Protocol { reason: reason.to_owned() }
}

impl Store for CentralStore {
    async fn decide(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        if checks.is_empty() {
            return Ok(Decision::of_none(now));
        }
        let named = self.checks(checks);
        if self.link.has_slots() {
            let groups = SlotGroup::split(named);
            if let [group] = groups.as_slice() {
                let (at, outcomes) = self.outcomes(Operation::Decide(group.checks.clone()), now).await?;
                return Ok(Decision::new(at, checks, outcomes));
            }
            return self.decide_across_slots(checks, groups, now).await;
        }
        let (at, outcomes) = self.outcomes(Operation::Decide(named), now).await?;
        Ok(Decision::new(at, checks, outcomes))
    }

    async fn decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        let mut decided = Vec::with_capacity(batch.len());
        if batch.iter().any(|checks| self.needs_attempts(checks)) {
            // A later decision must not see what an earlier one charges and then takes back.
            for checks in batch {
                decided.push(self.decide(checks, now).await?);
            }
        } else {
            // Polled in order, so that they are sent in order; all that wait at the same moment share a call.
            for decision in join_all(batch.iter().map(|checks| self.decide(checks, now))).await {
                decided.push(decision?);
            }
        }
        decisions.append(&mut decided);
        Ok(())
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
            group.reply = reply.transpose()?;
        }
        Ok(merge(checks, groups, now))
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<(), StoreError> {
        if refunds.is_empty() {
            return Ok(());
        }
        let named = |refund: &Refund<'_>| CounterRefund {
            key: self.link.names().counter(refund.key),
            limit: *refund.limit,
            cost: refund.cost,
            charged: refund.charged,
        };
        let mut named: Vec<CounterRefund> = refunds.iter().map(named).collect();
        if !self.link.has_slots() {
            return self.change(Operation::Refund(named), now).await;
        }
        named.sort_by_key(|refund| refund.key.slot());
        let per_slot = named.chunk_by(|a, b| a.key.slot() == b.key.slot());
        let calls = per_slot.map(|refunds| self.change(Operation::Refund(refunds.to_vec()), now));
        join_all(calls).await.into_iter().collect()
    }

    async fn reset(&self, key: CounterKey<'_>) -> Result<(), StoreError> {
        self.change(Operation::Reset(self.link.names().counter(key)), Timestamp::ZERO).await
    }

    async fn override_limit(
        &self,
        key: CounterKey<'_>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.change(Operation::Override(self.link.names().counter(key), replacement), now).await
    }
}
