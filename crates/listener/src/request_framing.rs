//! Where heads and bodies end in the bytes of an HTTP/1.1 client.
//!
//! Chunks are checked before hyper reads them ([`ChunkScanner`]). That needs the first byte of a body. Bytes are therefore passed to
//! hyper only up to the end of a head, so that hyper has nothing else when it has parsed that head. The service then reports the length that hyper has found. So no second parser
//! of heads could disagree with hyper's.

use memchr::memchr_iter;

use crate::chunks::{ChunkError, ChunkScanner};

/// The part of a message that the next byte belongs to.
#[derive(Debug)]
pub enum RequestFraming {
    /// A head, or empty lines before it.
    Head(HeadLine),
    /// A body with this many bytes left.
    Body(u64),
    /// A chunked body.
    Chunked(ChunkScanner),
    /// What came was malformed.
    Invalid(ChunkError),
}

/// The current line of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadLine {
    /// It is not empty, or the first.
    Text,
    /// Nothing was received of it.
    Empty,
    /// Only a CR was received of it.
    Cr,
}

/// The length of a body, as hyper has found it in the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// It has this many bytes.
    Known(u64),
    /// Its chunks say it.
    Chunked,
}

impl BodyLength {
    /// The length of a stream that is not HTTP/1.1.
    pub const ENDLESS: Self = Self::Known(u64::MAX - 1);
}

impl RequestFraming {
    /// At the start of a connection.
    pub const START: Self = Self::Head(HeadLine::Text);

    /// The next byte is the first of a body. It may have `max_bytes`.
    #[inline]
    pub fn begin_body(&mut self, length: BodyLength, max_bytes: u64) {
        *self = match length {
            BodyLength::Known(length) => Self::Body(length),
            BodyLength::Chunked => Self::Chunked(ChunkScanner::for_request(max_bytes)),
        };
    }

    /// Whether the next byte belongs to a head.
    #[inline]
    pub fn is_head(&self) -> bool {
        matches!(self, Self::Head(_))
    }

    /// Whether the next bytes are certainly part of a body with a known length.
    #[inline]
    pub fn is_known_body(&self) -> bool {
        matches!(self, Self::Body(_))
    }

    /// Reads the next bytes. Returns how many of them hyper may read now: all up to the end of a head.
    #[inline]
    pub fn pass(&mut self, bytes: &[u8]) -> Result<usize, ChunkError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let length = match self {
                Self::Head(line) => {
                    let Some(length) = line.find_end(rest) else { return Ok(bytes.len()) };
                    *self = Self::START;
                    return Ok(bytes.len() - rest.len() + length);
                }
                Self::Body(left) => {
                    let length = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= length as u64;
                    if *left == 0 {
                        *self = Self::START;
                    }
                    length
                }
                Self::Chunked(scanner) => match scanner.scan(rest) {
                    Ok(length) => {
                        if scanner.has_ended() {
                            *self = Self::START;
                        }
                        length
                    }
                    Err(error) => {
                        *self = Self::Invalid(error);
                        return Err(error);
                    }
                },
                Self::Invalid(error) => return Err(*error),
            };
            rest = &rest[length..];
        }
        Ok(bytes.len())
    }
}

impl HeadLine {
    /// The length up to the end of the head: an empty line after another line. Lines end with LF or CR LF, as for hyper.
    fn find_end(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut start = 0;
        if *self == Self::Text {
            // Nearly always a read is one head and nothing else.
            if let Some(lines) = bytes.strip_suffix(b"\r\n")
                && lines.ends_with(b"\n")
                && find_block_with_empty_line(lines).is_none()
            {
                return Some(bytes.len());
            }
            let Some(lf) = find_empty_line(bytes) else {
                *self = if bytes.ends_with(b"\n") { Self::Empty } else { Self::Text };
                return None;
            };
            (*self, start) = (Self::Empty, lf + 1);
        }
        while let Some(length) = bytes[start..].iter().position(|byte| *byte == b'\n') {
            let line = self.after(&bytes[start..start + length]);
            start += length + 1;
            *self = Self::Empty;
            if line != Self::Text {
                return Some(start);
            }
        }
        *self = self.after(&bytes[start..]);
        None
    }

    /// The line after more of it was received.
    fn after(self, bytes: &[u8]) -> Self {
        match (self, bytes) {
            (line, []) => line,
            (Self::Empty, b"\r") => Self::Cr,
            _ => Self::Text,
        }
    }
}

