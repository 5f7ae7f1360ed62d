//! The record of one request. Drop emits it, however the request ends.

use std::sync::Arc;

use tidegate_core::{ActionKind, DecisionKind, TimeSpan, Timestamp};
use tidegate_store::{Clock, ClockReading};

use crate::command::CommandLog;
use crate::log::{AccessEntry, AccessSubject, AttemptEntry, Log, RequestSummary};
use crate::metrics::{
    AttemptResult, Exposition, Metrics, MetricsHandle, MetricsReader, Protocol, UpstreamCounts,
};
use crate::trace::{TraceContext, TraceParent, TraceSpans, Tracer, span_id};

/// The metrics, the log and the tracer of a process.
#[derive(Clone, Debug)]
pub struct Telemetry {
    metrics: Arc<Metrics>,
    log: Log,
    tracer: Tracer,
    is_on: bool,
}

impl Telemetry {
    /// Uses `metrics` and `log`, without traces.
    pub fn new(metrics: Arc<Metrics>, log: Log) -> Self {
        Self { metrics, log, tracer: Tracer::off(), is_on: true }
    }

    /// Adds a tracer.
    #[must_use]
    pub fn with_tracer(self, tracer: Tracer) -> Self {
        Self { tracer, ..self }
    }

    /// Counts metrics, without a log or traces.
    pub fn metrics_only(cores: usize, clock: Arc<dyn Clock>) -> Self {
        Self::new(Metrics::new(cores, clock.now()), Log::off(clock))
    }

    /// Disables all telemetry, so that benchmarks can measure its cost.
    pub fn off(clock: Arc<dyn Clock>) -> Self {
        Self { is_on: false, ..Self::metrics_only(1, clock) }
    }

    /// The metrics.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Writes all metrics. The caller can add families of its own.
    pub fn exposition(&self, reader: MetricsReader, now: Timestamp) -> Exposition {
        let mut exposition = self.metrics.exposition(reader, now);
        exposition
            .counter("tidegate_log_lines_lost_total", "Log lines lost: the log could not keep up.")
            .value(self.log.dropped());
        exposition
            .counter("tidegate_spans_lost_total", "Trace spans that could not be exported.")
            .value(self.tracer.lost_spans());
        exposition
    }

    /// The log.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Creates the recorder of one core for requests of `protocol`.
    pub fn recorder(&self, protocol: Protocol, clock: Arc<dyn Clock>) -> Recorder {
        let handle = self.is_on.then(|| self.metrics.handle(protocol));
        Recorder { protocol, handle, log: self.log.clone(), tracer: self.tracer.clone(), clock }
    }
}

/// Creates the records of one core.
#[derive(Debug)]
pub struct Recorder {
    pub(crate) protocol: Protocol,
    handle: Option<MetricsHandle>,
    pub(crate) log: Log,
    pub(crate) tracer: Tracer,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Recorder {
    /// Starts the record of a request.
    pub fn start(&self) -> RequestRecord<'_> {
        let sampling = self.log.sampling();
        let is_logged = !sampling.access.is_none() || !sampling.rejected.is_none();
        let random = if is_logged { fastrand::u32(..) } else { u32::MAX };
        let sampled = SampledLines {
            if_admitted: sampling.access.includes(random),
            if_rejected: sampling.rejected.includes(random),
        };
        RequestRecord {
            recorder: self,
            decision_start: None,
            decision: None,
            status: None,
            sampled,
            access: None,
            trace: None,
        }
    }

    /// The counters, for requests that are neither logged nor traced; `None` if telemetry is off.
    pub fn counters(&self) -> Option<&MetricsHandle> {
        self.handle.as_ref()
    }

    /// The log and the traces of commands; `None` if no command gets a line or a span now. Commands that are decided together
    /// need only one.
    #[inline]
    pub fn command_log(&self) -> Option<CommandLog<'_>> {
        CommandLog::new(self)
    }

    /// Counts a client connection: accepted, or closed because the connection limit was reached.
    pub fn count_connection(&self, is_accepted: bool) {
        if let Some(handle) = &self.handle {
            handle.record_connection(is_accepted);
        }
    }

    /// Counts an accepted connection of the decision service that is closed now. The gateway counts its open connections
    /// itself.
    pub fn count_closed_connection(&self) {
        if let Some(handle) = &self.handle {
            handle.record_closed_connection();
        }
    }
}

