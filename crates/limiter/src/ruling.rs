//! The limiter's answer: what to do with a request, and what to report.
//!
//! An interface performs the action of a [`Ruling::Act`]. If it cannot, now or ever, [`ActRuling::refuse`] returns the refusal.

use smallvec::SmallVec;
use tidegate_core::{ActionKind, DecisionKind, RecordedDecision, RuleAction, RuleId, TimeSpan};
use tidegate_headers::{BodyFormat, BodyStyle, ErrorBody, RefusalEntry, ReportedLimit, RetryAfter};
use tidegate_policy::{ExceedAction, Exemption, MatchedRequest, Plan, RejectionPlan};
use tidegate_store::{Permit, Store};

use crate::charge::{Charge, ChargeUse};
use crate::conclusion;
use crate::limiter::Limiter;
use crate::report::{ReportedLimits, RulingReport};

/// What to do with a request.
#[must_use]
#[derive(Debug)]
pub enum Ruling<'a> {
    /// The request is served.
    Serve(ServeRuling<'a>),
    /// The request is refused.
    Refuse(RefuseRuling<'a>),
    /// An action takes the place of the refusal. Boxed, because that is rare.
    Act(Box<ActRuling<'a>>),
}

/// A request that is served.
#[derive(Debug)]
pub struct ServeRuling<'a> {
    /// The limits of the request.
    pub report: RulingReport<'a>,
    /// Why it is served.
    pub reason: ServeReason,
    /// Keep them until the request has ended.
    pub permits: Vec<Permit>,
    /// How long to delay the request; zero unless a leaky bucket or a soft limit delays it.
    pub delay: TimeSpan,
    /// The soft limit that delays it, the limit that has lent it units, or the one for which it has waited.
    pub action: Option<RuleAction>,
    /// Whether any cost may be settled later.
    pub(crate) may_be_settled: bool,
}

/// Why a request is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServeReason {
    /// It is within its limits.
    WithinLimits,
    /// The client is exempt from all limits.
    Exempt(Exemption),
    /// The store returned no decision, but no limit that it counts can refuse the request: all of them are in shadow mode.
    StoreFailed,
}

/// A request that is refused.
#[derive(Debug)]
pub struct RefuseRuling<'a> {
    /// The limits of the request.
    pub report: RulingReport<'a>,
    /// Why it is refused.
    pub reason: RefuseReason,
    /// The rule that refuses it; of several, the one that is reported. `None` if no rule does.
    pub rule: Option<RuleId>,
    /// When nothing refuses the request any more; `None` if that is unknown, or if a limit always refuses it.
    pub retry_after: Option<RetryAfter>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefuseReason {
    /// A rate limit is exceeded.
    Limit,
    /// The client is locked out.
    LockOut,
    /// A concurrency limit is exceeded.
    Concurrency,
    /// The client is banned.
    Banned,
    /// The policy serves only some networks, and the client is in none of them.
    NotAllowed,
    /// The store returned no decision about a limit that can refuse the request.
    StoreUnavailable,
}

/// A request for which an action takes the place of the refusal. What it was charged stays charged unless the interface takes the
/// [`charge`](Self::charge), or [refuses](Self::refuse) it.
#[derive(Debug)]
pub struct ActRuling<'a> {
    /// The limits of the request.
    pub report: RulingReport<'a>,
    /// Keep them until the request has ended.
    pub permits: Vec<Permit>,
    /// How long to delay the request, besides.
    pub delay: TimeSpan,
    /// The check whose action it is.
    pub(crate) index: usize,
    /// Whether any cost may be settled later.
    pub(crate) may_be_settled: bool,
    pub(crate) matched: MatchedRequest<'a>,
}

