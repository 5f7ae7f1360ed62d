//! Logging and tracing of requests.

use std::fmt;

use crate::units::percent_text;

/// The share of requests that are sampled: none, some, or all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleRate {
    millionths: u32,
}

impl SampleRate {
    const WHOLE: u32 = 1_000_000;
    /// No requests.
    pub const NONE: Self = Self { millionths: 0 };
    /// All requests.
    pub const ALL: Self = Self { millionths: Self::WHOLE };

    /// Creates a rate; `None` if it is more than 100 %.
    pub const fn from_millionths(millionths: u32) -> Option<Self> {
        if millionths > Self::WHOLE { None } else { Some(Self { millionths }) }
    }

    /// The rate in millionths.
    pub const fn millionths(self) -> u32 {
        self.millionths
    }

    /// Whether a request with this random number is sampled.
    pub const fn includes(self, random: u32) -> bool {
        // Scales the random number to 0..1_000_000.
        ((random as u64 * Self::WHOLE as u64) >> 32) < self.millionths as u64
    }

    /// Whether no request is sampled.
    pub const fn is_none(self) -> bool {
        self.millionths == 0
    }
}

impl fmt::Display for SampleRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NONE => f.write_str("off"),
            Self::ALL => f.write_str("all"),
            Self { millionths } => f.write_str(&percent_text(millionths)),
        }
    }
}

/// The request log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPlan {
    /// The share of requests that are logged.
    pub access: SampleRate,
    /// The share of rejected requests that are logged.
    pub rejected: SampleRate,
    /// The target of the log.
    pub to: LogTarget,
}

/// The target of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard error.
    #[default]
    Stderr,
    /// Standard output.
    Stdout,
    /// Appended to a file, named as in the policy.
    File(String),
}

impl fmt::Display for LogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stderr => "stderr",
            Self::Stdout => "stdout",
            Self::File(name) => name,
        })
    }
}

/// Trace export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracesPlan {
    /// The OTLP collector: `http://` or `https://`, host and port.
    pub endpoint: String,
    /// The share of requests that are traced if the client has not decided it.
    pub sample: SampleRate,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_rate_includes_the_given_fraction() {
        let included = |sample: SampleRate| {
            (0..100_000_u32).filter(|n| sample.includes(n.wrapping_mul(0x9e37_79b9))).count()
        };
        assert_eq!((included(SampleRate::NONE), included(SampleRate::ALL)), (0, 100_000));
        let one = included(SampleRate::from_millionths(10_000).unwrap());
        assert!((980..=1_020).contains(&one), "{one}");
        assert!(SampleRate::ALL.includes(u32::MAX) && !SampleRate::NONE.includes(0));
        assert_eq!(SampleRate::from_millionths(1_000_001), None);
    }
}