/// The record of a request. Drop emits it, so aborted requests are recorded too.
#[derive(Debug)]
pub struct RequestRecord<'t> {
    recorder: &'t Recorder,
    decision_start: Option<ClockReading>,
    /// The decision, and how many nanoseconds it took.
    decision: Option<(DecisionKind, u64)>,
    status: Option<u16>,
    sampled: SampledLines,
    access: Option<Box<AccessEntry>>,
    /// The trace, and the id of the span for the next upstream attempt.
    trace: Option<(TraceParent, u64)>,
}

/// Whether the request gets a log line. That depends on the decision.
#[derive(Clone, Copy, Debug)]
struct SampledLines {
    /// Applies to all requests that are not rejected by a limit.
    if_admitted: bool,
    if_rejected: bool,
}

impl<'t> RequestRecord<'t> {
    /// Joins the trace of the request's `traceparent` headers, or starts one, if traces are enabled.
    pub fn join_trace<'h, I: Iterator<Item = &'h [u8]>>(&mut self, traceparent: impl FnOnce() -> I) {
        self.trace = self.recorder.tracer.join(traceparent).map(|parent| (parent, span_id()));
    }

    /// The trace context for the upstream, and whether the request had one already. `None` if traces are disabled: then
    /// the client's headers are forwarded unchanged.
    pub fn trace_context(&self) -> Option<(TraceContext, bool)> {
        let (trace, attempt_span) = self.trace?;
        Some((trace.context.with_span(attempt_span), trace.parent.is_some()))
    }

    /// Records the summary of the request, if the request may get a log line or a trace.
    pub fn describe(&mut self, summary: impl FnOnce() -> RequestSummary) {
        let is_traced = self.trace.is_some_and(|(trace, _)| trace.context.sampled);
        if self.sampled.if_admitted || self.sampled.if_rejected || is_traced {
            let Recorder { protocol, clock, .. } = self.recorder;
            self.access =
                Some(Box::new(AccessEntry::new(*protocol, AccessSubject::Request(summary()), clock.read())));
        }
    }

    /// Starts the decision. Returns the time at which all limits are to be checked.
    pub fn start_decision(&mut self) -> Timestamp {
        let now = self.recorder.clock.read();
        self.decision_start = Some(now);
        now.at
    }

    /// Records the decision and how long it took.
    pub(crate) fn finish_decision(&mut self, decision: DecisionKind) {
        let nanos = match self.decision_start {
            Some(start) if self.recorder.handle.is_some() => self.recorder.clock.read().nanos_since(start),
            _ => 0,
        };
        self.decision = Some((decision, nanos));
        if let (Some(access), Some(start)) = (&mut self.access, self.decision_start) {
            access.decision_start = Some(start.at);
        }
    }

    /// Sets the client (the bytes of its key).
    pub(crate) fn set_client(&mut self, key: &[u8]) {
        if let Some(access) = &mut self.access {
            access.set_client(key);
        }
    }

    /// Sets the limit that the response headers report: the name of its rule, its units and the remaining units.
    pub fn set_limit(&mut self, rule: &str, limit: u64, remaining: u64) {
        if let Some(access) = &mut self.access {
            access.set_limit(rule, limit, remaining);
        }
    }

    /// Sets what is done in place of a rejection, or delays the request.
    pub(crate) fn set_action(&mut self, action: ActionKind) {
        if let Some(access) = &mut self.access {
            access.set_action(action);
        }
    }

    /// Where its decision is counted, and when that started; `None` if telemetry is off, or nothing was decided.
    pub(crate) fn decision_metrics(&self) -> Option<(&'t MetricsHandle, ClockReading)> {
        Some((self.recorder.handle.as_ref()?, self.decision_start?))
    }

