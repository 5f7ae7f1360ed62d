//! The state of a limit as reported to clients, independent of header and body formats.

use core::fmt;

use crate::action::ActionKind;
use crate::key::RuleId;
use crate::time::TimeSpan;
use crate::units::ByteSize;

/// The state of one limit after a decision, as responses report it.
///
/// `quota` and `window` are as announced, which need not be the parameters of the limit: a token bucket announces its
/// burst and the time in which that refills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitReport<'a> {
    /// The name of the rule.
    pub name: &'a str,
    /// Units per window.
    pub quota: u64,
    /// The window in whole seconds; a concurrency limit has none.
    pub window: Option<TimeSpan>,
    /// The units left, at most `quota`.
    pub remaining: u64,
    /// The time until all units are available again: at most the window, unless `retry_after` is longer.
    pub reset_after: TimeSpan,
    /// The time until the limit admits the request that it rejects; `None` if it admits the request or never will.
    pub retry_after: Option<TimeSpan>,
    /// The kind of unit.
    pub unit: LimitUnit,
}

impl<'a> LimitReport<'a> {
    /// An exhausted concurrency limit: any request may end soon and free a unit.
    pub fn exhausted_concurrency(name: &'a str, limit: u32) -> Self {
        let soon = TimeSpan::from_secs(1);
        Self {
            name,
            quota: limit.into(),
            window: None,
            remaining: 0,
            reset_after: soon,
            retry_after: Some(soon),
            unit: LimitUnit::ConcurrentRequests,
        }
    }

    /// The reset time sent to clients: if the limit rejects the request, the time until it admits it; otherwise the time until
    /// all units are available again.
    #[inline]
    pub fn announced_reset(&self) -> TimeSpan {
        self.retry_after.unwrap_or(self.reset_after)
    }
}

named_enum! {
    /// What was decided about a request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum DecisionKind {
        /// The request is admitted.
        Admitted = "admitted",
        /// A limit rejects the request.
        Rejected = "rejected",
        /// The request is exempt from limits.
        Exempt = "exempt",
        /// The client or its network is banned, or not allowed.
        Banned = "banned",
        /// The store failed, so there is no decision.
        StoreFailed = "store_failed",
    }
}

/// What metrics, logs and traces record about a decision, whichever interface asked for it.
#[derive(Debug)]
pub struct RecordedDecision<'a, I> {
    /// What was decided.
    pub kind: DecisionKind,
    /// The client, as in the keys of its counters; `None` if it is not counted.
    pub client: Option<&'a [u8]>,
    /// The rule that rejects the request.
    pub rejected_by: Option<RuleId>,
    /// The limit that the response reports.
    pub limit: Option<&'a LimitReport<'a>>,
    /// The action that the request gets in place of a rejection, or that delays it.
    pub action: Option<RuleAction>,
    /// What rules in shadow mode would have done.
    pub shadow_actions: I,
}

/// What a rule does about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleAction {
    /// The rule.
    pub rule: RuleId,
    /// What it does.
    pub kind: ActionKind,
}

impl RecordedDecision<'_, core::iter::Empty<RuleAction>> {
    /// A decision without rules.
    pub const fn new(kind: DecisionKind) -> Self {
        let shadow_actions = core::iter::empty();
        Self { kind, client: None, rejected_by: None, limit: None, action: None, shadow_actions }
    }
}

/// What a limit counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LimitUnit {
    /// Requests.
    #[default]
    Requests,
    /// Blocks of this many bytes of request content.
    ContentBytes(u64),
    /// The cost that requests or responses declare.
    Cost,
    /// Requests that are served at the same time.
    ConcurrentRequests,
}

impl LimitUnit {
    /// Parses a unit; `None` for units of other systems.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "requests" => Some(Self::Requests),
            "content-bytes" => Some(Self::ContentBytes(1)),
            "cost-units" => Some(Self::Cost),
            "concurrent-requests" => Some(Self::ConcurrentRequests),
            _ => ByteSize::parse(text.strip_prefix("content-")?).map(|size| Self::ContentBytes(size.0)),
        }
    }
}

impl fmt::Display for LimitUnit {
    /// In the format of the parameter `qu` of `RateLimit-Policy`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requests => f.write_str("requests"),
            Self::ContentBytes(1) => f.write_str("content-bytes"),
            Self::ContentBytes(bytes) => write!(f, "content-{}", ByteSize(*bytes)),
            Self::Cost => f.write_str("cost-units"),
            Self::ConcurrentRequests => f.write_str("concurrent-requests"),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn limit_unit_of_each_kind_is_written_and_parsed_as_a_quota_unit() {
        for (unit, text) in [
            (LimitUnit::Requests, "requests"),
            (LimitUnit::ContentBytes(1), "content-bytes"),
            (LimitUnit::ContentBytes(64 << 10), "content-64KiB"),
            (LimitUnit::ContentBytes(1_000), "content-1000B"),
            (LimitUnit::Cost, "cost-units"),
            (LimitUnit::ConcurrentRequests, "concurrent-requests"),
        ] {
            assert_eq!(unit.to_string(), text);
            assert_eq!(LimitUnit::parse(text), Some(unit));
        }
        for text in
            ["", "widgets", "content-", "content-KiB", "content-64", "content-99999999999999999999GiB"]
        {
            assert_eq!(LimitUnit::parse(text), None, "{text}");
        }
    }

    #[test]
    fn limit_report_announces_retry_after_before_reset_after() {
        let full = LimitReport::exhausted_concurrency("exports", 2);
        assert_eq!(full.announced_reset(), TimeSpan::from_secs(1));
        let open = LimitReport { retry_after: None, reset_after: TimeSpan::from_secs(30), ..full };
        assert_eq!(open.announced_reset(), TimeSpan::from_secs(30));
    }
}
