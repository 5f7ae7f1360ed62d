//! What decides while Redis fails, and the return to Redis.
//!
//! A failed group is decided again by the failure modes of its rules: `local` by a share of the limit on this node, `allow`
//! by nothing, and with `deny` the decision fails. The node is in fallback from the first failure until a heartbeat
//! succeeded and everything that the shares admitted was charged to Redis. A charge whose result is unknown is not repeated.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use tidegate_core::{Check, Decision, Refund, Role, StoreFailureMode, TimeSpan, Timestamp};
use tidegate_store::{Store, StoreError};

use super::StoreState;
use super::groups::{Decider, Group, Groups, assemble, group};
use crate::fallback::FallbackCharge;
use crate::link::LinkError;

/// Charges in one batch.
const CHARGE_BATCH: usize = 64;
/// A failure that follows sooner continues the last outage.
const OUTAGE_GAP: TimeSpan = TimeSpan::from_secs(60);

/// Whether this node is in fallback, since when, and what it did there.
#[derive(Debug, Default)]
pub(super) struct FallbackState {
    /// The time at which fallback began, in microseconds; 0 in normal operation.
    since: AtomicU64,
    /// The time at which the last outage ended, in microseconds; 0 if there was none.
    ended: AtomicU64,
    /// Microseconds in fallback before `since`.
    total: AtomicU64,
    local: AtomicU64,
    allow: AtomicU64,
    deny: AtomicU64,
    charged: AtomicU64,
    uncharged: AtomicU64,
    /// Charges that still have to be sent.
    pending: Mutex<Vec<FallbackCharge>>,
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

    /// Whether the last outage ended long ago. While Redis fails again and again, the shares are not granted again.
    fn is_new_outage(&self, now: Timestamp) -> bool {
        match self.ended.load(Ordering::Acquire) {
            0 => true,
            micros => now.since(Timestamp::from_micros(micros)) >= OUTAGE_GAP,
        }
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

    fn lock(&self) -> MutexGuard<'_, Vec<FallbackCharge>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Refunds what the shares admitted. Units that were charged to Redis before the outage stay charged.
    pub(super) async fn refund_failed(
        &self,
        refunds: &[Refund<'_>],
        error: StoreError,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let Some(since) = self.failures.since() else { return Err(error) };
        let is_local = |refund: &&Refund<'_>| {
            refund.charged >= since && self.settings.of(refund.key.rule).on_failure == StoreFailureMode::Local
        };
        let local: Vec<Refund<'_>> = refunds.iter().filter(is_local).copied().collect();
        if local.is_empty() { Err(error) } else { self.fallback.refund(&local, now).await }
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
        let mode = |check: &Check<'_>| self.settings.of(check.key.rule).on_failure;
        let denies = |check: &Check<'_>| mode(check) == StoreFailureMode::Deny && check.role == Role::Binding;
        let is_local = matches!(failed.decider, Decider::Fallback | Decider::Nothing);
        if !is_outage(&error) || is_local || failed.checks.iter().any(denies) {
            return Err(error);
        }
        let Group { positions, checks, .. } = failed;
        Ok(group(positions.into_iter().zip(checks), |check| match mode(check) {
            StoreFailureMode::Local => Decider::Fallback,
            StoreFailureMode::Allow | StoreFailureMode::Deny => Decider::Nothing,
        }))
    }

    /// The outcomes of checks that Redis should have evaluated, for a decision that is rejected anyway.
    pub(super) async fn peek_after_failure(&self, checks: &[Check<'_>], now: Timestamp) -> Decision {
        let groups = group(checks.iter().copied().enumerate(), |check| {
            match self.settings.of(check.key.rule).on_failure {
                StoreFailureMode::Local => Decider::Fallback,
                StoreFailureMode::Allow | StoreFailureMode::Deny => Decider::Nothing,
            }
        });
        let mut parts = Vec::with_capacity(groups.len());
        for group in groups {
            if let Ok(decision) = self.peek_by(group.decider, &group.checks, now).await {
                parts.push((group.positions, decision));
            }
        }
        let decision = assemble(checks, parts.iter().map(|(positions, decision)| (&**positions, decision)));
        Decision { at: decision.at.min(now), ..decision }
    }

    /// Begins fallback, unless it has begun. The shares are ready before any decision uses them.
    pub(super) fn enter_fallback(&self) {
        if self.failures.since().is_some() {
            return;
        }
        let pending = self.failures.lock();
        if self.failures.since().is_none() {
            let now = self.link.clock().now();
            if self.failures.is_new_outage(now) {
                self.fallback.begin();
            }
            self.failures.since.store(now.as_micros().max(1), Ordering::Release);
        }
        drop(pending);
    }

    /// Ends fallback if Redis works again: charges what the shares admitted. Called at short intervals, also in normal
    /// operation: a decision that began in fallback may admit after its end.
    pub(super) async fn try_leave_fallback(&self) {
        if !self.has_charges() && self.failures.since().is_none() || !self.link.is_available() {
            return;
        }
        // Only a reply proves that Redis works.
        if self.membership.beat(&self.link).await.is_err() {
            return;
        }
        while self.has_charges() {
            let batch: Vec<FallbackCharge> = {
                let mut pending = self.failures.lock();
                let start = pending.len().saturating_sub(CHARGE_BATCH);
                pending.drain(start..).collect()
            };
            if !self.charge(batch).await {
                return;
            }
        }
        let since = self.failures.since.swap(0, Ordering::AcqRel);
        if since != 0 {
            let now = self.link.clock().now();
            let span = now.since(Timestamp::from_micros(since));
            self.failures.ended.store(now.as_micros().max(1), Ordering::Release);
            self.failures.total.fetch_add(span.as_micros(), Ordering::Relaxed);
        }
    }

    /// Takes over what the shares admitted. Returns whether there is something to charge.
    fn has_charges(&self) -> bool {
        let mut pending = self.failures.lock();
        if pending.is_empty() {
            *pending = self.fallback.drain(self.link.clock().now());
        }
        !pending.is_empty()
    }

    /// Charges units that were admitted while Redis failed; the calls travel together. Returns whether all succeeded. What was
    /// not sent waits; what was sent without a reply is lost, because it may have been charged.
    async fn charge(&self, charges: Vec<FallbackCharge>) -> bool {
        let now = self.link.clock().now();
        let calls = charges.iter().map(|charge| async move {
            let check = charge.check();
            let decider = self.settings.of(check.key.rule).coordination.into();
            self.decide_by(decider, &[check], now).await
        });
        let results = join_all(calls).await;
        let mut is_complete = true;
        let mut unsent = Vec::new();
        for (charge, result) in charges.into_iter().zip(results) {
            let units = charge.cost.get();
            match result {
                Ok(_) => self.failures.charged.fetch_add(units, Ordering::Relaxed),
                Err(error) => {
                    is_complete = false;
                    if was_not_sent(&error) {
                        unsent.push(charge);
                        continue;
                    }
                    self.failures.uncharged.fetch_add(units, Ordering::Relaxed)
                }
            };
        }
        self.failures.lock().append(&mut unsent);
        is_complete
    }
}

/// Whether the call certainly had no effect, so that it may be repeated.
fn was_not_sent(error: &StoreError) -> bool {
    let StoreError::Unavailable(source) = error else { return false };
    matches!(
        source.downcast_ref(),
        Some(LinkError::QueueFull | LinkError::BreakerOpen { .. } | LinkError::NoServer { .. })
    )
}
