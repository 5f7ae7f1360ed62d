//! The limiter's answer: what to do with a request, and what to report.
//!
//! An action in place of a refusal (wait for a turn, a cached response, a degraded one) belongs here as a third variant, `Act`.
//! The limiter would resolve it where it refuses now; each interface performs it or refuses.

use smallvec::SmallVec;
use tidegate_core::{DecisionKind, RecordedDecision, RuleId, TimeSpan};
use tidegate_headers::{BodyStyle, ErrorBody, RefusalEntry, ReportedLimit, RetryAfter};
use tidegate_policy::Exemption;
use tidegate_store::{Permit, Store};

use crate::charge::{Charge, ChargeUse};
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
    /// How long to delay the request; zero unless a leaky bucket delays it.
    pub delay: TimeSpan,
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
    /// The store returned no decision about a limit that can refuse the request.
    StoreUnavailable,
}

impl<'a> Ruling<'a> {
    /// The limits of the request.
    #[inline]
    pub fn report(&self) -> &RulingReport<'a> {
        match self {
            Self::Serve(serve) => &serve.report,
            Self::Refuse(refuse) => &refuse.report,
        }
    }

    /// What metrics, logs and traces record. `limits` are those of its report.
    #[inline]
    pub fn recorded<'r>(
        &'r self,
        limits: &'r ReportedLimits<'a>,
    ) -> RecordedDecision<'r, impl Iterator<Item = RuleId> + use<'r, 'a>> {
        let (kind, rejected_by) = match self {
            Self::Serve(serve) => (serve.reason.kind(), None),
            Self::Refuse(refuse) => (refuse.reason.kind(), refuse.rule),
        };
        let report = self.report();
        let is_counted = !matches!(kind, DecisionKind::Banned | DecisionKind::Exempt);
        let client = is_counted.then(|| report.client());
        RecordedDecision {
            kind,
            client,
            rejected_by,
            limit: limits.primary(),
            shadow_rejections: report.shadow_rejections(),
        }
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

impl RefuseReason {
    /// How the decision is counted.
    pub const fn kind(self) -> DecisionKind {
        match self {
            Self::Limit | Self::LockOut | Self::Concurrency => DecisionKind::Rejected,
            Self::Banned => DecisionKind::Banned,
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
            Self::StoreUnavailable => &RefusalEntry::STORE_UNAVAILABLE,
        }
    }
}

impl RefuseRuling<'_> {
    /// `Retry-After` in seconds.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after.map_or(self.reason.refusal().retry_after, |retry_after| Some(retry_after.seconds))
    }

    /// Applies `read` to what the client is told, for bodies in `style`. `limits` are those of the report.
    pub fn describe<R>(
        &self,
        limits: &ReportedLimits<'_>,
        style: BodyStyle,
        read: impl FnOnce(&ErrorBody<'_>) -> R,
    ) -> R {
        let mut violated = SmallVec::<[&str; 4]>::new();
        // Only problem bodies list them.
        if style == BodyStyle::Problem {
            violated.extend(self.report.violated());
        }
        let report = limits.primary();
        let limit = report.map(|report| ReportedLimit { at: self.report.at(), report, violated: &violated });
        read(&self.reason.refusal().body(self.retry_after_seconds(), limit))
    }
}
