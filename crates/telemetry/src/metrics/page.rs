//! The text that Prometheus reads.
//!
//! Written by hand: the format is a line for each number, and the library of the field puts `_total` behind every
//! counter, which `redis_connection_errors` must not have, and keeps its counters behind locks, which cores must not
//! wait for.

use std::fmt::{Display, Write};

/// What is measured, in one text. Families are written one after another, each with its help and type.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
}

/// What Prometheus makes of a family.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// It only grows, until the process ends.
    Counter,
    /// It goes up and down.
    Gauge,
    /// How many were at most how large.
    Histogram,
}

/// What durations are told in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    Millis,
    Seconds,
}

impl Unit {
    #[expect(clippy::cast_precision_loss, reason = "a sum of durations need not be exact")]
    pub(crate) fn of(self, nanos: u64) -> f64 {
        match self {
            Self::Millis => nanos as f64 / 1e6,
            Self::Seconds => nanos as f64 / 1e9,
        }
    }
}

impl Page {
    /// The media type of the text.
    pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self { text: String::with_capacity(bytes) }
    }

    /// Begins a family: its name, its type and what it says.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.put(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    /// One number of a family that was begun. Labels may hold any text.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(name);
        self.labels(labels, None);
        self.put(format_args!(" {value}\n"));
    }

    /// A family of a single number.
    pub fn single(&mut self, name: &str, kind: Kind, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    pub(crate) fn bucket(&mut self, name: &str, labels: &[(&str, &str)], bound: &str, count: u64) {
        self.text.push_str(name);
        self.text.push_str("_bucket");
        self.labels(labels, Some(("le", bound)));
        self.put(format_args!(" {count}\n"));
    }

    pub(crate) fn histogram_end(&mut self, name: &str, labels: &[(&str, &str)], count: u64, sum: f64) {
        self.sample(&format!("{name}_count"), labels, count);
        self.sample(&format!("{name}_sum"), labels, sum);
    }

    /// The text.
    pub fn into_text(self) -> String {
        self.text
    }

    fn labels(&mut self, labels: &[(&str, &str)], last: Option<(&str, &str)>) {
        let mut before = '{';
        for (name, value) in labels.iter().copied().chain(last) {
            self.text.push(before);
            before = ',';
            self.text.push_str(name);
            self.text.push_str("=\"");
            self.value(value);
            self.text.push('"');
        }
        if before == ',' {
            self.text.push('}');
        }
    }

    /// What would end the value or the line is escaped.
    fn value(&mut self, value: &str) {
        let mut rest = value;
        while let Some(at) = rest.find(['\\', '"', '\n']) {
            let (plain, special) = rest.split_at(at);
            self.text.push_str(plain);
            self.text.push_str(match special.as_bytes().first() {
                Some(b'\n') => "\\n",
                Some(b'"') => "\\\"",
                _ => "\\\\",
            });
            rest = &special[1..];
        }
        self.text.push_str(rest);
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_label_holds_stays_in_it() {
        let mut page = Page::default();
        page.sample("a", &[("x", "q\"b\\n\nz"), ("y", "")], 1);
        page.sample("a", &[], 0.5);
        assert_eq!(page.into_text(), "a{x=\"q\\\"b\\\\n\\nz\",y=\"\"} 1\na 0.5\n");
    }
}
