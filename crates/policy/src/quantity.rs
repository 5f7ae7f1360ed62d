//! Durations, sizes and counts as operators write them, in both directions.

use thiserror::Error;
use tidegate_core::Span;

/// Why a number is not what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum QuantityError {
    #[error("is not a whole number")]
    NotWhole,
    #[error("is negative")]
    Negative,
    #[error("is too large")]
    TooLarge,
    #[error("has the unknown unit `{unit}`")]
    UnknownUnit { unit: String },
}

const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000)];

const SIZES: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// A whole number; underscores may group its digits.
pub(crate) fn count(text: &str) -> Result<u64, QuantityError> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let grouped = digits.starts_with('_') || digits.ends_with('_') || digits.is_empty();
    if grouped || !digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_') {
        return Err(QuantityError::NotWhole);
    }
    if text.starts_with('-') {
        return Err(QuantityError::Negative);
    }
    digits.replace('_', "").parse().map_err(|_| QuantityError::TooLarge)
}

/// A length of time: `60`, `60s`, `500ms`, `1m`, `1h`, `1d`.
pub(crate) fn duration(text: &str) -> Result<Span, QuantityError> {
    let (number, unit) = split(text);
    let factor = match unit {
        "" => 1_000_000,
        unit => named(&UNITS, unit)?,
    };
    let micros = count(number)?.checked_mul(factor).ok_or(QuantityError::TooLarge)?;
    if micros > Span::MAX.as_micros() { Err(QuantityError::TooLarge) } else { Ok(Span::from_micros(micros)) }
}

/// A number of bytes: `64MiB`.
pub(crate) fn size(text: &str) -> Result<u64, QuantityError> {
    let (number, unit) = split(text);
    let factor = match unit {
        "" => 1,
        unit => named(&SIZES, unit)?,
    };
    count(number)?.checked_mul(factor).ok_or(QuantityError::TooLarge)
}

/// The number and what follows it.
fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| c.is_alphabetic() || c == '%' || c == 'µ').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number.trim_end(), unit.trim())
}

fn named(units: &[(&str, u64)], unit: &str) -> Result<u64, QuantityError> {
    let known = units.iter().find(|(name, _)| *name == unit);
    let unknown =
        || QuantityError::UnknownUnit { unit: unit.chars().take(20).map(crate::render::visible).collect() };
    known.map(|(_, factor)| *factor).ok_or_else(unknown)
}

/// A span as an operator writes it: 60 s is `1m`.
pub fn span_text(span: Span) -> String {
    let micros = span.as_micros();
    let fits = |(_, factor): &&(&str, u64)| micros > 0 && micros.is_multiple_of(*factor);
    match UNITS.iter().find(fits) {
        Some((unit, factor)) => format!("{}{unit}", micros / factor),
        None => format!("{micros}µs"),
    }
}

/// A size as an operator writes it.
pub(crate) fn size_text(bytes: u64) -> String {
    let fits = |(_, factor): &&(&str, u64)| bytes > 0 && bytes.is_multiple_of(*factor);
    SIZES
        .iter()
        .find(fits)
        .map_or_else(|| format!("{bytes}B"), |(unit, factor)| format!("{}{unit}", bytes / factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_they_are_written() {
        for (text, micros) in [
            ("60", 60_000_000),
            ("60s", 60_000_000),
            ("500ms", 500_000),
            ("1m", 60_000_000),
            ("1d", 86_400_000_000),
        ] {
            assert_eq!(duration(text), Ok(Span::from_micros(micros)), "{text}");
        }
        assert_eq!(span_text(Span::from_secs(60)), "1m");
        assert_eq!(span_text(Span::from_millis(1_500)), "1500ms");
    }

    #[test]
    fn what_is_no_duration_says_why() {
        assert_eq!(duration("60sec"), Err(QuantityError::UnknownUnit { unit: "sec".into() }));
        assert_eq!(duration("-1s"), Err(QuantityError::Negative));
        assert_eq!(duration("1.5s"), Err(QuantityError::NotWhole));
        assert_eq!(duration("s"), Err(QuantityError::NotWhole));
        assert_eq!(duration("99999999999d"), Err(QuantityError::TooLarge));
    }

    #[test]
    fn sizes_and_counts() {
        assert_eq!(size("64MiB"), Ok(64 << 20));
        assert_eq!(size("64 KiB"), Ok(64 << 10));
        assert_eq!(count("10_000"), Ok(10_000));
        assert_eq!(count("_"), Err(QuantityError::NotWhole));
        assert_eq!(count("-"), Err(QuantityError::NotWhole));
        assert_eq!(count("18446744073709551616"), Err(QuantityError::TooLarge));
        assert_eq!(size_text(64 << 20), "64MiB");
    }
}
