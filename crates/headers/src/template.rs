//! Error bodies of an operator's own form: text with placeholders, escaped as the content type requires.
//!
//! There is nothing but placeholders: no conditions, no loops, so a body is never longer than its template and its values allow. In
//! JSON a placeholder between quotes is the content of a string; elsewhere it is a value of its own, `null` if it is not known.

use std::borrow::Cow;
use std::fmt;

use http::{HeaderValue, StatusCode};
use tidegate_core::{LimitReport, LimitUnit, TimeSpan, Timestamp};

use crate::body::{ErrorBody, ReportedLimit, json_string};
use crate::write::{reset_millisecond, reset_second};

const OPEN: &str = "{{";
const CLOSE: &str = "}}";

tidegate_core::named_enum! {
    /// A placeholder of a template.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum TemplateField {
        /// The code of the error.
        Code = "code",
        /// The message, with the time after which to retry.
        Message = "message",
        /// The status of the response.
        Status = "status",
        /// The seconds after which to retry.
        RetryAfter = "retry_after",
        /// The units per window.
        Limit = "limit",
        /// The units left.
        Remaining = "remaining",
        /// When the limit admits requests again, in Unix seconds.
        Reset = "reset",
        /// The same in Unix milliseconds.
        ResetMs = "reset_ms",
        /// The window, such as `1m`.
        Window = "window",
        /// The window in seconds.
        WindowSeconds = "window_seconds",
        /// The name of the rule.
        Rule = "rule",
    }
}

/// A template of error bodies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyTemplate {
    content_type: HeaderValue,
    syntax: Syntax,
    parts: Vec<TemplatePart>,
    /// What fits most bodies.
    capacity: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Text(Box<str>),
    Field {
        field: TemplateField,
        /// In JSON, it is part of a string.
        is_quoted: bool,
    },
}

/// How values are escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Syntax {
    Json,
    /// XML and HTML.
    Markup,
    Plain,
}

/// Why a template is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateError {
    /// Nothing is known about the escapes of this content type.
    UnknownContentType,
    /// A placeholder has no end.
    Unclosed {
        /// The line, from 1.
        line: usize,
    },
    /// There is no such placeholder.
    UnknownField {
        /// The line, from 1.
        line: usize,
        /// The name.
        name: String,
    },
    /// With these values the body is not JSON.
    NotJson {
        /// What the parser says about it.
        cause: String,
    },
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownContentType => f.write_str("values cannot be escaped for this content type"),
            Self::Unclosed { line } => write!(f, "line {line}: a placeholder has no `{CLOSE}`"),
            Self::UnknownField { line, name } => write!(f, "line {line}: unknown placeholder `{name}`"),
            Self::NotJson { cause } => write!(f, "with the values of a rejection it is not JSON: {cause}"),
        }
    }
}

impl std::error::Error for TemplateError {}

/// The value of a placeholder.
enum FieldValue<'a> {
    Number(u64),
    Text(Cow<'a, str>),
    Unknown,
}

impl BodyTemplate {
    /// Parses a template, and renders it with unusual values. Bodies of a JSON type must be JSON with any of them.
    pub fn parse(text: &str, content_type: &str) -> Result<Self, TemplateError> {
        let syntax = Syntax::of(content_type).ok_or(TemplateError::UnknownContentType)?;
        let content_type =
            HeaderValue::from_str(content_type).map_err(|_| TemplateError::UnknownContentType)?;
        let mut parts = Vec::new();
        let (mut rest, mut string) = (text, JsonString::default());
        while let Some((literal, after)) = rest.split_once(OPEN) {
            let line = || text[..text.len() - after.len()].matches('\n').count() + 1;
            let (name, following) =
                after.split_once(CLOSE).ok_or_else(|| TemplateError::Unclosed { line: line() })?;
            let name = name.trim();
            let field = TemplateField::ALL.into_iter().find(|field| field.name() == name);
            let field =
                field.ok_or_else(|| TemplateError::UnknownField { line: line(), name: name.to_owned() })?;
            string.read(literal);
            parts.push(TemplatePart::Text(literal.into()));
            parts.push(TemplatePart::Field { field, is_quoted: string.is_open });
            rest = following;
        }
        parts.push(TemplatePart::Text(rest.into()));
        let template = Self { content_type, syntax, parts, capacity: text.len() + 64 };
        template.check()?;
        Ok(template)
    }

    /// The `Content-Type` of the bodies.
    pub const fn content_type(&self) -> &HeaderValue {
        &self.content_type
    }

    /// The placeholders that it has.
    pub fn fields(&self) -> impl Iterator<Item = TemplateField> {
        self.parts.iter().filter_map(|part| match part {
            TemplatePart::Field { field, .. } => Some(*field),
            TemplatePart::Text(_) => None,
        })
    }

    /// The length of its text.
    pub fn text_length(&self) -> usize {
        let lengths = self.parts.iter().map(|part| match part {
            TemplatePart::Text(text) => text.len(),
            TemplatePart::Field { .. } => 0,
        });
        lengths.sum()
    }

