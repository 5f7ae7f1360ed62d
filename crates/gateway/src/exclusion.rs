//! Requests that get 429: by their limits, by a lock-out, or because too many are served at the same time.
//!
//! `Retry-After` is the first instant at which none of them rejects the request any more. No limit admits less while
//! nobody spends, so that is the latest of the instants at which each of them ends.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Check, Decision, LimitReport, Role, RuleId, Span, Timestamp, Verdict};
use tidegate_headers::{RejectionReason, retry_after_seconds};
use tidegate_policy::{AtOnce, ConcurrencyRule, Matched, Rule};
use tidegate_store::{Penalties, Permit, Permits};

/// When to try again where nobody can know: a request may end at any time.
const SOON: Span = Span::from_secs(1);

/// What a request holds until it has ended.
pub(crate) type Held = Vec<Permit>;

/// The checks of a request whose counters are locked out, by their positions, and for how long.
pub(crate) type LockOuts = SmallVec<[(usize, Span); 2]>;

/// The checks of a request that are locked out.
pub(crate) fn lock_outs(penalties: &Penalties, matched: &Matched<'_>, now: Timestamp) -> LockOuts {
    let checks = binding(matched).filter(|(_, _, rule)| rule.penalty.is_some());
    checks.filter_map(|(index, check, _)| Some((index, penalties.lock_out(check.key, now)?))).collect()
}

/// Records what `decision` rejected, at every counter that had no room for it. Returns those that are locked out now.
pub(crate) fn record_violations(
    penalties: &Penalties,
    matched: &Matched<'_>,
    decision: &Decision,
    now: Timestamp,
) -> LockOuts {
    let judged = matched.judged(decision).enumerate().filter(|(_, judged)| judged.refuses());
    let violated = judged.filter_map(|(index, judged)| {
        let penalty = judged.rule.penalty.as_ref()?;
        Some((index, penalties.violate(judged.check.key, penalty, now)?))
    });
    violated.collect()
}

/// Takes every place among the concurrent requests that a request needs, or none: then the rule that has none left
/// comes back. Rules that only watch are told to `shadow` where they have none left.
pub(crate) fn take_places<'a>(
    permits: &Arc<Permits>,
    matched: &Matched<'a>,
    mut shadow: impl FnMut(RuleId),
) -> Result<Held, &'a ConcurrencyRule> {
    let mut held = Held::new();
    for AtOnce { rule, key, role, .. } in matched.at_once() {
        match permits.take(key, rule.concurrent) {
            Some(permit) => held.push(permit),
            None if role == Role::Binding => return Err(rule),
            None => shadow(rule.id),
        }
    }
    Ok(held)
}

/// The checks that can reject a request, with their positions and rules.
fn binding<'m, 'a>(matched: &'m Matched<'a>) -> impl Iterator<Item = (usize, &'m Check<'a>, &'a Rule)> {
    let checks = matched.checks().iter().zip(matched.rules()).enumerate();
    let checks = checks.filter(|(_, (check, _))| check.role == Role::Binding);
    checks.map(|(index, (check, rule))| (index, check, rule))
}

/// A request that gets 429, and everything that rejects it.
#[derive(Debug)]
pub(crate) struct Rejection<'m, 'a> {
    pub(crate) at: Timestamp,
    pub(crate) matched: &'m Matched<'a>,
    /// What its limits say; `None` if the store gave no answer.
    pub(crate) decision: Option<&'m Decision>,
    pub(crate) lock_outs: LockOuts,
    /// The concurrency limit that has no place left.
    pub(crate) full: Option<&'m ConcurrencyRule>,
}

impl<'m, 'a: 'm> Rejection<'m, 'a> {
    pub(crate) fn reason(&self) -> RejectionReason {
        match self {
            Self { full: Some(_), .. } => RejectionReason::Concurrency,
            Self { lock_outs, .. } if !lock_outs.is_empty() => RejectionReason::LockOut,
            _ => RejectionReason::Limit,
        }
    }

    /// Seconds until nothing rejects the request any more; `None` if a limit always will.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        let limits = match self.decision.map(|decision| decision.verdict) {
            Some(Verdict::Never) => return None,
            Some(Verdict::NotUntil { retry_after }) => retry_after,
            Some(Verdict::Pass { .. }) | None => Span::ZERO,
        };
        let places = self.full.map_or(Span::ZERO, |_| SOON);
        let longest = self.lock_outs.iter().map(|(_, left)| *left).fold(limits.max(places), Span::max);
        Some(retry_after_seconds(longest, self.matched.client()))
    }

    /// The limit that the response speaks of: a full concurrency limit, the longest lock-out, or the first limit that
    /// rejects.
    pub(crate) fn reported(&self) -> Option<(RuleId, LimitReport<'m>)> {
        if let Some(rule) = self.full {
            return Some((rule.id, full(rule)));
        }
        let longest = self.lock_outs.iter().max_by_key(|(_, left)| *left).map(|(index, _)| *index);
        let index = longest.or_else(|| self.decision?.refused_by)?;
        let rule = self.matched.rule(index)?;
        Some((rule.id, self.report(index, rule)?))
    }

    /// Every limit that can reject the request.
    pub(crate) fn reports(&self) -> SmallVec<[LimitReport<'m>; 4]> {
        let mut reports = SmallVec::new();
        reports.extend(self.full.map(full));
        for (index, _, rule) in binding(self.matched) {
            if let Some(report) = self.report(index, rule) {
                reports.push(report);
            }
        }
        reports
    }

    /// The names of the limits that reject the request.
    pub(crate) fn violated(&self) -> impl Iterator<Item = &'m str> {
        let rates = binding(self.matched).filter(|(index, ..)| {
            let judged = self.decision.and_then(|decision| decision.outcomes.get(*index));
            self.lock_out(*index).is_some() || judged.is_some_and(|outcome| !outcome.verdict.is_pass())
        });
        self.full.map(|rule| rule.name.as_str()).into_iter().chain(rates.map(|(.., rule)| rule.name.as_str()))
    }

    fn lock_out(&self, index: usize) -> Option<Span> {
        self.lock_outs.iter().find(|(locked, _)| *locked == index).map(|(_, left)| *left)
    }

    fn report(&self, index: usize, rule: &'m Rule) -> Option<LimitReport<'m>> {
        let outcome = self.decision.and_then(|decision| decision.outcomes.get(index));
        Some(match self.lock_out(index) {
            Some(left) => rule.quota.report_locked_out(&rule.name, outcome, left),
            None => rule.quota.report(&rule.name, outcome?),
        })
    }
}

fn full(rule: &ConcurrencyRule) -> LimitReport<'_> {
    LimitReport::exhausted_concurrency(&rule.name, rule.concurrent)
}
