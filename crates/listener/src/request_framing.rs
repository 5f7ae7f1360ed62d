//! Where heads and bodies end in the bytes of an HTTP/1.1 client.
//!
//! Chunks are checked before hyper reads them ([`ChunkScanner`]). That needs the first byte of a body. Bytes are therefore passed to
//! hyper only up to the end of a head, so that hyper has nothing else when it has parsed that head. The service then reports the
//! length that hyper has found. So no second parser of heads could disagree with hyper's.
//!
//! Only a body that is certainly not chunked may be passed together with its head, up to its announced length: nothing in it is
//! checked. The length that hyper finds must be the same.

use crate::chunks::{ChunkError, ChunkScanner};
use crate::head_lines::{announced_length, find_line, has_line};

/// The part of a message that the next byte belongs to.
#[derive(Debug)]
pub enum RequestFraming {
    /// A head, or empty lines before it.
    Head(HeadLine),
    /// A body that began with the read of its head. hyper has not reported its length.
    Announced {
        /// The length in the head.
        length: u64,
        /// The bytes that were not passed yet.
        left: u64,
    },
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
    /// Nothing was received of the head.
    First,
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
    const ENDLESS_BYTES: u64 = u64::MAX - 1;
    /// The length of a stream that is not HTTP/1.1.
    pub const ENDLESS: Self = Self::Known(Self::ENDLESS_BYTES);
}

impl RequestFraming {
    /// At the start of a connection.
    pub const START: Self = Self::Head(HeadLine::First);

    /// hyper has found this length in the head that was passed last. A chunked body may have `max_bytes`.
    #[inline]
    pub fn begin_body(&mut self, length: BodyLength, max_bytes: u64) {
        *self = match (&*self, length) {
            (Self::Announced { length, left }, BodyLength::Known(found)) if found == *length => {
                Self::body(*left)
            }
            // Another protocol follows this body.
            (_, BodyLength::ENDLESS) => Self::Body(BodyLength::ENDLESS_BYTES),
            (Self::Announced { .. }, _) => Self::Invalid(ChunkError::Malformed),
            (_, BodyLength::Known(length)) => Self::body(length),
            (_, BodyLength::Chunked) => Self::Chunked(ChunkScanner::for_request(max_bytes)),
        };
    }

    #[inline]
    fn body(left: u64) -> Self {
        if left == 0 { Self::START } else { Self::Body(left) }
    }

    /// Whether the next byte belongs to a head.
    #[inline]
    pub fn is_head(&self) -> bool {
        matches!(self, Self::Head(_))
    }

    /// Whether the next bytes are certainly part of a body with a known length.
    #[inline]
    pub fn is_known_body(&self) -> bool {
        matches!(self, Self::Body(_) | Self::Announced { left: 1.., .. })
    }

    /// How much of an announced body was passed.
    #[inline]
    pub fn passed_with_head(&self) -> u64 {
        if let Self::Announced { length, left } = self { length - left } else { 0 }
    }

    /// Reads the next bytes. Returns how many of them hyper may read now: all up to the end of a head, and what is there of a body
    /// that needs no check.
    #[inline]
    pub fn pass(&mut self, bytes: &[u8]) -> Result<usize, ChunkError> {
        // Nearly always a read is one head and nothing else.
        if matches!(self, Self::Head(HeadLine::First)) && is_one_head(bytes) {
            Ok(bytes.len())
        } else {
            self.pass_parts(bytes)
        }
    }

