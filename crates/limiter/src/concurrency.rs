//! Limits on concurrent requests.

use std::sync::Arc;

use tidegate_core::{Role, RuleId};
use tidegate_policy::{ConcurrencyCheck, ConcurrencyRule, MatchedRequest};
use tidegate_store::{Permit, Permits};

/// The permits of a request.
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
    let mut acquired = AcquiredPermits { permits: Vec::new(), shadow: Vec::new() };
    for ConcurrencyCheck { rule, key, role, .. } in matched.concurrency_checks() {
        match permits.acquire(key, rule.concurrent) {
            Some(permit) => acquired.permits.push(permit),
            None if role == Role::Binding => return Err((rule, acquired.shadow)),
            None => acquired.shadow.push(rule.id),
        }
    }
    Ok(acquired)
}
