//! Path normalisation.
//!
//! `/login`, `//login`, `/%6Cogin` and `/x/../login` reach the same handler of most services, so a limit on
//! `/login` must apply to all of them. [`normalize`] is applied once, before matching and before forwarding. The path
//! that is matched is the path that is sent, so the upstream cannot see a different one.
//!
//! Upstream servers interpret some normalised paths differently: they ignore case, `;parameters`, or the difference
//! between `%2F` and `/`. The module `readings` computes these alternative paths; limits apply to each of them.
//!
//! | in the path | result |
//! |---|---|
//! | `%41`, `%2d`, `%7E`: an escape of an unreserved character | decoded |
//! | `%2f`, `%5c`, `%3F`: any other escape | kept, with uppercase hex digits |
//! | `%2F`, `%5C` | kept; `http.encoded_slash` decides how the request is handled |
//! | `//` | `/`, before dot segments are resolved: `/a//../b` is `/b` |
//! | `.`, `..`, `%2e%2E` as a segment | resolved; `..` at the root is removed |
//! | `..;x`, `.;` as a segment | rejected: some services treat it as `..`, others as a name |
//! | upper and lower case | kept |
//! | one trailing slash | kept; patterns match with and without it |
//! | `é`, `{`, `"`, `[`: not allowed in a path, but unambiguous | escaped: `%C3%A9`, `%7B` |
//! | `%C0%AF`, `%ED%A0%80`, `%E9`: escapes that are not UTF-8 | rejected |
//! | `%00` | rejected |
//! | `%0A`: an escaped control character | kept; `http.encoded_slash` decides how the request is handled |
//! | `%`, `%4`, `%zz` | rejected |
//! | a raw space, control character, `\`, `?` or `#` | rejected; the query is not part of the path |
//! | `*` alone (`OPTIONS *`) | kept |
//! | anything else that does not begin with `/` | rejected |

mod readings;

use std::borrow::Cow;

pub(crate) use readings::{Readings, decode_slashes, encoded_control, fold_segment};

/// Why a path is rejected. The response is 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It does not begin with a slash.
    #[error("the path must begin with `/`")]
    NotAbsolute,
    /// A raw character that is not allowed in a path.
    #[error("{found:?} at byte {at} of the path must be percent-encoded")]
    Character {
        /// The character.
        found: char,
        /// Its byte offset.
        at: usize,
    },
    /// A percent sign without two hexadecimal digits.
    #[error("`%` at byte {at} of the path is not followed by two hexadecimal digits")]
    Escape {
        /// The byte offset of the percent sign.
        at: usize,
    },
    /// Escapes that do not decode to UTF-8, including overlong encodings.
    #[error("the percent-escapes at byte {at} of the path are not valid UTF-8")]
    NotUtf8 {
        /// The byte offset of the first one.
        at: usize,
    },
    /// An escaped NUL.
    #[error("`%00` at byte {at} of the path is not allowed")]
    Nul {
        /// Its byte offset.
        at: usize,
    },
    /// A dot segment with parameters, which services interpret differently.
    #[error("a dot segment with parameters at byte {at} of the path is not allowed")]
    DotParameters {
        /// The byte offset of the segment.
        at: usize,
    },
    /// An escaped slash or backslash, where `http.encoded_slash` is `reject`.
    #[error(
        "`%{byte:02X}` in the path is not allowed; set `http.encoded_slash: keep` or `decode` to allow it"
    )]
    EncodedSlash {
        /// The decoded byte.
        byte: u8,
    },
    /// An escaped control character, where `http.encoded_slash` is not `keep`.
    #[error("`%{byte:02X}` in the path is not allowed; set `http.encoded_slash: keep` to allow it")]
    EncodedControl {
        /// The decoded byte.
        byte: u8,
    },
    /// An escaped slash that decodes to a route where `http.encoded_slash` is not `decode`.
    #[error(
        "the encoded slash in the path decodes to another route; set `http.encoded_slash: decode` for that route too, \
         or `keep` for this one"
    )]
    DecodedElsewhere,
}

