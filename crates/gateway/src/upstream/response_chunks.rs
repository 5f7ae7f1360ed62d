//! Checks chunked responses before hyper decodes them.
//!
//! hyper reads the body of a response together with its head, so the framing is found here: a response with
//! `Transfer-Encoding` is chunked, or becomes a 502. A response without a body, such as one to HEAD, may have the header too;
//! nothing follows it before the next request.

use memchr::{memchr, memrchr};

use tidegate_listener::{ChunkError, ChunkScanner, find_line};

const NAME: &[u8; 18] = b"transfer-encoding:";

/// The part of a response that the next byte belongs to.
#[derive(Debug)]
pub(super) enum ResponseChunks {
    Head(HeadScanner),
    Chunked(ChunkScanner),
    /// A body that is not chunked, another protocol, or bytes after a response.
    Other,
}

/// Looks for `Transfer-Encoding` in a head.
#[derive(Debug, Default)]
pub(super) struct HeadScanner {
    /// The start of the current line.
    start: [u8; NAME.len()],
    /// How much of `start` is used. Longer lines do not count further.
    length: usize,
    /// What the status line says; `None` before its end.
    kind: Option<HeadKind>,
    is_chunked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeadKind {
    /// Another head follows.
    Interim,
    Final,
}

impl ResponseChunks {
    pub(super) fn new() -> Self {
        Self::Head(HeadScanner::default())
    }

    /// Checks the next bytes of a response.
    pub(super) fn check(&mut self, bytes: &[u8]) -> Result<(), ChunkError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let length = match self {
                Self::Head(head) => {
                    let Some((length, next)) = head.find_end(rest) else { return Ok(()) };
                    *self = next;
                    length
                }
                Self::Chunked(scanner) => {
                    let length = scanner.scan(rest)?;
                    if scanner.has_ended() {
                        *self = Self::Other;
                    }
                    length
                }
                Self::Other => return Ok(()),
            };
            rest = &rest[length..];
        }
        Ok(())
    }
}

impl HeadScanner {
    /// The length up to the end of the head, and what follows it.
    fn find_end(&mut self, bytes: &[u8]) -> Option<(usize, ResponseChunks)> {
        let mut start = 0;
        while let Some(length) = memchr(b'\n', &bytes[start..]) {
            let line = &bytes[start..start + length];
            start += length + 1;
            let next = if self.length == 0 {
                self.read_line(&line[..line.len().min(NAME.len())])
            } else {
                self.add(line);
                let (line, length) = (self.start, std::mem::take(&mut self.length));
                self.read_line(&line[..length])
            };
            if let Some(next) = next {
                return Some((start, next));
            }
            if self.kind.is_some() {
                start = skip_lines(bytes, start);
            }
        }
        self.add(&bytes[start..]);
        None
    }

    fn add(&mut self, bytes: &[u8]) {
        for (free, byte) in self.start[self.length..].iter_mut().zip(bytes) {
            *free = *byte;
            self.length += 1;
        }
    }

    /// Reads the start of a line. Returns what follows the head if it was the last.
    fn read_line(&mut self, line: &[u8]) -> Option<ResponseChunks> {
        match self.kind {
            // Empty lines may precede a response.
            None if matches!(line, b"" | b"\r") => {}
            None => {
                // `HTTP/1.1 103`; 101 starts another protocol.
                let status = line.get(9..12).unwrap_or_default();
                let is_interim = status.starts_with(b"1") && status != b"101";
                self.kind = Some(if is_interim { HeadKind::Interim } else { HeadKind::Final });
            }
            Some(kind) if matches!(line, b"" | b"\r") => {
                return Some(match kind {
                    HeadKind::Interim => ResponseChunks::new(),
                    HeadKind::Final if self.is_chunked => {
                        ResponseChunks::Chunked(ChunkScanner::for_response())
                    }
                    HeadKind::Final => ResponseChunks::Other,
                });
            }
            Some(_) => self.is_chunked |= line.eq_ignore_ascii_case(NAME),
        }
        None
    }
}

/// The start of the next line that is empty or may be the one that is looked for, or of the last one. A line starts at `start`.
fn skip_lines(bytes: &[u8], start: usize) -> usize {
    let before = start - 1;
    let sought = [b'\r', b'\n', NAME[0], NAME[0].to_ascii_uppercase()];
    match find_line(&bytes[before..], sought) {
        Some(line) => before + line,
        None => memrchr(b'\n', bytes).map_or(start, |last| last + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(response: &str, piece: usize) -> Result<(), ChunkError> {
        let mut chunks = ResponseChunks::new();
        response.as_bytes().chunks(piece).try_for_each(|piece| chunks.check(piece))
    }

    #[test]
    fn chunks_are_checked_after_every_form_of_head() {
        let interim = "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n";
        let bodies = [
            ("3\r\nabc\r\n0\r\n\r\n", true),
            ("3 \r\nabc\r\n0\r\nX: a\r\n\r\nmore", true),
            ("3\r\nabc\r\n0\r\n\n", false),
            ("0\r\nX: a\n\r\n", false),
            ("3;\x01\r\nabc\r\n0\r\n\r\n", false),
            ("x\r\n", false),
            ("ffffffffffffffff\r\n", false),
        ];
        for head in ["transfer-encoding: chunked\r\n", "A: b\r\nTransfer-Encoding:chunked\r\nC: d\r\n"] {
            for (body, is_valid) in bodies {
                for before in ["", interim] {
                    let response = format!("{before}HTTP/1.1 200 OK\r\n{head}\r\n{body}");
                    for piece in 1..response.len() {
                        assert_eq!(check(&response, piece).is_ok(), is_valid, "{response:?} by {piece}");
                    }
                    let lines = response.replace("\r\n\r\n3", "\n\n3");
                    assert_eq!(check(&lines, lines.len()).is_ok(), is_valid, "{lines:?}");
                }
            }
        }
    }

    #[test]
    fn other_bodies_and_protocols_are_not_checked() {
        for response in [
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\n\n\n\n",
            "HTTP/1.1 101 Switching Protocols\r\n\r\nTransfer-Encoding: chunked\n\nx",
            "HTTP/1.0 200 OK\r\nX-Transfer-Encoding: chunked\r\n\r\nx\n",
        ] {
            for piece in 1..response.len() {
                assert_eq!(check(response, piece), Ok(()), "{response:?}");
            }
        }
    }
}
