//! The `tracing` subscriber: events of the process, and warnings of dependencies.
//!
//! An event of the process comes from a crate of this workspace (`tidegate`, `tidegate_redis`, …) and has a field `event` with
//! its name. It is written like [`Log::event_with_details`] writes it; its field `details` is a list (see [`details`]).
//!
//! Dependencies log warnings and errors only, through `tracing` or `log`. Other levels cost one comparison with a static
//! number. Clients can provoke some warnings (with an illegal frame or handshake), so these lines are rate-limited: the
//! bounded queue alone would protect memory, but not the disk, and would drop other lines.

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

use super::json::{JsonLine, sanitized};
use super::{Log, LogFormat};

/// The crate of the program. The names of its libraries continue with an underscore.
const PROGRAM: &str = "tidegate";
/// The window in which the lines of dependencies are limited.
const WINDOW: TimeSpan = TimeSpan::from_secs(60);
/// The limit of these lines in a window.
const LINES_PER_WINDOW: u32 = 60;

impl Log {
    /// Makes this the log of the process: events of `tracing` and `log` are written to it. Works only once in a process.
    pub fn install(&self) -> io::Result<()> {
        tracing::subscriber::set_global_default(LogSubscriber::new(self.clone()))
            .map_err(io::Error::other)?;
        LogTracer::init_with_filter(LogLevelFilter::Warn).map_err(io::Error::other)
    }
}

/// Encodes a list for the field `details` of a process event as JSON, because `tracing` fields cannot be lists.
pub fn details(list: &[String]) -> String {
    serde_json::Value::from(list).to_string()
}

/// Writes events to a log.
#[derive(Debug)]
struct LogSubscriber {
    log: Log,
    line_limit: Mutex<LineLimit>,
}

impl LogSubscriber {
    fn new(log: Log) -> Self {
        Self { log, line_limit: Mutex::default() }
    }

    fn write_process_event(&self, event: &Event<'_>) {
        let mut fields = EventFields::new(event);
        let name = fields.take("event").unwrap_or_default();
        let details = fields.take("details").unwrap_or_default();
        // Encoded by `details`; most events have no list.
        let details: Vec<_> = serde_json::from_str(&details).unwrap_or_default();
        let rest: Vec<_> = fields.rest.iter().map(|(key, value)| (*key, value.as_str())).collect();
        self.log.event_with_details(&name, &fields.message, &rest, &details);
    }

    fn write_dependency_event(&self, event: &Event<'_>) {
        let now = self.log.clock.now();
        let acquired = self.line_limit.lock().unwrap_or_else(PoisonError::into_inner).acquire(now);
        let Some(suppressed) = acquired else { return };
        let EventFields { log_target, message, rest } = EventFields::new(event);
        let level = if *event.metadata().level() == Level::ERROR { "error" } else { "warn" };
        let target = log_target.as_deref().unwrap_or(event.metadata().target());
        // Write the fields into the message: their names could collide with those of the line.
        let rest = rest.iter().map(|(key, value)| format!("{key}={value}"));
        let message = Some(message).filter(|message| !message.is_empty()).into_iter().chain(rest);
        let message = message.collect::<Vec<_>>().join(" ");
        self.log.send(match self.log.format {
            LogFormat::Json => {
                let mut line = JsonLine::new(now, "dependency_log");
                line.text("level", level);
                line.text("target", target);
                line.text("message", &message);
                if suppressed > 0 {
                    line.number("suppressed", suppressed);
                }
                line.into_bytes()
            }
            LogFormat::Text => {
                let line = sanitized(&format!("{target} ({level}): {message}"));
                format!("tidegate: {line}\n").into_bytes().into()
            }
        });
    }
}

impl Subscriber for LogSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let max_level = if is_process_event(metadata) { Level::INFO } else { Level::WARN };
        metadata.is_event() && *metadata.level() <= max_level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn event(&self, event: &Event<'_>) {
        if is_process_event(event.metadata()) {
            self.write_process_event(event);
        } else {
            self.write_dependency_event(event);
        }
    }

    // No span is enabled, so these methods are not called.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn is_process_event(metadata: &Metadata<'_>) -> bool {
    let name = metadata.target().split("::").next().unwrap_or_default();
    let is_ours = name.strip_prefix(PROGRAM).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'));
    is_ours && metadata.fields().field("event").is_some()
}

/// The fields of an event, as text.
#[derive(Debug, Default)]
struct EventFields {
    message: String,
    /// The target of a record of `log`. The `tracing` target is the same for all such records.
    log_target: Option<String>,
    rest: Vec<(&'static str, String)>,
}

impl EventFields {
    fn new(event: &Event<'_>) -> Self {
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

impl Visit for EventFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field.name(), format!("{value:?}"));
    }
}

