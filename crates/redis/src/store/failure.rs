//! What decides while Redis fails, and the return to Redis.
//!
//! A failed group is decided again by the failure modes of its rules: `local` by a share of the limit on this node, `allow`
//! by nothing (if Redis replied with an error, as `local`), and with `deny` the decision fails. The node is in fallback from the first failure until a heartbeat
//! succeeded and everything that the shares admitted was charged to Redis. A charge whose result is unknown is not repeated.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use futures_util::future::join_all;
use tidegate_core::{Check, Decision, Refund, RuleId, StoreFailureMode, TimeSpan, Timestamp};
use tidegate_store::{PermitGrant, Store, StoreError};

use super::StoreState;
use super::groups::{Decider, Group, Groups, assemble, group};
use crate::config::TimeSource;
use crate::fallback::FallbackCharge;
use crate::link::is_unsent;

/// Charges in one batch.
const CHARGE_BATCH: usize = 64;

/// Whether this node is in fallback, since when, and what it did there.
#[derive(Debug, Default)]
pub(super) struct FallbackState {
    /// The time at which fallback began, in microseconds; 0 in normal operation.
    since: AtomicU64,
    /// Microseconds in fallback before `since`.
    total: AtomicU64,
    local: AtomicU64,
    allow: AtomicU64,
    deny: AtomicU64,
    charged: AtomicU64,
    uncharged: AtomicU64,
    /// Held while fallback begins.
    beginning: Mutex<()>,
}

impl FallbackState {
    /// When fallback began.
    pub(super) fn since(&self) -> Option<Timestamp> {
        match self.since.load(Ordering::Acquire) {
            0 => None,
            micros => Some(Timestamp::from_micros(micros)),
        }
    }

    /// The time in fallback so far.
    pub(super) fn total(&self, now: Timestamp) -> TimeSpan {
        let current = self.since().map_or(TimeSpan::ZERO, |since| now.since(since));
        TimeSpan::from_micros(self.total.load(Ordering::Relaxed).saturating_add(current.as_micros()))
    }

    /// Decisions by a failure mode.
    pub(super) fn decisions(&self, mode: StoreFailureMode) -> u64 {
        self.count(mode).load(Ordering::Relaxed)
    }

    /// Units that were charged to Redis after it returned.
    pub(super) fn charged(&self) -> u64 {
        self.charged.load(Ordering::Relaxed)
    }

    /// Units whose charge had no reply.
    pub(super) fn uncharged(&self) -> u64 {
        self.uncharged.load(Ordering::Relaxed)
    }

    fn count(&self, mode: StoreFailureMode) -> &AtomicU64 {
        match mode {
            StoreFailureMode::Local => &self.local,
            StoreFailureMode::Allow => &self.allow,
            StoreFailureMode::Deny => &self.deny,
        }
    }
}

/// Whether the failure modes apply: Redis did not decide.
pub(super) fn is_outage(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable(_) | StoreError::Protocol { .. })
}

