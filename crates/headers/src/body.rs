//! The bodies of error responses.

use std::borrow::Cow;

use http::StatusCode;
use tidegate_core::{LimitReport, Timestamp};

use crate::retry_after::{HeaderTarget, write_retry_after};
use crate::scan::is_plain;
use crate::style::{BodyStyle, HeaderStyle};
use crate::write::reset_second;

/// The capacity that fits most bodies of rejections.
const USUAL_LENGTH: usize = 320;

/// The content of an error body, for any [`BodyStyle`].
#[derive(Clone, Copy, Debug)]
pub struct ErrorBody<'a> {
    /// The status of the response.
    pub status: StatusCode,
    /// The code for programs: letters and underscores.
    pub code: &'static str,
    /// The code of nested bodies, if it is not `code` in upper case.
    pub nested_code: Option<&'static str>,
    /// The message for people. With `retry_after`, a sentence that states the time follows it.
    pub message: &'a str,
    /// The type of a problem.
    pub problem: Option<ProblemType>,
    /// Seconds after which the client may retry.
    pub retry_after: Option<u64>,
    /// The limit that rejects the request.
    pub limit: Option<ReportedLimit<'a>>,
    /// A limit rejects the request, so headers that report limits say when to retry.
    pub is_rejection: bool,
}

/// A registered problem type (RFC 9457). Its text needs no escapes in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProblemType {
    /// The URI that identifies it.
    pub uri: &'static str,
    /// Its title.
    pub title: &'static str,
}

/// The limit that an error reports.
#[derive(Clone, Copy, Debug)]
pub struct ReportedLimit<'a> {
    /// The time of the decision.
    pub at: Timestamp,
    /// The limit.
    pub report: &'a LimitReport<'a>,
    /// The names of all limits that reject the request; only [`BodyStyle::Problem`] lists them.
    pub violated: &'a [&'a str],
}

impl<'a> ErrorBody<'a> {
    /// An error without a limit.
    pub fn new(status: StatusCode, code: &'static str, message: &'a str) -> Self {
        let (nested_code, problem, retry_after, limit) = (None, None, None, None);
        Self { status, code, nested_code, message, problem, retry_after, limit, is_rejection: false }
    }

    /// The bytes of the body.
    pub fn encode(&self, style: BodyStyle) -> Vec<u8> {
        let mut json = JsonWriter(Vec::with_capacity(USUAL_LENGTH));
        match style {
            BodyStyle::Flat => {
                json.put(r#"{"error":""#);
                json.put(self.code);
                json.put(r#"","message":""#);
                self.put_message(&mut json);
            }
            BodyStyle::Nested => {
                json.put(r#"{"error":{"code":""#);
                match self.nested_code {
                    Some(code) => json.put(code),
                    None => json.put(&self.code.to_ascii_uppercase()),
                }
                json.put(r#"","message":""#);
                self.put_message(&mut json);
            }
            BodyStyle::Problem => self.put_problem(&mut json),
        }
        if let Some(seconds) = self.retry_after {
            json.number(r#","retry_after":"#, seconds);
        }
        if let Some(limit) = &self.limit {
            json.put_limit(limit);
        }
        json.put(if style == BodyStyle::Nested { "}}\n" } else { "}\n" });
        json.0
    }

    /// The message with the time after which to retry, for protocols without a body.
    pub fn full_message(&self) -> String {
        let mut message = self.message.to_owned();
        write_retry_sentence(self.retry_after, |part| message.push_str(part));
        message
    }

    /// Writes when the client may retry. If a limit refuses the request, `styles` are those of its headers.
    pub fn write_retry_after(&self, headers: &mut impl HeaderTarget, styles: &[HeaderStyle]) {
        if let Some(seconds) = self.retry_after {
            write_retry_after(headers, seconds, if self.is_rejection { styles } else { &[] });
        }
    }

    /// Problems of a registered type begin with it. The others have their members in alphabetical order.
    fn put_problem(&self, json: &mut JsonWriter) {
        let status = u64::from(self.status.as_u16());
        if let Some(ProblemType { uri, title }) = self.problem {
            json.put(r#"{"type":""#);
            json.put(uri);
            json.put(r#"","title":""#);
            json.put(title);
            json.number(r#"","status":"#, status);
            json.put(r#","detail":""#);
            self.put_message(json);
        } else {
            json.put(r#"{"detail":""#);
            self.put_message(json);
            json.number(r#","status":"#, status);
            json.put(r#","title":""#);
            json.put(self.status.canonical_reason().unwrap_or_default());
            json.put("\"");
        }
        if let Some(limit) = &self.limit {
            json.put(r#","violated-policies":["#);
            for (index, name) in limit.violated.iter().enumerate() {
                json.put(if index > 0 { ",\"" } else { "\"" });
                json.escaped(name);
                json.put("\"");
            }
            json.put("]");
        }
    }

    /// Writes the message and the quote that ends it.
    fn put_message(&self, json: &mut JsonWriter) {
        json.escaped(self.message);
        write_retry_sentence(self.retry_after, |part| json.put(part));
        json.put("\"");
    }
}

/// Writes the sentence that states when to retry, in parts that need no escapes in JSON.
fn write_retry_sentence(retry_after: Option<u64>, mut put: impl FnMut(&str)) {
    if let Some(seconds) = retry_after {
        put(" Please retry after ");
        put(itoa::Buffer::new().format(seconds));
        put(if seconds == 1 { " second." } else { " seconds." });
    }
}

/// The content of a JSON string, without its quotes.
#[inline]
pub(crate) fn json_string(text: &str) -> Cow<'_, str> {
    if is_plain(text) {
        return text.into();
    }
    // Any text can be written as JSON.
    let mut quoted = serde_json::to_string(text).unwrap_or_default();
    quoted.pop();
    quoted.drain(..1.min(quoted.len()));
    quoted.into()
}

/// JSON, written in order.
struct JsonWriter(Vec<u8>);

impl JsonWriter {
    fn put(&mut self, json: &str) {
        self.0.extend_from_slice(json.as_bytes());
    }

    fn number(&mut self, before: &str, number: u64) {
        self.put(before);
        self.put(itoa::Buffer::new().format(number));
    }

    fn escaped(&mut self, text: &str) {
        self.put(&json_string(text));
    }

    fn put_limit(&mut self, ReportedLimit { at, report, .. }: &ReportedLimit<'_>) {
        self.number(r#","limit":"#, report.quota);
        self.number(r#","remaining":"#, report.remaining);
        self.number(r#","reset":"#, reset_second(*at, report));
        match report.window {
            Some(window) => {
                let (count, unit) = window.in_largest_unit();
                self.number(r#","window":""#, count);
                self.put(unit);
                self.put("\"");
            }
            None => self.put(r#","window":null"#),
        }
        self.put(r#","rule":""#);
        self.escaped(report.name);
        self.put("\"");
    }
}

#[cfg(test)]
mod tests;
