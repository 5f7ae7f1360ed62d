//! Limits on concurrent requests.

use std::sync::Arc;

use tidegate_core::{CounterKey, Role, RuleId, StoreFailureMode, Timestamp};
use tidegate_policy::{ConcurrencyCheck, ConcurrencyRule, MatchedRequest};
use tidegate_store::{Permit, PermitGrant, Permits, Store};

/// The permits of a request.
#[derive(Default)]
pub(crate) struct AcquiredPermits {
    /// Kept until the request has ended.
    pub(crate) permits: Vec<Permit>,
    /// Rules in shadow mode that had no permit left.
    pub(crate) shadow: Vec<RuleId>,
}

/// Takes all permits that a request needs, or none. The error is the rule without a permit left, and the rules in shadow
/// mode that had none left before it.
pub(crate) fn acquire<'a>(
    permits: &Arc<Permits>,
    matched: &MatchedRequest<'a>,
) -> Result<AcquiredPermits, (&'a ConcurrencyRule, Vec<RuleId>)> {
    let mut acquired = AcquiredPermits::default();
    for ConcurrencyCheck { rule, key, role, .. } in matched.concurrency_checks() {
        match permits.acquire(key, rule.concurrent) {
            Some(permit) => acquired.permits.push(permit),
            None if role == Role::Binding => return Err((rule, acquired.shadow)),
            None => acquired.shadow.push(rule.id),
        }
    }
    Ok(acquired)
}

/// Why a request does not get the permits that nodes share. All permits are released.
pub(crate) enum SharedRefusal<'a> {
    /// The rule without a permit left, and the rules in shadow mode that had none left.
    Exhausted(&'a ConcurrencyRule, Vec<RuleId>),
    /// The store failed, and the rule must not be decided without it. The rules in shadow mode that had no permit left.
    Failed(Vec<RuleId>),
}

/// Like [`acquire`] for a policy with rules whose permits all nodes share. The store is asked last, so that a request which
/// this node can reject by itself does not use it.
pub(crate) async fn acquire_shared<'a, S: Store>(
    permits: &Arc<Permits>,
    store: &S,
    matched: &MatchedRequest<'a>,
    now: Timestamp,
) -> Result<AcquiredPermits, SharedRefusal<'a>> {
    let mut acquired = AcquiredPermits::default();
    let mut undecided = Vec::new();
    for check in matched.concurrency_checks() {
        let ConcurrencyCheck { rule, key, role, .. } = check;
        match permits.acquire(key, node_max(rule)) {
            Some(permit) if rule.has_shared_permits() => undecided.push((check, permit)),
            Some(permit) => acquired.permits.push(permit),
            None if role == Role::Binding => return Err(SharedRefusal::Exhausted(rule, acquired.shadow)),
            None => acquired.shadow.push(rule.id),
        }
    }
    for (ConcurrencyCheck { rule, key, role, .. }, permit) in undecided {
        let granted = match store.acquire_permit(key, rule.concurrent, now).await {
            Ok(grant) => apply_grant(permits, key, permit, grant),
            // A rule in shadow mode never rejects.
            Err(_) if role != Role::Binding => Some(permit),
            Err(_) => return Err(SharedRefusal::Failed(acquired.shadow)),
        };
        match granted {
            Some(permit) => acquired.permits.push(permit),
            None if role == Role::Binding => return Err(SharedRefusal::Exhausted(rule, acquired.shadow)),
            None => acquired.shadow.push(rule.id),
        }
    }
    Ok(acquired)
}

/// The node's own permit after the store's answer; `None` if the request gets none.
fn apply_grant(
    permits: &Arc<Permits>,
    key: CounterKey<'_>,
    mut permit: Permit,
    grant: PermitGrant,
) -> Option<Permit> {
    match grant {
        PermitGrant::Shared(shared) => {
            permit.set_shared(shared);
            Some(permit)
        }
        PermitGrant::Unlimited => Some(permit),
        PermitGrant::Exhausted => None,
        PermitGrant::Local { max } => {
            // Acquired again: requests that the store has admitted count too.
            drop(permit);
            permits.acquire(key, max)
        }
    }
}

/// How many requests this node admits before it asks the store. The store must be asked if the limit may not apply.
fn node_max(rule: &ConcurrencyRule) -> u32 {
    match rule.sharing {
        Some(sharing) if rule.has_shared_permits() && sharing.on_store_failure == StoreFailureMode::Allow => {
            u32::MAX
        }
        _ => rule.concurrent,
    }
}