impl StoreState {
    /// Decides checks of one coordination that failed with `error`.
    pub(super) async fn decide_failed(
        &self,
        checks: &[Check<'_>],
        error: StoreError,
        now: Timestamp,
    ) -> Result<Decision, StoreError> {
        let failed = Group {
            decider: Decider::Central,
            positions: (0..checks.len()).collect(),
            checks: checks.iter().copied().collect(),
        };
        let groups = self.replace_failed(failed, error)?;
        self.decide_groups(checks, groups, now).await.map(|decided| decided.decision)
    }

    /// Refunds what the shares admitted. Units that were charged to Redis stay charged, which is an error. Returns whether the
    /// shares contained any of it.
    pub(super) async fn refund_failed(
        &self,
        refunds: &[Refund<'_>],
        error: StoreError,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let is_local = |refund: &&Refund<'_>| self.is_charged_to_share(refund, now);
        let local: Vec<Refund<'_>> = refunds.iter().filter(is_local).copied().collect();
        let contained = self.fallback.refund(&local, now).await?;
        if local.len() == refunds.len() { Ok(contained) } else { Err(error) }
    }

    /// Whether Redis fails and the share of this node has admitted the refunded charge.
    pub(super) fn is_charged_to_share(&self, refund: &Refund<'_>, now: Timestamp) -> bool {
        let Some(since) = self.failures.since() else { return false };
        // Charges have the server's time.
        refund.charged >= self.link.server_time().at_server(since)
            && self.settings.of(refund.key.rule).on_failure != StoreFailureMode::Deny
            && self.fallback.has_charged(refund, now)
    }

    /// The permit that the failure mode of `rule` grants.
    pub(super) fn permit_after_failure(
        &self,
        rule: RuleId,
        max: u32,
        error: StoreError,
    ) -> Result<PermitGrant, StoreError> {
        if !is_outage(&error) {
            return Err(error);
        }
        self.enter_fallback();
        let mode = self.mode_after(rule, &error);
        self.failures.count(mode).fetch_add(1, Ordering::Relaxed);
        match mode {
            StoreFailureMode::Local => {
                let share = self.link.config().fallback_share.of(max.into());
                let max = u32::try_from(share).unwrap_or(max) / self.nodes.get();
                // Without any permit the node would deny.
                Ok(PermitGrant::Local { max: max.max(1) })
            }
            StoreFailureMode::Allow => Ok(PermitGrant::Unlimited),
            StoreFailureMode::Deny => Err(error),
        }
    }

    /// The groups that decide instead of a failed one; an error if a rule denies, or if Redis is not the cause.
    pub(super) fn replace_failed<'a>(
        &self,
        failed: Group<'a>,
        error: StoreError,
    ) -> Result<Groups<'a>, StoreError> {
        if is_outage(&error) {
            self.enter_fallback();
        }
        let groups = self.failure_groups(failed, error);
        match &groups {
            Ok(groups) => {
                for group in groups {
                    let mode = match group.decider {
                        Decider::Fallback => StoreFailureMode::Local,
                        _ => StoreFailureMode::Allow,
                    };
                    self.failures.count(mode).fetch_add(1, Ordering::Relaxed);
                }
            }
            Err(error) if is_outage(error) => {
                self.failures.deny.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => {}
        }
        groups
    }

    /// Groups the checks of a failed group by their failure modes.
    pub(super) fn failure_groups<'a>(
        &self,
        failed: Group<'a>,
        error: StoreError,
    ) -> Result<Groups<'a>, StoreError> {
        let mode = |check: &Check<'_>| self.mode_after(check.key.rule, &error);
        let denies = |check: &Check<'_>| mode(check) == StoreFailureMode::Deny && check.role.is_enforced();
        let is_local = matches!(failed.decider, Decider::Fallback | Decider::Nothing);
        if !is_outage(&error) || is_local || failed.checks.iter().any(denies) {
            return Err(error);
        }
        let Group { positions, checks, .. } = failed;
        Ok(group(positions.into_iter().zip(checks), |check| self.failure_decider(check, &error)))
    }

    /// The groups that evaluate the checks of a failed group, for a decision that is rejected anyway.
    pub(super) fn peek_groups_of_failed<'a>(&self, failed: Group<'a>, error: &StoreError) -> Groups<'a> {
        if is_outage(error) {
            self.enter_fallback();
        }
        let Group { positions, checks, .. } = failed;
        group(positions.into_iter().zip(checks), |check| self.failure_decider(check, error))
    }

    /// The failure mode that applies after `error`. If Redis replies, and with an error, it is not away: no entry or script that
    /// fails, and no server that refuses to work, may lift a limit.
    fn mode_after(&self, rule: RuleId, error: &StoreError) -> StoreFailureMode {
        let mode = self.settings.of(rule).on_failure;
        let is_reply = || matches!(error, StoreError::Protocol { .. }) || self.link.is_refused();
        if mode == StoreFailureMode::Allow && is_reply() { StoreFailureMode::Local } else { mode }
    }

    /// What evaluates a check if Redis cannot.
    fn failure_decider(&self, check: &Check<'_>, error: &StoreError) -> Decider {
        match self.mode_after(check.key.rule, error) {
            StoreFailureMode::Local => Decider::Fallback,
            StoreFailureMode::Allow | StoreFailureMode::Deny => Decider::Nothing,
        }
    }

    /// The outcomes of checks that Redis should have evaluated, for a decision that is rejected anyway.
    pub(super) async fn peek_after_failure(
        &self,
        checks: &[Check<'_>],
        error: &StoreError,
        now: Timestamp,
    ) -> Decision {
        let groups = group(checks.iter().copied().enumerate(), |check| self.failure_decider(check, error));
        let mut parts = Vec::with_capacity(groups.len());
        for group in groups {
            if let Ok(decision) = self.store_of(group.decider).peek(&group.checks, now).await {
                parts.push((group.positions, decision));
            }
        }
        let mut decision =
            assemble(checks, parts.iter().map(|(positions, decision)| (&**positions, decision)));
        decision.at = decision.at.min(now);
        decision
    }

    /// Begins fallback, unless it has begun. The shares are ready before any decision uses them.
    pub(super) fn enter_fallback(&self) {
        if self.failures.since().is_some() {
            return;
        }
        let beginning = self.failures.beginning.lock().unwrap_or_else(PoisonError::into_inner);
        if self.failures.since().is_none() {
            let now = self.link.clock().now();
            self.fallback.begin();
            self.failures.since.store(now.as_micros().max(1), Ordering::Release);
        }
        drop(beginning);
    }

    /// Ends fallback if Redis works again: charges what the shares admitted. Called at short intervals, also in normal
    /// operation: a decision that began in fallback may admit after its end.
    pub(super) async fn try_leave_fallback(&self) {
        if !self.fallback.has_charges() && self.failures.since().is_none() || !self.link.is_available() {
            return;
        }
        // Only a reply proves that Redis works.
        if self.membership.beat(&self.link).await.is_err() || self.observe_server_time().await.is_err() {
            return;
        }
        loop {
            // What still counts is known only now: earlier charges may have taken long.
            let batch = self.fallback.take(CHARGE_BATCH, self.link.clock().now());
            if batch.is_empty() {
                break;
            }
            if !self.charge(batch).await {
                return;
            }
        }
        let since = self.failures.since.swap(0, Ordering::AcqRel);
        if since != 0 {
            let span = self.link.clock().now().since(Timestamp::from_micros(since));
            self.failures.total.fetch_add(span.as_micros(), Ordering::Relaxed);
        }
    }

    /// Compares the server's clock with that of this node. A trace has no other time than its own.
    pub(super) async fn observe_server_time(&self) -> Result<(), StoreError> {
        if self.link.config().time == TimeSource::Caller {
            return Ok(());
        }
        let node = self.link.clock().now();
        let reply = self.link.command(0, &redis::cmd("TIME")).await?;
        let (seconds, micros): (u64, u64) = redis::from_redis_value(reply)
            .map_err(|_| StoreError::Protocol { reason: "the server's time is not a time".to_owned() })?;
        let server = Timestamp::from_secs(seconds) + TimeSpan::from_micros(micros);
        self.link.server_time().observe(server, node);
        Ok(())
    }

    /// Charges units that were admitted while Redis failed; the calls travel together. Returns whether all succeeded. What was
    /// certainly not charged is put back; what was sent without a reply is lost, because it may have been charged.
    async fn charge(&self, charges: Vec<FallbackCharge>) -> bool {
        let now = self.link.clock().now();
        let calls = charges.iter().map(|charge| async move {
            let check = charge.check();
            let decider = self.settings.coordination(check.key.rule, check.limit).into();
            self.store_of(decider).decide(&[check], now).await.map_err(|error| (decider, error))
        });
        let results = join_all(calls).await;
        let mut is_complete = true;
        for (charge, result) in charges.into_iter().zip(results) {
            let units = charge.cost.get();
            match result {
                Ok(_) => self.failures.charged.fetch_add(units, Ordering::Relaxed),
                Err((decider, error)) => {
                    is_complete = false;
                    if can_be_repeated(decider, &error) {
                        self.fallback.put_back(charge);
                        continue;
                    }
                    self.failures.uncharged.fetch_add(units, Ordering::Relaxed)
                }
            };
        }
        is_complete
    }
}

/// Whether a charge that failed certainly had no effect, and may succeed later. A lease and an exchange of counts charge on
/// this node, after Redis has replied. A counter of a newer format is never charged by this node.
fn can_be_repeated(decider: Decider, error: &StoreError) -> bool {
    let charges_here = decider != Decider::Central && matches!(error, StoreError::Unavailable(_));
    charges_here || is_unsent(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkError;

    #[test]
    fn charge_with_an_unknown_result_is_repeated_only_if_this_node_charges() {
        let lost = || StoreError::Unavailable("no reply".into());
        assert!(!can_be_repeated(Decider::Central, &lost()));
        for decider in [Decider::Lease, Decider::Sync] {
            assert!(can_be_repeated(decider, &lost()), "{decider:?}");
        }
        let newer = StoreError::Protocol { reason: "newer format".to_owned() };
        for decider in [Decider::Central, Decider::Lease, Decider::Sync] {
            assert!(can_be_repeated(decider, &LinkError::QueueFull.into()), "{decider:?}");
            assert!(!can_be_repeated(decider, &newer), "{decider:?}");
        }
    }
}
