//! One JSON object on one line, whatever is put into it.
//!
//! Written by hand: `serde_json` leaves alone what it may (U+007F, the C1 controls, characters that hide or turn text),
//! cuts nothing, and has no number with exactly three decimals. Its `Formatter` would have to override all of that, and
//! would still need a buffer to cut a text in.

use std::fmt::{self, Display, Write};

use tidegate_core::Timestamp;

/// Longer texts are cut: a line is for reading.
const LONGEST: usize = 2_000;

/// An object in the making.
#[derive(Debug)]
pub(crate) struct Object {
    text: String,
}

impl Object {
    /// An object that says when and what.
    pub(crate) fn new(now: Timestamp, event: &str) -> Self {
        let mut object = Self { text: String::with_capacity(512) };
        object.text.push_str("{\"time\":\"");
        object.put(format_args!("{}\"", rfc3339(now)));
        object.text("event", event);
        object
    }

    /// Adds a text: escaped, so that neither a line nor a terminal takes it for more than text.
    pub(crate) fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        self.quoted(value);
    }

    /// Adds a number.
    pub(crate) fn number(&mut self, key: &str, value: impl Into<u64>) {
        self.key(key);
        self.put(format_args!("{}", value.into()));
    }

    /// Adds a duration in milliseconds, to the microsecond.
    pub(crate) fn millis(&mut self, key: &str, nanos: u64) {
        self.key(key);
        let micros = nanos / 1_000;
        self.put(format_args!("{}.{:03}", micros / 1_000, micros % 1_000));
    }

    /// Adds a list of texts.
    pub(crate) fn texts<'t>(&mut self, key: &str, values: impl Iterator<Item = &'t str>) {
        self.key(key);
        let mut before = '[';
        for value in values {
            self.text.push(before);
            before = ',';
            self.quoted(value);
        }
        if before == '[' {
            self.text.push('[');
        }
        self.text.push(']');
    }

    /// The line, with its end.
    pub(crate) fn into_line(mut self) -> Box<[u8]> {
        self.text.push_str("}\n");
        self.text.into_bytes().into()
    }

    fn key(&mut self, key: &str) {
        self.text.push_str(",\"");
        self.text.push_str(key);
        self.text.push_str("\":");
    }

    fn quoted(&mut self, value: &str) {
        self.text.push('"');
        for (count, c) in value.chars().enumerate() {
            if count == LONGEST {
                self.text.push('…');
                break;
            }
            match c {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                c if is_harmless(c) => self.text.push(c),
                c => c
                    .encode_utf16(&mut [0; 2])
                    .iter()
                    .for_each(|unit| self.put(format_args!("\\u{unit:04x}"))),
            }
        }
        self.text.push('"');
    }

    fn put(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(text);
    }
}

/// A text for a terminal: one line, cut like the texts of an object.
pub(crate) fn sanitized(text: &str) -> String {
    let mut sanitized = String::with_capacity(text.len());
    for c in text.chars().take(LONGEST) {
        if is_harmless(c) {
            sanitized.push(c);
        } else {
            sanitized.extend(c.escape_unicode());
        }
    }
    sanitized
}

/// Neither ends a line, nor moves a cursor, nor turns the direction of what follows.
fn is_harmless(c: char) -> bool {
    let hides =
        matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
    !c.is_control() && !hides
}

/// An instant as RFC 3339 has it, in UTC.
fn rfc3339(at: Timestamp) -> impl Display {
    let micros = i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
    // What a clock shows lies within the calendar.
    let at = jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX);
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_one_line_of_json() {
        let mut object = Object::new(Timestamp::from_micros(1_700_000_000_123_456), "request");
        object.text("path", "/a\r\nb\"\\\u{1b}[2J\u{9b}31m\u{202e}\u{1f600}\u{7f}");
        object.number("status", 429_u16);
        object.millis("total_ms", 1_234_567);
        object.texts("rules", ["a\n", "b"].into_iter());
        object.texts("none", std::iter::empty());
        let line = String::from_utf8(object.into_line().into()).unwrap();
        assert_eq!(line.matches('\n').count(), 1);
        assert!(!line.trim_end().chars().any(|c| c.is_control() || c == '\u{202e}'), "{line:?}");
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["time"], "2023-11-14T22:13:20.123456Z");
        assert_eq!(read["path"], "/a\r\nb\"\\\u{1b}[2J\u{9b}31m\u{202e}\u{1f600}\u{7f}");
        assert_eq!((&read["status"], &read["total_ms"]), (&429.into(), &1.234.into()));
        assert_eq!(read["rules"], serde_json::json!(["a\n", "b"]));
        assert_eq!(read["none"], serde_json::json!([]));
    }

    #[test]
    fn sanitized_text_is_one_line_without_control_characters() {
        assert_eq!(sanitized("a \"b\"\r\n\u{1b}[2J\u{202e}é"), "a \"b\"\\u{d}\\u{a}\\u{1b}[2J\\u{202e}é");
        assert_eq!(sanitized(&"x".repeat(100_000)).len(), LONGEST);
    }

    #[test]
    fn a_long_text_is_cut() {
        let mut object = Object::new(Timestamp::ZERO, "request");
        object.text("path", &"\u{1b}".repeat(100_000));
        assert!(object.into_line().len() < 6 * LONGEST + 200);
    }
}
