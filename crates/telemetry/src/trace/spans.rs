//! The OpenTelemetry spans of one request.

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use tidegate_core::{DecisionKind, TimeSpan, Timestamp};
use tidegate_store::{ClockReading, to_system_time};

use super::context::{TraceContext, span_id};
use crate::log::{AccessEntry, AttemptEntry};
use crate::metrics::AttemptResult;

/// Builds the spans of a request.
#[derive(Debug)]
pub(crate) struct TraceSpans {
    /// The context of the request's span.
    pub(crate) context: TraceContext,
    /// The span of the sender, if it is part of the trace.
    pub(crate) parent: Option<u64>,
    /// The span of the last upstream attempt; its id was sent to the upstream.
    pub(crate) attempt_span: u64,
}

impl TraceSpans {
    /// Builds all spans: of the request, of its decision and of each upstream attempt.
    pub(crate) fn build(
        &self,
        access: &AccessEntry,
        now: ClockReading,
        decision: Option<(DecisionKind, u64)>,
        status: Option<u16>,
    ) -> Vec<SpanData> {
        let mut spans = Vec::with_capacity(2 + access.attempts.len());
        if let (Some((decision, nanos)), Some(start)) = (decision, access.decision_start) {
            let mut span = self.span(span_id(), SpanKind::Internal, start, start + time_span(nanos));
            span.name = "decision".into();
            span.attributes = access.decision_attributes();
            span.attributes.push(KeyValue::new("tidegate.decision", access.decision_name(decision)));
            spans.push(span);
        }
        for (index, attempt) in access.attempts.iter().enumerate() {
            let is_last = index + 1 == access.attempts.len();
            spans.push(self.attempt(if is_last { self.attempt_span } else { span_id() }, attempt));
        }
        let mut span = self.span(self.context.span, SpanKind::Server, access.start.at, now.at);
        span.name = access.span_name();
        span.parent_span_id = self.parent.map_or(SpanId::INVALID, SpanId::from);
        span.parent_span_is_remote = self.parent.is_some();
        span.attributes = access.request_attributes();
        if let Some(code) = status {
            set_status(&mut span, code);
        } else if access.is_unanswered(status) {
            span.status = Status::error("client_gone");
        } else if access.is_failed_command() {
            span.status = Status::error("");
        }
        spans.push(span);
        spans
    }

    fn attempt(&self, id: u64, attempt: &AttemptEntry) -> SpanData {
        let end = attempt.start + time_span(attempt.nanos);
        let mut span = self.span(id, SpanKind::Client, attempt.start, end);
        span.name = "upstream".into();
        span.attributes = vec![
            KeyValue::new("tidegate.upstream", attempt.upstream.clone()),
            KeyValue::new("server.address", attempt.server.clone()),
        ];
        match attempt.result {
            AttemptResult::Response(code) => set_status(&mut span, code),
            failure => {
                span.attributes.push(KeyValue::new("error.type", failure.name()));
                span.status = Status::error(failure.name());
            }
        }
        span
    }

    /// A child of the request's span, without a name.
    fn span(&self, id: u64, span_kind: SpanKind, start: Timestamp, end: Timestamp) -> SpanData {
        let (trace_id, id) = (TraceId::from(self.context.trace_id), SpanId::from(id));
        SpanData {
            span_context: SpanContext::new(trace_id, id, TraceFlags::SAMPLED, false, TraceState::NONE),
            parent_span_id: SpanId::from(self.context.span),
            parent_span_is_remote: false,
            span_kind,
            name: "".into(),
            start_time: to_system_time(start),
            end_time: to_system_time(end.max(start)),
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: InstrumentationScope::builder("tidegate").build(),
        }
    }
}

fn set_status(span: &mut SpanData, code: u16) {
    span.attributes.push(KeyValue::new("http.response.status_code", i64::from(code)));
    if code >= 500 {
        span.status = Status::error("");
    }
}

fn time_span(nanos: u64) -> TimeSpan {
    TimeSpan::from_micros(nanos.div_ceil(1_000))
}

/// A number as an attribute, capped at the largest `i64`.
pub(crate) fn number(value: u64) -> Value {
    Value::I64(i64::try_from(value).unwrap_or(i64::MAX))
}
