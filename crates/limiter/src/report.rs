//! The limits of a request, for response headers, logs and metrics.

use std::ops::Deref;

use smallvec::SmallVec;
use tidegate_core::{ActionKind, Decision, LimitReport, Role, RuleAction, RuleId, TimeSpan, Timestamp};
use tidegate_headers::{HeaderStyle, HeaderValueCache, HeaderWriter, RateLimitHeaders};
use tidegate_policy::{AppliedRules, ConcurrencyRule, Rule};

use crate::action;
use crate::lockout::LockOuts;
use crate::ruling::RefuseReason;

/// `Retry-After` of a concurrency limit: a request with a permit may end at any time.
pub(crate) const CONCURRENCY_RETRY: TimeSpan = TimeSpan::from_secs(1);

/// The limits of a request and their decision. Reports are computed lazily.
#[derive(Debug)]
pub struct RulingReport<'a> {
    pub(crate) at: Timestamp,
    pub(crate) rules: AppliedRules<'a>,
    /// The decision of the limits; `None` if there are none, or if the store failed.
    pub(crate) decision: Option<Decision>,
    /// Whether the decision was only peeked, because a lock-out or a concurrency limit rejects the request.
    pub(crate) is_peeked: bool,
    pub(crate) lock_outs: LockOuts,
    /// The concurrency limit that has no permit left.
    pub(crate) exhausted: Option<&'a ConcurrencyRule>,
    /// Concurrency limits in shadow mode that had no permit left.
    pub(crate) shadow: Vec<RuleId>,
    /// The check whose limit is reported in headers that hold one limit.
    pub(crate) primary: Option<usize>,
}

impl<'a> RulingReport<'a> {
    pub(crate) fn new(rules: AppliedRules<'a>, at: Timestamp) -> Self {
        let (lock_outs, shadow) = (LockOuts::new(), Vec::new());
        Self {
            at,
            rules,
            decision: None,
            is_peeked: false,
            lock_outs,
            exhausted: None,
            shadow,
            primary: None,
        }
    }