    /// Sets the request id, which the upstream gets too.
    pub fn set_id<'i>(&mut self, id: impl FnOnce() -> Option<&'i str>) {
        if let Some(access) = &mut self.access
            && let Some(id) = id()
        {
            access.set_id(id);
        }
    }

    /// Starts an attempt to get a response from an upstream. An attempt that is dropped counts as abandoned.
    pub fn start_attempt<'u>(&self, upstream: &'u UpstreamCounts) -> Attempt<'u>
    where
        't: 'u,
    {
        let start = self.recorder.handle.is_some().then(|| self.recorder.clock.read());
        Attempt { recorder: self.recorder, upstream, start }
    }

    /// Records the result of an attempt at `server`. Returns when it ended; `None` if telemetry is off.
    pub fn finish_attempt(
        &mut self,
        mut attempt: Attempt<'_>,
        server: &str,
        result: AttemptResult,
    ) -> Option<Timestamp> {
        let finished = attempt.finish(result);
        let (start, nanos) = finished.unwrap_or_default();
        if let Some(access) = &mut self.access {
            let (upstream, server) = (attempt.upstream.name().to_owned(), server.to_owned());
            access.add_attempt(AttemptEntry { upstream, server, result, start, nanos });
        }
        finished.map(|(start, nanos)| start + TimeSpan::from_micros(nanos / 1_000))
    }

    /// Sets why the request was not served: an error code, and `Retry-After` in seconds.
    pub fn set_error(&mut self, cause: impl FnOnce() -> (&'static str, Option<u64>)) {
        if let Some(access) = &mut self.access {
            let (cause, retry_after) = cause();
            access.set_error(cause, retry_after);
        }
    }

    /// The request was refused after its limits had admitted it. Its charge was refunded unless it was sent to a server.
    pub fn set_unserved(&mut self) {
        if let Some(access) = &mut self.access {
            access.set_unserved();
        }
    }

    /// Sets the status of the response, and the length of its body if that is known.
    pub fn set_response(&mut self, status: u16, bytes: Option<u64>) {
        self.status = Some(status);
        if let Some(access) = &mut self.access {
            access.set_response_bytes(bytes);
        }
    }
}

impl Drop for RequestRecord<'_> {
    fn drop(&mut self) {
        let Recorder { handle, log, tracer, clock, .. } = self.recorder;
        if let Some(handle) = handle {
            if let Some((decision, nanos)) = self.decision {
                handle.record_decision(decision, nanos);
            }
            handle.record_response(self.status);
        }
        let Some(access) = &self.access else { return };
        let now = clock.read();
        let trace = self.trace.filter(|(trace, _)| trace.context.sampled);
        let is_rejected = self.decision.is_some_and(|(decision, _)| decision == DecisionKind::Rejected);
        if if is_rejected { self.sampled.if_rejected } else { self.sampled.if_admitted } {
            let trace_id = trace.map(|(trace, _)| trace.context.trace_id_text());
            log.send(access.to_line(now, self.decision, self.status, trace_id.as_deref()));
        }
        if let Some((TraceParent { context, parent }, attempt_span)) = trace {
            let spans = TraceSpans { context, parent, attempt_span };
            tracer.send(spans.build(access, now, self.decision, self.status));
        }
    }
}

/// One attempt to get a response from an upstream.
#[derive(Debug)]
pub struct Attempt<'u> {
    recorder: &'u Recorder,
    upstream: &'u UpstreamCounts,
    /// `None` once the attempt is finished.
    start: Option<ClockReading>,
}

impl Attempt<'_> {
    /// Counts the result. Returns when the attempt started and how long it took.
    fn finish(&mut self, result: AttemptResult) -> Option<(Timestamp, u64)> {
        let (handle, start) = (self.recorder.handle.as_ref()?, self.start.take()?);
        let nanos = self.recorder.clock.read().nanos_since(start);
        handle.record_attempt(self.upstream, result, nanos);
        Some((start.at, nanos))
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.finish(AttemptResult::Abandoned);
    }
}
