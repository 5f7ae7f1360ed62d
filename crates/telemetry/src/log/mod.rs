//! Lines of JSON: one for each event, and for as many requests as the operator wants.
//!
//! Events reach a [`Log`] in two ways. Those of the process (it has started, the policy was reloaded) and the warnings of
//! dependencies come through `tracing`, whose events go to the one log that [`Log::install`] chose. Requests, and events
//! of the gateway that serves them, are written straight to the log that the gateway was given: a process may have
//! several gateways (tests do), and a request must not pay for the way through `tracing`.
//!
//! Whoever has something to say makes the line and hands it to a thread that writes. If that cannot keep up, lines are
//! lost and counted; nobody waits. User text is escaped, secrets are never in it: clients go by their
//! [`ClientName`](tidegate_policy::ClientName), headers and query strings are left out, and a key that was also put into
//! the path is hidden there.

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
pub(crate) use access::{AccessEntry, AttemptEntry};
use json::Object;
pub use subscriber::details;
pub use writer::Destination;
use writer::Message;

use crate::metrics::Counter;

/// Lines that may wait to be written.
const WAITING: usize = 8_192;
/// How long the last lines may take when the process ends.
const LAST: Duration = Duration::from_secs(2);

/// How events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// As JSON, for programs.
    Json,
    /// As sentences, for somebody at a terminal.
    Words,
}

/// LogSampling requests have a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogSampling {
    /// Of all requests.
    pub access: SampleRate,
    /// Of those that are refused.
    pub refused: SampleRate,
}

/// What was last chosen: read for every request, and written hardly ever.
#[derive(Debug, Default)]
struct Chosen {
    access: AtomicU32,
    refused: AtomicU32,
}

impl Chosen {
    fn store(&self, which: LogSampling) {
        self.access.store(which.access.millionths(), Ordering::Relaxed);
        self.refused.store(which.refused.millionths(), Ordering::Relaxed);
    }

    fn load(&self) -> LogSampling {
        let sample = |millionths: &AtomicU32| {
            SampleRate::from_millionths(millionths.load(Ordering::Relaxed)).unwrap_or(SampleRate::NONE)
        };
        LogSampling { access: sample(&self.access), refused: sample(&self.refused) }
    }
}

/// The log. Clones write to the same place.
#[derive(Clone)]
pub struct Log {
    lines: Option<SyncSender<Message>>,
    which: Arc<Chosen>,
    form: LogFormat,
    dropped: Arc<Counter>,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("which", &self.which()).finish_non_exhaustive()
    }
}

impl Log {
    /// A log that nobody reads.
    pub fn off(clock: Arc<dyn Clock>) -> Self {
        Self { lines: None, which: Arc::default(), form: LogFormat::Json, dropped: Arc::default(), clock }
    }

    /// Opens the log and starts the thread that writes it.
    pub fn open(to: &Destination, form: LogFormat, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let output = to.open()?;
        let (lines, waiting) = sync_channel(WAITING);
        let dropped = Arc::<Counter>::default();
        let (counted, writers) = (Arc::clone(&dropped), Arc::clone(&clock));
        let run = move || writer::run(&waiting, output, &counted, &writers);
        Builder::new().name("log".to_owned()).spawn(run)?;
        Ok(Self { lines: Some(lines), which: Arc::default(), form, dropped, clock })
    }

    /// A log whose lines come out of a channel, for tests.
    pub fn into_channel(clock: Arc<dyn Clock>) -> (Self, Lines) {
        let (lines, waiting) = sync_channel(WAITING);
        let (which, dropped) = (Arc::default(), Arc::default());
        (Self { lines: Some(lines), which, form: LogFormat::Json, dropped, clock }, Lines(waiting))
    }

    /// LogSampling requests have a line from now on.
    pub fn choose(&self, which: LogSampling) {
        self.which.store(which);
    }

    /// Writes elsewhere from now on, or to the same file opened anew.
    pub fn turn(&self, to: &Destination) -> io::Result<()> {
        let output = to.open()?;
        if let Some(lines) = &self.lines {
            // The writer empties the queue; it takes no lock that we hold.
            let _ = lines.send(Message::Turn(output));
        }
        Ok(())
    }

    /// Something happened: its name, a sentence, and details.
    pub fn event(&self, event: &str, message: &str, details: &[(&str, &str)]) {
        self.event_with(event, message, details, &[]);
    }

    /// The same with a list of sentences.
    pub fn event_with(&self, event: &str, message: &str, details: &[(&str, &str)], list: &[String]) {
        let line = match self.form {
            LogFormat::Json => {
                let mut object = Object::new(self.clock.now(), event);
                object.text("message", message);
                for (key, value) in details {
                    object.text(key, value);
                }
                if !list.is_empty() {
                    object.texts("details", list.iter().map(String::as_str));
                }
                object.into_line()
            }
            LogFormat::Words => {
                let list: Vec<_> =
                    list.iter().map(|line| format!("\n  {}", line.replace('\n', "\n  "))).collect();
                format!("tidegate: {message}{}\n", list.concat()).into_bytes().into()
            }
        };
        self.send(line);
    }

    /// How many lines were lost.
    pub fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Waits until everything is written, but not for ever.
    pub fn flush(&self) {
        let Some(lines) = &self.lines else { return };
        let (done, is_done) = channel();
        if lines.send(Message::Flush(done)).is_ok() {
            let _ = is_done.recv_timeout(LAST);
        }
    }

    pub(crate) fn which(&self) -> LogSampling {
        self.which.load()
    }

    pub(crate) fn send(&self, line: Box<[u8]>) {
        let Some(lines) = &self.lines else { return };
        match lines.try_send(Message::Line(line)) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(_)) => self.dropped.one(),
        }
    }
}

/// Lines as they are written.
pub struct Lines(Receiver<Message>);

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lines")
    }
}

impl Lines {
    /// The next line, if it comes within this time.
    pub fn next_within(&self, patience: Duration) -> Option<String> {
        loop {
            if let Message::Line(line) = self.0.recv_timeout(patience).ok()? {
                return Some(String::from_utf8_lossy(&line).into_owned());
            }
        }
    }
}
