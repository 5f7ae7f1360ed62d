//! The result of a check.

use tidegate_core::{RuleId, TimeSpan};
use tidegate_headers::RejectionReason;
use tidegate_policy::Exemption;
use tidegate_store::{Permit, Store};

use crate::charge::{Charge, ChargeUse};
use crate::limiter::Limiter;
use crate::report::RulingReport;

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
    /// How long to delay the request; zero unless a leaky bucket delays it.
    pub delay: TimeSpan,
    /// Whether any cost may be settled later.
    pub(crate) may_be_settled: bool,
}

impl AdmittedRuling<'_> {
    /// What the request was charged, as far as this use needs it; `None` if that is nothing.
    #[inline]
    pub fn charge<S: Store + 'static>(&self, limiter: &Limiter<S>, usage: ChargeUse) -> Option<Charge> {
        let is_needed = self.may_be_settled || usage != ChargeUse::Served;
        if is_needed { Charge::new(&limiter.shared, &self.report, usage) } else { None }
    }
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
