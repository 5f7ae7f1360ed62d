//! What happened to one request, told once when it is over, however it ends.

use std::sync::Arc;

use tidegate_core::{RuleId, Timestamp};
use tidegate_store::{Clock, ClockReading};

use crate::log::{AccessEntry, AttemptEntry, Log, RequestSummary};
use crate::metrics::{
    AttemptResult, DecisionKind, Exposition, MetricKind, Metrics, MetricsHandle, MetricsReader, RuleSlots,
    UpstreamCounts,
};
use crate::trace::{TraceContext, TraceParent, TraceSpans, Tracer, span_id};

/// Where stories go: one for the whole process.
#[derive(Clone, Debug)]
pub struct Telemetry {
    metrics: Arc<Metrics>,
    log: Log,
    tracer: Tracer,
    is_on: bool,
}

impl Telemetry {
    /// Counts into `metrics`, writes to `log`, and traces nothing yet.
    pub fn new(metrics: Arc<Metrics>, log: Log) -> Self {
        Self { metrics, log, tracer: Tracer::off(), is_on: true }
    }

    /// The same, tracing with `tracer`.
    #[must_use]
    pub fn with_tracer(self, tracer: Tracer) -> Self {
        Self { tracer, ..self }
    }

    /// Counts, and writes nothing.
    pub fn counting(cores: usize, clock: Arc<dyn Clock>) -> Self {
        Self::new(Metrics::new(cores, clock.now()), Log::off(clock))
    }

    /// Tells nothing to anybody, to measure what telling costs.
    pub fn off(clock: Arc<dyn Clock>) -> Self {
        Self { is_on: false, ..Self::counting(1, clock) }
    }

    /// What is counted.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Everything that is counted, as text, up to what others add.
    pub fn page(&self, reader: MetricsReader, now: Timestamp) -> Exposition {
        let mut page = self.metrics.page(reader, now);
        let (name, help) = ("tidegate_log_lines_lost_total", "Lines of the log that could not be written.");
        page.single(name, MetricKind::Counter, help, self.log.dropped());
        let (name, help) = ("tidegate_spans_lost_total", "Spans that the collector did not take.");
        page.single(name, MetricKind::Counter, help, self.tracer.lost());
        page
    }

    /// The log.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Who tells the stories of one core.
    pub fn recorder(&self, clock: Arc<dyn Clock>) -> Recorder {
        let meter = self.is_on.then(|| self.metrics.meter());
        Recorder { meter, log: self.log.clone(), tracer: self.tracer.clone(), clock }
    }
}

/// Tells the stories of one core.
#[derive(Debug)]
pub struct Recorder {
    meter: Option<MetricsHandle>,
    log: Log,
    tracer: Tracer,
    clock: Arc<dyn Clock>,
}

impl Recorder {
    /// A request has come.
    pub fn start(&self) -> RequestRecord<'_> {
        let which = self.log.which();
        let is_logged = !which.access.is_none() || !which.refused.is_none();
        let random = if is_logged { fastrand::u32(..) } else { u32::MAX };
        let wants = Wants { line: which.access.includes(random), refused: which.refused.includes(random) };
        RequestRecord {
            recorder: self,
            began: None,
            decided: None,
            status: None,
            wants,
            access: None,
            joined: None,
        }
    }

    /// A connection was let in, or found no room.
    pub fn count_connection(&self, is_let_in: bool) {
        if let Some(meter) = &self.meter {
            meter.connected(is_let_in);
        }
    }
}

/// The record of a request. Dropping it tells it: who hangs up is told of too.
#[derive(Debug)]
pub struct RequestRecord<'t> {
    recorder: &'t Recorder,
    began: Option<ClockReading>,
    /// What was decided, after how many nanoseconds.
    decided: Option<(DecisionKind, u64)>,
    status: Option<u16>,
    wants: Wants,
    access: Option<Box<AccessEntry>>,
    joined: Option<(TraceParent, u64)>,
}

/// Whether there is to be a line of it.
#[derive(Clone, Copy, Debug)]
struct Wants {
    line: bool,
    /// If it is refused.
    refused: bool,
}

impl<'t> RequestRecord<'t> {
    /// Joins the trace that the request's `traceparent` headers speak of, or begins one, if there are traces.
    pub fn join_trace<'h, I: Iterator<Item = &'h [u8]>>(&mut self, traceparent: impl FnOnce() -> I) {
        self.joined = self.recorder.tracer.join(traceparent).map(|joined| (joined, span_id()));
    }

    /// What an upstream is told of the trace, and whether the request was part of one already. `None` if there are no
    /// traces: then what the client sent is left as it is.
    pub fn context(&self) -> Option<(TraceContext, bool)> {
        let (joined, next_try) = self.joined?;
        Some((joined.context.asked_by(next_try), joined.parent.is_some()))
    }

    /// Notes what the request looks like, if there may be a line of it.
    pub fn describe(&mut self, look: impl FnOnce() -> RequestSummary) {
        let is_traced = self.joined.is_some_and(|(joined, _)| joined.context.sampled);
        if self.wants.line || self.wants.refused || is_traced {
            self.access = Some(Box::new(AccessEntry::new(look(), self.recorder.clock.read())));
        }
    }

