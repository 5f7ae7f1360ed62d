//! The central store: Redis makes every decision.

use std::sync::Arc;

use tidegate_core::{Check, CounterKey, Decision, Outcomes, Refund, Timestamp};
use tidegate_store::{Clock, Override, Store, StoreError};

use crate::config::RedisConfig;
use crate::link::{Link, LinkReport};
use crate::operation::{CounterCheck, CounterRefund, Operation, OperationReply};

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

    fn checks(&self, checks: &[Check<'_>]) -> Vec<CounterCheck> {
        let named = |check: &Check<'_>| CounterCheck {
            key: self.link.names().counter(check.key),
            limit: *check.limit,
            cost: check.cost,
            role: check.role,
        };
        checks.iter().map(named).collect()
    }

    async fn outcomes(
        &self,
        operation: Operation,
        now: Timestamp,
    ) -> Result<(Timestamp, Outcomes), StoreError> {
        match self.link.call(operation, now).await? {
            OperationReply::Outcomes(at, outcomes) => Ok((at, outcomes)),
            OperationReply::Done(_) => {
                Err(StoreError::Protocol { reason: "no outcomes in the reply".to_owned() })
            }
        }
    }
}

impl Store for CentralStore {
    async fn decide(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        let (at, outcomes) = self.outcomes(Operation::Decide(self.checks(checks)), now).await?;
        Ok(Decision::new(at, checks, outcomes))
    }

    async fn decide_batch(
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

    async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        let (at, outcomes) = self.outcomes(Operation::Peek(self.checks(checks)), now).await?;
        Ok(Decision::new(at, checks, outcomes))
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<(), StoreError> {
        let named = |refund: &Refund<'_>| CounterRefund {
            key: self.link.names().counter(refund.key),
            limit: *refund.limit,
            cost: refund.cost,
            charged: refund.charged,
        };
        self.link.call(Operation::Refund(refunds.iter().map(named).collect()), now).await.map(drop)
    }

    async fn reset(&self, key: CounterKey<'_>) -> Result<(), StoreError> {
        self.link.call(Operation::Reset(self.link.names().counter(key)), Timestamp::ZERO).await.map(drop)
    }

    async fn override_limit(
        &self,
        key: CounterKey<'_>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.link.call(Operation::Override(self.link.names().counter(key), replacement), now).await.map(drop)
    }
}
