//! Decodes scalars: strings, numbers, durations and names from a list.

use tidegate_core::{Ratio, TimeSpan};

use crate::raw::{Finding, ProblemReport, YamlNode, YamlValue, nearest};
use crate::render::quote;
use crate::units::{self, QuantityError};

/// Decodes a string that is not empty.
pub(crate) fn text<'n>(
    node: &'n YamlNode<'_>,
    what: &str,
    report: &mut ProblemReport<'_>,
) -> Option<&'n str> {
    match &node.value {
        YamlValue::Scalar { text, .. } if !node.is_null() && !text.trim().is_empty() => Some(text),
        _ => {
            report.push(not_a_scalar(node, what));
            None
        }
    }
}

/// Reports an empty value or a collection in place of a scalar.
fn not_a_scalar(node: &YamlNode<'_>, expected: &str) -> Finding {
    let found = match &node.value {
        YamlValue::Scalar { .. } => "the value is empty".to_owned(),
        _ => format!("unexpected value: {}", node.describe()),
    };
    Finding::error(node, found).expected(expected)
}

/// Decodes one value, or a list with at least one.
pub(super) fn one_or_many<'n, 's>(
    node: &'n YamlNode<'s>,
    what: &str,
    report: &mut ProblemReport<'_>,
) -> &'n [YamlNode<'s>] {
    match &node.value {
        YamlValue::List(items) if items.is_empty() => {
            let finding = Finding::error(node, "the list is empty");
            report.push(
                finding.expected(format!("at least one {what}")).hint("add an entry, or remove the key"),
            );
            &[]
        }
        YamlValue::List(items) => items,
        _ => std::slice::from_ref(node),
    }
}

/// Decodes a list.
pub(crate) fn list<'n, 's>(
    node: &'n YamlNode<'s>,
    what: &str,
    report: &mut ProblemReport<'_>,
) -> &'n [YamlNode<'s>] {
    if let YamlValue::List(items) = &node.value {
        return items;
    }
    let finding = Finding::error(node, format!("expected a list of {what}, found {}", node.describe()));
    report.push(finding.expected("a list").hint("write each entry on its own line, starting with `- `"));
    &[]
}

/// Decodes a number of at least 1; `what` names it in the message about zero.
pub(super) fn positive(node: &YamlNode<'_>, what: &str, report: &mut ProblemReport<'_>) -> Option<u64> {
    let number = count(node, report)?;
    if number == 0 {
        report.push(
            Finding::error(node, format!("{what} must be at least 1"))
                .expected("a whole number of at least 1"),
        );
        return None;
    }
    Some(number)
}

/// Like [`positive`], at most `u32::MAX`.
pub(crate) fn positive_u32(node: &YamlNode<'_>, what: &str, report: &mut ProblemReport<'_>) -> Option<u32> {
    fit_u32(node, positive(node, what, report)?, report)
}

/// Like [`count`], at most `u32::MAX`.
pub(crate) fn count_u32(node: &YamlNode<'_>, report: &mut ProblemReport<'_>) -> Option<u32> {
    fit_u32(node, count(node, report)?, report)
}

fn fit_u32(node: &YamlNode<'_>, number: u64, report: &mut ProblemReport<'_>) -> Option<u32> {
    let fits = u32::try_from(number).ok();
    if fits.is_none() {
        let finding = Finding::error(node, format!("{number} is too large"));
        report.push(finding.expected(format!("at most {}", u32::MAX)));
    }
    fits
}

/// Decodes a percentage above 0%, at most 100%; `zero_hint` says what to write instead of 0%.
pub(super) fn ratio(node: &YamlNode<'_>, zero_hint: &str, report: &mut ProblemReport<'_>) -> Option<Ratio> {
    const EXPECTED: &str = "a percentage, for example `10%` or `0.5%`";
    let text = text(node, EXPECTED, report)?;
    let wrong = |what: String| Finding::error(node, what).expected(EXPECTED);
    let finding = match units::percent(text) {
        Ok(0) => wrong("the percentage must be more than 0%".to_owned()).hint(zero_hint),
        Ok(millionths) if millionths <= Ratio::ONE.as_millionths() => {
            return Some(Ratio::from_millionths(millionths));
        }
        Ok(_) | Err(QuantityError::TooLarge) => {
            wrong(format!("{} is more than 100%", quote(text))).hint("use `100%` or less")
        }
        Err(error @ (QuantityError::Negative | QuantityError::TooFine)) => {
            wrong(format!("{} {error}", quote(text))).hint("for example `10%`")
        }
        Err(_) => {
            let number = text.trim_end_matches('%').trim();
            let meant = number.parse::<f64>().ok().filter(|number| *number > 0.0 && *number <= 100.0);
            let finding = wrong(format!("{} is not a percentage", quote(text)));
            match meant {
                // A fraction, such as 0.1, may mean 10%.
                Some(fraction) if fraction < 1.0 && !text.contains('%') => {
                    let percent = format!("{:.4}", fraction * 100.0);
                    let percent = percent.trim_end_matches('0').trim_end_matches('.');
                    finding.hint(format!("write `{percent}%`, or `{number}%` if less than 1% is meant"))
                }
                Some(_) => finding.hint(format!("write `{number}%`")),
                None => finding.hint("for example `10%`"),
            }
        }
    };
    report.push(finding);
    None
}

