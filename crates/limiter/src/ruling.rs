//! The result of a check.

use tidegate_core::{RuleId, TimeSpan};
use tidegate_headers::RejectionReason;
use tidegate_policy::Exemption;
use tidegate_store::Permit;

use crate::report::RulingReport;
use crate::reservation::Reservations;

/// What to do with a request.
#[must_use]
#[derive(Debug)]
pub enum Ruling<'a> {
    /// The request is admitted.
    Admitted(AdmittedRuling<'a>),
    /// The request is rejected: 429.
    Rejected(RejectedRuling<'a>),
    /// The client is banned: 403.
    Banned,
    /// The client is exempt from all limits.
    Exempt(Exemption),
    /// The store failed.
    StoreFailed(FailedRuling<'a>),
    /// The policy has no rule with the name given to [`Limiter::check_rule`](crate::Limiter::check_rule).
    NoRule,
}

/// An admitted request.
#[derive(Debug)]
pub struct AdmittedRuling<'a> {
    /// The limits of the request.
    pub report: RulingReport<'a>,
    /// Keep them until the request has ended.
    pub permits: Vec<Permit>,
    /// Charges that the response or the request body settles.
    pub reservations: Reservations,
    /// How long to delay the request; zero unless a leaky bucket delays it. A [`RefundGuard`](crate::RefundGuard) refunds the
    /// charge if the client does not wait.
    pub delay: TimeSpan,
}

/// A rejected request.
#[derive(Debug)]
pub struct RejectedRuling<'a> {
    /// The limits of the request.
    pub report: RulingReport<'a>,
    /// The reason.
    pub reason: RejectionReason,
    /// The rule that rejects it; of several, the one that is reported.
    pub rule: RuleId,
    /// How long until nothing rejects the request; `None` if a limit always does.
    pub retry_after: Option<TimeSpan>,
}

/// A request for which the store returned no decision.
#[derive(Debug)]
pub struct FailedRuling<'a> {
    /// The limits of the request.
    pub report: RulingReport<'a>,
    /// Keep them until the request has ended, if it is admitted.
    pub permits: Vec<Permit>,
    /// Whether a limit that can reject was checked. Otherwise all of them are in shadow mode, and the request can be
    /// admitted.
    pub is_binding: bool,
}