    /// The decision begins; the one instant it is taken at.
    pub fn start_decision(&mut self) -> Timestamp {
        let now = self.recorder.clock.read();
        self.began = Some(now);
        now.at
    }

    /// The decision was taken.
    pub fn finish_decision(&mut self, decided: DecisionKind) {
        let nanos = match self.began {
            Some(began) if self.recorder.meter.is_some() => self.recorder.clock.read().nanos_since(began),
            _ => 0,
        };
        self.decided = Some((decided, nanos));
        if let (Some(access), Some(began)) = (&mut self.access, self.began) {
            access.decision_began = Some(began.at);
        }
    }

    /// Who asks (the bytes of its key).
    pub fn set_client(&mut self, key: &[u8]) {
        if let Some(access) = &mut self.access {
            access.client(key);
        }
    }

    /// The limit that the response reports: the name of its rule, its units and how many are left.
    pub fn set_limit(&mut self, rule: &str, limit: u64, remaining: u64) {
        if let Some(access) = &mut self.access {
            access.judged(rule, limit, remaining);
        }
    }

    /// A rule refuses the request of `client` (the bytes of its key), which is told when to come back.
    pub fn set_rejected(&mut self, slots: &RuleSlots, rule: RuleId, client: &[u8]) {
        if let (Some(meter), Some(began)) = (&self.recorder.meter, self.began) {
            meter.refused(slots, rule, client, began.at);
        }
    }

    /// A rule that only watches would have refused it.
    pub fn count_shadow_rejection(&mut self, slots: &RuleSlots, rule: RuleId) {
        if let Some(meter) = &self.recorder.meter {
            meter.would_reject(slots, rule);
        }
    }

    /// By what the request is known to us and to the upstream.
    pub fn set_id<'i>(&mut self, id: impl FnOnce() -> Option<&'i str>) {
        if let Some(access) = &mut self.access
            && let Some(id) = id()
        {
            access.id(id);
        }
    }

    /// An upstream is asked. Whoever does not say how that ended has abandoned it.
    pub fn start_attempt<'u>(&self, upstream: &'u UpstreamCounts) -> Attempt<'u>
    where
        't: 'u,
    {
        let began = self.recorder.meter.is_some().then(|| self.recorder.clock.read());
        Attempt { recorder: self.recorder, upstream, began }
    }

    /// This came of asking `server`.
    pub fn finish_attempt(&mut self, mut trial: Attempt<'_>, server: &str, result: AttemptResult) {
        let (began, nanos) = trial.tell(result).unwrap_or_default();
        if let Some(access) = &mut self.access {
            let (upstream, server) = (trial.upstream.name().to_owned(), server.to_owned());
            access.tried(AttemptEntry { upstream, server, result, began, nanos });
        }
    }

    /// The request is not served, for this cause.
    pub fn set_error(&mut self, cause: impl FnOnce() -> (&'static str, Option<u64>)) {
        if let Some(access) = &mut self.access {
            let (cause, retry_after) = cause();
            access.failed(cause, retry_after);
        }
    }

    /// The client is answered with this status and so many bytes, if that is known.
    pub fn set_response(&mut self, status: u16, bytes: Option<u64>) {
        self.status = Some(status);
        if let Some(access) = &mut self.access {
            access.answered(bytes);
        }
    }
}

impl Drop for RequestRecord<'_> {
    fn drop(&mut self) {
        let Recorder { meter, log, tracer, clock } = self.recorder;
        if let Some(meter) = meter {
            if let Some((decided, nanos)) = self.decided {
                meter.decided(decided, nanos);
            }
            meter.responded(self.status);
        }
        let Some(access) = &self.access else { return };
        let now = clock.read();
        let traced = self.joined.filter(|(joined, _)| joined.context.sampled);
        let is_refused = self.decided.is_some_and(|(decided, _)| decided == DecisionKind::Rejected);
        if if is_refused { self.wants.refused } else { self.wants.line } {
            let trace = traced.map(|(joined, _)| joined.context.trace_text());
            log.send(access.line(now, self.decided, self.status, trace.as_deref()));
        }
        if let Some((TraceParent { context, parent }, next_try)) = traced {
            let traced = TraceSpans { context, parent, next_try };
            tracer.send(traced.spans(access, now, self.decided, self.status));
        }
    }
}

/// One try to get an answer from an upstream.
#[derive(Debug)]
pub struct Attempt<'u> {
    recorder: &'u Recorder,
    upstream: &'u UpstreamCounts,
    /// None once its end was told.
    began: Option<ClockReading>,
}

impl Attempt<'_> {
    fn tell(&mut self, result: AttemptResult) -> Option<(Timestamp, u64)> {
        let (meter, began) = (self.recorder.meter.as_ref()?, self.began.take()?);
        let nanos = self.recorder.clock.read().nanos_since(began);
        meter.tried(self.upstream, result, nanos);
        Some((began.at, nanos))
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.tell(AttemptResult::Abandoned);
    }
}
