//! The spans of one request, as OpenTelemetry has them.

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use tidegate_core::{Span as Length, Timestamp};
use tidegate_store::{Reading, wall};

use super::context::{Context, span_id};
use crate::log::Access;
use crate::metrics::{Decided, Try};

/// A request that is traced.
#[derive(Debug)]
pub(crate) struct Traced {
    /// Of our span for the request.
    pub(crate) context: Context,
    /// Who asked us, if it is part of the trace.
    pub(crate) parent: Option<u64>,
    /// The span of the try that the upstream is told of.
    pub(crate) next_try: u64,
}

/// A span in the making.
struct Making<'t> {
    traced: &'t Traced,
    spans: Vec<SpanData>,
}

impl Traced {
    /// All spans: the request, its decision, each try.
    pub(crate) fn spans(
        &self,
        access: &Access,
        now: Reading,
        decided: Option<(Decided, u64)>,
        status: Option<u16>,
    ) -> Vec<SpanData> {
        let mut making = Making { traced: self, spans: Vec::new() };
        let began = access.began.at;
        if let (Some((decided, nanos)), Some(decision_began)) = (decided, access.decision_began) {
            let mut attributes = vec![KeyValue::new("tidegate.decision", decided.name())];
            attributes.extend(access.decision_attributes());
            let times = (decision_began, decision_began + length(nanos));
            making.add(span_id(), "decision", SpanKind::Internal, times, attributes, Status::Unset);
        }
        for (index, tried) in access.tries.iter().enumerate() {
            let is_last = index + 1 == access.tries.len();
            let id = if is_last { self.next_try } else { span_id() };
            let mut attributes = vec![
                KeyValue::new("tidegate.upstream", tried.upstream.clone()),
                KeyValue::new("server.address", tried.server.clone()),
            ];
            let status = match tried.result {
                Try::Answered(code) => {
                    attributes.push(KeyValue::new("http.response.status_code", i64::from(code)));
                    if code >= 500 { Status::error("") } else { Status::Unset }
                }
                failed => {
                    attributes.push(KeyValue::new("error.type", failed.name()));
                    Status::error(failed.name())
                }
            };
            let times = (tried.began, tried.began + length(tried.nanos));
            making.add(id, "upstream", SpanKind::Client, times, attributes, status);
        }
        let mut attributes = access.request_attributes();
        let failed = match status {
            Some(code) => {
                attributes.push(KeyValue::new("http.response.status_code", i64::from(code)));
                if code >= 500 { Status::error("") } else { Status::Unset }
            }
            None => Status::error("client_gone"),
        };
        let name = access.seen.method.clone();
        making.add(self.context.span, name, SpanKind::Server, (began, now.at), attributes, failed);
        if let Some(request) = making.spans.last_mut() {
            request.parent_span_id = self.parent.map_or(SpanId::INVALID, |span| SpanId::from(span));
            request.parent_span_is_remote = self.parent.is_some();
        }
        making.spans
    }
}

impl Making<'_> {
    fn add(
        &mut self,
        id: u64,
        name: impl Into<std::borrow::Cow<'static, str>>,
        span_kind: SpanKind,
        (began, ended): (Timestamp, Timestamp),
        attributes: Vec<KeyValue>,
        status: Status,
    ) {
        let trace = TraceId::from(self.traced.context.trace);
        let id = SpanId::from(id);
        self.spans.push(SpanData {
            span_context: SpanContext::new(trace, id, TraceFlags::SAMPLED, false, TraceState::NONE),
            parent_span_id: SpanId::from(self.traced.context.span),
            parent_span_is_remote: false,
            span_kind,
            name: name.into(),
            start_time: wall(began),
            end_time: wall(ended.max(began)),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status,
            instrumentation_scope: InstrumentationScope::builder("tidegate").build(),
        });
    }
}

fn length(nanos: u64) -> Length {
    Length::from_micros(nanos.div_ceil(1_000))
}

/// A number as an attribute; what does not fit is as good as endless.
pub(crate) fn number(value: u64) -> Value {
    Value::I64(i64::try_from(value).unwrap_or(i64::MAX))
}
