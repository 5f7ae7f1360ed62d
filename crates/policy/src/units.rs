//! Parses and formats durations, sizes, counts and percentages.

use thiserror::Error;
use tidegate_core::{ByteSize, SIZE_UNITS, TIME_UNITS, TimeSpan};

/// Why a text is not a valid quantity.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QuantityError {
    /// `many`, or `1.5`.
    #[error("is not a whole number")]
    NotWhole,
    /// `-1`.
    #[error("is negative")]
    Negative,
    /// The value exceeds the supported range.
    #[error("is too large")]
    TooLarge,
    /// `ten%`.
    #[error("is not a percentage")]
    NotPercent,
    /// `0.00001%`.
    #[error("has more than four decimal places")]
    TooFine,
    /// `1y`.
    #[error("has the unknown unit `{unit}`")]
    UnknownUnit {
        /// The unit as written.
        unit: String,
    },
}

/// Parses a whole number; underscores may group its digits.
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

/// Parses a duration: `60`, `60s`, `500ms`, `1m`, `1h`, `1d`.
pub fn duration(text: &str) -> Result<TimeSpan, QuantityError> {
    let (number, unit) = split(text);
    let factor = match unit {
        "" => 1_000_000,
        unit => unit_factor(&TIME_UNITS, unit)?,
    };
    let micros = count(number)?.checked_mul(factor).ok_or(QuantityError::TooLarge)?;
    if micros > TimeSpan::MAX.as_micros() {
        Err(QuantityError::TooLarge)
    } else {
        Ok(TimeSpan::from_micros(micros))
    }
}

/// The number of requests and the window of a rate such as `100/m` or `1000/15m`, each as the policy writes it. Neither is checked.
pub fn split_rate(text: &str) -> Option<(&str, String)> {
    let (requests, window) = text.split_once('/')?;
    let window = window.trim();
    let has_number = window.starts_with(|c: char| c.is_ascii_digit());
    Some((requests.trim(), if has_number { window.to_owned() } else { format!("1{window}") }))
}

/// Parses a number of bytes: `64MiB`.
pub(crate) fn size(text: &str) -> Result<u64, QuantityError> {
    let (number, unit) = split(text);
    let factor = match unit {
        "" => 1,
        unit => unit_factor(&SIZE_UNITS, unit)?,
    };
    count(number)?.checked_mul(factor).ok_or(QuantityError::TooLarge)
}

/// Parses a percentage into millionths: `10%`, `0.5%`. It may have four decimal places.
pub(crate) fn percent(text: &str) -> Result<u32, QuantityError> {
    let (number, unit) = split(text);
    if unit != "%" {
        return Err(unit_factor(&[], unit).err().unwrap_or(QuantityError::NotWhole));
    }
    if number.starts_with('-') {
        return Err(QuantityError::Negative);
    }
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) {
        return Err(QuantityError::NotPercent);
    }
    if part.len() > 4 {
        return Err(QuantityError::TooFine);
    }
    let part = format!("{part:0<4}");
    let [whole, part] = [whole, &part].map(|digits| digits.parse::<u32>().ok());
    let millionths = whole.and_then(|whole| whole.checked_mul(10_000)?.checked_add(part?));
    millionths.ok_or(QuantityError::TooLarge)
}

/// Formats a percentage: 5,000 millionths are `0.5%`.
pub(crate) fn percent_text(millionths: u32) -> String {
    let (whole, part) = (millionths / 10_000, millionths % 10_000);
    let text = format!("{whole}.{part:04}");
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Splits a quantity into its number and its unit.
fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| c.is_alphabetic() || c == '%' || c == 'µ').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number.trim_end(), unit.trim())
}

fn unit_factor(units: &[(&str, u64)], unit: &str) -> Result<u64, QuantityError> {
    let known = units.iter().find(|(name, _)| *name == unit);
    let unknown =
        || QuantityError::UnknownUnit { unit: unit.chars().take(20).map(crate::render::visible).collect() };
    known.map(|(_, factor)| *factor).ok_or_else(unknown)
}

/// Formats a duration: 60 s is `1m`.
pub fn span_text(span: TimeSpan) -> String {
    span.to_string()
}

/// Formats a number of bytes: `64MiB`.
pub(crate) fn size_text(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_with_any_unit_is_parsed_and_formatted() {
        for (text, micros) in [
            ("60", 60_000_000),
            ("60s", 60_000_000),
            ("500ms", 500_000),
            ("1m", 60_000_000),
            ("1d", 86_400_000_000),
        ] {
            assert_eq!(duration(text), Ok(TimeSpan::from_micros(micros)), "{text}");
        }
        assert_eq!(span_text(TimeSpan::from_secs(60)), "1m");
        assert_eq!(span_text(TimeSpan::from_millis(1_500)), "1500ms");
    }

    #[test]
    fn duration_invalid_returns_the_reason() {
        assert_eq!(duration("60sec"), Err(QuantityError::UnknownUnit { unit: "sec".into() }));
        assert_eq!(duration("-1s"), Err(QuantityError::Negative));
        assert_eq!(duration("1.5s"), Err(QuantityError::NotWhole));
        assert_eq!(duration("s"), Err(QuantityError::NotWhole));
        assert_eq!(duration("99999999999d"), Err(QuantityError::TooLarge));
    }

    #[test]
    fn percent_is_parsed_and_formatted() {
        for (text, millionths) in [("10%", 100_000), ("0.5%", 5_000), ("100 %", 1_000_000), ("0.0001%", 1)] {
            assert_eq!(percent(text), Ok(millionths), "{text}");
        }
        for (millionths, text) in [(100_000, "10%"), (5_000, "0.5%"), (1, "0.0001%"), (333_333, "33.3333%")] {
            assert_eq!(percent_text(millionths), text);
        }
        assert_eq!(percent("-1%"), Err(QuantityError::Negative));
        assert_eq!(percent("1.%"), Err(QuantityError::NotPercent));
        assert_eq!(percent("0.00001%"), Err(QuantityError::TooFine));
        assert_eq!(percent("99999999999%"), Err(QuantityError::TooLarge));
        assert!(percent("10").is_err() && percent("%").is_err());
    }

    #[test]
    fn size_and_count_are_parsed() {
        assert_eq!(size("64MiB"), Ok(64 << 20));
        assert_eq!(size("64 KiB"), Ok(64 << 10));
        assert_eq!(count("10_000"), Ok(10_000));
        assert_eq!(count("_"), Err(QuantityError::NotWhole));
        assert_eq!(count("-"), Err(QuantityError::NotWhole));
        assert_eq!(count("18446744073709551616"), Err(QuantityError::TooLarge));
        assert_eq!(size_text(64 << 20), "64MiB");
    }
}
