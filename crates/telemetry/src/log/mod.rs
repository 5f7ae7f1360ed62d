//! The log: one line of JSON for each event, and for a configurable share of requests.
//!
//! Events reach a [`Log`] in two ways. Events of the process (for example a reload) and warnings of dependencies come
//! through `tracing`, whose subscriber [`Log::install`] sets. Requests, and events of the gateway that serves them, are
//! written directly to the log of that gateway: a process may have several gateways (tests do), and requests avoid the
//! cost of `tracing`.
//!
//! The caller formats the line and sends it to a thread that writes. If the thread cannot keep up, lines are lost and
//! counted; no caller waits. User text is escaped and secrets are left out: clients appear by their
//! [`ClientName`](tidegate_policy::ClientName), headers and query strings are not logged, and API keys in the path are
//! redacted.

mod access;
mod json;
mod subscriber;
mod writer;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use tidegate_policy::SampleRate;
use tidegate_store::Clock;

pub use access::RequestSummary;
pub(crate) use access::{AccessEntry, AccessSubject, AttemptEntry};
use json::JsonLine;
pub use subscriber::details;
pub use writer::Destination;
use writer::Message;

use crate::metrics::Counter;

/// Lines that may wait to be written.
const QUEUE_LINES: usize = 8_192;
/// How long [`Log::flush`] waits at most.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// JSON, for programs.
    Json,
    /// Plain text, for a terminal.
    Text,
}

/// The share of requests that get a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogSampling {
    /// The share of requests that are not rejected by a limit.
    pub access: SampleRate,
    /// The share of requests that a limit rejects.
    pub rejected: SampleRate,
}

/// The current [`LogSampling`]: read for every request, rarely written.
#[derive(Debug, Default)]
struct AtomicSampling {
    access: AtomicU32,
    rejected: AtomicU32,
}

impl AtomicSampling {
    fn store(&self, sampling: LogSampling) {
        self.access.store(sampling.access.millionths(), Ordering::Relaxed);
        self.rejected.store(sampling.rejected.millionths(), Ordering::Relaxed);
    }

    fn load(&self) -> LogSampling {
        let sample = |millionths: &AtomicU32| {
            SampleRate::from_millionths(millionths.load(Ordering::Relaxed)).unwrap_or(SampleRate::NONE)
        };
        LogSampling { access: sample(&self.access), rejected: sample(&self.rejected) }
    }
}

/// The log. Clones write to the same destination.
#[derive(Clone)]
pub struct Log {
    lines: Option<SyncSender<Message>>,
    sampling: Arc<AtomicSampling>,
    format: LogFormat,
    dropped: Arc<Counter>,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("sampling", &self.sampling()).finish_non_exhaustive()
    }
}

impl Log {
    /// A log that drops all lines.
    pub fn off(clock: Arc<dyn Clock>) -> Self {
        let (sampling, dropped) = (Arc::default(), Arc::default());
        Self { lines: None, sampling, format: LogFormat::Json, dropped, clock }
    }

    /// Opens the log and starts the thread that writes it.
    pub fn open(to: &Destination, format: LogFormat, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let output = to.open()?;
        let (lines, queue) = sync_channel(QUEUE_LINES);
        let dropped = Arc::<Counter>::default();
        let (writer_dropped, writer_clock) = (Arc::clone(&dropped), Arc::clone(&clock));
        let run = move || writer::run(&queue, output, &writer_dropped, &writer_clock);
        Builder::new().name("log".to_owned()).spawn(run)?;
        Ok(Self { lines: Some(lines), sampling: Arc::default(), format, dropped, clock })
    }

    /// A log whose lines go to a channel, for tests.
    pub fn into_channel(clock: Arc<dyn Clock>) -> (Self, LogReceiver) {
        let (lines, queue) = sync_channel(QUEUE_LINES);
        let (sampling, dropped) = (Arc::default(), Arc::default());
        (Self { lines: Some(lines), sampling, format: LogFormat::Json, dropped, clock }, LogReceiver(queue))
    }

    /// Sets which share of requests get a line from now on.
    pub fn set_sampling(&self, sampling: LogSampling) {
        self.sampling.store(sampling);
    }

    /// Opens a destination, possibly the same file again, and writes to it from now on.
    pub fn reopen(&self, to: &Destination) -> io::Result<()> {
        let output = to.open()?;
        if let Some(lines) = &self.lines {
            // This cannot deadlock: the writer empties the queue and takes no lock of the caller.
            let _ = lines.send(Message::Reopen(output));
        }
        Ok(())
    }

    /// Logs an event with its name, a message and further fields.
    pub fn event(&self, event: &str, message: &str, fields: &[(&str, &str)]) {
        self.event_with_details(event, message, fields, &[]);
    }

    /// Logs an event with a list of texts in its field `details`.
    pub fn event_with_details(
        &self,
        event: &str,
        message: &str,
        fields: &[(&str, &str)],
        details: &[String],
    ) {
        let line = match self.format {
            LogFormat::Json => {
                let mut line = JsonLine::new(self.clock.now(), event);
                line.text("message", message);
                for (key, value) in fields {
                    line.text(key, value);
                }
                if !details.is_empty() {
                    line.texts("details", details.iter().map(String::as_str));
                }
                line.into_bytes()
            }
            LogFormat::Text => {
                let details: Vec<_> =
                    details.iter().map(|line| format!("\n  {}", line.replace('\n', "\n  "))).collect();
                format!("tidegate: {message}{}\n", details.concat()).into_bytes().into()
            }
        };
        self.send(line);
    }

    /// The number of lines that were lost.
    pub fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Waits until all lines are written, for a limited time.
    pub fn flush(&self) {
        let Some(lines) = &self.lines else { return };
        let (done, is_done) = channel();
        if lines.send(Message::Flush(done)).is_ok() {
            let _ = is_done.recv_timeout(FLUSH_TIMEOUT);
        }
    }

    pub(crate) fn sampling(&self) -> LogSampling {
        self.sampling.load()
    }

    pub(crate) fn send(&self, line: Box<[u8]>) {
        let Some(lines) = &self.lines else { return };
        match lines.try_send(Message::Line(line)) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(_)) => self.dropped.increment(),
        }
    }
}

/// Receives the lines of a log, for tests.
pub struct LogReceiver(Receiver<Message>);

impl fmt::Debug for LogReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogReceiver")
    }
}

impl LogReceiver {
    /// Waits for the next line, at most this long.
    pub fn recv_timeout(&self, timeout: Duration) -> Option<String> {
        loop {
            if let Message::Line(line) = self.0.recv_timeout(timeout).ok()? {
                return Some(String::from_utf8_lossy(&line).into_owned());
            }
        }
    }
}