impl<'a> Ruling<'a> {
    /// The limits of the request.
    #[inline]
    pub fn report(&self) -> &RulingReport<'a> {
        match self {
            Self::Serve(serve) => &serve.report,
            Self::Refuse(refuse) => &refuse.report,
            Self::Act(act) => &act.report,
        }
    }

    /// What metrics, logs and traces record. `limits` are those of its report.
    #[inline]
    pub fn recorded<'r>(
        &'r self,
        limits: &'r ReportedLimits<'a>,
    ) -> RecordedDecision<'r, impl Iterator<Item = RuleAction> + use<'r, 'a>> {
        let (kind, rejected_by, action) = match self {
            Self::Serve(serve) => (serve.reason.kind(), None, serve.action),
            Self::Refuse(refuse) => (refuse.reason.kind(), refuse.rule, None),
            Self::Act(act) => (act.kind(), None, act.report.action(act.index)),
        };
        self.report().recorded(kind, limits, (rejected_by, action))
    }
}

impl<'a> RulingReport<'a> {
    /// What is recorded about a decision of this kind, with the rule that rejects the request or the action.
    #[inline]
    fn recorded<'r>(
        &'r self,
        kind: DecisionKind,
        limits: &'r ReportedLimits<'a>,
        (rejected_by, action): (Option<RuleId>, Option<RuleAction>),
    ) -> RecordedDecision<'r, impl Iterator<Item = RuleAction> + use<'r, 'a>> {
        let is_counted = !matches!(kind, DecisionKind::Banned | DecisionKind::Exempt);
        let client = is_counted.then(|| self.client());
        let (limit, shadow_actions) = (limits.primary(), self.shadow_actions());
        RecordedDecision { kind, client, rejected_by, limit, action, shadow_actions }
    }
}

impl ServeReason {
    /// How the decision is counted.
    pub const fn kind(self) -> DecisionKind {
        match self {
            Self::WithinLimits => DecisionKind::Admitted,
            Self::Exempt(_) => DecisionKind::Exempt,
            Self::StoreFailed => DecisionKind::StoreFailed,
        }
    }
}

impl ServeRuling<'_> {
    /// What the request was charged, as far as this use needs it; `None` if that is nothing.
    #[inline]
    pub fn charge<S: Store + 'static>(&self, limiter: &Limiter<S>, usage: ChargeUse) -> Option<Charge> {
        let is_needed = self.may_be_settled || usage != ChargeUse::Served;
        if is_needed { Charge::new(&limiter.shared, &self.report, usage) } else { None }
    }
}

impl<'a> ActRuling<'a> {
    /// The action.
    pub fn action(&self) -> &'a ExceedAction {
        self.matched.on_exceed(self.index).unwrap_or(&ExceedAction::Reject)
    }

    /// The name of the rule whose action it is.
    pub fn rule_name(&self) -> &'a str {
        self.report.rules.rule(self.index).map_or("", |rule| &rule.name)
    }

    /// How the decision is counted once the action is performed. A request that has to wait is neither admitted nor rejected
    /// yet; a caller that is told so asks again.
    fn kind(&self) -> DecisionKind {
        match self.action().kind() {
            ActionKind::Wait => DecisionKind::Rejected,
            _ => DecisionKind::Admitted,
        }
    }

    /// What metrics, logs and traces record if the action is performed. `limits` are those of its report.
    pub fn recorded<'r>(
        &'r self,
        limits: &'r ReportedLimits<'a>,
    ) -> RecordedDecision<'r, impl Iterator<Item = RuleAction> + use<'r, 'a>> {
        self.report.recorded(self.kind(), limits, (None, self.report.action(self.index)))
    }

    /// What the request was charged, as far as this use needs it; `None` if that is nothing.
    pub fn charge<S: Store + 'static>(&self, limiter: &Limiter<S>, usage: ChargeUse) -> Option<Charge> {
        let is_needed = self.may_be_settled || usage != ChargeUse::Served;
        if is_needed && !self.report.is_peeked {
            Charge::new(&limiter.shared, &self.report, usage)
        } else {
            None
        }
    }

    /// The refusal of a request whose action cannot be performed. What it was charged is refunded.
    pub fn refuse<S: Store + 'static>(self, limiter: &Limiter<S>) -> RefuseRuling<'a> {
        drop(self.charge(limiter, ChargeUse::Refundable));
        let Self { mut report, mut matched, .. } = self;
        // From here on no action takes the place of a rejection.
        matched.reject();
        report.decision = report.decision.map(|decision| matched.rebind(decision));
        conclusion::refusal(limiter.with_violations(&matched, report))
    }
}