/// Decodes a whole number.
pub(crate) fn count(node: &YamlNode<'_>, report: &mut ProblemReport<'_>) -> Option<u64> {
    const EXPECTED: &str = "a whole number, for example 100";
    let YamlValue::Scalar { text, quoted } = &node.value else {
        report.push(not_a_scalar(node, EXPECTED));
        return None;
    };
    let counted = units::count(text);
    let wrong = |what: String| Finding::error(node, what).expected(EXPECTED);
    let finding = match counted {
        Ok(number) if !quoted => return Some(number),
        Ok(number) => wrong("expected a number, found a string".to_owned())
            .hint(format!("write {number} without quotes")),
        Err(QuantityError::Negative) => wrong(format!("{} is negative", quote(text))).hint("remove the sign"),
        Err(QuantityError::TooLarge) => {
            wrong(format!("{} is too large", quote(text))).hint("use a smaller number")
        }
        Err(_) if node.is_null() => not_a_scalar(node, EXPECTED),
        Err(_) if &**text == "unlimited" => {
            wrong("`unlimited` replaces a whole tier, not a number".to_owned())
                .hint("write `NAME: unlimited` in `rate_limits.tiers`; elsewhere remove the limit")
        }
        Err(_) => wrong(format!("{} is not a whole number", quote(text))).hint(number_hint(text)),
    };
    report.push(finding);
    None
}

/// Suggests a correction for an invalid number.
fn number_hint(text: &str) -> String {
    let plain = text.replace([',', '\'', ' '], "");
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    let power = text.to_lowercase().split_once('e').and_then(|(digits, zeros)| {
        let ten = 10_u64.checked_pow(zeros.parse().ok()?)?;
        digits.parse::<u64>().ok()?.checked_mul(ten)
    });
    match plain.parse::<u64>().ok().or(power) {
        Some(number) => format!("write {number}"),
        None if text.contains('/') && !digits.is_empty() => {
            format!("write `requests: {digits}`, and the time as `window`")
        }
        None => "use digits only".to_owned(),
    }
}

/// Decodes a positive duration.
pub(super) fn duration(node: &YamlNode<'_>, report: &mut ProblemReport<'_>) -> Option<TimeSpan> {
    const EXPECTED: &str =
        "a duration, for example `60s`: a number with the unit ms, s, m, h or d, or a number of seconds";
    let text = text(node, EXPECTED, report)?;
    let wrong = |what: String| Finding::error(node, what).expected(EXPECTED);
    let finding = match units::duration(text) {
        Ok(span) if !span.is_zero() => return Some(span),
        Ok(_) => wrong("the duration must be positive".to_owned()).hint("for example `1s` or `1m`"),
        Err(QuantityError::UnknownUnit { unit }) => {
            let finding = wrong(format!("unknown time unit {}", quote(&unit)));
            finding.hint(unit_hint(text, &unit))
        }
        Err(error) => wrong(format!("{} {error}", quote(text))).hint(match error {
            QuantityError::TooLarge => "the maximum is about 285 years",
            QuantityError::Negative => "remove the sign",
            _ => "for example `500ms`, `60s`, `15m`, `1h` or `1d`",
        }),
    };
    report.push(finding);
    None
}

/// Reads a duration without reporting problems; another call reports them.
pub(super) fn peek_duration(node: &YamlNode<'_>) -> Option<TimeSpan> {
    let YamlValue::Scalar { text, .. } = &node.value else { return None };
    units::duration(text).ok().filter(|span| !span.is_zero())
}

