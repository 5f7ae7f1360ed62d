//! What a response says about the limits of a request.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Decision, LimitReport};
use tidegate_headers::RetryAfter;

use super::error::RateLimited;
use super::handle::RateLimitRule;

/// The limits of a request after the decision.
#[derive(Clone, Copy, Debug)]
pub struct RateLimitReport<'a> {
    /// The decision.
    pub decision: &'a Decision,
    /// The limits, in the order of the outcomes.
    pub rules: &'a [RateLimitRule],
}

impl<'a> RateLimitReport<'a> {
    /// The limits as they are announced to clients.
    pub fn limits(&self) -> SmallVec<[LimitReport<'a>; 4]> {
        let reports = self.rules.iter().zip(&self.decision.outcomes);
        reports.map(|(rule, outcome)| rule.quota.report(&rule.name, outcome)).collect()
    }

    /// The position of the limit for headers that hold one limit: the one that rejects the request, or the one with the least
    /// left of its quota.
    pub fn primary(&self, limits: &[LimitReport<'_>]) -> usize {
        if let Some(position) = self.decision.rejected_by {
            return position;
        }
        let share =
            |report: &LimitReport<'_>| (u128::from(report.remaining) << 64) / u128::from(report.quota.max(1));
        let positions = 0..limits.len();
        positions.min_by_key(|position| limits.get(*position).map(share)).unwrap_or_default()
    }

    /// The rejection of `client`; `None` if the request is admitted.
    pub(super) fn rejection(&self, client: &[u8]) -> Option<RateLimited> {
        let position = self.decision.rejected_by?;
        let (rule, outcome) = (self.rules.get(position)?, self.decision.outcomes.get(position)?);
        let retry_after = self.decision.verdict.retry_after();
        let rejecting =
            self.rules.iter().zip(&self.decision.outcomes).filter(|(_, outcome)| !outcome.verdict.is_pass());
        Some(RateLimited {
            rule: rule.name.clone(),
            retry_after,
            at: self.decision.at,
            violated: rejecting.map(|(rule, _)| Arc::clone(&rule.name)).collect(),
            report: rule.quota.report("", outcome),
            retry_after_seconds: retry_after.map(|wait| RetryAfter::new(wait, client).seconds),
        })
    }
}
