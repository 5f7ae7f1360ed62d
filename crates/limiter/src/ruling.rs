//! What the limiter answers.

use tidegate_core::{RuleId, TimeSpan};
use tidegate_headers::RejectionReason;
use tidegate_policy::Exemption;
use tidegate_store::Permit;

use crate::report::RulingReport;
use crate::reservation::Reservations;

/// What becomes of a request.
#[must_use]
#[derive(Debug)]
pub enum Ruling<'a> {
    /// It may pass.
    Admitted(AdmittedRuling<'a>),
    /// It may not pass now: 429.
    Rejected(RejectedRuling<'a>),
    /// Its client is banned: 403.
    Banned,
    /// Its client is never limited.
    Exempt(Exemption),
    /// The store gave no answer.
    StoreFailed(FailedRuling<'a>),
    /// The policy has no rule of the name that [`Limiter::check_rule`](crate::Limiter::check_rule) was asked for.
    NoRule,
}

/// A request that may pass.
#[derive(Debug)]
pub struct AdmittedRuling<'a> {
    /// Its limits.
    pub report: RulingReport<'a>,
    /// To be held until the request has ended.
    pub permits: Vec<Permit>,
    /// What was charged and is settled by the response or by the request's body.
    pub reservations: Reservations,
    /// How long to wait before it passes; zero unless a leaky bucket holds it. Nothing else is charged for the wait; a
    /// [`RefundGuard`](crate::RefundGuard) gives back what was charged if the client does not wait.
    pub delay: TimeSpan,
}

/// A request that may not pass now.
#[derive(Debug)]
pub struct RejectedRuling<'a> {
    /// Its limits.
    pub report: RulingReport<'a>,
    /// Why.
    pub reason: RejectionReason,
    /// The rule that rejects it; of several, the one that is reported.
    pub rule: RuleId,
    /// How long until nothing rejects it any more; `None` if a limit always will.
    pub retry_after: Option<TimeSpan>,
}

/// A request that nobody can decide about.
#[derive(Debug)]
pub struct FailedRuling<'a> {
    /// Its limits.
    pub report: RulingReport<'a>,
    /// To be held until the request has ended, if it passes.
    pub permits: Vec<Permit>,
    /// Whether a limit that can reject was among those asked for. Otherwise all of them are in shadow mode, and the
    /// request passes.
    pub is_binding: bool,
}
