//! Checks the framing of chunked bodies.
//!
//! hyper's decoder is lenient: to it, a bare LF after the last chunk starts a trailer, and everything up to the next empty
//! line is discarded with it. It accepts control characters in extensions, and waits for the data of a chunk of any size. So
//! chunks are checked before hyper reads them.

use std::error::Error;
use std::io;

/// The most that the trailers of a body may have, without line ends.
const MAX_TRAILERS: u64 = 16 << 10;

/// Why a chunked body is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// It is malformed.
    #[error("the chunked body is malformed")]
    Malformed,
    /// A chunk announces more bytes than allowed.
    #[error("the chunked body announces more bytes than allowed")]
    TooLarge,
}

impl ChunkError {
    /// The reason for an error, if it is one of the framing: that of a read, or of a server that could not read.
    pub fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(io) = error.downcast_ref::<io::Error>() {
                return io.get_ref()?.downcast_ref().copied();
            }
            next = error.source();
        }
        None
    }
}

impl From<ChunkError> for io::Error {
    fn from(error: ChunkError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// Checks a chunked body (RFC 9112, section 7.1). hyper decodes it and limits the size of extensions and the number of trailers.
#[derive(Debug)]
pub struct ChunkScanner {
    state: ChunkState,
    /// The size of the chunk; while its data is read, the bytes left. After the last chunk, the bytes of trailers.
    size: u64,
    /// The bytes that later chunks may have.
    left: u64,
    /// Old servers write white space after a size.
    is_padding_allowed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    /// Before the first digit of a size.
    SizeStart,
    Size,
    /// After white space behind a size. Only an extension may follow, in a request.
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
    /// The body was found to be invalid, and stays so.
    Invalid(ChunkError),
}

impl ChunkScanner {
    /// For a body of at most `max_bytes`.
    pub fn for_request(max_bytes: u64) -> Self {
        // Beyond 2^63 the sizes of chunks overflow in many services.
        let left = max_bytes.min(i64::MAX.unsigned_abs());
        Self { state: ChunkState::SizeStart, size: 0, left, is_padding_allowed: false }
    }

    /// For a response.
    pub fn for_response() -> Self {
        Self { is_padding_allowed: true, ..Self::for_request(u64::MAX) }
    }

    /// Whether the body has ended.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.state == ChunkState::End
    }

    /// Reads up to the end of the body. Returns how many bytes were read.
    pub fn scan(&mut self, bytes: &[u8]) -> Result<usize, ChunkError> {
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
                ChunkState::Invalid(error) => return Err(error),
                _ => {
                    let next = self.next(*byte);
                    self.state = next.unwrap_or_else(ChunkState::Invalid);
                    next?;
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
            (SizeSpace, b'\r') if self.is_padding_allowed => SizeLf,
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
            (TrailerStart | Trailer, _) if is_text && self.size < MAX_TRAILERS => {
                self.size += 1;
                Trailer
            }
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

    fn scan(body: &str) -> Result<bool, ChunkError> {
        let mut scanner = ChunkScanner::for_request(MAX);
        let read = scanner.scan(body.as_bytes())?;
        Ok(scanner.has_ended() && read == body.len())
    }

    #[test]
    fn chunks_beyond_the_limit_are_too_large_before_their_data() {
        assert_eq!(scan("fffff\r\n"), Ok(false));
        assert_eq!(scan("100001\r\n"), Err(ChunkError::TooLarge));
        assert_eq!(scan("1\r\na\r\n100000\r\n"), Err(ChunkError::TooLarge), "together with the first");
        for size in ["8000000000000000", "ffffffffffffffff"] {
            let mut scanner = ChunkScanner::for_request(u64::MAX);
            assert_eq!(scanner.scan(format!("{size}\r\n").as_bytes()), Err(ChunkError::TooLarge), "{size}");
        }
        assert_eq!(scan("10000000000000000"), Err(ChunkError::Malformed), "beyond 64 bits");
    }

    #[test]
    fn padded_size_is_accepted_in_responses_only() {
        let padded = "1  \r\na\r\n0 \t\r\n\r\n";
        assert_eq!(scan(padded), Err(ChunkError::Malformed));
        assert_eq!(ChunkScanner::for_response().scan(padded.as_bytes()), Ok(padded.len()));
    }

    #[test]
    fn quoted_string_of_an_extension_ends_before_its_line() {
        assert_eq!(scan("1;a=\"b;\\\" c\" ; d\r\na\r\n0 ;e\r\n\r\n"), Ok(true));
        for line in ["1;a=\"b\r\n", "1;a=\"b\\\"\r\n", "1;a=\"b\\\r\n", "1;\"\n", "1 a", "1\x0b;a"] {
            assert_eq!(scan(line), Err(ChunkError::Malformed), "{line:?}");
        }
    }

    #[test]
    fn trailers_have_a_maximum_size_together() {
        let trailers = |bytes: usize| scan(&format!("0\r\nA: b\r\nC: {}\r\n\r\n", "d".repeat(bytes - 7)));
        assert_eq!(trailers(16 << 10), Ok(true));
        assert_eq!(trailers((16 << 10) + 1), Err(ChunkError::Malformed));
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