impl RefuseReason {
    /// How the decision is counted.
    pub const fn kind(self) -> DecisionKind {
        match self {
            Self::Limit | Self::LockOut | Self::Concurrency => DecisionKind::Rejected,
            Self::Banned | Self::NotAllowed => DecisionKind::Banned,
            Self::StoreUnavailable => DecisionKind::StoreFailed,
        }
    }

    /// What the client is told.
    pub const fn refusal(self) -> &'static RefusalEntry {
        match self {
            Self::Limit => &RefusalEntry::RATE_LIMIT_EXCEEDED,
            Self::LockOut => &RefusalEntry::LOCKED_OUT,
            Self::Concurrency => &RefusalEntry::CONCURRENCY_EXCEEDED,
            Self::Banned => &RefusalEntry::BANNED,
            Self::NotAllowed => &RefusalEntry::NOT_ALLOWED,
            Self::StoreUnavailable => &RefusalEntry::STORE_UNAVAILABLE,
        }
    }
}

impl<'a> RefuseRuling<'a> {
    /// What metrics, logs and traces record. `limits` are those of its report.
    pub fn recorded<'r>(
        &'r self,
        limits: &'r ReportedLimits<'a>,
    ) -> RecordedDecision<'r, impl Iterator<Item = RuleAction> + use<'r, 'a>> {
        self.report.recorded(self.reason.kind(), limits, (self.rule, None))
    }

    /// The action of the limit that refuses the request, if it is not to reject: this interface does not perform it.
    /// With the name of its rule.
    pub fn unperformed(&self) -> Option<(&'a ExceedAction, &'a str)> {
        let rule = self.report.rules.rule(self.report.primary?)?;
        rule.on_exceed.kind().needs_interface().then_some((&rule.on_exceed, rule.name.as_str()))
    }

    /// `Retry-After` in seconds.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after.map_or(self.reason.refusal().retry_after, |retry_after| Some(retry_after.seconds))
    }

    /// Applies `read` to what the client is told, and to the format of the body. `limits` are those of the report.
    pub fn describe<R>(
        &self,
        limits: &ReportedLimits<'_>,
        plan: &Plan,
        read: impl FnOnce(&ErrorBody<'_>, &BodyFormat) -> R,
    ) -> R {
        let (own, other) = (self.rejection(), BodyFormat::Style(plan.error_body));
        let format = match (own.and_then(|rejection| rejection.body.as_ref()), self.rule) {
            (Some(format), _) => format,
            (None, Some(_)) => &plan.rejection_body,
            (None, None) => &other,
        };
        let mut violated = SmallVec::<[&str; 4]>::new();
        // Only problem bodies list them.
        if *format == BodyFormat::Style(BodyStyle::Problem) {
            violated.extend(self.report.violated());
        }
        let report = limits.announced();
        let limit = report.map(|report| ReportedLimit { at: self.report.at(), report, violated: &violated });
        let mut body = self.reason.refusal().body(self.retry_after_seconds(), limit);
        if let Some(rejection) = own {
            body.status = rejection.status;
        }
        read(&body, format)
    }

    /// The response that the rule which refuses the request has of its own.
    fn rejection(&self) -> Option<&'a RejectionPlan> {
        let rejection = match (self.report.exhausted, self.report.primary) {
            (Some(rule), _) => &rule.rejection,
            (None, Some(index)) => &self.report.rules.rule(index)?.rejection,
            (None, None) => return None,
        };
        rejection.as_deref()
    }
}
