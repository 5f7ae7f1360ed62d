//! A connection has the same commands however its bytes are split.

use tidegate_service::{CommandParser, FrameError};

/// The result of parsing all bytes of a connection.
#[derive(Debug, PartialEq, Eq)]
struct ParsedBytes {
    commands: Vec<Vec<Vec<u8>>>,
    error: Option<FrameError>,
    /// The bytes of the incomplete command; 0 after an error.
    left: usize,
}

/// Parses `bytes` as they arrive: `splits` are the lengths of the reads, the last of which brings the rest.
fn parse(bytes: &[u8], splits: impl Iterator<Item = usize>) -> ParsedBytes {
    let mut parser = CommandParser::default();
    let mut parsed = ParsedBytes { commands: Vec::new(), error: None, left: 0 };
    let (mut start, mut end) = (0, 0_usize);
    for split in splits.chain([bytes.len()]) {
        end = bytes.len().min(end.saturating_add(split));
        loop {
            let available = &bytes[start..end];
            match parser.parse(available) {
                Ok(Some(len)) => {
                    assert!(len > 0 && len <= available.len() && len <= 64 << 10);
                    let arguments = parser.arguments(available);
                    assert!(arguments.len() <= 64);
                    let command: Vec<_> = arguments.from(0).map(<[u8]>::to_vec).collect();
                    assert!(command.iter().map(Vec::len).sum::<usize>() <= len);
                    parsed.commands.push(command);
                    start += len;
                }
                Ok(None) => break,
                Err(error) => return ParsedBytes { error: Some(error), ..parsed },
            }
        }
    }
    // Memory of an incomplete command is bounded.
    assert!(bytes.len() - start < 64 << 10);
    ParsedBytes { left: bytes.len() - start, ..parsed }
}

/// The first byte of `input` states how many bytes of it are lengths of reads; the rest is what arrives.
pub(crate) fn assert_law(input: &[u8]) {
    let [count, rest @ ..] = input else { return };
    let (splits, bytes) = rest.split_at(usize::from(*count).min(rest.len()));
    let whole = parse(bytes, std::iter::empty());
    assert_eq!(parse(bytes, splits.iter().map(|split| usize::from(*split))), whole);
    if bytes.len() <= 4096 {
        assert_eq!(parse(bytes, std::iter::repeat_n(1, bytes.len())), whole);
    }
}
