//! Rulings on requests that no action decides: exempt or banned clients, refusals, and what a failed store means.

use tidegate_core::{Decision, RuleId, TimeSpan, Timestamp, Verdict};
use tidegate_headers::RetryAfter;
use tidegate_policy::{ActivePolicy, AppliedRules, BanSource, ConcurrencyRule, Exemption, MatchedRequest};
use tidegate_store::StoreError;

use crate::concurrency::AcquiredPermits;
use crate::report::{CONCURRENCY_RETRY, RulingReport};
use crate::ruling::{RefuseReason, RefuseRuling, Ruling, ServeReason, ServeRuling};

/// Why no limits are checked.
#[derive(Clone, Copy)]
pub(crate) enum SkipReason {
    Banned,
    NotAllowed,
    Exempt(Exemption),
}

impl SkipReason {
    pub(crate) const fn excluded(by: BanSource<'_>) -> Self {
        match by {
            BanSource::Policy(_) | BanSource::Operator(_) => Self::Banned,
            BanSource::NotAllowed => Self::NotAllowed,
        }
    }
}

/// The refusal of a request whose limits were not charged, but read if the store has not failed.
pub(crate) fn refuse_peeked(
    mut report: RulingReport<'_>,
    peeked: Result<Decision, StoreError>,
) -> Ruling<'_> {
    if let Ok(peeked) = peeked {
        (report.at, report.is_peeked) = (peeked.at, true);
        report.decision = Some(peeked);
    }
    refuse(report)
}

/// The report of a request for which a concurrency limit has no permit left.
pub(crate) fn exhausted<'a>(
    matched: &MatchedRequest<'a>,
    rule: &'a ConcurrencyRule,
    shadow: Vec<RuleId>,
    now: Timestamp,
) -> RulingReport<'a> {
    RulingReport { exhausted: Some(rule), shadow, ..RulingReport::new(matched.applied(), now) }
}

/// The ruling on a request that no limit decides.
#[cold]
#[inline(never)]
pub(crate) fn skip(policy: &ActivePolicy, reason: SkipReason, now: Timestamp) -> Ruling<'_> {
    let report = RulingReport::new(AppliedRules::none(policy.matcher.plan()), now);
    match reason {
        SkipReason::Banned => Ruling::Refuse(refuse_without(report, RefuseReason::Banned)),
        SkipReason::NotAllowed => Ruling::Refuse(refuse_without(report, RefuseReason::NotAllowed)),
        SkipReason::Exempt(why) => Ruling::Serve(ServeRuling {
            report,
            reason: ServeReason::Exempt(why),
            permits: Vec::new(),
            delay: TimeSpan::ZERO,
            action: None,
            may_be_settled: false,
        }),
    }
}

/// Serves a request without a decision of the store.
pub(crate) fn serve<'a>(
    matched: &MatchedRequest<'a>,
    AcquiredPermits { permits, shadow }: AcquiredPermits,
    now: Timestamp,
    reason: ServeReason,
) -> Ruling<'a> {
    let report = RulingReport { shadow, ..RulingReport::new(matched.applied(), now) };
    let delay = TimeSpan::ZERO;
    Ruling::Serve(ServeRuling { report, reason, permits, delay, action: None, may_be_settled: false })
}

/// The ruling if the store has returned no decision: limits in shadow mode never refuse a request.
#[cold]
#[inline(never)]
pub(crate) fn store_failed<'a>(
    matched: &MatchedRequest<'a>,
    acquired: AcquiredPermits,
    now: Timestamp,
) -> Ruling<'a> {
    if !matched.has_enforced_check() {
        return serve(matched, acquired, now, ServeReason::StoreFailed);
    }
    let shadow = acquired.shadow;
    let report = RulingReport { shadow, ..RulingReport::new(matched.applied(), now) };
    Ruling::Refuse(refuse_without(report, RefuseReason::StoreUnavailable))
}

/// Refuses a request for a reason that is none of its limits.
pub(crate) fn refuse_without(report: RulingReport<'_>, reason: RefuseReason) -> RefuseRuling<'_> {
    RefuseRuling { report, reason, rule: None, retry_after: None }
}

/// Refuses a request that its limits, lock-outs or permits reject.
pub(crate) fn refuse(report: RulingReport<'_>) -> Ruling<'_> {
    Ruling::Refuse(refusal(report))
}

/// The refusal of a request that its limits, lock-outs or permits reject.
pub(crate) fn refusal(mut report: RulingReport<'_>) -> RefuseRuling<'_> {
    let (reason, rule) = report.find_refusing();
    let retry_after = retry_after(&report).map(|wait| RetryAfter::new(wait, report.client()));
    RefuseRuling { report, reason, rule, retry_after }
}

/// How long until nothing rejects the request; `None` if a limit always does. Without further requests no limit gets
/// stricter, so this is the longest of the individual times.
fn retry_after(report: &RulingReport<'_>) -> Option<TimeSpan> {
    let limits = match report.decision.as_ref().map(|decision| decision.verdict) {
        Some(Verdict::Never) => return None,
        Some(Verdict::NotUntil { retry_after }) => retry_after,
        Some(Verdict::Pass { .. }) | None => TimeSpan::ZERO,
    };
    let permits = report.exhausted.map_or(TimeSpan::ZERO, |_| CONCURRENCY_RETRY);
    Some(report.lock_outs.iter().map(|(_, left)| *left).fold(limits.max(permits), TimeSpan::max))
}
