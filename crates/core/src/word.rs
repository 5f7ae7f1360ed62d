//! States in one word of 62 bits: what fits needs no memory of its own.

use crate::limit::WORD_MAX;

/// Bits that hold a count up to twice `requests`: a limit overdrawn by as much again still fits.
pub(crate) const fn bits_for_twice(requests: u64) -> u32 {
    u64::BITS.saturating_sub(requests.leading_zeros()).saturating_add(1)
}

/// `high` above the `bits` of `low`; `None` if either does not fit.
pub(crate) fn join(high: u64, low: u64, bits: u32) -> Option<u64> {
    let shifted = high.checked_shl(bits)?;
    let fits = shifted.checked_shr(bits)? == high && low.checked_shr(bits)? == 0;
    let word = shifted | low;
    (fits && word <= WORD_MAX).then_some(word)
}

/// What [`join`] joined.
pub(crate) fn split(word: u64, bits: u32) -> (u64, u64) {
    let high = word.checked_shr(bits).unwrap_or_default();
    let mask = u64::MAX.checked_shl(bits).map_or(u64::MAX, |above| !above);
    (high, word & mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_joined_is_split() {
        for (high, low, bits) in [(0, 0, 1), (1, 1, 1), (5, 199, 8), ((1 << 30) - 1, (1 << 32) - 1, 32)] {
            assert_eq!(split(join(high, low, bits).unwrap(), bits), (high, low));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert_eq!(join(0, 2, 1), None);
        assert_eq!(join(1 << 54, 0, 8), None);
        assert_eq!(join(1 << 62, 0, 1), None, "nothing is shifted out unseen");
        assert_eq!(join(0, 0, 64), None);
    }

    #[test]
    fn twice_a_limit_fits_its_bits() {
        for requests in [1, 2, 3, 100, 127, 128, 1 << 40] {
            assert!(join(0, 2 * requests, bits_for_twice(requests)).is_some());
        }
    }
}
