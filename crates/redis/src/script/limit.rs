//! Limits as the scripts read and store them. Equal limits have equal bytes.

use tidegate_core::{AlgorithmKind, Limit, Rate, Tick};

/// The version of the format of entries.
const VERSION: u8 = 1;
/// That of entries of buckets that lend: a node that does not know them rejects them.
const LENDING_VERSION: u8 = 2;

/// Appends a limit: see `read_limit` in `lua/format.lua`.
pub(super) fn push_limit(out: &mut Vec<u8>, limit: &Limit) {
    let mut borrow = None;
    let (algorithm, [a, b, c]) = match limit.kind() {
        AlgorithmKind::TokenBucket(bucket) => {
            borrow = bucket.borrow();
            (0, rate(bucket.rate(), None))
        }
        AlgorithmKind::LeakyBucket(bucket) => (1, rate(bucket.rate(), Some(bucket.max_backlog()))),
        AlgorithmKind::FixedWindow(window) => (2, [Some(window.window().as_micros()), None, None]),
        AlgorithmKind::SlidingLog(log) => (3, [Some(log.window().as_micros()), None, None]),
        AlgorithmKind::SlidingCounter(counter) => {
            let ticks = counter.window().as_micros().checked_div(limit.tick().micros());
            (4, [ticks, None, None])
        }
    };
    let tick = match limit.tick() {
        Tick::Micro => 0,
        Tick::Milli => 1,
        Tick::Second => 2,
    };
    let version = if borrow.is_some() { LENDING_VERSION } else { VERSION };
    out.push(16 * version + 3 * algorithm + tick + 1);
    let terms = borrow.map(|borrow| [borrow.units, borrow.repay]);
    for number in [Some(limit.capacity()), a, b, c].into_iter().flatten().chain(terms.into_iter().flatten()) {
        push_number(out, number);
    }
}

fn rate(rate: &Rate, backlog: Option<u64>) -> [Option<u64>; 3] {
    [Some(rate.unit().get()), Some(rate.drain().get()), backlog]
}

/// Appends a number: one digit and an exponent in a byte, three digits and an exponent in two, or its length and bytes. The
/// numbers that operators write are short, and a short entry takes little memory.
fn push_number(out: &mut Vec<u8>, number: u64) {
    let (mut digits, mut exponent) = (number, 0_u8);
    while digits >= 10 && digits.is_multiple_of(10) && exponent < 13 {
        digits /= 10;
        exponent += 1;
    }
    match u16::try_from(digits) {
        Ok(digit @ 1..=9) => out.push(9 * exponent + digit.to_le_bytes()[0] - 1),
        Ok(digits @ 0..=1023) => {
            let [high, low] = ((digits << 4) | u16::from(exponent)).to_be_bytes();
            out.extend([0b1000_0000 | high, low]);
        }
        _ => {
            let bytes = number.to_le_bytes();
            let length = bytes.iter().rposition(|byte| *byte != 0).map_or(1, |last| last + 1);
            let (used, _) = bytes.split_at(length);
            out.push(0b1100_0000 | u8::try_from(length).unwrap_or(8));
            out.extend_from_slice(used);
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Algorithm, Spec, TimeSpan};

    use super::*;

    fn number(number: u64) -> Vec<u8> {
        let mut out = Vec::new();
        push_number(&mut out, number);
        out
    }

    #[test]
    fn number_is_packed_in_the_shortest_form() {
        assert_eq!(number(1), [0]);
        assert_eq!(number(9), [8]);
        assert_eq!(number(600_000), [9 * 5 + 5]);
        assert_eq!(number(0), [0b1000_0000, 0]);
        assert_eq!(number(36_000_000), [0b1000_0010, 0x46]);
        assert_eq!(number(1_023), [0b1011_1111, 0xf0]);
        assert_eq!(number(1_024), [0b1100_0010, 0, 4]);
        assert_eq!(number((1 << 53) - 1).len(), 8);
    }

    #[test]
    fn entry_of_a_usual_token_bucket_takes_at_most_twelve_bytes() {
        for (requests, seconds) in
            [(100, 60), (100, 3_600), (10, 1), (1_000, 3_600), (7, 60), (1_000, 86_400)]
        {
            let spec = Spec::new(requests, TimeSpan::from_secs(seconds));
            let limit = Limit::new(Algorithm::TokenBucket, spec).unwrap();
            let AlgorithmKind::TokenBucket(bucket) = limit.kind() else { unreachable!() };
            let mut out = Vec::new();
            push_limit(&mut out, &limit);
            let state = 7 + usize::from(bucket.rate().drain().get() > 1);
            assert!(out.len() + state <= 12, "{requests} per {seconds} s: {}", out.len() + state);
        }
    }
}
