//! What comes through `tracing`: events of the process, and warnings of dependencies.
//!
//! An event of the process is one of the crate `tidegate` with a field `event`, its name. Its message, its fields and the
//! list in its field `details` (see [`details`]) become the same line that [`Log::event_with`] writes.
//!
//! Of dependencies there are warnings and errors only, whether they use `tracing` or `log`. `tracing` and `log` compare
//! the level of anything else with a static number, and that is all it costs. Clients can provoke some warnings (with an
//! illegal frame or handshake), so that their lines are limited in number: the bounded queue alone would protect
//! memory, but neither the disk nor the place of other lines in the queue.

use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};

use tidegate_core::{TimeSpan, Timestamp};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_log::LogTracer;
use tracing_log::log::LevelFilter as LogLevelFilter;

use super::json::{Object, sanitized};
use super::{Log, LogFormat};

/// The crate whose events are those of the process.
const PROCESS: &str = "tidegate";
/// How long the lines of dependencies are counted together.
const WINDOW: TimeSpan = TimeSpan::from_secs(60);
/// How many they may be in this time.
const LINES_PER_WINDOW: u32 = 60;

impl Log {
    /// Makes this the log of the process: what comes through `tracing` and `log` is written here from now on. Can be done
    /// once in a process.
    pub fn install(&self) -> io::Result<()> {
        tracing::subscriber::set_global_default(LogSubscriber::new(self.clone()))
            .map_err(io::Error::other)?;
        LogTracer::init_with_filter(LogLevelFilter::Warn).map_err(io::Error::other)
    }
}

/// A list for the field `details` of an event of the process. The fields of `tracing` hold no lists, so that it travels as
/// JSON.
pub fn details(list: &[String]) -> String {
    serde_json::Value::from(list).to_string()
}

/// Writes events to a log.
#[derive(Debug)]
struct LogSubscriber {
    log: Log,
    window: Mutex<Window>,
}

impl LogSubscriber {
    fn new(log: Log) -> Self {
        Self { log, window: Mutex::default() }
    }

    fn write_process_event(&self, event: &Event<'_>) {
        let mut fields = Fields::of(event);
        let name = fields.take("event").unwrap_or_default();
        let details = fields.take("details").unwrap_or_default();
        // Made by `details`; most events have no list.
        let details: Vec<_> = serde_json::from_str(&details).unwrap_or_default();
        let rest: Vec<_> = fields.rest.iter().map(|(key, value)| (*key, value.as_str())).collect();
        self.log.event_with(&name, &fields.message, &rest, &details);
    }

    fn write_dependency_event(&self, event: &Event<'_>) {
        let now = self.log.clock.now();
        let admitted = self.window.lock().unwrap_or_else(PoisonError::into_inner).admit(now);
        let Some(suppressed) = admitted else { return };
        let Fields { log_target, message, rest } = Fields::of(event);
        let level = if *event.metadata().level() == Level::ERROR { "error" } else { "warn" };
        let target = log_target.as_deref().unwrap_or(event.metadata().target());
        // Their fields may have any name, one of ours included.
        let rest = rest.iter().map(|(key, value)| format!("{key}={value}"));
        let message = Some(message).filter(|message| !message.is_empty()).into_iter().chain(rest);
        let message = message.collect::<Vec<_>>().join(" ");
        self.log.send(match self.log.form {
            LogFormat::Json => {
                let mut object = Object::new(now, "dependency_log");
                object.text("level", level);
                object.text("target", target);
                object.text("message", &message);
                if suppressed > 0 {
                    object.number("suppressed", suppressed);
                }
                object.into_line()
            }
            LogFormat::Words => {
                let line = sanitized(&format!("{target} ({level}): {message}"));
                format!("tidegate: {line}\n").into_bytes().into()
            }
        });
    }
}

