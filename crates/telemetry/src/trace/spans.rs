//! The spans of one request, as OpenTelemetry has them.

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use tidegate_core::{TimeSpan as Length, Timestamp};
use tidegate_store::{ClockReading, to_system_time};

use super::context::{TraceContext, span_id};
use crate::log::{AccessEntry, AttemptEntry};
use crate::metrics::{AttemptResult, DecisionKind};

/// A request that is traced.
#[derive(Debug)]
pub(crate) struct TraceSpans {
    /// Of our span for the request.
    pub(crate) context: TraceContext,
    /// Who asked us, if it is part of the trace.
    pub(crate) parent: Option<u64>,
    /// The span of the try that the upstream is told of.
    pub(crate) next_try: u64,
}

impl TraceSpans {
    /// All spans: the request, its decision, each try.
    pub(crate) fn spans(
        &self,
        access: &AccessEntry,
        now: ClockReading,
        decided: Option<(DecisionKind, u64)>,
        status: Option<u16>,
    ) -> Vec<SpanData> {
        let mut spans = Vec::with_capacity(2 + access.tries.len());
        if let (Some((decided, nanos)), Some(began)) = (decided, access.decision_began) {
            let mut span = self.span(span_id(), SpanKind::Internal, (began, began + length(nanos)));
            span.name = "decision".into();
            span.attributes = access.decision_attributes();
            span.attributes.push(KeyValue::new("tidegate.decision", decided.name()));
            spans.push(span);
        }
        for (index, tried) in access.tries.iter().enumerate() {
            let is_last = index + 1 == access.tries.len();
            spans.push(self.upstream(if is_last { self.next_try } else { span_id() }, tried));
        }
        let mut span = self.span(self.context.span, SpanKind::Server, (access.began.at, now.at));
        span.name = access.seen.method.clone().into();
        span.parent_span_id = self.parent.map_or(SpanId::INVALID, SpanId::from);
        span.parent_span_is_remote = self.parent.is_some();
        span.attributes = access.request_attributes();
        match status {
            Some(code) => answered(&mut span, code),
            None => span.status = Status::error("client_gone"),
        }
        spans.push(span);
        spans
    }

    fn upstream(&self, id: u64, tried: &AttemptEntry) -> SpanData {
        let times = (tried.began, tried.began + length(tried.nanos));
        let mut span = self.span(id, SpanKind::Client, times);
        span.name = "upstream".into();
        span.attributes = vec![
            KeyValue::new("tidegate.upstream", tried.upstream.clone()),
            KeyValue::new("server.address", tried.server.clone()),
        ];
        match tried.result {
            AttemptResult::Answered(code) => answered(&mut span, code),
            failed => {
                span.attributes.push(KeyValue::new("error.type", failed.name()));
                span.status = Status::error(failed.name());
            }
        }
        span
    }

    /// A span below that of the request, without a name yet.
    fn span(&self, id: u64, span_kind: SpanKind, (began, ended): (Timestamp, Timestamp)) -> SpanData {
        let (trace, id) = (TraceId::from(self.context.trace), SpanId::from(id));
        SpanData {
            span_context: SpanContext::new(trace, id, TraceFlags::SAMPLED, false, TraceState::NONE),
            parent_span_id: SpanId::from(self.context.span),
            parent_span_is_remote: false,
            span_kind,
            name: "".into(),
            start_time: to_system_time(began),
            end_time: to_system_time(ended.max(began)),
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: InstrumentationScope::builder("tidegate").build(),
        }
    }
}

fn answered(span: &mut SpanData, code: u16) {
    span.attributes.push(KeyValue::new("http.response.status_code", i64::from(code)));
    if code >= 500 {
        span.status = Status::error("");
    }
}

fn length(nanos: u64) -> Length {
    Length::from_micros(nanos.div_ceil(1_000))
}

/// A number as an attribute; what does not fit is as good as endless.
pub(crate) fn number(value: u64) -> Value {
    Value::I64(i64::try_from(value).unwrap_or(i64::MAX))
}