fn unit_hint(text: &str, unit: &str) -> String {
    let number: String = text.chars().take_while(char::is_ascii_digit).collect();
    let number = if number.is_empty() { "1".to_owned() } else { number };
    let lower = unit.to_lowercase();
    let meant = match lower.as_str() {
        unit if unit.starts_with("milli") || unit == "ms" => "ms",
        unit if unit.starts_with("sec") || unit == "s" => "s",
        unit if unit.starts_with("min") || unit == "m" => "m",
        unit if unit.starts_with("ho") || matches!(unit, "h" | "hr" | "hrs") => "h",
        unit if unit.starts_with("day") || unit == "d" => "d",
        unit if unit.starts_with('w') => return in_days(&number, 7),
        unit if unit.starts_with("mo") => return in_days(&number, 30),
        unit if unit.starts_with('y') => return in_days(&number, 365),
        _ => return "for example `500ms`, `60s`, `15m`, `1h` or `1d`".to_owned(),
    };
    format!("did you mean `{number}{meant}`?")
}

fn in_days(number: &str, days: u64) -> String {
    let days = number.parse::<u64>().unwrap_or(1).saturating_mul(days);
    format!("write it in days: `{days}d`")
}

/// Decodes a number of bytes.
pub(super) fn size(node: &YamlNode<'_>, report: &mut ProblemReport<'_>) -> Option<u64> {
    let text = text(node, "a size, for example `64MiB`", report)?;
    match units::size(text) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            let hint = match &error {
                QuantityError::UnknownUnit { unit } if unit.to_lowercase().starts_with('m') => {
                    "write `MiB`; units are powers of 1024"
                }
                _ => "for example `64MiB`",
            };
            let finding = Finding::error(node, format!("{} {error}", quote(text)));
            report.push(finding.expected("a number with B, KiB, MiB or GiB").hint(hint));
            None
        }
    }
}

/// Decodes one of `names` into the value at the same index; messages call it a `what`.
pub(crate) fn choice<T: Copy>(
    node: &YamlNode<'_>,
    what: &str,
    names: &[&'static str],
    values: &[T],
    report: &mut ProblemReport<'_>,
) -> Option<T> {
    let text = text(node, &format!("one of {}", names.join(", ")), report)?;
    let found = names.iter().position(|name| *name == text).and_then(|at| values.get(at)).copied();
    if found.is_none() {
        let finding = Finding::error(node, format!("unknown {what} {}", quote(text)));
        let finding = finding.expected(format!("one of {}", names.join(", ")));
        report.push(finding.did_you_mean(nearest(text, names.iter().copied())));
    }
    found
}

/// Decodes one or several of `names`, without duplicates.
pub(super) fn choices<T: Copy + PartialEq>(
    node: &YamlNode<'_>,
    what: &str,
    names: &[&'static str],
    values: &[T],
    report: &mut ProblemReport<'_>,
) -> Vec<T> {
    let mut chosen = Vec::new();
    for item in one_or_many(node, what, report) {
        let Some(value) = choice(item, what, names, values, report) else { continue };
        if chosen.contains(&value) {
            report.push(
                Finding::error(item, format!("duplicate {what} {}", item.describe()))
                    .hint("remove one of them"),
            );
        } else {
            chosen.push(value);
        }
    }
    chosen
}

/// Decodes a header name, in lower case.
pub(super) fn header(node: &YamlNode<'_>, report: &mut ProblemReport<'_>) -> Option<String> {
    let text = text(node, "a header name, for example `X-API-Key`", report)?;
    if is_token(text) {
        return Some(text.to_ascii_lowercase());
    }
    let finding = Finding::error(node, format!("invalid header name {}", quote(text)));
    report.push(
        finding.expected("letters, digits and dashes").hint("for example `X-API-Key`, without a colon"),
    );
    None
}

/// Whether `text` is an HTTP token, the syntax of header, method and cookie names.
pub(super) fn is_token(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !text.is_empty() && text.len() <= 256 && text.bytes().all(allowed)
}

/// Decodes a method: a standard one, or another in upper case.
pub(super) fn method<'n>(
    node: &'n YamlNode<'_>,
    text: &'n str,
    report: &mut ProblemReport<'_>,
) -> Option<&'n str> {
    const STANDARD: [&str; 9] =
        ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"];
    if STANDARD.contains(&text) {
        return Some(text);
    }
    let near = nearest(text, STANDARD);
    if near.is_none() && is_token(text) && !text.bytes().any(|b| b.is_ascii_lowercase()) {
        return Some(text);
    }
    let finding = Finding::error(node, format!("unknown method {}", quote(text)));
    let finding = finding.expected(format!("one of {}, or another in upper case", STANDARD.join(", ")));
    report.push(finding.hint("write the method in upper case").did_you_mean(near));
    None
}
