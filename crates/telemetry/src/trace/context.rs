//! LogSampling trace a request belongs to, as the W3C's Trace TraceContext has it.

use std::fmt;

/// The place of a request in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// Not zero.
    pub(crate) trace: u128,
    /// The span that asks, not zero.
    pub(crate) span: u64,
    /// Whether whoever began the trace wants to see it.
    pub(crate) sampled: bool,
}

impl TraceContext {
    /// The beginning of a trace.
    pub(crate) fn new(sampled: bool) -> Self {
        Self { trace: fastrand::u128(1..), span: span_id(), sampled }
    }

    /// The same trace, asked by another span.
    pub(crate) fn asked_by(self, span: u64) -> Self {
        Self { span, ..self }
    }

    /// Reads `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`; `None` if it is not exactly that. Versions to come
    /// may say more behind it.
    pub(crate) fn parse(header: &[u8]) -> Option<Self> {
        let text = str::from_utf8(header).ok()?;
        let (version, rest) = (hex(text.get(..2)?)?, text.get(2..)?);
        let known = rest.get(..53)?;
        let is_whole = match version {
            0 => rest.len() == 53,
            0xff => false,
            _ => rest.len() == 53 || rest.as_bytes().get(53) == Some(&b'-'),
        };
        let mut parts = known.split('-');
        let (before, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_shaped = before.is_empty() && (trace.len(), span.len(), flags.len()) == (32, 16, 2);
        if !is_whole || !is_shaped || parts.next().is_some() {
            return None;
        }
        let (trace, span) = (hex(trace)?, u64::try_from(hex(span)?).ok()?);
        (trace != 0 && span != 0).then_some(Self { trace, span, sampled: hex(flags)? & 1 == 1 })
    }

    /// The id of the trace as it is shown.
    pub(crate) fn trace_text(self) -> String {
        format!("{:032x}", self.trace)
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

/// A name for a span.
pub(crate) fn span_id() -> u64 {
    fastrand::u64(1..)
}

/// Hexadecimal digits as the standard wants them: lower case only.
fn hex(text: &str) -> Option<u128> {
    let is_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_hex { u128::from_str_radix(text, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn what_is_read_is_written_again() {
        let context = TraceContext::parse(GOOD.as_bytes()).unwrap();
        assert!(context.sampled);
        assert_eq!(context.to_string(), GOOD);
        assert_eq!(
            context.asked_by(1).to_string(),
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000001-01"
        );
        let new = TraceContext::new(false);
        assert_eq!(TraceContext::parse(new.to_string().as_bytes()), Some(new));
    }

    #[test]
    fn what_is_malformed_is_nothing() {
        let zero = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
        let bad = [
            "",
            "00",
            zero,
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e47-3600f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00_4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0\u{e9}",
        ];
        for bad in bad {
            assert_eq!(TraceContext::parse(bad.as_bytes()), None, "{bad}");
        }
        assert!(
            TraceContext::parse(format!("01{}-more", &GOOD[2..]).as_bytes()).is_some(),
            "versions to come"
        );
        assert!(TraceContext::parse(&[0xff; 55]).is_none());
    }
}
