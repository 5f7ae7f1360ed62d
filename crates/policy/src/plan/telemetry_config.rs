//! What operators want to see of requests.

use std::fmt;

use crate::units::percent_text;

/// How many of all things are looked at: none, some, or all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleRate {
    millionths: u32,
}

impl SampleRate {
    const WHOLE: u32 = 1_000_000;
    /// Nothing.
    pub const NONE: Self = Self { millionths: 0 };
    /// Everything.
    pub const ALL: Self = Self { millionths: Self::WHOLE };

    /// So many millionths; `None` if that is more than all.
    pub const fn from_millionths(millionths: u32) -> Option<Self> {
        if millionths > Self::WHOLE { None } else { Some(Self { millionths }) }
    }

    /// How many millionths.
    pub const fn millionths(self) -> u32 {
        self.millionths
    }

    /// Whether the thing with this random number is looked at.
    pub const fn includes(self, random: u32) -> bool {
        // The number as a fraction of 1: below the share in as many cases as the share says.
        ((random as u64 * Self::WHOLE as u64) >> 32) < self.millionths as u64
    }

    /// Whether nothing is looked at.
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

/// What is logged, and where to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPlan {
    /// How many requests have a line of their own.
    pub access: SampleRate,
    /// How many of the rejected requests have one.
    pub rejected: SampleRate,
    /// Where lines are written.
    pub to: LogTarget,
}

/// Where lines are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard error.
    #[default]
    Stderr,
    /// Standard output.
    Stdout,
    /// The end of a file, as the operator named it.
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

/// Which requests are traced, and who is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracesPlan {
    /// The collector that takes spans over OTLP: `http://` or `https://`, host and port.
    pub endpoint: String,
    /// How many of the requests are traced whose sender has not decided that.
    pub sample: SampleRate,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_takes_as_many_as_it_says() {
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
