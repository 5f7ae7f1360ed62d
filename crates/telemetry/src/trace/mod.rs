//! Traces: what happened to some requests, for a collector that takes OTLP.
//!
//! A request whose sender has decided whether it is traced follows that; of the rest a share is. What is traced is
//! handed to a thread with a runtime of its own, which sends it in batches; what it cannot take is lost and counted.
//! As long as nothing is to be traced, a request costs one look at a number.

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

/// Requests whose spans may wait to be sent.
const WAITING: usize = 4_096;
/// Requests whose spans are sent together.
const TOGETHER: usize = 256;
/// How long the first of them waits for others.
const GATHER: Duration = Duration::from_secs(1);
/// How long a collector may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Stands for: nothing is traced.
const OFF: u32 = u32::MAX;

type Batch = Vec<SpanData>;

/// Where traces go. Clones send to the same collector.
#[derive(Clone, Debug)]
pub struct Tracer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Millionths, or `OFF`.
    sample: AtomicU32,
    sending: ArcSwapOption<Sending>,
    lost: Arc<Counter>,
}

#[derive(Debug)]
struct Sending {
    endpoint: String,
    batches: mpsc::Sender<Batch>,
}

impl Tracer {
    /// Traces nothing.
    pub fn off() -> Self {
        let (sample, sending) = (AtomicU32::new(OFF), ArcSwapOption::empty());
        Self(Arc::new(Inner { sample, sending, lost: Arc::default() }))
    }

    /// Follows a plan from now on. What was already handed over still goes where it was to go.
    pub fn follow(&self, plan: Option<&TracesPlan>, log: &Log) -> io::Result<()> {
        let Some(TracesPlan { endpoint, sample }) = plan else {
            self.0.sample.store(OFF, Ordering::Relaxed);
            self.0.sending.store(None);
            return Ok(());
        };
        let sending = self.0.sending.load_full();
        if sending.is_none_or(|sending| sending.endpoint != *endpoint) {
            let batches = start(endpoint.clone(), log.clone(), Arc::clone(&self.0.lost))?;
            self.0.sending.store(Some(Arc::new(Sending { endpoint: endpoint.clone(), batches })));
        }
        self.0.sample.store(sample.millionths(), Ordering::Relaxed);
        Ok(())
    }

    /// How many spans were lost.
    pub fn lost(&self) -> u64 {
        self.0.lost.get()
    }

    /// What a request that says `parent` of itself (the `traceparent` headers it has) is traced as. `None` if nothing is
    /// traced at all.
    pub(crate) fn join<'h, I: Iterator<Item = &'h [u8]>>(
        &self,
        parent: impl FnOnce() -> I,
    ) -> Option<TraceParent> {
        let millionths = self.0.sample.load(Ordering::Relaxed);
        if millionths == OFF {
            return None;
        }
        let mut parent = parent();
        let sent = match (parent.next(), parent.next()) {
            (Some(header), None) => TraceContext::parse(header),
            _ => None,
        };
        if let Some(context) = sent {
            return Some(TraceParent { context: context.asked_by(span_id()), parent: Some(context.span) });
        }
        let sample = SampleRate::from_millionths(millionths).unwrap_or(SampleRate::NONE);
        Some(TraceParent { context: TraceContext::new(sample.includes(fastrand::u32(..))), parent: None })
    }

    pub(crate) fn send(&self, spans: Batch) {
        let count = spans.len() as u64;
        let sending = self.0.sending.load();
        let is_sent = sending.as_ref().is_some_and(|sending| sending.batches.try_send(spans).is_ok());
        if !is_sent {
            self.0.lost.add(count);
        }
    }
}

/// What a request is in its trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceParent {
    /// Our span for the request.
    pub(crate) context: TraceContext,
    /// Who asked us.
    pub(crate) parent: Option<u64>,
}

/// Starts the thread that sends.
fn start(endpoint: String, log: Log, lost: Arc<Counter>) -> io::Result<mpsc::Sender<Batch>> {
    let (batches, waiting) = mpsc::channel(WAITING);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let run = move || runtime.block_on(send(&endpoint, waiting, &log, &lost));
    Builder::new().name("traces".to_owned()).spawn(run)?;
    Ok(batches)
}

/// Sends until nobody has anything to send any more.
async fn send(endpoint: &str, mut waiting: mpsc::Receiver<Batch>, log: &Log, lost: &Counter) {
    let builder = SpanExporter::builder().with_tonic().with_endpoint(endpoint);
    let mut exporter = match builder.with_protocol(Protocol::Grpc).with_timeout(PATIENCE).build() {
        Ok(exporter) => exporter,
        Err(error) => {
            log.event("traces_failed", &format!("cannot send traces to {endpoint}: {error}"), &[]);
            return;
        }
    };
    exporter.set_resource(&Resource::builder().with_service_name("tidegate").build());
    let mut is_failing = false;
    let mut gathered = Vec::new();
    while waiting.recv_many(&mut gathered, TOGETHER).await > 0 {
        let more = async {
            while waiting.recv_many(&mut gathered, TOGETHER).await > 0 && gathered.len() < TOGETHER {}
        };
        // Late ones are sent with the next.
        let _ = tokio::time::timeout(GATHER, more).await;
        let spans: Vec<_> = gathered.drain(..).flatten().collect();
        let count = spans.len() as u64;
        let sent = exporter.export(spans).await;
        if sent.is_err() {
            lost.add(count);
        }
        if sent.is_err() != std::mem::replace(&mut is_failing, sent.is_err()) {
            let (event, message) = match sent {
                Ok(()) => ("traces_sent", format!("{endpoint} takes traces again")),
                Err(error) => ("traces_failed", format!("{endpoint} does not take traces: {error}")),
            };
            log.event(event, &message, &[("endpoint", endpoint)]);
        }
    }
}