    /// The bytes of a body.
    pub(crate) fn encode(&self, body: &ErrorBody<'_>) -> Vec<u8> {
        let mut output = String::with_capacity(self.capacity);
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => output.push_str(text),
                TemplatePart::Field { field, is_quoted } => {
                    self.syntax.write(&field.value(body), *is_quoted, &mut output);
                }
            }
        }
        output.into_bytes()
    }

    /// Renders bodies with values that need escapes, and with none.
    fn check(&self) -> Result<(), TemplateError> {
        if self.syntax != Syntax::Json {
            return Ok(());
        }
        for name in ["default", "\"}]<\\\u{0}\n\u{2028}\u{10ffff}{{code}}", "\\"] {
            for (retry_after, window) in [(Some(u64::MAX), Some(TimeSpan::MAX)), (None, None)] {
                let report = LimitReport {
                    name,
                    quota: u64::MAX,
                    window,
                    remaining: 0,
                    reset_after: TimeSpan::from_secs(1),
                    retry_after: None,
                    unit: LimitUnit::Requests,
                };
                let limit = ReportedLimit { at: Timestamp::MAX, report: &report, violated: &[] };
                let status = StatusCode::TOO_MANY_REQUESTS;
                for limit in [Some(limit), None] {
                    let body =
                        ErrorBody { retry_after, limit, ..ErrorBody::new(status, "rate_limited", name) };
                    serde_json::from_slice::<serde_json::Value>(&self.encode(&body))
                        .map_err(|error| TemplateError::NotJson { cause: error.to_string() })?;
                }
            }
        }
        Ok(())
    }
}

impl TemplateField {
    fn value<'a>(self, body: &ErrorBody<'a>) -> FieldValue<'a> {
        let number = |number: Option<u64>| number.map_or(FieldValue::Unknown, FieldValue::Number);
        let limit = body.limit.as_ref();
        let report = limit.map(|limit| limit.report);
        match self {
            Self::Code => FieldValue::Text(body.code.into()),
            Self::Message => FieldValue::Text(body.full_message().into()),
            Self::Status => FieldValue::Number(body.status.as_u16().into()),
            Self::RetryAfter => number(body.retry_after),
            Self::Limit => number(report.map(|report| report.quota)),
            Self::Remaining => number(report.map(|report| report.remaining)),
            Self::Reset => number(limit.map(|limit| reset_second(limit.at, limit.report))),
            Self::ResetMs => number(limit.map(|limit| reset_millisecond(limit.at, limit.report))),
            Self::Window => match report.and_then(|report| report.window) {
                Some(window) => {
                    let (count, unit) = window.in_largest_unit();
                    FieldValue::Text(format!("{count}{unit}").into())
                }
                None => FieldValue::Unknown,
            },
            Self::WindowSeconds => {
                number(report.and_then(|report| report.window).map(TimeSpan::as_secs_ceil))
            }
            Self::Rule => report.map_or(FieldValue::Unknown, |report| FieldValue::Text(report.name.into())),
        }
    }
}

impl Syntax {
    /// How values are escaped in this content type; `None` if that is not known.
    fn of(content_type: &str) -> Option<Self> {
        let (essence, parameters) = match content_type.split_once(';') {
            Some((essence, parameters)) => (essence.trim(), parameters.trim()),
            None => (content_type.trim(), ""),
        };
        let is_utf8 = parameters.is_empty() || parameters.eq_ignore_ascii_case("charset=utf-8");
        let essence = essence.to_ascii_lowercase();
        let syntax = match essence.as_str() {
            "application/json" | "text/json" => Self::Json,
            "text/html" | "text/xml" | "application/xml" => Self::Markup,
            "text/plain" => Self::Plain,
            other if other.starts_with("application/") && other.ends_with("+json") => Self::Json,
            other if other.starts_with("application/") && other.ends_with("+xml") => Self::Markup,
            _ => return None,
        };
        is_utf8.then_some(syntax)
    }

    fn write(self, value: &FieldValue<'_>, is_quoted: bool, output: &mut String) {
        match (value, self) {
            (FieldValue::Number(number), _) => output.push_str(itoa::Buffer::new().format(*number)),
            (FieldValue::Unknown, Self::Json) if !is_quoted => output.push_str("null"),
            (FieldValue::Unknown, _) => {}
            (FieldValue::Text(text), Self::Json) => {
                if !is_quoted {
                    output.push('"');
                }
                output.push_str(&json_string(text));
                if !is_quoted {
                    output.push('"');
                }
            }
            (FieldValue::Text(text), Self::Markup) => text.chars().for_each(|c| match c {
                '&' => output.push_str("&amp;"),
                '<' => output.push_str("&lt;"),
                '>' => output.push_str("&gt;"),
                '"' => output.push_str("&quot;"),
                '\'' => output.push_str("&#39;"),
                c if c.is_control() => output.push(' '),
                c => output.push(c),
            }),
            (FieldValue::Text(text), Self::Plain) => {
                output.extend(text.chars().map(|c| if c.is_control() { ' ' } else { c }));
            }
        }
    }
}

/// Whether a position of a JSON text is within a string.
#[derive(Default)]
struct JsonString {
    is_open: bool,
    is_escaped: bool,
}

impl JsonString {
    fn read(&mut self, literal: &str) {
        for byte in literal.bytes() {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = self.is_open,
                b'"' => self.is_open = !self.is_open,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