/// The first LF that is followed by CR or LF.
fn find_empty_line(bytes: &[u8]) -> Option<usize> {
    let block = find_block_with_empty_line(bytes)?;
    let mut line_ends = memchr_iter(b'\n', &bytes[block..]).map(|at| block + at);
    line_ends.find(|lf| matches!(bytes.get(lf + 1), Some(b'\r' | b'\n')))
}

/// The start of the first bytes in which an LF is followed by CR or LF; 0 if there are too few to tell.
fn find_block_with_empty_line(bytes: &[u8]) -> Option<usize> {
    const BLOCK: usize = 32;
    let (_, next) = bytes.split_first()?;
    let mut blocks = bytes.as_chunks::<BLOCK>().0.iter().zip(next.as_chunks::<BLOCK>().0);
    if let Some(block) = blocks.position(|(block, next)| has_empty_line(block, next)) {
        return Some(block * BLOCK);
    }
    // The last block overlaps the one before it.
    let Some(last) = next.len().checked_sub(BLOCK) else { return Some(0) };
    has_empty_line(&bytes[last..last + BLOCK], &next[last..]).then_some(last)
}

/// Whether an LF in `bytes` is followed by CR or LF. `next` starts one byte later. The loop over a block of fixed size becomes vector
/// instructions, since nothing in it branches.
#[expect(clippy::inline_always, reason = "compiled for the length of its arguments")]
#[inline(always)]
fn has_empty_line(bytes: &[u8], next: &[u8]) -> bool {
    let mut found = 0;
    for (byte, next) in bytes.iter().zip(next) {
        found |= u8::from(*byte == b'\n') & (u8::from(*next == b'\n') | u8::from(*next == b'\r'));
    }
    found > 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: u64 = 1 << 20;

    proptest! {
        #[test]
        fn end_of_a_head_in_one_read_is_that_of_its_bytes_one_by_one(
            lines in prop::collection::vec("[a\r\n]{0,3}|[a-z]{0,80}", 0..8),
        ) {
            let head = lines.join("\r\n") + "\r\n\r\n";
            let at_once = HeadLine::Text.find_end(head.as_bytes());
            let mut line = HeadLine::Text;
            let one_by_one = (0..head.len()).find(|at| line.find_end(&head.as_bytes()[*at..=*at]).is_some());
            prop_assert_eq!(at_once, one_by_one.map(|at| at + 1));
        }
    }

    /// The parts in which hyper gets `bytes`, which arrive in pieces of `piece` bytes. `body` follows each head with `A: b`.
    fn passed(bytes: &[u8], piece: usize, body: BodyLength) -> Result<Vec<String>, ChunkError> {
        let mut framing = RequestFraming::START;
        let (mut parts, mut part) = (Vec::new(), Vec::new());
        for piece in bytes.chunks(piece) {
            let mut rest = piece;
            while !rest.is_empty() {
                let length = framing.pass(rest)?;
                assert!(length > 0, "hyper would take it for the end of the connection");
                part.extend_from_slice(&rest[..length]);
                rest = &rest[length..];
                if part.ends_with(b"A: b\r\n\r\n") {
                    framing.begin_body(body, MAX);
                    parts.push(String::from_utf8(std::mem::take(&mut part)).unwrap());
                }
            }
        }
        parts.push(String::from_utf8(part).unwrap());
        Ok(parts)
    }

    #[test]
    fn bytes_are_passed_up_to_the_end_of_each_head() {
        let (one, two) =
            ("POST /a HTTP/1.1\r\nA: b\r\n\r\n", "3\r\na\n\n\r\n0\r\n\r\nPUT / HTTP/1.1\r\nA: b\r\n\r\n");
        for piece in 1..80 {
            let parts = passed(format!("{one}{two}").as_bytes(), piece, BodyLength::Chunked);
            assert_eq!(parts.unwrap(), [one, two, ""], "{piece}");
            let parts = passed(format!("{one}ab\n\r\n{one}").as_bytes(), piece, BodyLength::Known(5));
            assert_eq!(parts.unwrap(), [one, &format!("ab\n\r\n{one}"), ""], "{piece}");
        }
        for head in ["GET / HTTP/1.1\nA: b\n\n", "GET / HTTP/1.1\r\nA: b\r\n\n", "\r\nGET / HTTP/1.1\n\r\n"] {
            let mut framing = RequestFraming::START;
            assert_eq!(framing.pass(format!("{head}0").as_bytes()), Ok(head.len()), "{head:?}");
        }
    }
}
