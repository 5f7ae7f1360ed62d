//! A share of a whole.

use core::fmt;

/// A share of a whole, in millionths: at most 100 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ratio(u32);

impl Ratio {
    /// The number of millionths in a whole.
    const WHOLE: u32 = 1_000_000;

    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// Everything.
    pub const ONE: Self = Self(Self::WHOLE);

    /// `percent` hundredths; more than 100 become 100.
    pub const fn from_percent(percent: u32) -> Self {
        Self::from_millionths(percent.saturating_mul(10_000))
    }

    /// `millionths`; more than a million become a million.
    pub const fn from_millionths(millionths: u32) -> Self {
        Self(if millionths > Self::WHOLE { Self::WHOLE } else { millionths })
    }

    /// The ratio in millionths.
    pub const fn as_millionths(self) -> u32 {
        self.0
    }

    /// Whether the ratio is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// This share of `whole`, rounded down.
    pub fn of(self, whole: u64) -> u64 {
        let share = u128::from(whole).saturating_mul(u128::from(self.0));
        u64::try_from(share.checked_div(u128::from(Self::WHOLE)).unwrap_or_default()).unwrap_or(u64::MAX)
    }

    /// Whether `part` is at least this share of `whole`.
    pub fn is_reached_by(self, part: u64, whole: u64) -> bool {
        let parts = u128::from(part).saturating_mul(u128::from(Self::WHOLE));
        parts >= u128::from(whole).saturating_mul(u128::from(self.0))
    }
}

impl fmt::Display for Ratio {
    /// Writes a percentage without trailing zeros: `10%`, `0.5%`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const PERCENT: u32 = 10_000;
        let (whole, mut rest) = (self.0.wrapping_div(PERCENT), self.0.wrapping_rem(PERCENT));
        if rest == 0 {
            return write!(f, "{whole}%");
        }
        let mut digits = 4;
        while rest.wrapping_rem(10) == 0 {
            rest = rest.wrapping_div(10);
            digits = usize::saturating_sub(digits, 1);
        }
        write!(f, "{whole}.{rest:0digits$}%")
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn ratio_of_a_whole_is_rounded_down() {
        assert_eq!(Ratio::from_percent(10).of(1_009), 100);
        assert_eq!(Ratio::ONE.of(u64::MAX), u64::MAX);
        assert_eq!(Ratio::ZERO.of(u64::MAX), 0);
    }

    #[test]
    fn ratio_is_reached_at_exactly_its_share() {
        let half = Ratio::from_percent(50);
        assert!(half.is_reached_by(5, 10));
        assert!(!half.is_reached_by(4, 9));
        assert!(half.is_reached_by(u64::MAX, u64::MAX));
    }

    #[test]
    fn ratio_is_written_as_percentage() {
        for (millionths, text) in [(100_000, "10%"), (5_000, "0.5%"), (123_400, "12.34%"), (1, "0.0001%")] {
            assert_eq!(Ratio::from_millionths(millionths).to_string(), text);
        }
    }
}
