//! Encodes replies.

use itoa::Buffer;

/// Appends replies to the output of a connection, in its version of the protocol.
#[derive(Debug)]
pub(crate) struct ReplyWriter<'o> {
    output: &'o mut Vec<u8>,
    is_resp3: bool,
}

/// The largest integer of the protocol if `number` is larger.
pub(crate) fn saturated(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl<'o> ReplyWriter<'o> {
    pub(crate) fn new(output: &'o mut Vec<u8>, is_resp3: bool) -> Self {
        Self { output, is_resp3 }
    }

    /// Writes the replies that follow in this version of the protocol.
    pub(crate) fn select_version(&mut self, is_resp3: bool) {
        self.is_resp3 = is_resp3;
    }

    /// A status such as `OK`.
    pub(crate) fn status(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error. Line ends in `text` become spaces, so that no client can write a reply of its own.
    pub(crate) fn error(&mut self, text: impl AsRef<[u8]>) {
        let is_control = |byte: u8| byte.is_ascii_control();
        self.output.push(b'-');
        self.output.extend(text.as_ref().iter().map(|&byte| if is_control(byte) { b' ' } else { byte }));
        self.output.extend_from_slice(b"\r\n");
    }

    #[inline]
    pub(crate) fn integer(&mut self, number: i64) {
        self.line(b':', Buffer::new().format(number).as_bytes());
    }

    /// An array of integers.
    #[inline]
    pub(crate) fn integers<const N: usize>(&mut self, numbers: [i64; N]) {
        self.array(N);
        for number in numbers {
            match u8::try_from(number) {
                // Most are small. Lines of a known length are written without a call.
                Ok(digit @ 0..10) => self.output.extend_from_slice(&[b':', b'0' + digit, b'\r', b'\n']),
                Ok(number @ 10..100) => {
                    let (tens, ones) = (b'0' + number / 10, b'0' + number % 10);
                    self.output.extend_from_slice(&[b':', tens, ones, b'\r', b'\n']);
                }
                _ => self.integer(number),
            }
        }
    }

    /// A number that is not negative; the largest integer of the protocol if it is larger.
    pub(crate) fn count(&mut self, number: u64) {
        self.integer(saturated(number));
    }

    pub(crate) fn bulk(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.line(b'$', Buffer::new().format(bytes.len()).as_bytes());
        self.output.extend_from_slice(bytes);
        self.output.extend_from_slice(b"\r\n");
    }

    /// The beginning of an array of `len` replies.
    #[inline]
    pub(crate) fn array(&mut self, len: usize) {
        if let Ok(digit @ 0..10) = u8::try_from(len) {
            return self.output.extend_from_slice(&[b'*', b'0' + digit, b'\r', b'\n']);
        }
        self.line(b'*', Buffer::new().format(len).as_bytes());
    }

    /// The beginning of a map of `len` pairs; an array of keys and values for RESP2.
    pub(crate) fn map(&mut self, len: usize) {
        if self.is_resp3 {
            self.line(b'%', Buffer::new().format(len).as_bytes());
        } else {
            self.array(2 * len);
        }
    }

    pub(crate) fn null(&mut self) {
        self.output.extend_from_slice(if self.is_resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    #[inline]
    fn line(&mut self, kind: u8, text: &[u8]) {
        self.output.push(kind);
        self.output.extend_from_slice(text);
        self.output.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_any_length_are_written_like_single_ones() {
        let numbers = [0, 9, 10, 99, 100, 255, 256, -1, i64::MIN, i64::MAX];
        let (mut together, mut apart) = (Vec::new(), Vec::new());
        ReplyWriter::new(&mut together, false).integers(numbers);
        let mut replies = ReplyWriter::new(&mut apart, false);
        replies.array(numbers.len());
        for number in numbers {
            replies.integer(number);
        }
        assert_eq!(together, apart);
        assert!(together.starts_with(b"*10\r\n:0\r\n:9\r\n:10\r\n:99\r\n:100\r\n"));
    }
}
