//! Inline commands: words on a line, as people type them.

use super::frame::{MAX_ARGUMENTS, Span};

/// Why a line is not a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InlineError {
    TooManyWords,
    UnbalancedQuotes,
}

/// Splits `line` at white space and appends the unquoted words to `words`. As in Redis, words may be in single quotes, with
/// `\'`, or in double quotes, with `\n`, `\r`, `\t`, `\b`, `\a` and `\xHH`; white space must follow a closing quote.
pub(super) fn split_words(
    line: &[u8],
    words: &mut Vec<u8>,
    spans: &mut Vec<Span>,
) -> Result<(), InlineError> {
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        if spans.len() == MAX_ARGUMENTS {
            return Err(InlineError::TooManyWords);
        }
        let start = words.len();
        rest = take_word(rest, words)?.trim_ascii_start();
        spans.push(Span { start, end: words.len() });
    }
    Ok(())
}

/// Appends the first word and returns what follows it.
fn take_word<'l>(line: &'l [u8], words: &mut Vec<u8>) -> Result<&'l [u8], InlineError> {
    let mut rest = line;
    loop {
        rest = match rest {
            [] => return Ok(rest),
            [first, ..] if first.is_ascii_whitespace() => return Ok(rest),
            [b'"', quoted @ ..] => return end_of_quotes(take_double_quoted(quoted, words)?),
            [b'\'', quoted @ ..] => return end_of_quotes(take_single_quoted(quoted, words)?),
            [first, after @ ..] => {
                words.push(*first);
                after
            }
        };
    }
}

fn end_of_quotes(rest: &[u8]) -> Result<&[u8], InlineError> {
    match rest.first() {
        Some(next) if !next.is_ascii_whitespace() => Err(InlineError::UnbalancedQuotes),
        _ => Ok(rest),
    }
}

fn take_double_quoted<'l>(line: &'l [u8], words: &mut Vec<u8>) -> Result<&'l [u8], InlineError> {
    let mut rest = line;
    loop {
        let (byte, after) = match rest {
            [] => return Err(InlineError::UnbalancedQuotes),
            [b'"', after @ ..] => return Ok(after),
            [b'\\', b'x', high, low, after @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                (hex(*high) << 4 | hex(*low), after)
            }
            [b'\\', escaped, after @ ..] => (unescape(*escaped), after),
            [byte, after @ ..] => (*byte, after),
        };
        words.push(byte);
        rest = after;
    }
}

fn take_single_quoted<'l>(line: &'l [u8], words: &mut Vec<u8>) -> Result<&'l [u8], InlineError> {
    let mut rest = line;
    loop {
        let (byte, after) = match rest {
            [] => return Err(InlineError::UnbalancedQuotes),
            [b'\'', after @ ..] => return Ok(after),
            [b'\\', b'\'', after @ ..] => (b'\'', after),
            [byte, after @ ..] => (*byte, after),
        };
        words.push(byte);
        rest = after;
    }
}

const fn unescape(escaped: u8) -> u8 {
    match escaped {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

/// The value of a hexadecimal digit.
const fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit.wrapping_sub(b'A').wrapping_add(10),
    }
}
