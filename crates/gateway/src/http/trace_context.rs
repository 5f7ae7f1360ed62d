//! A request's place in a trace, as headers carry it.

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use tidegate_telemetry::RequestRecord;

const PARENT: HeaderName = HeaderName::from_static("traceparent");
const STATE: HeaderName = HeaderName::from_static("tracestate");

/// Finds the trace that a request belongs to.
pub(crate) fn join(record: &mut RequestRecord<'_>, headers: &HeaderMap) {
    record.join_trace(|| headers.get_all(PARENT).iter().map(HeaderValue::as_bytes));
}

/// Tells the upstream of it. What others say beside it is passed on only if it belongs to a trace that could be read.
pub(crate) fn propagate(record: &RequestRecord<'_>, headers: &mut HeaderMap) {
    let Some((context, is_joined)) = record.trace_context() else { return };
    if let Ok(parent) = HeaderValue::try_from(context.to_string()) {
        headers.insert(PARENT, parent);
    }
    if !is_joined {
        headers.remove(STATE);
    }
}
