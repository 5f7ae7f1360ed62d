//! The log as a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Timestamp;
use tidegate_store::{Clock, ManualClock};
use tidegate_telemetry::{Destination, Log, LogFormat};

fn clock() -> Arc<dyn Clock> {
    Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)))
}

fn file(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

#[test]
fn log_events_are_appended_as_lines_of_json() {
    let path = file("events.log");
    std::fs::write(&path, "before\n").unwrap();
    let log = Log::open(&Destination::File(path.clone()), LogFormat::Json, clock()).unwrap();
    log.event("ban_added", "user:bob\r\n\u{1b}[31m is banned", &[("client", "user:\"bob\"")]);
    log.event_with("reloaded", "1 change", &[], &["rule `a` added\nnow".to_owned()]);
    log.flush();
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines.len(), lines[0]), (3, "before"));
    let ban: serde_json::Value = serde_json::from_str(lines[1]).unwrap();
    assert_eq!((&ban["event"], &ban["client"]), (&"ban_added".into(), &"user:\"bob\"".into()));
    let reloaded: serde_json::Value = serde_json::from_str(lines[2]).unwrap();
    assert_eq!(reloaded["details"][0], "rule `a` added\nnow");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn log_file_moved_away_is_created_again_on_reopen() {
    let (path, moved) = (file("rotated.log"), file("rotated.log.1"));
    let to = Destination::File(path.clone());
    let log = Log::open(&to, LogFormat::Json, clock()).unwrap();
    log.event("one", "1", &[]);
    log.flush();
    std::fs::rename(&path, &moved).unwrap();
    log.event("two", "2", &[]);
    log.turn(&to).unwrap();
    log.event("three", "3", &[]);
    log.flush();
    assert_eq!(std::fs::read_to_string(&moved).unwrap().lines().count(), 2);
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
    std::fs::remove_file(path).unwrap();
    std::fs::remove_file(moved).unwrap();
}

#[test]
fn log_file_that_cannot_be_opened_is_an_error() {
    let to = Destination::File("/nowhere/at/all.log".into());
    assert!(Log::open(&to, LogFormat::Json, clock()).is_err());
}

#[test]
fn log_lines_beyond_the_queue_are_dropped_and_counted() {
    let (log, lines) = Log::into_channel(clock());
    for _ in 0..10_000 {
        log.event("e", "m", &[]);
    }
    assert_eq!(log.dropped(), 10_000 - 8_192);
    assert!(lines.next_within(Duration::ZERO).unwrap().contains("\"event\":\"e\""));
}
