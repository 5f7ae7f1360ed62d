//! Which action takes the place of a rejection: pure data, from match and decision.
//!
//! | action | the exceeded check | charged |
//! |---|---|---|
//! | `reject`, `cached` | rejects | nothing |
//! | `wait` | rejects | everything, when the turn of the request has come |
//! | `defer`, `degrade` | does not reject | all other checks; refunded if the action cannot be performed |
//! | `slow`, `borrow` | is not exceeded | everything |
//!
//! Of several exceeded checks the first of these actions applies, and the longest delay of `slow` besides. What the interface does
//! not perform is `reject`. Rules in shadow mode perform nothing.

use tidegate_core::{ActionKind, ActionSet, Decision, Outcome, TimeSpan, Verdict};
use tidegate_policy::{ExceedAction, MatchedRequest};

/// What a decision means for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// The request is served after `delay`. The soft limit of check number `noted` sets the delay, or that check has lent units.
    Serve { delay: TimeSpan, noted: Option<usize> },
    /// The action of check number `index` is performed.
    Act { index: usize, delay: TimeSpan },
    /// The request is refused.
    Refuse,
}

/// Resolves the action of a request.
pub(crate) fn resolve(matched: &MatchedRequest<'_>, decision: &Decision) -> Resolution {
    let performed = matched.performed();
    let checks = matched.checks().iter().zip(&decision.outcomes).enumerate();
    let enforced = checks.filter(|(_, (check, _))| check.role.is_enforced());
    let (mut first, mut slowed_by, mut lent_by): (Option<(ActionKind, usize)>, _, _) = (None, None, None);
    let mut delay = match decision.verdict {
        Verdict::Pass { wait } => wait,
        _ => TimeSpan::ZERO,
    };
    for (index, (_, outcome)) in enforced {
        let Some(action) = matched.on_exceed(index) else { continue };
        if outcome.verdict.is_pass() {
            let slow = slow_delay(action, performed, outcome);
            if slow > delay {
                (delay, slowed_by) = (slow, Some(index));
            }
            if lent_by.is_none() && has_borrowed(action, outcome) {
                lent_by = Some(index);
            }
            continue;
        }
        let kind = rejected_kind(action.kind(), performed, outcome.verdict);
        // Of several waits the longest; of other actions the first in the order of the policy.
        let is_first = first.is_none_or(|(earlier, at)| match kind.cmp(&earlier) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => {
                kind == ActionKind::Wait && retry_after(decision, at) < outcome.verdict.retry_after()
            }
            std::cmp::Ordering::Greater => false,
        });
        if is_first {
            first = Some((kind, index));
        }
    }
    match first {
        None => Resolution::Serve { delay, noted: slowed_by.or(lent_by) },
        Some((ActionKind::Reject, _)) => Resolution::Refuse,
        Some((_, index)) => Resolution::Act { index, delay },
    }
}

/// The delay of a request that fits a soft limit.
fn slow_delay(action: &ExceedAction, performed: ActionSet, outcome: &Outcome) -> TimeSpan {
    match action {
        ExceedAction::Slow(slow) if performed.contains(ActionKind::Slow) => {
            slow.delay(outcome.limit.saturating_sub(outcome.remaining), outcome.limit)
        }
        _ => TimeSpan::ZERO,
    }
}

/// Whether units beyond the burst are in use after a request that fits.
fn has_borrowed(action: &ExceedAction, outcome: &Outcome) -> bool {
    matches!(action, ExceedAction::Borrow(borrow) if outcome.remaining < borrow.units)
}

/// What a rule in shadow mode would have done; `None` if nothing.
pub(crate) fn of_shadow(action: &ExceedAction, outcome: &Outcome) -> Option<ActionKind> {
    if outcome.verdict.is_pass() {
        let delay = slow_delay(action, ActionSet::of(&[ActionKind::Slow]), outcome);
        let has_effect = !delay.is_zero() || has_borrowed(action, outcome);
        return has_effect.then_some(action.kind());
    }
    Some(match action.kind() {
        ActionKind::Slow | ActionKind::Borrow => ActionKind::Reject,
        kind => kind,
    })
}

/// What happens to a request that does not fit a limit with this action.
fn rejected_kind(kind: ActionKind, performed: ActionSet, verdict: Verdict) -> ActionKind {
    match kind {
        // They are about requests that fit.
        ActionKind::Slow | ActionKind::Borrow => ActionKind::Reject,
        // Its turn never comes.
        ActionKind::Wait if verdict == Verdict::Never => ActionKind::Reject,
        kind if performed.contains(kind) => kind,
        _ => ActionKind::Reject,
    }
}

fn retry_after(decision: &Decision, index: usize) -> Option<TimeSpan> {
    decision.outcomes.get(index)?.verdict.retry_after()
}