impl Subscriber for LogSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let max_level = if is_of_process(metadata) { Level::INFO } else { Level::WARN };
        metadata.is_event() && *metadata.level() <= max_level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn event(&self, event: &Event<'_>) {
        if is_of_process(event.metadata()) {
            self.write_process_event(event);
        } else {
            self.write_dependency_event(event);
        }
    }

    // No span is enabled, so that these are not called.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn is_of_process(metadata: &Metadata<'_>) -> bool {
    metadata.target().split("::").next() == Some(PROCESS) && metadata.fields().field("event").is_some()
}

/// The fields of an event, as text.
#[derive(Debug, Default)]
struct Fields {
    message: String,
    /// The target of a record of `log`; the target that `tracing` has is the same for all of them.
    log_target: Option<String>,
    rest: Vec<(&'static str, String)>,
}

impl Fields {
    fn of(event: &Event<'_>) -> Self {
        let mut fields = Self::default();
        event.record(&mut fields);
        fields
    }

    fn take(&mut self, key: &str) -> Option<String> {
        let index = self.rest.iter().position(|(found, _)| *found == key)?;
        Some(self.rest.remove(index).1)
    }

    fn put(&mut self, key: &'static str, value: String) {
        match key {
            "message" => self.message = value,
            "log.target" => self.log_target = Some(value),
            "log.module_path" | "log.file" | "log.line" => {}
            _ => self.rest.push((key, value)),
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field.name(), format!("{value:?}"));
    }
}

/// The lines of dependencies in the present window.
#[derive(Debug, Default)]
struct Window {
    began: Timestamp,
    lines: u32,
    /// How many were not written since the last that was.
    suppressed: u64,
}

impl Window {
    /// Whether another line may be written, and how many were not before it.
    fn admit(&mut self, now: Timestamp) -> Option<u64> {
        if now.since(self.began) >= WINDOW {
            (self.began, self.lines) = (now, 0);
        }
        if self.lines == LINES_PER_WINDOW {
            self.suppressed += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Once};
    use std::time::Duration;

    use serde_json::Value;
    use tidegate_store::ManualClock;
    use tracing_log::log;

    use super::*;
    use crate::log::Lines;

    const HOSTILE: &str = "a\r\n{\"event\":\"started\"}\u{1b}[2J\u{202e}\u{0}";

    fn clock() -> Arc<ManualClock> {
        Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)))
    }

    /// The lines of what `emit` emits.
    fn lines_of(emit: impl FnOnce()) -> Vec<String> {
        let (log, lines) = Log::into_channel(clock());
        tracing::subscriber::with_default(LogSubscriber::new(log), emit);
        all(&lines)
    }

    fn all(lines: &Lines) -> Vec<String> {
        std::iter::from_fn(|| lines.next_within(Duration::ZERO)).collect()
    }

    fn forward_log() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| LogTracer::init_with_filter(LogLevelFilter::Warn).unwrap());
    }

    #[test]
    fn process_event_is_the_line_that_the_log_writes() {
        let list = ["one\nmore".to_owned(), HOSTILE.to_owned()];
        let through_tracing = lines_of(|| {
            let (event, subject) = ("ban_added".to_owned(), HOSTILE);
            tracing::info!(target: "tidegate::serve", event, subject, "banned: {HOSTILE}");
            tracing::warn!(target: "tidegate", event = "reloaded", details = details(&list), "2 changes");
            tracing::error!(target: "tidegate", event = "reloaded", details = details(&[]), "no changes");
        });
        let (log, lines) = Log::into_channel(clock());
        log.event("ban_added", &format!("banned: {HOSTILE}"), &[("subject", HOSTILE)]);
        log.event_with("reloaded", "2 changes", &[], &list);
        log.event("reloaded", "no changes", &[]);
        assert_eq!(through_tracing, all(&lines));
    }

    #[test]
    fn dependency_warning_is_one_line_of_json_whatever_it_says() {
        let lines = lines_of(|| {
            tracing::warn!(target: "h2::proto", event = "started", frame = ?HOSTILE, count = 3, "bad: {HOSTILE}");
            tracing::error!(target: "otel", reason = HOSTILE);
        });
        assert_eq!(lines.len(), 2);
        for line in &lines {
            assert_eq!(line.matches('\n').count(), 1, "{line:?}");
            assert!(!line.trim_end().chars().any(|c| c.is_control() || c == '\u{202e}'), "{line:?}");
        }
        let warning: Value = serde_json::from_str(&lines[0]).unwrap();
        assert!(
            lines[0].starts_with("{\"time\":\"2023-11-14T22:13:20.000000Z\",\"event\":\"dependency_log\",")
        );
        assert_eq!((&warning["level"], &warning["target"]), (&"warn".into(), &"h2::proto".into()));
        assert_eq!(warning["message"], format!("bad: {HOSTILE} event=started frame={HOSTILE:?} count=3"));
        assert_eq!(warning["suppressed"], Value::Null);
        let error: Value = serde_json::from_str(&lines[1]).unwrap();
        assert_eq!(
            (&error["level"], &error["message"]),
            (&"error".into(), &format!("reason={HOSTILE}").into())
        );
    }

    #[test]
    fn record_of_the_log_crate_is_a_line_with_its_own_target() {
        forward_log();
        let lines = lines_of(|| {
            log::warn!(target: "rustls::msgs", "{HOSTILE}");
            log::info!("not written");
        });
        assert_eq!(lines.len(), 1, "{lines:?}");
        let line: Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!((&line["event"], &line["level"]), (&"dependency_log".into(), &"warn".into()));
        assert_eq!((&line["target"], &line["message"]), (&"rustls::msgs".into(), &HOSTILE.into()));
    }

    #[test]
    fn less_than_a_warning_of_a_dependency_is_not_enabled() {
        forward_log();
        let lines = lines_of(|| {
            tracing::info!(target: "h2", event = "started", "info");
            tracing::info!(target: "tidegate_like", event = "started", "info");
            tracing::info!(target: "tidegate", "no event");
            tracing::debug!(target: "tidegate", event = "debug", "debug");
            assert!(tracing::error_span!("span").is_disabled());
            // What is below these levels is not even offered to the subscriber.
            assert_eq!(LevelFilter::current(), LevelFilter::INFO);
            assert_eq!(log::max_level(), LogLevelFilter::Warn);
        });
        assert!(lines.is_empty(), "{lines:?}");
    }

    #[test]
    fn flood_of_dependency_warnings_is_bounded_and_process_events_are_not() {
        let clock = clock();
        let (log, lines) = Log::into_channel(clock.clone());
        let flood = || {
            for _ in 0..1_000 {
                tracing::warn!(target: "h2", "again");
            }
            tracing::info!(target: "tidegate", event = "stopping", "stopping");
        };
        tracing::subscriber::with_default(LogSubscriber::new(log), || {
            flood();
            assert_eq!(all(&lines).len(), 61);
            clock.advance(WINDOW);
            flood();
        });
        let second = all(&lines);
        assert_eq!(second.len(), 61);
        assert!(second[0].contains(",\"suppressed\":940}"), "{}", second[0]);
        assert!(second[1].contains("\"message\":\"again\"}"), "{}", second[1]);
        assert!(second[60].contains("\"event\":\"stopping\""), "{}", second[60]);
    }

    #[test]
    fn dependency_warning_at_a_terminal_is_one_line_without_control_characters() {
        let (mut log, lines) = Log::into_channel(clock());
        log.form = LogFormat::Words;
        tracing::subscriber::with_default(LogSubscriber::new(log), || {
            tracing::warn!(target: "h2", "a\u{1b}[2J\nb");
        });
        assert_eq!(all(&lines), ["tidegate: h2 (warn): a\\u{1b}[2J\\u{a}b\n"]);
    }
}
