//! A fast check for text that needs no escaping, as nearly all names and messages.

/// Bytes that are checked at once, without a branch for each.
const CHUNK: usize = 16;

/// Whether `text` is visible ASCII and spaces without quotes and backslashes, so that it can be written between quotes.
#[inline]
pub(crate) fn is_plain(text: &str) -> bool {
    let bytes = text.as_bytes();
    // The last chunk may overlap the one before it.
    if let Some(last) = bytes.last_chunk::<CHUNK>() {
        return is_plain_chunk(last) && bytes.as_chunks::<CHUNK>().0.iter().all(is_plain_chunk);
    }
    let mut padded = [b' '; CHUNK];
    if let Some(start) = padded.get_mut(..bytes.len()) {
        start.copy_from_slice(bytes);
    }
    is_plain_chunk(&padded)
}

fn is_plain_chunk(chunk: &[u8; CHUNK]) -> bool {
    let special = chunk.iter().fold(0, |special, byte| {
        special | u8::from(!matches!(byte, b' '..=b'~')) | u8::from(*byte == b'"') | u8::from(*byte == b'\\')
    });
    special == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_plain_special_character_at_any_position_is_false() {
        for length in 0..70 {
            let plain = "a".repeat(length);
            assert!(is_plain(&plain));
            for position in 0..length {
                for special in ["\"", "\\", "\n", "\u{7f}", "ü"] {
                    let mut text = plain.clone();
                    text.replace_range(position..=position, special);
                    assert!(!is_plain(&text), "{text:?}");
                }
            }
        }
    }
}
