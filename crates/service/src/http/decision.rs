//! A ruling of the limiter as JSON, as headers, and in records.

use std::cell::RefCell;

use smallvec::SmallVec;
use tidegate_core::{LimitReport, RuleId, TimeSpan, Timestamp};
use tidegate_headers::{HeaderValueCache, HeaderWriter, RateLimitHeaders, retry_after_seconds};
use tidegate_limiter::{AdmittedRuling, FailedRuling, RejectedRuling, Ruling, RulingReport};
use tidegate_store::{Clock, ClockReading};
use tidegate_telemetry::{DecisionKind, MetricsHandle, RequestRecord};

use super::error::HttpError;
use super::state::HttpState;
use crate::worker::ServedPolicy;

/// Where a decision is recorded.
pub(super) enum DecisionLog<'l, 't> {
    /// In the record of its request.
    Request(&'l mut RequestRecord<'t>),
    /// Only in the metrics: one of several decisions of a request.
    Metrics { metrics: Option<&'t MetricsHandle>, clock: &'t dyn Clock, start: ClockReading },
    /// Nowhere: nothing was decided.
    Off,
}

impl DecisionLog<'_, '_> {
    /// Records a decision.
    pub(super) fn decided(&mut self, kind: DecisionKind) {
        match self {
            Self::Request(record) => record.finish_decision(kind),
            Self::Metrics { metrics: Some(metrics), clock, start } => {
                metrics.record_decision(kind, clock.read().nanos_since(*start));
            }
            Self::Metrics { .. } | Self::Off => {}
        }
    }

    /// Records a decision with its client, and the rules in shadow mode that would have rejected it.
    pub(super) fn reported(&mut self, kind: DecisionKind, policy: &ServedPolicy, report: &RulingReport<'_>) {
        self.decided(kind);
        if let Self::Request(record) = self {
            record.set_client(report.client());
        }
        for rule in report.shadow_rejections() {
            match self {
                Self::Request(record) => record.count_shadow_rejection(&policy.counted, rule),
                Self::Metrics { metrics: Some(metrics), .. } => {
                    metrics.record_shadow_rejection(&policy.counted, rule);
                }
                Self::Metrics { .. } | Self::Off => {}
            }
        }
    }

    fn rejected(&mut self, policy: &ServedPolicy, rule: RuleId, client: &[u8]) {
        match self {
            Self::Request(record) => record.set_rejected(&policy.counted, rule, client),
            Self::Metrics { metrics: Some(metrics), start, .. } => {
                metrics.record_rejection(&policy.counted, rule, client, start.at);
            }
            Self::Metrics { .. } | Self::Off => {}
        }
    }

    fn limit(&mut self, limit: &LimitReport<'_>) {
        if let Self::Request(record) = self {
            record.set_limit(limit.name, limit.quota, limit.remaining);
        }
    }
}

/// Encodes rulings.
pub(super) struct DecisionWriter<'w> {
    pub(super) policy: &'w ServedPolicy,
    pub(super) cache: &'w RefCell<HeaderValueCache>,
    /// The rate-limit headers of a response that a proxy passes on. A response with a decision as JSON has none: there they
    /// would be about the limits of the client that asks.
    pub(super) headers: Option<&'w mut RateLimitHeaders>,
    /// When to retry, in the seconds of `Retry-After`.
    pub(super) retry_after: Option<u64>,
}

/// The members of a decision in JSON.
#[derive(Clone, Copy)]
struct DecisionMembers<'a> {
    is_admitted: bool,
    reason: Option<&'static str>,
    limit: Option<&'a LimitReport<'a>>,
    retry_after: Option<TimeSpan>,
    wait: TimeSpan,
    at: Timestamp,
}

impl<'w> DecisionWriter<'w> {
    /// Encodes rulings as JSON only.
    pub(super) fn without_headers(policy: &'w ServedPolicy, state: &'w HttpState) -> Self {
        Self { policy, cache: &state.header_values, headers: None, retry_after: None }
    }

    /// Records a ruling at `now` and writes it as a JSON object without the brace that ends it.
    pub(super) fn write(
        &mut self,
        ruling: &Ruling<'_>,
        now: Timestamp,
        log: &mut DecisionLog<'_, '_>,
        json: &mut Vec<u8>,
    ) -> Result<(), HttpError> {
        let plain = DecisionMembers {
            is_admitted: true,
            reason: None,
            limit: None,
            retry_after: None,
            wait: TimeSpan::ZERO,
            at: now,
        };
        match ruling {
            Ruling::Admitted(AdmittedRuling { report, delay, .. }) => {
                log.reported(DecisionKind::Admitted, self.policy, report);
                self.write_report(report, log, json, DecisionMembers { wait: *delay, ..plain });
            }
            Ruling::Rejected(rejected) => {
                let reason = Some(rejected.reason.code());
                let retry_after = rejected.retry_after;
                self.reject(rejected, log);
                let members = DecisionMembers { is_admitted: false, reason, retry_after, ..plain };
                self.write_report(&rejected.report, log, json, members);
            }
            Ruling::Banned => {
                log.decided(DecisionKind::Banned);
                DecisionMembers { is_admitted: false, reason: Some("banned"), ..plain }.write(json);
            }
            Ruling::Exempt(_) => {
                log.decided(DecisionKind::Exempt);
                DecisionMembers { reason: Some("exempt"), ..plain }.write(json);
            }
            Ruling::StoreFailed(FailedRuling { report, is_binding, .. }) => {
                log.reported(DecisionKind::StoreFailed, self.policy, report);
                if *is_binding {
                    return Err(HttpError::StoreUnavailable);
                }
                DecisionMembers { reason: Some("store_unavailable"), ..plain }.write(json);
            }
            // Unreachable: the client of a rule is found after the rule.
            Ruling::NoRule => return Err(HttpError::NoRule { rule: String::new() }),
        }
        Ok(())
    }

    /// Records a rejection, and when to retry.
    pub(super) fn reject(&mut self, rejected: &RejectedRuling<'_>, log: &mut DecisionLog<'_, '_>) {
        let RejectedRuling { report, rule, retry_after, .. } = rejected;
        log.reported(DecisionKind::Rejected, self.policy, report);
        log.rejected(self.policy, *rule, report.client());
        self.retry_after = retry_after.map(|wait| retry_after_seconds(wait, report.client()));
    }

    fn write_report(
        &mut self,
        report: &RulingReport<'_>,
        log: &mut DecisionLog<'_, '_>,
        json: &mut Vec<u8>,
        members: DecisionMembers<'_>,
    ) {
        let limits = report.limits();
        let limit = limits.primary();
        self.write_headers(report.at(), limit, &limits, log);
        DecisionMembers { limit, at: report.at(), ..members }.write(json);
    }

    /// Writes the rate-limit headers of `limits`.
    pub(super) fn write_headers(
        &mut self,
        at: Timestamp,
        limit: Option<&LimitReport<'_>>,
        limits: &[LimitReport<'_>],
        log: &mut DecisionLog<'_, '_>,
    ) {
        let Some(limit) = limit else { return };
        log.limit(limit);
        if let Some(headers) = &mut self.headers {
            let styles = &self.policy.active.matcher.plan().headers;
            let mut writer = HeaderWriter { styles, cache: &mut self.cache.borrow_mut() };
            writer.write_limits(headers, at, limit, limits);
            if let Some(seconds) = self.retry_after {
                writer.write_retry_after(headers, seconds);
            }
        }
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
        put(json, r#","at":"#);
        put_seconds(json, self.at.as_micros());
    }
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
