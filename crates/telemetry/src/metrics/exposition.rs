//! The text that Prometheus reads.
//!
//! Written by hand: the format is a line for each number, and the library of the field puts `_total` behind every
//! counter, which `redis_connection_errors` must not have, and keeps its counters behind locks, which cores must not
//! wait for.

use std::fmt::{Display, Write};

/// What is measured, in one text. Families are written one after another, each with its help and type.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

/// What Prometheus makes of a family.
#[derive(Clone, Copy, Debug)]
pub enum MetricKind {
    /// It only grows, until the process ends.
    Counter,
    /// It goes up and down.
    Gauge,
    /// How many were at most how large.
    Histogram,
}

/// What durations are told in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MetricUnit {
    Millis,
    Seconds,
}

impl MetricUnit {
    #[expect(clippy::cast_precision_loss, reason = "a sum of durations need not be exact")]
    pub(crate) fn of(self, nanos: u64) -> f64 {
        match self {
            Self::Millis => nanos as f64 / 1e6,
            Self::Seconds => nanos as f64 / 1e9,
        }
    }
}

impl Exposition {
    /// The media type of the text.
    pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self { text: String::with_capacity(bytes) }
    }

    /// Begins a family: its name, its type and what it says.
    pub fn family<'p>(&'p mut self, name: &'p str, kind: MetricKind, help: &str) -> Family<'p> {
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        self.put(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        Family { page: self, name }
    }

    /// A family of a single number.
    pub fn single(&mut self, name: &str, kind: MetricKind, help: &str, value: impl Display) {
        self.family(name, kind, help).sample(&[], value);
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

/// A family that was begun.
#[derive(Debug)]
pub struct Family<'p> {
    page: &'p mut Exposition,
    name: &'p str,
}

impl Family<'_> {
    /// One number. Labels may hold any text.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.line("", labels, None, value);
    }

    pub(crate) fn bucket(&mut self, labels: &[(&str, &str)], bound: &str, count: u64) {
        self.line("_bucket", labels, Some(("le", bound)), count);
    }

    pub(crate) fn end(&mut self, labels: &[(&str, &str)], count: u64, sum: f64) {
        self.line("_count", labels, None, count);
        self.line("_sum", labels, None, sum);
    }

    fn line(
        &mut self,
        ending: &str,
        labels: &[(&str, &str)],
        last: Option<(&str, &str)>,
        value: impl Display,
    ) {
        let Self { page, name } = self;
        page.text.push_str(name);
        page.text.push_str(ending);
        page.labels(labels, last);
        page.put(format_args!(" {value}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_label_holds_stays_in_it() {
        let mut page = Exposition::default();
        let mut family = page.family("a", MetricKind::Gauge, "Some.");
        family.sample(&[("x", "q\"b\\n\nz"), ("y", "")], 1);
        family.sample(&[], 0.5);
        assert_eq!(
            page.into_text(),
            "# HELP a Some.\n# TYPE a gauge\na{x=\"q\\\"b\\\\n\\nz\",y=\"\"} 1\na 0.5\n"
        );
    }
}
