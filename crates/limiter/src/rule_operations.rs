//! Operations on one rule for a client that the caller has identified, and checks of limits that the caller supplies.

use thiserror::Error;
use tidegate_core::{Check, Cost, CounterKey, Decision, Refund, Timestamp, Verdict};
use tidegate_policy::{ActivePolicy, Admission, Facts, MatchedRequest, RuntimeData, Scratch};
use tidegate_store::{Store, StoreError};

use crate::limiter::{Limiter, RuleCheck, reject};
use crate::lockout;
use crate::report::RulingReport;
use crate::reservation::Reservations;
use crate::ruling::{AdmittedRuling, FailedRuling, Ruling};

/// Why an operation on a rule failed.
#[derive(Debug, Error)]
pub enum RuleError {
    /// The policy has no rate limit with this name.
    #[error("the policy has no such rule")]
    NoRule,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl<S: Store + 'static> Limiter<S> {
    /// What [`check`](Self::check) would return now, without charging or recording anything. Concurrency limits are not
    /// checked.
    pub async fn preview<'a>(
        &self,
        policy: &'a ActivePolicy,
        facts: &Facts<'_>,
        scratch: &'a mut Scratch,
        now: Timestamp,
    ) -> Ruling<'a> {
        let matched = {
            let bans = self.bans();
            let runtime = RuntimeData { directory: policy.directory.as_deref(), bans: Some(&bans) };
            match policy.matcher.admit(facts, runtime, now, scratch) {
                Admission::Banned { .. } => return Ruling::Banned,
                Admission::Exempt { why } => return Ruling::Exempt(why),
                Admission::Checked(matched) => matched,
            }
        };
        self.preview_matched(&matched, now).await
    }

    /// What [`check_rule`](Self::check_rule) would return now, without charging or recording anything.
    pub async fn preview_rule<'a>(
        &self,
        policy: &'a ActivePolicy,
        check: RuleCheck<'_>,
        scratch: &'a mut Scratch,
        now: Timestamp,
    ) -> Ruling<'a> {
        match self.match_rule(policy, check, scratch, now) {
            Ok(matched) => self.preview_matched(&matched, now).await,
            Err(reason) => reason.into(),
        }
    }

    async fn preview_matched<'a>(&self, matched: &MatchedRequest<'a>, now: Timestamp) -> Ruling<'a> {
        let lock_outs = lockout::active(self.penalties(), matched, now);
        let mut report =
            RulingReport { lock_outs, is_peeked: true, ..RulingReport::new(matched.applied(), now) };
        let (permits, reservations) = (Vec::new(), Reservations::default());
        let Ok(decision) = self.store().peek(matched.checks(), now).await else {
            let is_binding = matched.has_binding_check();
            return Ruling::StoreFailed(FailedRuling { report, permits, is_binding });
        };
        report.at = decision.at;
        let verdict = decision.verdict;
        report.primary = matched.tightest(&decision);
        report.decision = Some(decision);
        match verdict {
            Verdict::Pass { wait } if report.lock_outs.is_empty() => {
                Ruling::Admitted(AdmittedRuling { report, permits, reservations, delay: wait })
            }
            _ => reject(report),
        }
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
        let matched = matched.ok_or(RuleError::NoRule)?;
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
        let matched = policy.matcher.match_rule(rule, client, cost, &mut scratch).ok_or(RuleError::NoRule)?;
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
}
