//! The frames of commands: arrays of bulk strings, and inline commands.
//!
//! The parser reads from left to right and starts again at the beginning of a command when more bytes have arrived, so
//! the result does not depend on how the bytes are split. Lengths are checked before their bytes are awaited.

use memchr::memchr;
use thiserror::Error;

use super::inline::{self, InlineError};

/// The longest command, with its framing.
pub(crate) const MAX_COMMAND: usize = 64 << 10;
/// The most arguments of a command, with its name.
pub(crate) const MAX_ARGUMENTS: usize = 64;
/// Longer numbers exceed every limit.
const MAX_DIGITS: usize = 7;

/// Why a connection cannot be parsed further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The number of arguments is not a number, or too large.
    #[error("invalid multibulk length")]
    ArgumentCount,
    /// The length of an argument is not a number, or negative.
    #[error("invalid bulk length")]
    ArgumentLength,
    /// The command would be longer than 64 KiB.
    #[error("too big command, at most 65536 bytes are allowed")]
    TooLong,
    /// An argument does not start as a bulk string.
    #[error("expected '$', got '{}'", char::from(*.found).escape_default())]
    NoBulkString {
        /// What it starts with.
        found: u8,
    },
    /// An argument is longer than its length states.
    #[error("expected CRLF after a bulk string")]
    NoLineEnd,
    /// An inline command has too many arguments.
    #[error("too many arguments, at most 64 are allowed")]
    TooManyWords,
    /// An inline command has a quote without its counterpart.
    #[error("unbalanced quotes in request")]
    UnbalancedQuotes,
}

/// Where an argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Span {
    /// Its bytes in the buffer to which it refers.
    pub(super) fn of(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.start..self.end).unwrap_or_default()
    }
}

/// Parses one command at a time and keeps where its arguments are.
#[derive(Debug, Default)]
pub struct CommandParser {
    spans: Vec<Span>,
    /// The unquoted arguments of an inline command.
    words: Vec<u8>,
    is_inline: bool,
}

/// The arguments of a command, the first of which is its name.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
}

impl CommandParser {
    /// Parses the command at the beginning of `input` and returns its length; `None` if it is incomplete. A command without
    /// arguments is to be skipped.
    pub fn parse(&mut self, input: &[u8]) -> Result<Option<usize>, FrameError> {
        self.spans.clear();
        match input.first() {
            None => Ok(None),
            Some(b'*') => self.parse_array(input),
            Some(_) => self.parse_inline(input),
        }
    }

    /// The arguments of the last command, which was at the beginning of `input`.
    pub fn arguments<'a>(&'a self, input: &'a [u8]) -> Arguments<'a> {
        Arguments { bytes: if self.is_inline { &self.words } else { input }, spans: &self.spans }
    }

    fn parse_array(&mut self, input: &[u8]) -> Result<Option<usize>, FrameError> {
        self.is_inline = false;
        let Some((count, mut position)) = parse_length(input, 1, FrameError::ArgumentCount)? else {
            return Ok(None);
        };
        let count = count.unwrap_or_default();
        if count > MAX_ARGUMENTS {
            return Err(FrameError::ArgumentCount);
        }
        for _ in 0..count {
            let rest = input.get(position..).unwrap_or_default();
            let (length, start) = match *rest {
                // Nearly all arguments are short.
                [b'$', digit @ b'0'..=b'9', b'\r', b'\n', ..] => (usize::from(digit - b'0'), position + 4),
                [b'$', tens @ b'0'..=b'9', ones @ b'0'..=b'9', b'\r', b'\n', ..] => {
                    (usize::from(tens - b'0') * 10 + usize::from(ones - b'0'), position + 5)
                }
                [b'$', ..] => match parse_length(input, position + 1, FrameError::ArgumentLength)? {
                    Some((length, start)) => (length.ok_or(FrameError::ArgumentLength)?, start),
                    None => return Ok(None),
                },
                [found, ..] => return Err(FrameError::NoBulkString { found }),
                [] => return Ok(None),
            };
            let end = start + length;
            if end + 2 > MAX_COMMAND {
                return Err(FrameError::TooLong);
            }
            if input.get(end..end + 2) != Some(b"\r\n") {
                return match input.get(end..) {
                    Some([] | [b'\r']) | None => Ok(None),
                    Some(_) => Err(FrameError::NoLineEnd),
                };
            }
            self.spans.push(Span { start, end });
            position = end + 2;
        }
        Ok(Some(position))
    }

    fn parse_inline(&mut self, input: &[u8]) -> Result<Option<usize>, FrameError> {
        self.is_inline = true;
        let within = input.get(..MAX_COMMAND).unwrap_or(input);
        let Some(end) = memchr(b'\n', within) else {
            return if within.len() == MAX_COMMAND { Err(FrameError::TooLong) } else { Ok(None) };
        };
        let line = within.get(..end).unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.words.clear();
        match inline::split_words(line, &mut self.words, &mut self.spans) {
            Ok(()) => Ok(Some(end + 1)),
            Err(InlineError::TooManyWords) => Err(FrameError::TooManyWords),
            Err(InlineError::UnbalancedQuotes) => Err(FrameError::UnbalancedQuotes),
        }
    }
}

impl<'a> Arguments<'a> {
    /// Their number.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The argument at `index`.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        Some(self.spans.get(index)?.of(self.bytes))
    }

    /// The arguments from `first` to `last` as they were sent, with the framing between them. `None` if one of them is missing, or
    /// if there is no framing: the words of an inline command are joined, and other words may be the same text.
    pub(crate) fn framed_text(&self, first: usize, last: usize) -> Option<&'a [u8]> {
        let span = |index| self.spans.get(index);
        let (first, next, last) = (span(first)?, span(first + 1)?, span(last)?);
        (next.start > first.end).then(|| Span { start: first.start, end: last.end }.of(self.bytes))
    }

    /// All of them from `first` on.
    pub fn from(&self, first: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.spans.get(first..).unwrap_or_default().iter().map(move |span| span.of(bytes))
    }
}

/// A number and the line end after it, from `start` on: the number, or `None` if it is negative, and the position after
/// the line. `None` if the line is incomplete.
#[inline]
fn parse_length(
    input: &[u8],
    start: usize,
    invalid: FrameError,
) -> Result<Option<(Option<usize>, usize)>, FrameError> {
    let is_negative = input.get(start) == Some(&b'-');
    let first = start + usize::from(is_negative);
    let (mut position, mut number) = (first, 0);
    loop {
        match input.get(position) {
            None => return Ok(None),
            Some(digit @ b'0'..=b'9') if position < first + MAX_DIGITS => {
                number = number * 10 + usize::from(digit - b'0');
            }
            Some(b'\r') if position > first => break,
            Some(_) => return Err(invalid),
        }
        position += 1;
    }
    match input.get(position + 1) {
        None => Ok(None),
        Some(b'\n') => Ok(Some(((!is_negative).then_some(number), position + 2))),
        Some(_) => Err(invalid),
    }
}

/// An integer in the form of the protocol: digits, after a `-` if it is negative.
#[inline]
pub(crate) fn parse_integer(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    // Most numbers are short: 18 digits cannot overflow.
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    let mut number: i64 = 0;
    for digit in digits {
        let value = digit.wrapping_sub(b'0');
        if value > 9 {
            return None;
        }
        number = number.checked_mul(10)?.checked_add(i64::from(value))?;
    }
    Some(if is_negative { -number } else { number })
}

#[cfg(test)]
mod tests;