    /// The time of the decision, by the store's clock.
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// The client, as in the keys of its counters. It may be an API key.
    pub fn client(&self) -> &'a [u8] {
        self.rules.client()
    }

    /// Every limit that can reject the request. Limits in shadow mode, and those with `report: off`, are not reported to clients.
    pub fn limits(&self) -> ReportedLimits<'a> {
        let mut reported = ReportedLimits { at: self.at, limits: SmallVec::new(), visible: 0, primary: 0 };
        let mut hidden = None;
        if let Some(rule) = self.exhausted {
            let limit = LimitReport::exhausted_concurrency(&rule.name, rule.concurrent);
            if rule.is_reported {
                reported.limits.push(limit);
            } else {
                hidden = Some(limit);
            }
        }
        for (index, (rule, role)) in self.rules.rules().enumerate() {
            if role == Role::Binding
                && let Some(limit) = self.limit(index, rule)
            {
                let is_primary = self.primary == Some(index);
                if !rule.is_reported {
                    hidden = hidden.or(Some(limit).filter(|_| is_primary));
                    continue;
                }
                if is_primary {
                    reported.primary = reported.limits.len();
                }
                reported.limits.push(limit);
            }
        }
        reported.visible = reported.limits.len();
        if let Some(hidden) = hidden {
            reported.primary = reported.visible;
            reported.limits.push(hidden);
        }
        reported
    }

    /// Whether a limit that can reject the request would serve a stored response instead.
    pub fn has_cached_limit(&self) -> bool {
        let mut rules = self.rules.rules();
        rules.any(|(rule, role)| role == Role::Binding && rule.on_exceed.kind() == ActionKind::Cached)
    }

    /// The names of the limits that reject the request and that clients are told about.
    pub fn violated(&self) -> impl Iterator<Item = &'a str> {
        let binding = self.rules.rules().enumerate().filter(|(_, (_, role))| *role == Role::Binding);
        let violated = binding.filter(|(index, _)| {
            let outcome = self.decision.as_ref().and_then(|decision| decision.outcomes.get(*index));
            self.lock_out(*index).is_some() || outcome.is_some_and(|outcome| !outcome.verdict.is_pass())
        });
        let exhausted = self.exhausted.filter(|rule| rule.is_reported).map(|rule| rule.name.as_str());
        let violated = violated.filter(|(_, (rule, _))| rule.is_reported);
        exhausted.into_iter().chain(violated.map(|(_, (rule, _))| rule.name.as_str()))
    }

    /// What the rules in shadow mode would have done. Limits that were only peeked at, because a lock-out or a concurrency limit
    /// rejects the request, are not included.
    pub fn shadow_actions(&self) -> impl Iterator<Item = RuleAction> {
        let decision = self.decision.as_ref().filter(|_| !self.is_peeked);
        let outcomes = decision.map_or(&[][..], |decision| &decision.outcomes);
        let rates = self.rules.rules().zip(outcomes).filter_map(|((rule, role), outcome)| {
            if role != Role::Advisory {
                return None;
            }
            Some(RuleAction { rule: rule.id, kind: action::of_shadow(&rule.on_exceed, outcome)? })
        });
        let exhausted = |rule: &RuleId| RuleAction { rule: *rule, kind: ActionKind::Reject };
        self.shadow.iter().map(exhausted).chain(rates)
    }

    /// What the response to a rejected request reports, and its rule: of the concurrency limit that has no permit left, the longest
    /// lock-out and the limits, the one that rejects for the longest time. Makes its limit the primary one.
    pub(crate) fn find_refusing(&mut self) -> (RefuseReason, Option<RuleId>) {
        let by_limit = self.decision.as_ref().and_then(|decision| {
            let left = decision.verdict.retry_after().unwrap_or(TimeSpan::MAX);
            decision.rejected_by.map(|index| (left, index))
        });
        let by_lock_out =
            self.lock_outs.iter().map(|(index, left)| (*left, *index)).max_by_key(|(left, _)| *left);
        let (longest, index) = match (by_lock_out, by_limit) {
            (Some(lock_out), Some(limit)) if lock_out.0 < limit.0 => limit,
            (Some(first), _) | (None, Some(first)) => first,
            (None, None) => (TimeSpan::ZERO, 0),
        };
        if let Some(rule) = self.exhausted
            && longest <= CONCURRENCY_RETRY
        {
            return (RefuseReason::Concurrency, Some(rule.id));
        }
        self.primary = Some(index);
        let is_locked_out = self.lock_out(index).is_some();
        let reason = if is_locked_out { RefuseReason::LockOut } else { RefuseReason::Limit };
        (reason, self.rules.rule(index).map(|rule| rule.id))
    }

    /// The action of check number `index`.
    pub(crate) fn action(&self, index: usize) -> Option<RuleAction> {
        self.rules.rule(index).map(|rule| RuleAction { rule: rule.id, kind: rule.on_exceed.kind() })
    }

    fn lock_out(&self, index: usize) -> Option<TimeSpan> {
        self.lock_outs.iter().find(|(locked, _)| *locked == index).map(|(_, left)| *left)
    }

    #[inline]
    fn limit(&self, index: usize, rule: &'a Rule) -> Option<LimitReport<'a>> {
        let outcome = self.decision.as_ref().and_then(|decision| decision.outcomes.get(index));
        Some(match self.lock_out(index) {
            Some(left) => rule.quota.report_locked_out(&rule.name, outcome, left),
            None => rule.quota.report(&rule.name, outcome?),
        })
    }
}

/// The limits that a response reports, in the order of the policy.
#[derive(Clone, Debug)]
pub struct ReportedLimits<'a> {
    at: Timestamp,
    /// Those that clients are told about, and the primary one if they are not.
    limits: SmallVec<[LimitReport<'a>; 4]>,
    visible: usize,
    primary: usize,
}

impl<'a> ReportedLimits<'a> {
    /// The limit that rejects the request, or the one with the least left, whether or not clients are told about it. `None` if there
    /// are no limits.
    pub fn primary(&self) -> Option<&LimitReport<'a>> {
        self.limits.get(self.primary)
    }

    /// The primary limit for headers and bodies that hold one limit; `None` if clients are not told about it.
    pub fn announced(&self) -> Option<&LimitReport<'a>> {
        self.primary().filter(|_| self.primary < self.visible)
    }

    /// Writes the rate-limit headers of a response.
    pub fn write_headers(
        &self,
        styles: &[HeaderStyle],
        cache: &mut HeaderValueCache,
        headers: &mut RateLimitHeaders,
    ) {
        if let Some(primary) = self.announced() {
            HeaderWriter { styles, cache }.write_limits(headers, self.at, primary, self);
        }
    }
}

impl<'a> Deref for ReportedLimits<'a> {
    type Target = [LimitReport<'a>];

    fn deref(&self) -> &Self::Target {
        self.limits.get(..self.visible).unwrap_or_default()
    }
}
