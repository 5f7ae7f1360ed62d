//! The units of durations and sizes in text.

use core::fmt;

use crate::time::TimeSpan;

/// Units of time, largest first, in microseconds.
pub const TIME_UNITS: [(&str, u64); 5] =
    [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000)];

/// Units of size, largest first, in bytes.
pub const SIZE_UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl TimeSpan {
    /// The span in the largest unit that expresses it exactly: 60 s is 1 and `m`.
    pub fn in_largest_unit(self) -> (u64, &'static str) {
        in_largest_unit(self.as_micros(), &TIME_UNITS, "µs")
    }
}

impl fmt::Display for TimeSpan {
    /// In the largest unit that expresses it exactly: 60 s is `1m`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, unit) = self.in_largest_unit();
        write!(f, "{count}{unit}")
    }
}

/// A number of bytes, written in the largest unit that expresses it exactly: 65,536 bytes are `64KiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// Parses a size: digits and a unit.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (digits, unit) = text.split_at_checked(text.find(|c: char| !c.is_ascii_digit())?)?;
        let (_, factor) = SIZE_UNITS.iter().find(|(name, _)| *name == unit)?;
        digits.parse::<u64>().ok()?.checked_mul(*factor).map(Self)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, unit) = in_largest_unit(self.0, &SIZE_UNITS, "B");
        write!(f, "{count}{unit}")
    }
}

fn in_largest_unit(
    amount: u64,
    units: &[(&'static str, u64)],
    smallest: &'static str,
) -> (u64, &'static str) {
    let mut fitting = units.iter().filter(|(_, factor)| amount > 0 && amount.is_multiple_of(*factor));
    let in_unit = fitting.next().and_then(|(unit, factor)| Some((amount.checked_div(*factor)?, *unit)));
    in_unit.unwrap_or((amount, smallest))
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn amount_is_written_in_the_largest_exact_unit() {
        assert_eq!(TimeSpan::from_secs(60).to_string(), "1m");
        assert_eq!(TimeSpan::from_secs(86_400 * 2).to_string(), "2d");
        assert_eq!(TimeSpan::from_millis(1_500).to_string(), "1500ms");
        assert_eq!(TimeSpan::from_micros(1).to_string(), "1µs");
        assert_eq!(TimeSpan::ZERO.to_string(), "0µs");
        assert_eq!(ByteSize(64 << 20).to_string(), "64MiB");
        assert_eq!(ByteSize(1_000).to_string(), "1000B");
        assert_eq!(ByteSize(0).to_string(), "0B");
    }
}
