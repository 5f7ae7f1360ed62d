//! A ruling of the limiter as JSON.

use smallvec::SmallVec;
use tidegate_core::{LimitReport, TimeSpan, Timestamp};
use tidegate_limiter::{RefuseReason, RefuseRuling, Ruling, ServeReason};
use tidegate_policy::ExceedAction;
use tidegate_telemetry::DecisionSink;

use super::error::HttpError;
use crate::worker::ServedPolicy;

/// The members of a decision in JSON.
#[derive(Clone, Copy)]
struct DecisionMembers<'a> {
    is_admitted: bool,
    reason: Option<&'static str>,
    limit: Option<&'a LimitReport<'a>>,
    retry_after: Option<TimeSpan>,
    wait: TimeSpan,
    action: Option<&'a ExceedAction>,
    at: Timestamp,
}

/// Records a ruling and writes it as a JSON object without the brace that ends it. Rate-limit headers would be about the limits of
/// the client that asks.
pub(super) fn write_decision(
    ruling: &Ruling<'_>,
    policy: &ServedPolicy,
    sink: &mut DecisionSink<'_, '_>,
    json: &mut Vec<u8>,
) -> Result<(), HttpError> {
    let (at, limits) = (ruling.report().at(), ruling.report().limits());
    sink.record(&policy.counted, ruling.recorded(&limits));
    let limit = limits.primary();
    let members = match ruling {
        Ruling::Serve(serve) => DecisionMembers {
            is_admitted: true,
            reason: match serve.reason {
                ServeReason::WithinLimits => None,
                ServeReason::Exempt(_) => Some("exempt"),
                ServeReason::StoreFailed => Some("store_unavailable"),
            },
            limit,
            retry_after: None,
            wait: serve.delay,
            action: None,
            at,
        },
        Ruling::Refuse(RefuseRuling { reason: RefuseReason::StoreUnavailable, .. }) => {
            return Err(HttpError::STORE_UNAVAILABLE);
        }
        Ruling::Refuse(refuse) => DecisionMembers {
            is_admitted: false,
            reason: Some(refuse.reason.refusal().code),
            limit,
            retry_after: refuse.retry_after.map(|retry_after| retry_after.wait),
            wait: turn_of(refuse),
            action: refuse.unperformed().map(|(action, _)| action),
            at,
        },
        // The caller performs it.
        Ruling::Act(act) => DecisionMembers {
            is_admitted: act.action().kind().admits(),
            reason: None,
            limit,
            retry_after: None,
            wait: act.delay,
            action: Some(act.action()),
            at,
        },
    };
    members.write(json);
    Ok(())
}

/// When the turn of a refused request would come, if its limit lets requests wait: the caller may wait so long and ask again.
fn turn_of(refuse: &RefuseRuling<'_>) -> TimeSpan {
    match (refuse.unperformed(), refuse.retry_after) {
        (Some((ExceedAction::Wait { .. }, _)), Some(retry_after)) => retry_after.wait,
        _ => TimeSpan::ZERO,
    }
}

impl DecisionMembers<'_> {
    fn write(&self, json: &mut Vec<u8>) {
        put(json, if self.is_admitted { r#"{"admitted":true"# } else { r#"{"admitted":false"# });
        if let Some(reason) = self.reason {
            put(json, r#","reason":""#);
            put(json, reason);
            put(json, "\"");
        }
        match self.limit {
            Some(limit) => {
                put(json, r#","rule":"#);
                put_text(json, limit.name);
                put_number(json, r#","limit":"#, limit.quota);
                put_number(json, r#","remaining":"#, limit.remaining);
                put(json, r#","reset_after":"#);
                put_seconds(json, limit.announced_reset().as_micros());
            }
            None => put(json, r#","rule":null,"limit":null,"remaining":null,"reset_after":null"#),
        }
        match self.retry_after {
            Some(span) => {
                put(json, r#","retry_after":"#);
                put_seconds(json, span.as_micros());
            }
            None => put(json, r#","retry_after":null"#),
        }
        put(json, r#","wait":"#);
        put_seconds(json, self.wait.as_micros());
        if let Some(action) = self.action {
            write_action(action, json);
        }
        put(json, r#","at":"#);
        put_seconds(json, self.at.as_micros());
    }
}

/// Appends the action of the limit that is exceeded, with the parameters that a caller needs to perform it.
fn write_action(action: &ExceedAction, json: &mut Vec<u8>) {
    put(json, r#","action":{"name":""#);
    put(json, action.kind().name());
    put(json, "\"");
    match action {
        ExceedAction::Cached { max_age } => {
            put(json, r#","max_age":"#);
            put_seconds(json, max_age.as_micros());
        }
        ExceedAction::Wait { max } => {
            put(json, r#","max_wait":"#);
            put_seconds(json, max.as_micros());
        }
        ExceedAction::Degrade { upstream: Some(upstream) } => {
            put(json, r#","upstream":"#);
            put_text(json, &upstream.name);
        }
        ExceedAction::Slow(slow) => {
            put(json, r#","max_delay":"#);
            put_seconds(json, slow.max().as_micros());
        }
        ExceedAction::Reject
        | ExceedAction::Defer(_)
        | ExceedAction::Degrade { upstream: None }
        | ExceedAction::Borrow(_) => {}
    }
    put(json, "}");
}

/// Appends JSON that is already encoded.
pub(super) fn put(json: &mut Vec<u8>, text: &str) {
    json.extend_from_slice(text.as_bytes());
}

fn put_number(json: &mut Vec<u8>, before: &str, number: u64) {
    put(json, before);
    put(json, itoa::Buffer::new().format(number));
}

/// Appends a text with its quotes.
pub(super) fn put_text(json: &mut Vec<u8>, text: &str) {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
    if text.bytes().all(is_plain) {
        put(json, "\"");
        put(json, text);
        put(json, "\"");
    } else {
        // Any text can be written as JSON.
        put(json, &serde_json::to_string(text).unwrap_or_default());
    }
}

/// Appends microseconds as seconds, without zeros at the end.
fn put_seconds(json: &mut Vec<u8>, micros: u64) {
    put(json, itoa::Buffer::new().format(micros / 1_000_000));
    let mut fraction = micros % 1_000_000;
    if fraction == 0 {
        return;
    }
    let mut digits: SmallVec<[u8; 6]> = SmallVec::new();
    for _ in 0..6 {
        digits.insert(0, b'0' + u8::try_from(fraction % 10).unwrap_or_default());
        fraction /= 10;
    }
    while digits.last() == Some(&b'0') {
        digits.pop();
    }
    json.push(b'.');
    json.extend_from_slice(&digits);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_written_exactly_and_without_trailing_zeros() {
        for (micros, expected) in [
            (0, "0"),
            (1, "0.000001"),
            (1_500_000, "1.5"),
            (12_345_000, "12.345"),
            (1_700_000_000_123_456, "1700000000.123456"),
        ] {
            let mut json = Vec::new();
            put_seconds(&mut json, micros);
            assert_eq!(String::from_utf8(json).unwrap(), expected);
        }
    }

    #[test]
    fn text_is_escaped() {
        for text in ["default", "a \"b\" \\ \n é", ""] {
            let mut json = Vec::new();
            put_text(&mut json, text);
            assert_eq!(serde_json::from_slice::<String>(&json).unwrap(), text);
        }
    }
}
