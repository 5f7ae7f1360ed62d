//! Where heads and bodies end in the bytes of an HTTP/1.1 client.
//!
//! hyper's chunk decoder is lenient: to it, a bare LF after the last chunk starts a trailer, and everything up to the next
//! empty line is discarded with it. It also waits for the data of a chunk of any size. So chunks are checked here, before
//! hyper reads them.
//!
//! That needs the first byte of a body. Bytes are therefore passed to hyper only up to the end of a head, so that hyper has
//! nothing else when it has parsed that head. The service then reports the length that hyper has found. So no second parser
//! of heads could disagree with hyper's.

use memchr::memchr_iter;

/// The part of a message that the next byte belongs to.
#[derive(Debug)]
pub(super) enum RequestFraming {
    /// A head, or empty lines before it.
    Head(HeadLine),
    /// A body with this many bytes left.
    Body(u64),
    Chunked(ChunkScanner),
    Invalid(ChunkError),
}

/// The current line of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadLine {
    /// It is not empty, or the first.
    Text,
    /// Nothing was received of it.
    Empty,
    /// Only a CR was received of it.
    Cr,
}

/// The length of a body, as hyper has found it in the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyLength {
    Known(u64),
    Chunked,
}

impl BodyLength {
    /// The length of a stream that is not HTTP/1.1.
    pub(super) const ENDLESS: Self = Self::Known(u64::MAX - 1);
}

/// Why a chunked body is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChunkError {
    #[error("the chunked body is malformed")]
    Malformed,
    #[error("the chunked body announces more bytes than allowed")]
    TooLarge,
}

impl RequestFraming {
    pub(super) const START: Self = Self::Head(HeadLine::Text);

    /// The next byte is the first of a body. It may have `max_bytes`.
    pub(super) fn begin_body(&mut self, length: BodyLength, max_bytes: u64) {
        *self = match length {
            BodyLength::Known(length) => Self::Body(length),
            BodyLength::Chunked => Self::Chunked(ChunkScanner::new(max_bytes)),
        };
    }