/// Limits the lines of dependencies in a window.
#[derive(Debug, Default)]
struct LineLimit {
    window_start: Timestamp,
    lines: u32,
    /// Lines that were suppressed since the last line that was written.
    suppressed: u64,
}

impl LineLimit {
    /// Returns the number of lines suppressed before this one, or `None` if this one is to be suppressed too.
    fn acquire(&mut self, now: Timestamp) -> Option<u64> {
        if now.since(self.window_start) >= WINDOW {
            (self.window_start, self.lines) = (now, 0);
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
    use crate::log::LogReceiver;

    const HOSTILE: &str = "a\r\n{\"event\":\"started\"}\u{1b}[2J\u{202e}\u{0}";

    fn clock() -> Arc<ManualClock> {
        Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)))
    }

    /// The lines that `emit` causes.
    fn lines_of(emit: impl FnOnce()) -> Vec<String> {
        let (log, lines) = Log::into_channel(clock());
        tracing::subscriber::with_default(LogSubscriber::new(log), emit);
        drain(&lines)
    }

    fn drain(lines: &LogReceiver) -> Vec<String> {
        std::iter::from_fn(|| lines.recv_timeout(Duration::ZERO)).collect()
    }

    fn forward_log() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| LogTracer::init_with_filter(LogLevelFilter::Warn).unwrap());
    }

    #[test]
    fn process_event_through_tracing_is_the_line_of_a_direct_event() {
        let list = ["one\nmore".to_owned(), HOSTILE.to_owned()];
        let through_tracing = lines_of(|| {
            let (event, subject) = ("ban_added".to_owned(), HOSTILE);
            tracing::info!(target: "tidegate::serve", event, subject, "banned: {HOSTILE}");
            tracing::warn!(target: "tidegate", event = "reloaded", details = details(&list), "2 changes");
            tracing::error!(target: "tidegate", event = "reloaded", details = details(&[]), "no changes");
        });
        let (log, lines) = Log::into_channel(clock());
        log.event("ban_added", &format!("banned: {HOSTILE}"), &[("subject", HOSTILE)]);
        log.event_with_details("reloaded", "2 changes", &[], &list);
        log.event("reloaded", "no changes", &[]);
        assert_eq!(through_tracing, drain(&lines));
    }

    #[test]
    fn event_of_a_library_of_the_workspace_is_a_process_event() {
        let through_tracing = lines_of(|| {
            tracing::warn!(target: "tidegate_redis", event = "redis_unavailable", "no reply");
            tracing::info!(target: "tidegate_redis", event = "redis_available", "connected");
        });
        let (log, lines) = Log::into_channel(clock());
        log.event("redis_unavailable", "no reply", &[]);
        log.event("redis_available", "connected", &[]);
        assert_eq!(through_tracing, drain(&lines));
    }

    #[test]
    fn dependency_warning_with_hostile_text_is_one_line_of_json() {
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
    fn log_crate_record_is_a_line_with_its_own_target() {
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
    fn dependency_event_below_warning_is_not_enabled() {
        forward_log();
        let lines = lines_of(|| {
            tracing::info!(target: "h2", event = "started", "info");
            tracing::info!(target: "tidegatelike", event = "started", "info");
            tracing::info!(target: "tidegate_redis", "no event");
            tracing::debug!(target: "tidegate_redis", event = "records_not_exchanged", "debug");
            tracing::info!(target: "tidegate", "no event");
            tracing::debug!(target: "tidegate", event = "debug", "debug");
            assert!(tracing::error_span!("span").is_disabled());
            // Events below these levels do not reach the subscriber.
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
            assert_eq!(drain(&lines).len(), 61);
            clock.advance(WINDOW);
            flood();
        });
        let second = drain(&lines);
        assert_eq!(second.len(), 61);
        assert!(second[0].contains(",\"suppressed\":940}"), "{}", second[0]);
        assert!(second[1].contains("\"message\":\"again\"}"), "{}", second[1]);
        assert!(second[60].contains("\"event\":\"stopping\""), "{}", second[60]);
    }

    #[test]
    fn dependency_warning_at_a_terminal_is_one_line_without_control_characters() {
        let (mut log, lines) = Log::into_channel(clock());
        log.format = LogFormat::Text;
        tracing::subscriber::with_default(LogSubscriber::new(log), || {
            tracing::warn!(target: "h2", "a\u{1b}[2J\nb");
        });
        assert_eq!(drain(&lines), ["tidegate: h2 (warn): a\\u{1b}[2J\\u{a}b\n"]);
    }
}
