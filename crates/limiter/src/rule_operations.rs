//! Operations on rules for clients that the caller has identified, and checks of limits that the caller supplies.

use thiserror::Error;
use tidegate_core::{Check, Cost, CounterKey, Decision, Refund, Timestamp};
use tidegate_policy::{ActivePolicy, Exclusion, RuntimeData, Scratch};
use tidegate_store::{Store, StoreError};

use crate::conclusion::SkipReason;
use crate::decision::Charging;
use crate::limiter::{Limiter, RuleCheck};
use crate::ruling::Ruling;

/// The policy has no rate limit with the name that the caller gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the policy has no such rule")]
pub struct UnknownRule;

/// Why an operation on a rule failed.
#[derive(Debug, Error)]
pub enum RuleError {
    /// The policy has no such rule.
    #[error(transparent)]
    NoRule(#[from] UnknownRule),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl<S: Store + 'static> Limiter<S> {
    /// Checks several rules in one decision: all are charged or none is. Each has a client of its own; if one of them is banned,
    /// so is the whole, and the rules of an exempt one are left out.
    pub async fn check_rules<'a>(
        &self,
        policy: &'a ActivePolicy,
        checks: &[RuleCheck<'_>],
        scratch: &'a mut Scratch,
        now: Timestamp,
    ) -> Result<Ruling<'a>, UnknownRule> {
        let bans = self.bans();
        let runtime = RuntimeData { directory: policy.directory.as_deref(), bans: Some(&bans) };
        let (mut counted, mut exempt, mut banned) = (Vec::with_capacity(checks.len()), None, None);
        for check in checks {
            match policy.matcher.exclusion(check.client, runtime, now) {
                None => counted.push((check.rule, check.client.key(), check.cost)),
                Some(Exclusion::Banned(by)) => {
                    banned = Some(SkipReason::excluded(by));
                    break;
                }
                Some(Exclusion::Exempt(why)) => exempt = Some(SkipReason::Exempt(why)),
            }
        }
        let found = match banned.or(exempt.filter(|_| counted.is_empty())) {
            Some(reason) => Err(reason),
            None => Ok(policy.matcher.match_rules(&counted, scratch).ok_or(UnknownRule)?),
        };
        Ok(self.decide(policy, now.into(), Charging::On, move || found).await)
    }

    /// Refunds units of a rule that were charged at `charged`; without it, units that count now. What its counter no longer
    /// contains is not refunded. Returns whether anything was refunded. A leaky bucket gives back only a whole charge, and only
    /// while no later request waits; a log gives back only what was charged at exactly `charged`; if an override has begun or
    /// ended since, the part that is left is unknown.
    pub async fn refund_rule(
        &self,
        policy: &ActivePolicy,
        RuleCheck { rule, client, cost }: RuleCheck<'_>,
        charged: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<bool, RuleError> {
        let mut scratch = Scratch::default();
        let matched = policy.matcher.match_rule(rule, client.key(), cost, &mut scratch);
        let matched = matched.ok_or(UnknownRule)?;
        let charged = if let Some(charged) = charged {
            charged
        } else {
            // Charges have the time of the store, which may have another clock.
            let peeks: Vec<_> = matched.checks().iter().map(|check| check.cost(Cost::ZERO)).collect();
            self.store().peek(&peeks, now).await?.at
        };
        let refunds: Vec<_> = matched
            .checks()
            .iter()
            .map(|check| Refund { key: check.key, limit: check.limit, cost: check.cost, charged })
            .collect();
        Ok(self.shared.refund_charge(&refunds, now).await?)
    }

    /// Resets the counter of a client under a rule, and ends its lock-out.
    pub async fn reset_rule(
        &self,
        policy: &ActivePolicy,
        (rule, client): (&str, &[u8]),
    ) -> Result<(), RuleError> {
        let (mut scratch, cost) = (Scratch::default(), Cost::ONE);
        let matched = policy.matcher.match_rule(rule, client, cost, &mut scratch).ok_or(UnknownRule)?;
        for check in matched.checks() {
            self.reset(check.key).await?;
        }
        Ok(())
    }

    /// Resets a counter, and removes the violations and the lock-out of its client under the rule.
    pub async fn reset(&self, key: CounterKey<'_>) -> Result<(), StoreError> {
        self.store().reset(key).await?;
        self.shared.resets.add(key, self.store().charge_time(key.rule, self.shared.clock.now()));
        self.penalties().lift(key);
        self.waits.hasten(key, self.shared.clock.now());
        Ok(())
    }

    /// Checks limits that the caller supplies in one decision. Their rules must not be rules of the policy.
    pub fn check_limits(
        &self,
        checks: &[Check<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        self.store().decide(checks, now)
    }

    /// Like [`check_limits`](Self::check_limits) for several decisions, in order. Faster than one by one.
    pub fn check_limits_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        self.store().decide_batch(batch, now, decisions)
    }

    /// Checks like [`check_limits_batch`](Self::check_limits_batch), if that needs no wait. `None` if the caller has to await
    /// `check_limits_batch`; nothing is charged then.
    pub fn try_check_limits_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Option<Result<(), StoreError>> {
        self.store().try_decide_batch(batch, now, decisions)
    }
}
