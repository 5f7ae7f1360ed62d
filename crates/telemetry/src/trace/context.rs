//! The trace context of a request, as in W3C Trace Context.

use std::fmt;

/// The trace and the span that a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace id, not zero.
    pub(crate) trace_id: u128,
    /// The id of the sender's span, not zero.
    pub(crate) span: u64,
    /// Whether the trace is recorded.
    pub(crate) sampled: bool,
}

impl TraceContext {
    /// Starts a trace.
    pub(crate) fn new(sampled: bool) -> Self {
        Self { trace_id: fastrand::u128(1..), span: span_id(), sampled }
    }

    /// The same trace with another span.
    pub(crate) fn with_span(self, span: u64) -> Self {
        Self { span, ..self }
    }

    /// Parses `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`; `None` if the header has another form. Later
    /// versions may append fields.
    pub(crate) fn parse(header: &[u8]) -> Option<Self> {
        let text = str::from_utf8(header).ok()?;
        let (version, rest) = (hex(text.get(..2)?)?, text.get(2..)?);
        let known = rest.get(..53)?;
        let has_valid_length = match version {
            0 => rest.len() == 53,
            0xff => false,
            _ => rest.len() == 53 || rest.as_bytes().get(53) == Some(&b'-'),
        };
        let mut parts = known.split('-');
        let (before, trace_id, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let has_valid_parts = before.is_empty() && (trace_id.len(), span.len(), flags.len()) == (32, 16, 2);
        if !has_valid_length || !has_valid_parts || parts.next().is_some() {
            return None;
        }
        let (trace_id, span) = (hex(trace_id)?, u64::try_from(hex(span)?).ok()?);
        (trace_id != 0 && span != 0).then_some(Self { trace_id, span, sampled: hex(flags)? & 1 == 1 })
    }

    /// The trace id in hexadecimal.
    pub(crate) fn trace_id_text(self) -> String {
        format!("{:032x}", self.trace_id)
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span, u8::from(self.sampled))
    }
}

/// A random span id.
pub(crate) fn span_id() -> u64 {
    fastrand::u64(1..)
}

/// Parses hexadecimal digits. The standard allows lower case only.
fn hex(text: &str) -> Option<u128> {
    let is_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_hex { u128::from_str_radix(text, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn trace_context_parsed_is_displayed_unchanged() {
        let context = TraceContext::parse(VALID.as_bytes()).unwrap();
        assert!(context.sampled);
        assert_eq!(context.to_string(), VALID);
        assert_eq!(
            context.with_span(1).to_string(),
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000001-01"
        );
        let new = TraceContext::new(false);
        assert_eq!(TraceContext::parse(new.to_string().as_bytes()), Some(new));
    }

    #[test]
    fn trace_context_malformed_is_not_parsed() {
        let zero_trace_id = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
        let malformed = [
            "",
            "00",
            zero_trace_id,
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e47-3600f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00_4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0\u{e9}",
        ];
        for header in malformed {
            assert_eq!(TraceContext::parse(header.as_bytes()), None, "{header}");
        }
        assert!(
            TraceContext::parse(format!("01{}-more", &VALID[2..]).as_bytes()).is_some(),
            "later versions may append fields"
        );
        assert!(TraceContext::parse(&[0xff; 55]).is_none());
    }
}