/// Normalises `path`. The result is borrowed exactly if the path is already normalised.
///
/// Normalisation is idempotent.
///
/// ```
/// use tidegate_policy::normalize;
///
/// assert_eq!(normalize("/api//v1/./%6Cogin")?, "/api/v1/login");
/// assert_eq!(normalize("/a%2fb/../c")?, "/c");
/// assert!(normalize("/%c0%af").is_err());
/// # Ok::<(), tidegate_policy::PathError>(())
/// ```
pub fn normalize(path: &str) -> Result<Cow<'_, str>, PathError> {
    normalize_detailed(path).map(|normalized| normalized.path)
}

/// A normalised path.
pub(crate) struct NormalizedPath<'p> {
    pub(crate) path: Cow<'p, str>,
    /// The first escape that upstream servers interpret differently: a slash, a backslash or a control character.
    pub(crate) ambiguous: Option<u8>,
}

/// Like [`normalize`], and also returns the first escape that upstream servers may interpret differently.
pub(crate) fn normalize_detailed(path: &str) -> Result<NormalizedPath<'_>, PathError> {
    if is_plain(path) || path == "*" {
        return Ok(NormalizedPath { path: Cow::Borrowed(path), ambiguous: None });
    }
    if !path.starts_with('/') {
        return Err(PathError::NotAbsolute);
    }
    let mut output = PathBuilder { input: path, same: 1, text: None, ambiguous: None };
    let mut start = 1;
    // Invariant: before each segment the output ends with a slash.
    while start < path.len() {
        let begin = output.len();
        let (end, plain) = scan(path, start);
        if plain {
            output.keep(start, end);
        } else {
            rewrite(path, start..end, &mut output)?;
        }
        match output.since(begin) {
            b"" => {}
            b"." => output.truncate(begin),
            b".." => output.pop_segment(begin),
            [b'.', b';', ..] | [b'.', b'.', b';', ..] => return Err(PathError::DotParameters { at: start }),
            _ if end < path.len() => output.keep(end, end + 1),
            _ => {}
        }
        start = end + 1;
    }
    let ambiguous = output.ambiguous;
    Ok(NormalizedPath { path: output.finish(), ambiguous })
}

/// The class of a byte in a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PathByte {
    /// Kept unchanged.
    Plain,
    Slash,
    Percent,
    /// Not allowed raw, but unambiguous: it is escaped.
    Encode,
    Reject,
}

const CLASSES: [PathByte; 256] = {
    let mut classes = [PathByte::Encode; 256];
    let mut byte = 0;
    while byte < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "below 256")]
        let value = byte as u8;
        classes[byte] = match value {
            b'/' => PathByte::Slash,
            b'%' => PathByte::Percent,
            b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=' | b':' | b'@' => {
                PathByte::Plain
            }
            _ if is_unreserved(value) => PathByte::Plain,
            b'\\' | b'?' | b'#' | 0..=b' ' | 0x7f => PathByte::Reject,
            _ => PathByte::Encode,
        };
        byte += 1;
    }
    classes
};

const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Whether upstream servers interpret the escape of `byte` differently.
const fn is_ambiguous(byte: u8) -> bool {
    matches!(byte, b'/' | b'\\') || byte.is_ascii_control()
}

fn class(byte: u8) -> PathByte {
    CLASSES[usize::from(byte)]
}

/// A fast check that nearly all paths pass: no escape, no empty segment, and no segment that begins with a dot. A path
/// that fails it may still be normalised.
fn is_plain(path: &str) -> bool {
    let mut before = None;
    let plain = path.bytes().all(|byte| {
        let fits = match before {
            Some(b'/') => class(byte) == PathByte::Plain && byte != b'.',
            Some(_) => matches!(class(byte), PathByte::Plain | PathByte::Slash),
            None => byte == b'/',
        };
        before = Some(byte);
        fits
    });
    plain && before.is_some()
}

/// Returns the end of the segment that begins at `start`, and whether all its bytes are plain.
fn scan(path: &str, start: usize) -> (usize, bool) {
    let mut plain = true;
    for (index, &byte) in path.as_bytes().iter().enumerate().skip(start) {
        match class(byte) {
            PathByte::Plain => {}
            PathByte::Slash => return (index, plain),
            _ => plain = false,
        }
    }
    (path.len(), plain)
}

