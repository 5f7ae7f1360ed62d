//! States packed into one word of 62 bits: they need no further memory.

use crate::limit::WORD_MAX;

/// The bits of a count up to twice `requests`, so that a limit overdrawn by its full size still fits.
pub(crate) const fn bits_for_twice(requests: u64) -> u32 {
    u64::BITS.saturating_sub(requests.leading_zeros()).saturating_add(1)
}

/// Puts `high` above the `bits` of `low`; `None` if either does not fit.
pub(crate) fn join(high: u64, low: u64, bits: u32) -> Option<u64> {
    let shifted = high.checked_shl(bits)?;
    let fits = shifted.checked_shr(bits)? == high && low.checked_shr(bits)? == 0;
    let word = shifted | low;
    (fits && word <= WORD_MAX).then_some(word)
}

/// Splits a word made by [`join`].
pub(crate) fn split(word: u64, bits: u32) -> (u64, u64) {
    let high = word.checked_shr(bits).unwrap_or_default();
    let mask = u64::MAX.checked_shl(bits).map_or(u64::MAX, |above| !above);
    (high, word & mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_word_is_split_into_its_parts() {
        for (high, low, bits) in [(0, 0, 1), (1, 1, 1), (5, 199, 8), ((1 << 30) - 1, (1 << 32) - 1, 32)] {
            assert_eq!(split(join(high, low, bits).unwrap(), bits), (high, low));
        }
    }

    #[test]
    fn join_of_numbers_that_do_not_fit_is_none() {
        assert_eq!(join(0, 2, 1), None);
        assert_eq!(join(1 << 54, 0, 8), None);
        assert_eq!(join(1 << 62, 0, 1), None, "no bit is shifted out");
        assert_eq!(join(0, 0, 64), None);
    }

    #[test]
    fn bits_for_twice_hold_twice_the_limit() {
        for requests in [1, 2, 3, 100, 127, 128, 1 << 40] {
            assert!(join(0, 2 * requests, bits_for_twice(requests)).is_some());
        }
    }
}
