//! Traces of requests, exported to an OTLP collector.
//!
//! If the sender of a request has decided whether to trace it, that decision applies; of the other requests a share is
//! traced. Spans are sent to a thread with its own runtime, which exports them in batches. Spans that cannot be exported
//! are lost and counted. While traces are disabled, a request costs one atomic load.

mod context;
mod spans;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::Builder;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use tidegate_policy::{SampleRate, TracesPlan};
use tokio::sync::mpsc;

pub use context::TraceContext;
pub(crate) use context::span_id;
pub(crate) use spans::{TraceSpans, number};

use crate::log::Log;
use crate::metrics::Counter;

/// Requests whose spans may wait to be exported.
const QUEUE_REQUESTS: usize = 4_096;
/// Requests whose spans are exported in one batch.
const BATCH_REQUESTS: usize = 256;
/// How long the first request of a batch waits for others.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// The timeout of one export.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// The sample value that disables traces.
const OFF: u32 = u32::MAX;

/// The spans of one request.
type RequestSpans = Vec<SpanData>;

/// Sends spans to the exporter. Clones use the same collector.
#[derive(Clone, Debug)]
pub struct Tracer(Arc<TracerState>);

#[derive(Debug)]
struct TracerState {
    /// Millionths, or `OFF`.
    sample: AtomicU32,
    exporter: ArcSwapOption<ExporterHandle>,
    lost: Arc<Counter>,
}

#[derive(Debug)]
struct ExporterHandle {
    endpoint: String,
    queue: mpsc::Sender<RequestSpans>,
}

impl Tracer {
    /// A tracer with traces disabled.
    pub fn off() -> Self {
        let (sample, exporter) = (AtomicU32::new(OFF), ArcSwapOption::empty());
        Self(Arc::new(TracerState { sample, exporter, lost: Arc::default() }))
    }

    /// Applies a plan. Spans in the queue still go to the collector they were meant for.
    pub fn configure(&self, plan: Option<&TracesPlan>, log: &Log) -> io::Result<()> {
        let Some(TracesPlan { endpoint, sample }) = plan else {
            self.0.sample.store(OFF, Ordering::Relaxed);
            self.0.exporter.store(None);
            return Ok(());
        };
        let exporter = self.0.exporter.load_full();
        if exporter.is_none_or(|exporter| exporter.endpoint != *endpoint) {
            let queue = start_exporter(endpoint.clone(), log.clone(), Arc::clone(&self.0.lost))?;
            self.0.exporter.store(Some(Arc::new(ExporterHandle { endpoint: endpoint.clone(), queue })));
        }
        self.0.sample.store(sample.millionths(), Ordering::Relaxed);
        Ok(())
    }

    /// The number of spans that were lost.
    pub fn lost_spans(&self) -> u64 {
        self.0.lost.get()
    }

    /// Joins the trace of a request with these `traceparent` headers, or starts one. `None` if traces are disabled.
    pub(crate) fn join<'h, I: Iterator<Item = &'h [u8]>>(
        &self,
        traceparent: impl FnOnce() -> I,
    ) -> Option<TraceParent> {
        let millionths = self.0.sample.load(Ordering::Relaxed);
        if millionths == OFF {
            return None;
        }
        let mut headers = traceparent();
        let sent = match (headers.next(), headers.next()) {
            (Some(header), None) => TraceContext::parse(header),
            _ => None,
        };
        if let Some(context) = sent {
            return Some(TraceParent { context: context.with_span(span_id()), parent: Some(context.span) });
        }
        let sample = SampleRate::from_millionths(millionths).unwrap_or(SampleRate::NONE);
        Some(TraceParent { context: TraceContext::new(sample.includes(fastrand::u32(..))), parent: None })
    }

    /// Whether some requests that have no trace context are traced.
    pub(crate) fn starts_traces(&self) -> bool {
        !matches!(self.0.sample.load(Ordering::Relaxed), OFF | 0)
    }

    /// Starts the trace of a command, which has no trace context; `None` if it is not sampled.
    pub(crate) fn start(&self) -> Option<TraceContext> {
        // No rate if traces are disabled.
        let sample = SampleRate::from_millionths(self.0.sample.load(Ordering::Relaxed))?;
        (!sample.is_none() && sample.includes(fastrand::u32(..))).then(|| TraceContext::new(true))
    }

    pub(crate) fn send(&self, spans: RequestSpans) {
        let count = spans.len() as u64;
        let exporter = self.0.exporter.load();
        let is_sent = exporter.as_ref().is_some_and(|exporter| exporter.queue.try_send(spans).is_ok());
        if !is_sent {
            self.0.lost.add(count);
        }
    }
}

/// The position of a request in its trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceParent {
    /// The context of the gateway's span for the request.
    pub(crate) context: TraceContext,
    /// The span of the sender.
    pub(crate) parent: Option<u64>,
}

/// Starts the thread that exports spans.
fn start_exporter(endpoint: String, log: Log, lost: Arc<Counter>) -> io::Result<mpsc::Sender<RequestSpans>> {
    let (sender, queue) = mpsc::channel(QUEUE_REQUESTS);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let run = move || runtime.block_on(export(&endpoint, queue, &log, &lost));
    Builder::new().name("traces".to_owned()).spawn(run)?;
    Ok(sender)
}

/// Exports spans until all senders are dropped.
async fn export(endpoint: &str, mut queue: mpsc::Receiver<RequestSpans>, log: &Log, lost: &Counter) {
    let builder = SpanExporter::builder().with_tonic().with_endpoint(endpoint);
    let mut exporter = match builder.with_protocol(Protocol::Grpc).with_timeout(EXPORT_TIMEOUT).build() {
        Ok(exporter) => exporter,
        Err(error) => {
            log.event("traces_failed", &format!("cannot export traces to {endpoint}: {error}"), &[]);
            return;
        }
    };
    exporter.set_resource(&Resource::builder().with_service_name("tidegate").build());
    let mut is_failing = false;
    let mut batch = Vec::new();
    while queue.recv_many(&mut batch, BATCH_REQUESTS).await > 0 {
        let more = async {
            while queue.recv_many(&mut batch, BATCH_REQUESTS).await > 0 && batch.len() < BATCH_REQUESTS {}
        };
        // Spans that arrive later go into the next batch.
        let _ = tokio::time::timeout(BATCH_DELAY, more).await;
        let spans: Vec<_> = batch.drain(..).flatten().collect();
        let count = spans.len() as u64;
        let result = exporter.export(spans).await;
        if result.is_err() {
            lost.add(count);
        }
        if result.is_err() != std::mem::replace(&mut is_failing, result.is_err()) {
            let (event, message) = match result {
                Ok(()) => ("traces_sent", format!("trace export to {endpoint} works again")),
                Err(error) => ("traces_failed", format!("trace export to {endpoint} failed: {error}")),
            };
            log.event(event, &message, &[("endpoint", endpoint)]);
        }
    }
}
