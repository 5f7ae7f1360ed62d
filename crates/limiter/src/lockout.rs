//! Lock-outs: clients that repeatedly violate a rule with a `penalty` are rejected for some time.

use smallvec::SmallVec;
use tidegate_core::{Decision, TimeSpan, Timestamp};
use tidegate_policy::MatchedRequest;
use tidegate_store::Penalties;

/// The checks of a request whose client is locked out, by index, with the remaining time.
pub(crate) type LockOuts = SmallVec<[(usize, TimeSpan); 2]>;

/// The checks of a request whose client is locked out now.
pub(crate) fn active(penalties: &Penalties, matched: &MatchedRequest<'_>, now: Timestamp) -> LockOuts {
    let checks = matched.checks().iter().enumerate();
    let checks =
        checks.filter(|(index, check)| check.role.is_enforced() && matched.penalty(*index).is_some());
    checks.filter_map(|(index, check)| Some((index, penalties.lock_out(check.key, now)?))).collect()
}

/// Records a violation at every counter that rejected the request and may lock out its client. Returns those whose client is locked out now.
pub(crate) fn record_violations(
    penalties: &Penalties,
    matched: &MatchedRequest<'_>,
    decision: &Decision,
    now: Timestamp,
) -> LockOuts {
    // An action that takes the place of the rejection is no violation.
    let judged = matched.check_results(decision).enumerate().filter(|(_, judged)| judged.rejects());
    let violated = judged.filter_map(|(index, judged)| {
        let penalty = matched.caused_penalty(index)?;
        Some((index, penalties.record_violation(judged.check.key, penalty, now)?))
    });
    violated.collect()
}
