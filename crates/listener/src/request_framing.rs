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
        // Nearly always a read has one head and nothing else: one pass over it, instead of a search for each line.
        if *self == Self::Text
            && let Some(lines) = bytes.strip_suffix(b"\r\n")
            && lines.ends_with(b"\r\n")
            && !may_have_empty_line(lines)
        {
            return Some(bytes.len());
        }
        let mut start = 0;
        for lf in memchr_iter(b'\n', bytes) {
            let line = self.after(&bytes[start..lf]);
            start = lf + 1;
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

/// Whether any LF is followed by CR or LF. Compilers turn the loop over a block into vector instructions.
fn may_have_empty_line(bytes: &[u8]) -> bool {
    const BLOCK: usize = 32;
    // Numbers instead of truth values, so that nothing branches.
    let breaks = |first: u8, second: u8| {
        u8::from(first == b'\n') & (u8::from(second == b'\n') | u8::from(second == b'\r'))
    };
    let Some(last) = bytes.last_chunk::<{ BLOCK + 1 }>() else {
        return bytes.windows(2).any(|pair| breaks(pair[0], pair[1]) > 0);
    };
    let mut found = [0; BLOCK];
    let mut search = |block: &[u8; BLOCK + 1]| {
        for at in 0..BLOCK {
            found[at] |= breaks(block[at], block[at + 1]);
        }
    };
    let mut rest = bytes;
    while let Some(block) = rest.first_chunk() {
        search(block);
        rest = &rest[BLOCK..];
    }
    // It overlaps the block before it.
    search(last);
    found.into_iter().fold(0, |all, one| all | one) > 0
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