    fn pass_parts(&mut self, bytes: &[u8]) -> Result<usize, ChunkError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let length = match self {
                Self::Head(line) => {
                    let is_whole = *line == HeadLine::First;
                    let Some(length) = line.find_end(rest) else { return Ok(bytes.len()) };
                    let (head, body) = rest.split_at(length);
                    let may_announce = is_whole && !body.is_empty();
                    let Some(announced) = may_announce.then(|| announced_length(head)).flatten() else {
                        *self = Self::START;
                        return Ok(bytes.len() - body.len());
                    };
                    *self = Self::Announced { length: announced, left: announced };
                    length
                }
                // What follows the body is passed after hyper has found the same length.
                Self::Announced { left: 0, .. } if rest.len() < bytes.len() => {
                    return Ok(bytes.len() - rest.len());
                }
                Self::Announced { left: 0, .. } => return Err(ChunkError::Malformed),
                Self::Announced { left, .. } => {
                    let length = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= length as u64;
                    length
                }
                Self::Body(left) => {
                    let length = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *self = Self::body(*left - length as u64);
                    length
                }
                Self::Chunked(scanner) => {
                    let length = scanner.scan(rest)?;
                    if scanner.has_ended() {
                        *self = Self::START;
                    }
                    length
                }
                Self::Invalid(error) => return Err(*error),
            };
            rest = &rest[length..];
        }
        Ok(bytes.len())
    }
}

/// Whether the only empty line in `bytes` is at their end.
fn is_one_head(bytes: &[u8]) -> bool {
    let lines = bytes.strip_suffix(b"\r\n").filter(|lines| lines.ends_with(b"\n"));
    lines.is_some_and(|lines| !has_line(lines, [b'\r', b'\n']))
}

impl HeadLine {
    /// The length up to the end of the head: an empty line after another line. Lines end with LF or CR LF, as for hyper.
    fn find_end(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut start = 0;
        if matches!(self, Self::First | Self::Text) {
            let Some(line) = find_line(bytes, [b'\r', b'\n']) else {
                *self = if bytes.ends_with(b"\n") { Self::Empty } else { Self::Text };
                return None;
            };
            (*self, start) = (Self::Empty, line);
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
            let mut framing = RequestFraming::START;
            let at_once = framing.pass(head.as_bytes()).ok().filter(|_| matches!(framing, RequestFraming::Head(HeadLine::First)));
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

    #[test]
    fn body_of_announced_length_is_passed_with_its_head_and_nothing_after_it() {
        let head = "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n";
        let requests = format!("{head}ab\n\r\n{head}12345");
        for end in head.len() + 1..=requests.len() {
            let mut framing = RequestFraming::START;
            let passed = end.min(head.len() + 5);
            assert_eq!(framing.pass(&requests.as_bytes()[..end]), Ok(passed), "{end}");
            assert_eq!(framing.passed_with_head(), (passed - head.len()) as u64);
            framing.begin_body(BodyLength::Known(5), MAX);
            assert_eq!(framing.is_head(), passed == head.len() + 5);
            let rest = &requests.as_bytes()[passed..];
            assert_eq!(framing.pass(rest), Ok(rest.len()), "the rest of the body, and the next request");
        }
    }

    #[test]
    fn announced_body_that_hyper_does_not_find_is_an_error() {
        let request = b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n12345GET";
        for found in [None, Some(BodyLength::Known(4)), Some(BodyLength::Chunked)] {
            let mut framing = RequestFraming::START;
            let passed = framing.pass(request).unwrap();
            if let Some(found) = found {
                framing.begin_body(found, MAX);
            }
            assert_eq!(framing.pass(&request[passed..]), Err(ChunkError::Malformed), "{found:?}");
        }
        let mut framing = RequestFraming::START;
        let passed = framing.pass(request).unwrap();
        framing.begin_body(BodyLength::ENDLESS, MAX);
        assert_eq!(framing.pass(&request[passed..]), Ok(3), "another protocol");
    }

    #[test]
    fn body_after_a_head_in_pieces_is_passed_after_its_length_was_found() {
        let (start, end) = (b"POST / HTTP/1.1\r\nContent-Length: 5\r\n", b"Host: a\r\n\r\n12345");
        let mut framing = RequestFraming::START;
        assert_eq!(framing.pass(start), Ok(start.len()));
        assert_eq!(framing.pass(end), Ok(end.len() - 5), "a coding may be in the first piece");
    }
}