    /// Reads the next bytes. Returns how many of them hyper may read now: all up to the end of a head.
    pub(super) fn pass(&mut self, bytes: &[u8]) -> Result<usize, ChunkError> {
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

/// Checks a chunked body (RFC 9112, section 7.1). hyper decodes it and limits the size of extensions and trailers.
#[derive(Debug)]
pub(super) struct ChunkScanner {
    state: ChunkState,
    /// The size of the chunk; while its data is read, the bytes left.
    size: u64,
    /// The bytes that later chunks may have.
    left: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    /// Before the first digit of a size.
    SizeStart,
    Size,
    /// After white space behind a size. Only an extension may follow.
    SizeSpace,
    Extension,
    /// In a quoted string of an extension.
    Quoted,
    /// After a backslash in a quoted string.
    QuotedPair,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// At the start of a trailer or of the empty line that ends the body.
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    End,
}

impl ChunkScanner {
    fn new(max_bytes: u64) -> Self {
        // Beyond 2^63 the sizes of chunks overflow in many services.
        Self { state: ChunkState::SizeStart, size: 0, left: max_bytes.min(i64::MAX.unsigned_abs()) }
    }

    fn has_ended(&self) -> bool {
        self.state == ChunkState::End
    }

    /// Reads up to the end of the body. Returns how many bytes were read.
    fn scan(&mut self, bytes: &[u8]) -> Result<usize, ChunkError> {
        let mut read = 0;
        while let Some(byte) = bytes.get(read) {
            match self.state {
                ChunkState::Data => {
                    let available = bytes.len() - read;
                    let length = available.min(usize::try_from(self.size).unwrap_or(usize::MAX));
                    self.size -= length as u64;
                    read += length;
                    if self.size == 0 {
                        self.state = ChunkState::DataCr;
                    }
                }
                ChunkState::End => break,
                _ => {
                    self.state = self.next(*byte)?;
                    read += 1;
                }
            }
        }
        Ok(read)
    }

    fn next(&mut self, byte: u8) -> Result<ChunkState, ChunkError> {
        use ChunkState::{
            Data, DataCr, DataLf, End, EndLf, Extension, Quoted, QuotedPair, Size, SizeLf, SizeSpace,
            SizeStart, Trailer, TrailerLf, TrailerStart,
        };
        let is_text = byte == b'\t' || !byte.is_ascii_control();
        Ok(match (self.state, byte) {
            (SizeStart | Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                self.add_digit(byte)?;
                Size
            }
            (Size | SizeSpace, b' ' | b'\t') => SizeSpace,
            (Size | SizeSpace, b';') | (Quoted, b'"') => Extension,
            (Size | Extension, b'\r') => SizeLf,
            (Extension, b'"') | (QuotedPair, _) if is_text => Quoted,
            (Quoted, b'\\') => QuotedPair,
            (Extension | Quoted, _) if is_text => self.state,
            (SizeLf, b'\n') if self.size == 0 => TrailerStart,
            (SizeLf, b'\n') => {
                self.left = self.left.checked_sub(self.size).ok_or(ChunkError::TooLarge)?;
                Data
            }
            (DataCr, b'\r') => DataLf,
            (DataLf, b'\n') => SizeStart,
            (TrailerStart, b'\r') => EndLf,
            (EndLf, b'\n') => End,
            // A line that starts with white space would continue the one before.
            (TrailerStart, b' ' | b'\t') => return Err(ChunkError::Malformed),
            (TrailerStart | Trailer, _) if is_text => Trailer,
            (Trailer, b'\r') => TrailerLf,
            (TrailerLf, b'\n') => TrailerStart,
            _ => return Err(ChunkError::Malformed),
        })
    }

    fn add_digit(&mut self, digit: u8) -> Result<(), ChunkError> {
        let value = char::from(digit).to_digit(16).ok_or(ChunkError::Malformed)?;
        let size = self.size.checked_mul(16).ok_or(ChunkError::Malformed)?;
        self.size = size | u64::from(value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: u64 = 1 << 20;

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

    fn scan(body: &str) -> Result<bool, ChunkError> {
        let mut scanner = ChunkScanner::new(MAX);
        let read = scanner.scan(body.as_bytes())?;
        Ok(scanner.has_ended() && read == body.len())
    }

    #[test]
    fn chunks_beyond_the_limit_are_too_large_before_their_data() {
        assert_eq!(scan("fffff\r\n"), Ok(false));
        assert_eq!(scan("100001\r\n"), Err(ChunkError::TooLarge));
        assert_eq!(scan("1\r\na\r\n100000\r\n"), Err(ChunkError::TooLarge), "together with the first");
        for size in ["8000000000000000", "ffffffffffffffff"] {
            let mut scanner = ChunkScanner::new(u64::MAX);
            assert_eq!(scanner.scan(format!("{size}\r\n").as_bytes()), Err(ChunkError::TooLarge), "{size}");
        }
        assert_eq!(scan("10000000000000000"), Err(ChunkError::Malformed), "beyond 64 bits");
    }

    #[test]
    fn quoted_string_of_an_extension_ends_before_its_line() {
        assert_eq!(scan("1;a=\"b;\\\" c\" ; d\r\na\r\n0 ;e\r\n\r\n"), Ok(true));
        for line in ["1;a=\"b\r\n", "1;a=\"b\\\"\r\n", "1;a=\"b\\\r\n", "1;\"\n", "1 a", "1\x0b;a"] {
            assert_eq!(scan(line), Err(ChunkError::Malformed), "{line:?}");
        }
    }

    proptest! {
        /// What the scanner accepts has one reading: every line ends with CR LF, and no other control character is left.
        #[test]
        fn accepted_body_has_no_bare_line_end_outside_of_data(
            pieces in prop::collection::vec(prop::sample::select(vec![
                "0", "1", "a", ";", "\"", "\\", " ", "\t", ":", "\r\n", "\r", "\n", "\r\n\r\n", "X: y", "\0",
            ]), 0..24),
        ) {
            let body = pieces.concat();
            if let Ok(true) = scan(&body) {
                // Chunks have at most 0x1a bytes of data here, so remove each by its size.
                let mut rest = body.as_str();
                loop {
                    let (line, after) = rest.split_once("\r\n").unwrap();
                    prop_assert!(!line.contains(['\r', '\n', '\0']), "{:?}", body);
                    let size = line.split([';', ' ', '\t']).next().unwrap();
                    let size = usize::from_str_radix(size, 16).unwrap();
                    if size == 0 {
                        rest = after;
                        break;
                    }
                    prop_assert_eq!(&after[size..size + 2], "\r\n");
                    rest = &after[size + 2..];
                }
                let trailers = rest.strip_suffix("\r\n").unwrap();
                prop_assert!(!trailers.replace("\r\n", "").contains(['\r', '\n', '\0']), "{:?}", body);
                prop_assert!(!trailers.contains("\r\n\r\n") && !trailers.starts_with("\r\n"), "{:?}", body);
            }
        }
    }
}
