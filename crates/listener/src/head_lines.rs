//! Finds lines of a head by their first byte, in one pass of vector instructions.

use memchr::memchr_iter;

/// The start of the first line after an LF whose first byte is one of `sought`.
#[inline]
pub fn find_line<const N: usize>(bytes: &[u8], sought: [u8; N]) -> Option<usize> {
    let block = find_block(bytes, sought)?;
    let mut starts = memchr_iter(b'\n', &bytes[block..]).map(|lf| block + lf + 1);
    starts.find(|start| bytes.get(*start).is_some_and(|first| sought.contains(first)))
}

/// Whether [`find_line`] would find a line.
#[inline]
pub(crate) fn has_line<const N: usize>(bytes: &[u8], sought: [u8; N]) -> bool {
    find_block(bytes, sought).is_some_and(|block| find_line(&bytes[block..], sought).is_some())
}

/// The length of a body as its whole head announces it. `None` if there may be another length or coding, or no body: this reads less
/// than hyper does.
pub(crate) fn announced_length(head: &[u8]) -> Option<u64> {
    let mut length = None;
    for lf in memchr_iter(b'\n', head) {
        let line = &head[lf + 1..];
        match line.first() {
            Some(b't' | b'T') if starts_with(line, b"transfer-encoding") => return None,
            Some(b'c' | b'C') if starts_with(line, b"content-length") => {
                let is_repeated = length.replace(content_length(line)?).is_some();
                if is_repeated {
                    return None;
                }
            }
            _ => {}
        }
    }
    length.filter(|length| *length > 0)
}

fn starts_with(line: &[u8], name: &[u8]) -> bool {
    line.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
}

/// The value of a line that starts with `Content-Length`, if it is a number that does not overflow.
fn content_length(line: &[u8]) -> Option<u64> {
    let value = line.get(b"content-length".len()..)?.strip_prefix(b":")?;
    let value = value.get(value.iter().position(|byte| *byte != b' ')?..)?;
    let (digits, end) = value.split_at(value.iter().position(|byte| !byte.is_ascii_digit())?);
    let is_number = (1..=18).contains(&digits.len()) && (end.starts_with(b"\r\n") || end.starts_with(b"\n"));
    is_number.then(|| digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

/// The start of the first bytes in which an LF is followed by a byte that is sought; 0 if there are too few to tell.
#[inline]
fn find_block<const N: usize>(bytes: &[u8], sought: [u8; N]) -> Option<usize> {
    const BLOCK: usize = 32;
    let (_, next) = bytes.split_first()?;
    let mut blocks = bytes.as_chunks::<BLOCK>().0.iter().zip(next.as_chunks::<BLOCK>().0);
    if let Some(block) = blocks.position(|(block, next)| is_in_block(block, next, sought)) {
        return Some(block * BLOCK);
    }
    // The last block overlaps the one before it.
    let Some(last) = next.len().checked_sub(BLOCK) else { return Some(0) };
    is_in_block(&bytes[last..last + BLOCK], &next[last..], sought).then_some(last)
}

/// Whether an LF in `bytes` is followed by a byte that is sought. `next` starts one byte later. The loop over a block of fixed size
/// becomes vector instructions, since nothing in it branches.
#[expect(clippy::inline_always, reason = "compiled for the length of its arguments")]
#[inline(always)]
fn is_in_block<const N: usize>(bytes: &[u8], next: &[u8], sought: [u8; N]) -> bool {
    let mut found = 0;
    for (byte, next) in bytes.iter().zip(next) {
        let is_sought = sought.iter().fold(0, |is_sought, first| is_sought | u8::from(next == first));
        found |= u8::from(*byte == b'\n') & is_sought;
    }
    found > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_found_wherever_it_starts() {
        for length in 0..100 {
            for start in 1..=length {
                let mut bytes = vec![b'a'; length + 1];
                (bytes[start - 1], bytes[start]) = (b'\n', b't');
                assert_eq!(find_line(&bytes, [b't']), Some(start), "{start} of {length}");
                assert_eq!(find_line(&bytes, [b'u']), None, "{start} of {length}");
            }
        }
        assert_eq!(find_line(b"t\na\nt", [b't']), Some(4), "not the first line");
    }

    #[test]
    fn announced_length_is_that_of_the_only_length_without_a_coding() {
        let announced = |lines: &str| {
            announced_length(format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}Cookie: t\r\n\r\n").as_bytes())
        };
        assert_eq!(announced("Content-Length: 65536\r\n"), Some(65_536));
        assert_eq!(announced("CONTENT-length:7\nTe: a\nX: Transfer-Encoding: chunked\n"), Some(7));
        for lines in [
            "",
            "Content-Length: 0\r\n",
            "Content-Length: 5\r\nContent-Length: 5\r\n",
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "transfer-encodinG : chunked\r\nContent-Length: 5\r\n",
            "Content-Length: 5, 5\r\n",
            "Content-Length: +5\r\n",
            "Content-Length: 5 \r\n",
            "Content-Length: 5\rb\r\n",
            "Content-Length : 5\r\n",
            "Content-Length: \r\n",
            "Content-Length:\r\n 5\r\n",
            "Content-Length-Of-It: 5\r\n",
            "Content-Length: 1234567890123456789\r\n",
        ] {
            assert_eq!(announced(lines), None, "{lines:?}");
        }
    }
}