fn rewrite(
    path: &str,
    segment: std::ops::Range<usize>,
    output: &mut PathBuilder<'_>,
) -> Result<(), PathError> {
    let bytes = path.as_bytes();
    let mut at = segment.start;
    // Escapes before this offset are known to be valid UTF-8.
    let mut checked = at;
    while at < segment.end {
        let byte = bytes[at];
        match class(byte) {
            PathByte::Percent => {
                let decoded = escaped(bytes, at)?;
                match decoded {
                    0 => return Err(PathError::Nul { at }),
                    0x80.. if at >= checked => checked = utf8_end(bytes, at)?,
                    _ => {}
                }
                if is_ambiguous(decoded) {
                    output.ambiguous.get_or_insert(decoded);
                }
                if is_unreserved(decoded) {
                    output.push(char::from(decoded));
                } else if bytes[at + 1].is_ascii_lowercase() || bytes[at + 2].is_ascii_lowercase() {
                    output.escape(decoded);
                } else {
                    output.keep(at, at + 3);
                }
                at += 3;
            }
            PathByte::Encode => {
                output.escape(byte);
                at += 1;
            }
            PathByte::Reject => return Err(PathError::Character { found: char::from(byte), at }),
            PathByte::Plain | PathByte::Slash => {
                output.keep(at, at + 1);
                at += 1;
            }
        }
    }
    Ok(())
}

/// Decodes the escape at `at`.
fn escaped(bytes: &[u8], at: usize) -> Result<u8, PathError> {
    let digit = |offset| bytes.get(at + offset).and_then(|&digit| char::from(digit).to_digit(16));
    let (Some(high), Some(low)) = (digit(1), digit(2)) else { return Err(PathError::Escape { at }) };
    u8::try_from(high << 4 | low).map_err(|_| PathError::Escape { at })
}

/// Returns the end of the escaped character that begins at `at`. Raw bytes cannot complete it, as they are valid UTF-8 on
/// their own.
fn utf8_end(bytes: &[u8], at: usize) -> Result<usize, PathError> {
    let invalid = PathError::NotUtf8 { at };
    let length = match escaped(bytes, at)? {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => return Err(invalid),
    };
    let mut character = [0; 4];
    for (index, decoded) in character.iter_mut().enumerate().take(length) {
        let escape = at + 3 * index;
        if bytes.get(escape) != Some(&b'%') {
            return Err(invalid);
        }
        *decoded = escaped(bytes, escape)?;
    }
    str::from_utf8(&character[..length]).map_err(|_| invalid)?;
    Ok(at + 3 * length)
}

fn push_escape(text: &mut String, byte: u8) {
    const HEX: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];
    text.extend(['%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
}

/// The normalised path so far: a prefix of the input until the first difference, then a string.
struct PathBuilder<'a> {
    input: &'a str,
    /// While `text` is `None`, the output is the first `same` bytes of the input.
    same: usize,
    text: Option<String>,
    ambiguous: Option<u8>,
}

impl<'a> PathBuilder<'a> {
    fn len(&self) -> usize {
        self.text.as_ref().map_or(self.same, String::len)
    }

    fn since(&self, begin: usize) -> &[u8] {
        &self.bytes()[begin..]
    }

    fn bytes(&self) -> &[u8] {
        self.text.as_ref().map_or(&self.input.as_bytes()[..self.same], String::as_bytes)
    }

    /// Appends `start..end` of the input unchanged.
    fn keep(&mut self, start: usize, end: usize) {
        if self.text.is_none() && self.same == start {
            self.same = end;
        } else {
            let kept = &self.input[start..end];
            self.text().push_str(kept);
        }
    }

    fn push(&mut self, character: char) {
        self.text().push(character);
    }

    fn escape(&mut self, byte: u8) {
        push_escape(self.text(), byte);
    }

    fn truncate(&mut self, length: usize) {
        self.text().truncate(length);
    }

    /// Removes the text from `begin` on and the segment before it.
    fn pop_segment(&mut self, begin: usize) {
        let parent = self.bytes()[..begin - 1].iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        self.truncate(parent + 1);
    }

    fn text(&mut self) -> &mut String {
        self.text.get_or_insert_with(|| {
            let mut text = String::with_capacity(self.input.len() + 8);
            text.push_str(&self.input[..self.same]);
            text
        })
    }

    fn finish(self) -> Cow<'a, str> {
        match self.text {
            Some(text) => Cow::Owned(text),
            None if self.same == self.input.len() => Cow::Borrowed(self.input),
            None => Cow::Owned(self.input[..self.same].to_owned()),
        }
    }
}

#[cfg(test)]
mod tests;
