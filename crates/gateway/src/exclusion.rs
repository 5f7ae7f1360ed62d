//! Refusals that no counter decides: who is locked out, and who has too much under way already.

use std::sync::Arc;

use serde_json::json;
use tidegate_core::{Decision, Role, RuleId, Span, Timestamp, Verdict};
use tidegate_policy::{AtOnce, ErrorBody, Judged, Matched};
use tidegate_store::{Penalties, Permit, Permits};

/// When to try again where nobody can know: a request may end at any time.
const SOON: u64 = 1;

/// Why a client is not let in, whatever its counters say.
#[derive(Debug)]
pub(crate) struct Exclusion {
    pub(crate) rule: RuleId,
    rule_name: String,
    why: Why,
    /// In seconds.
    pub(crate) retry_after: u64,
}

#[derive(Clone, Copy, Debug)]
enum Why {
    /// It was refused too often.
    LockedOut,
    /// So many of its requests are under way.
    Crowded(u32),
}

/// What a request holds until it has ended.
pub(crate) type Held = Vec<Permit>;

impl Exclusion {
    /// Whether one of the counters of a request is locked out; the one that is so longest is told.
    pub(crate) fn of_locked_out(
        penalties: &Penalties,
        matched: &Matched<'_>,
        now: Timestamp,
    ) -> Option<Self> {
        let locked = matched
            .penalties()
            .filter_map(|(check, rule, _)| Some((penalties.lock_out(check.key, now)?, rule)));
        let (left, rule) = locked.max_by_key(|(left, _)| *left)?;
        Some(Self::locked_out((rule.id, &rule.name), left))
    }

    /// Records what `decision` refused, at every counter that had no room for it. Says whether that locks out.
    pub(crate) fn of_violation(
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
        Some(Self::locked_out((rule.id, &rule.name), until))
    }

    /// Takes every place that a request needs, or none. What only watches is told to `shadow` where it has no place.
    pub(crate) fn of_crowd(
        permits: &Arc<Permits>,
        matched: &Matched<'_>,
        mut shadow: impl FnMut(RuleId),
    ) -> Result<Held, Self> {
        let mut held = Held::new();
        for AtOnce { rule, key, role, .. } in matched.at_once() {
            match permits.take(key, rule.concurrent) {
                Some(permit) => held.push(permit),
                None if role == Role::Binding => {
                    let why = Why::Crowded(rule.concurrent);
                    let (rule, rule_name) = (rule.id, rule.name.clone());
                    return Err(Self { rule, rule_name, why, retry_after: SOON });
                }
                None => shadow(rule.id),
            }
        }
        Ok(held)
    }

    fn locked_out((rule, name): (RuleId, &str), left: Span) -> Self {
        let rule_name = name.to_owned();
        Self { rule, rule_name, why: Why::LockedOut, retry_after: left.as_secs_ceil() }
    }

    /// A word for programs and a sentence for people.
    pub(crate) fn words(&self) -> (&'static str, String) {
        let seconds = match self.retry_after {
            1 => "1 second".to_owned(),
            seconds => format!("{seconds} seconds"),
        };
        match self.why {
            Why::LockedOut => (
                "locked_out",
                format!(
                    "Too many refused requests: this client is locked out. Please retry after {seconds}."
                ),
            ),
            Why::Crowded(_) => {
                ("too_many_at_once", format!("Too many requests at once. Please retry after {seconds}."))
            }
        }
    }

    /// The body and its type.
    pub(crate) fn body(&self, style: ErrorBody) -> (Vec<u8>, &'static str) {
        let Self { rule_name, retry_after, why, .. } = self;
        let (code, message) = self.words();
        let mut details = json!({ "message": message, "retry_after": retry_after, "rule": rule_name });
        if let Why::Crowded(most) = why {
            details["limit"] = (*most).into();
        }
        let (body, content_type) = match style {
            ErrorBody::Flat => {
                details["error"] = code.into();
                (details, "application/json")
            }
            ErrorBody::Nested => {
                details["code"] = code.to_uppercase().into();
                (json!({ "error": details }), "application/json")
            }
            ErrorBody::Problem => {
                let (kind, title) = match why {
                    Why::LockedOut => (
                        "https://iana.org/assignments/http-problem-types#abnormal-usage-detected",
                        "Request not satisfied due to detection of abnormal request pattern",
                    ),
                    Why::Crowded(_) => (
                        "https://iana.org/assignments/http-problem-types#quota-exceeded",
                        "Request cannot be satisfied as assigned quota has been exceeded",
                    ),
                };
                details["type"] = kind.into();
                details["title"] = title.into();
                details["status"] = 429.into();
                details["detail"] = details["message"].take();
                details["violated-policies"] = json!([rule_name]);
                if let Some(details) = details.as_object_mut() {
                    details.remove("message");
                }
                (details, "application/problem+json")
            }
        };
        let mut body = body.to_string().into_bytes();
        body.push(b'\n');
        (body, content_type)
    }
}
