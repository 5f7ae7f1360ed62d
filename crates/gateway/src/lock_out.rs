//! Who is refused again and again is locked out for a while.

use serde_json::json;
use tidegate_core::{Decision, RuleId, Span, Timestamp, Verdict};
use tidegate_policy::{ErrorBody, Judged, Matched, Rule};
use tidegate_store::Penalties;

/// A client that is locked out.
#[derive(Debug)]
pub(crate) struct LockOut {
    pub(crate) rule: RuleId,
    rule_name: String,
    /// Seconds until its end.
    pub(crate) retry_after: u64,
}

impl LockOut {
    /// Whether one of the counters of a request is locked out; the one that is so longest is told.
    pub(crate) fn find(penalties: &Penalties, matched: &Matched<'_>, now: Timestamp) -> Option<Self> {
        let locked = matched
            .penalties()
            .filter_map(|(check, rule, _)| Some((penalties.lock_out(check.key, now)?, rule)));
        locked.max_by_key(|(left, _)| *left).map(|(left, rule)| Self::new(rule, left))
    }

    /// Records what `decision` refused, at every counter that had no room for it. Says whether that locks out.
    pub(crate) fn record(
        penalties: &Penalties,
        matched: &Matched<'_>,
        decision: &Decision,
        now: Timestamp,
    ) -> Option<Self> {
        let refusing = matched.judged(decision).filter(Judged::refuses);
        let violated = refusing.filter_map(|judged| Some((judged, judged.rule.penalty.as_ref()?)));
        let mut longest = None;
        for (judged, penalty) in violated {
            let left = penalties.violate(judged.check.key, penalty, now).map(|left| (left, judged.rule));
            longest = longest.into_iter().chain(left).max_by_key(|(left, _)| *left);
        }
        let (left, rule) = longest?;
        // Coming back before the limit has room again would be the next violation.
        let until = match decision.verdict {
            Verdict::NotUntil { retry_after } => left.max(retry_after),
            _ => left,
        };
        Some(Self::new(rule, until))
    }

    fn new(rule: &Rule, left: Span) -> Self {
        Self { rule: rule.id, rule_name: rule.name.clone(), retry_after: left.as_secs_ceil() }
    }

    pub(crate) fn message(&self) -> String {
        let seconds = match self.retry_after {
            1 => "1 second".to_owned(),
            seconds => format!("{seconds} seconds"),
        };
        format!("Too many refused requests: this client is locked out. Please retry after {seconds}.")
    }

    /// The body and its type.
    pub(crate) fn body(&self, style: ErrorBody) -> (Vec<u8>, &'static str) {
        let Self { rule_name, retry_after, .. } = self;
        let message = self.message();
        let (body, content_type) = match style {
            ErrorBody::Flat => (
                json!({ "error": "locked_out", "message": message, "retry_after": retry_after, "rule": rule_name }),
                "application/json",
            ),
            ErrorBody::Nested => (
                json!({ "error": {
                    "code": "LOCKED_OUT", "message": message, "retry_after": retry_after, "rule": rule_name,
                } }),
                "application/json",
            ),
            ErrorBody::Problem => (
                json!({
                    "type": "https://iana.org/assignments/http-problem-types#abnormal-usage-detected",
                    "title": "Request not satisfied due to detection of abnormal request pattern",
                    "status": 429,
                    "detail": message,
                    "violated-policies": [rule_name],
                    "retry_after": retry_after,
                    "rule": rule_name,
                }),
                "application/problem+json",
            ),
        };
        let mut body = body.to_string().into_bytes();
        body.push(b'\n');
        (body, content_type)
    }
}
