//! Writes a JSON object on one line, whatever text it contains.
//!
//! Written by hand: `serde_json` does not escape U+007F, the C1 controls and invisible or bidirectional characters, does
//! not truncate, and has no number with exactly three decimals. A `Formatter` would have to override all of that, and
//! would still need a buffer for truncation.

use std::fmt::{self, Display, Write};

use tidegate_core::{Timestamp, is_visible};

/// Longer texts are truncated to this many characters.
const MAX_CHARS: usize = 2_000;

/// Builds one line.
#[derive(Debug)]
pub(crate) struct JsonLine {
    text: String,
}

impl JsonLine {
    /// Starts a line with its time and the name of the event.
    pub(crate) fn new(now: Timestamp, event: &str) -> Self {
        let mut line = Self { text: String::with_capacity(512) };
        line.text.push_str("{\"time\":\"");
        line.write(format_args!("{}\"", rfc3339(now)));
        line.text("event", event);
        line
    }

    /// Adds a text. It is escaped, so that it cannot end the line or control a terminal.
    pub(crate) fn text(&mut self, key: &str, value: &str) {
        self.write_key(key);
        self.write_string(value);
    }

    /// Adds a number.
    pub(crate) fn number(&mut self, key: &str, value: impl Into<u64>) {
        self.write_key(key);
        self.write(format_args!("{}", value.into()));
    }

    /// Adds a duration in milliseconds with three decimals.
    pub(crate) fn millis(&mut self, key: &str, nanos: u64) {
        self.write_key(key);
        let micros = nanos / 1_000;
        self.write(format_args!("{}.{:03}", micros / 1_000, micros % 1_000));
    }

    /// Adds a list of texts.
    pub(crate) fn texts<'t>(&mut self, key: &str, values: impl Iterator<Item = &'t str>) {
        self.write_key(key);
        let mut separator = '[';
        for value in values {
            self.text.push(separator);
            separator = ',';
            self.write_string(value);
        }
        if separator == '[' {
            self.text.push('[');
        }
        self.text.push(']');
    }

    /// The finished line, with its line feed.
    pub(crate) fn into_bytes(mut self) -> Box<[u8]> {
        self.text.push_str("}\n");
        self.text.into_bytes().into()
    }

    fn write_key(&mut self, key: &str) {
        self.text.push_str(",\"");
        self.text.push_str(key);
        self.text.push_str("\":");
    }

    fn write_string(&mut self, value: &str) {
        self.text.push('"');
        for (count, c) in value.chars().enumerate() {
            if count == MAX_CHARS {
                self.text.push('…');
                break;
            }
            match c {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                c if is_visible(c) => self.text.push(c),
                c => c
                    .encode_utf16(&mut [0; 2])
                    .iter()
                    .for_each(|unit| self.write(format_args!("\\u{unit:04x}"))),
            }
        }
        self.text.push('"');
    }

    fn write(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(text);
    }
}

/// Escapes a text for a terminal: one line, truncated like the texts of a JSON line.
pub(crate) fn sanitized(text: &str) -> String {
    let mut sanitized = String::with_capacity(text.len());
    for c in text.chars().take(MAX_CHARS) {
        if is_visible(c) {
            sanitized.push(c);
        } else {
            sanitized.extend(c.escape_unicode());
        }
    }
    sanitized
}

/// Formats a time as RFC 3339, in UTC.
fn rfc3339(at: Timestamp) -> impl Display {
    let micros = i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
    // A clock never shows a time beyond the calendar.
    let at = jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX);
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_line_with_control_characters_is_one_line_of_json() {
        let mut line = JsonLine::new(Timestamp::from_micros(1_700_000_000_123_456), "request");
        line.text("path", "/a\r\nb\"\\\u{1b}[2J\u{9b}31m\u{202e}\u{e0041}\u{1f600}\u{7f}");
        line.number("status", 429_u16);
        line.millis("total_ms", 1_234_567);
        line.texts("rules", ["a\n", "b"].into_iter());
        line.texts("none", std::iter::empty());
        let line = String::from_utf8(line.into_bytes().into()).unwrap();
        assert_eq!(line.matches('\n').count(), 1);
        assert!(!line.trim_end().chars().any(|c| !is_visible(c)), "{line:?}");
        let parsed: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(parsed["time"], "2023-11-14T22:13:20.123456Z");
        assert_eq!(parsed["path"], "/a\r\nb\"\\\u{1b}[2J\u{9b}31m\u{202e}\u{e0041}\u{1f600}\u{7f}");
        assert_eq!((&parsed["status"], &parsed["total_ms"]), (&429.into(), &1.234.into()));
        assert_eq!(parsed["rules"], serde_json::json!(["a\n", "b"]));
        assert_eq!(parsed["none"], serde_json::json!([]));
    }

    #[test]
    fn sanitized_text_with_control_characters_is_one_line_without_them() {
        assert_eq!(sanitized("a \"b\"\r\n\u{1b}[2J\u{61c}é"), "a \"b\"\\u{d}\\u{a}\\u{1b}[2J\\u{61c}é");
        assert_eq!(sanitized(&"x".repeat(100_000)).len(), MAX_CHARS);
    }

    #[test]
    fn json_line_with_a_long_text_is_truncated() {
        let mut line = JsonLine::new(Timestamp::ZERO, "request");
        line.text("path", &"\u{1b}".repeat(100_000));
        assert!(line.into_bytes().len() < 6 * MAX_CHARS + 200);
    }
}
