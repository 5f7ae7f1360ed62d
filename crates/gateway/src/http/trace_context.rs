//! Trace context headers (`traceparent`, `tracestate`).

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use tidegate_telemetry::RequestRecord;

const PARENT: HeaderName = HeaderName::from_static("traceparent");
const STATE: HeaderName = HeaderName::from_static("tracestate");

/// Joins the trace of the request's `traceparent`.
pub(crate) fn join(record: &mut RequestRecord<'_>, headers: &HeaderMap) {
    record.join_trace(|| headers.get_all(PARENT).iter().map(HeaderValue::as_bytes));
}

/// Sends the trace context to the upstream. `tracestate` is removed unless the request belongs to a valid trace.
pub(crate) fn propagate(record: &RequestRecord<'_>, headers: &mut HeaderMap) {
    let Some((context, is_joined)) = record.trace_context() else { return };
    if let Ok(parent) = HeaderValue::try_from(context.to_string()) {
        headers.insert(PARENT, parent);
    }
    if !is_joined {
        headers.remove(STATE);
    }
}
