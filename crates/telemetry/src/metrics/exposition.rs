//! The Prometheus text format.
//!
//! Written by hand: the format has one line for each sample. The usual client library appends `_total` to the name of
//! every counter, which does not allow fixed names without it, and guards its counters with locks.

use std::fmt::{Display, Write};

/// Metrics as text. Families are written one after another, each with its help and type.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

/// The unit of durations.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MetricUnit {
    Millis,
    Seconds,
}

impl MetricUnit {
    #[expect(clippy::cast_precision_loss, reason = "a sum of durations need not be exact")]
    pub(crate) fn convert(self, nanos: u64) -> f64 {
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

    /// Starts a family of values that only grow until the process ends.
    pub fn counter<'e>(&'e mut self, name: &'e str, help: &str) -> Family<'e> {
        self.family(name, "counter", help)
    }

    /// Starts a family of values that can go up and down.
    pub fn gauge<'e>(&'e mut self, name: &'e str, help: &str) -> Family<'e> {
        self.family(name, "gauge", help)
    }

    /// Starts a family of numbers of observations in buckets.
    pub fn histogram<'e>(&'e mut self, name: &'e str, help: &str) -> Family<'e> {
        self.family(name, "histogram", help)
    }

    fn family<'e>(&'e mut self, name: &'e str, kind: &str, help: &str) -> Family<'e> {
        self.write(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        Family { exposition: self, name }
    }

    /// The text.
    pub fn into_text(self) -> String {
        self.text
    }

    fn write_labels(&mut self, labels: &[(&str, &str)], last: Option<(&str, &str)>) {
        let mut separator = '{';
        for (name, value) in labels.iter().copied().chain(last) {
            self.text.push(separator);
            separator = ',';
            self.text.push_str(name);
            self.text.push_str("=\"");
            self.write_label_value(value);
            self.text.push('"');
        }
        if separator == ',' {
            self.text.push('}');
        }
    }

    /// Escapes backslashes, quotes and line feeds.
    fn write_label_value(&mut self, value: &str) {
        let mut rest = value;
        while let Some(index) = rest.find(['\\', '"', '\n']) {
            let (plain, special) = rest.split_at(index);
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

    fn write(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(text);
    }
}

/// A family to which samples are added.
#[derive(Debug)]
pub struct Family<'e> {
    exposition: &'e mut Exposition,
    name: &'e str,
}

impl Family<'_> {
    /// Adds a sample. Label values may contain any text.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.write_line("", labels, None, value);
    }

    /// Adds the only sample of the family.
    pub fn value(mut self, value: impl Display) {
        self.sample(&[], value);
    }

    /// Adds the upper bounds of buckets with the number of observations in each, and the sum of all observations. There is one more
    /// count than bounds, for the rest.
    pub fn buckets(mut self, bounds: &[f64], counts: &[u64], sum: f64) {
        let mut total = 0_u64;
        for (bound, count) in bounds.iter().zip(counts) {
            total = total.saturating_add(*count);
            self.bucket(&[], &bound.to_string(), total);
        }
        let rest = counts.get(bounds.len()).copied().unwrap_or_default();
        total = total.saturating_add(rest);
        self.bucket(&[], "+Inf", total);
        self.count_and_sum(&[], total, sum);
    }

    pub(crate) fn bucket(&mut self, labels: &[(&str, &str)], bound: &str, count: u64) {
        self.write_line("_bucket", labels, Some(("le", bound)), count);
    }

    pub(crate) fn count_and_sum(&mut self, labels: &[(&str, &str)], count: u64, sum: f64) {
        self.write_line("_count", labels, None, count);
        self.write_line("_sum", labels, None, sum);
    }

    fn write_line(
        &mut self,
        suffix: &str,
        labels: &[(&str, &str)],
        last: Option<(&str, &str)>,
        value: impl Display,
    ) {
        let Self { exposition, name } = self;
        exposition.text.push_str(name);
        exposition.text.push_str(suffix);
        exposition.write_labels(labels, last);
        exposition.write(format_args!(" {value}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_buckets_are_cumulative() {
        let mut exposition = Exposition::default();
        exposition.histogram("h", "Some.").buckets(&[0.5, 2.0], &[1, 2, 3], 7.5);
        let text = exposition.into_text();
        let samples: Vec<_> = text.lines().skip(2).collect();
        assert_eq!(
            samples,
            [
                "h_bucket{le=\"0.5\"} 1",
                "h_bucket{le=\"2\"} 3",
                "h_bucket{le=\"+Inf\"} 6",
                "h_count 6",
                "h_sum 7.5"
            ]
        );
    }

    #[test]
    fn label_value_with_special_characters_is_escaped() {
        let mut exposition = Exposition::default();
        let mut family = exposition.gauge("a", "Some.");
        family.sample(&[("x", "q\"b\\n\nz"), ("y", "")], 1);
        family.sample(&[], 0.5);
        assert_eq!(
            exposition.into_text(),
            "# HELP a Some.\n# TYPE a gauge\na{x=\"q\\\"b\\\\n\\nz\",y=\"\"} 1\na 0.5\n"
        );
    }
}
