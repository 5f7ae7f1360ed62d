//! The readings of a normalised path: the paths that upstream servers may interpret it as.
//!
//! | reading | servers |
//! |---|---|
//! | the path itself | most servers |
//! | folded: lower case, without `;parameters`, delimiters such as `%3A` decoded | routers that ignore case (Express), servlet containers, servers that decode before they route |
//! | decoded: `%2F` and `%5C` are `/`, control characters at the end of a segment are dropped | ASGI and WSGI servers, regular expressions whose `$` matches before a line feed |
//! | decoded, then folded | both |
//!
//! A limit applies if its pattern matches any of them. Nearly every path has only one reading; [`Readings::set`] detects
//! that with one scan and without an allocation. The buffers for the other readings are reused.

use super::{escaped, is_ambiguous};
use crate::plan::PathCase;

/// The readings of one path other than the path itself, in buffers that are reused.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    /// Whether the path is its only reading. Then the contents of the buffers are stale.
    is_single: bool,
    folded: String,
    /// Empty if there is nothing to decode.
    decoded: String,
    decoded_folded: String,
}

impl Readings {
    /// Computes the readings of `path`, which must be normalised.
    pub(crate) fn set(&mut self, path: &str, case: PathCase) {
        self.is_single = !may_vary(path);
        if self.is_single {
            return;
        }
        fold(path, case, &mut self.folded);
        decode(path, &mut self.decoded);
        if !self.decoded.is_empty() {
            fold(&self.decoded, case, &mut self.decoded_folded);
        }
    }

    /// Whether the path is its only reading.
    pub(crate) fn is_single(&self) -> bool {
        self.is_single
    }

    /// The reading of a server that decodes slashes, if it differs.
    pub(crate) fn decoded(&self) -> Option<&str> {
        Some(self.decoded.as_str()).filter(|decoded| !self.is_single && !decoded.is_empty())
    }

    /// The readings of servers that ignore case and parameters. `path` is the one given to [`Self::set`].
    pub(crate) fn folded<'r>(&'r self, path: &'r str) -> impl Iterator<Item = &'r str> {
        let first = if self.is_single { path } else { &self.folded };
        std::iter::once(first).chain(self.decoded().map(|_| self.decoded_folded.as_str()))
    }

    /// Every reading that is not `path`, each once.
    pub(crate) fn others<'r>(&'r self, path: &'r str) -> impl Iterator<Item = &'r str> {
        let folded = Some(self.folded.as_str()).filter(|folded| !self.is_single && *folded != path);
        let decoded = self.decoded();
        let both = decoded.map(|_| self.decoded_folded.as_str());
        let both = both.filter(|both| decoded != Some(both) && folded != Some(both));
        folded.into_iter().chain(decoded).chain(both)
    }
}

/// Whether a path may have another reading: it has an uppercase letter, a semicolon or an escape.
fn may_vary(path: &str) -> bool {
    // No early exit, so that the loop is vectorised.
    let marks = path.bytes().fold(0, |marks: u8, byte| {
        marks | u8::from(byte.is_ascii_uppercase()) | u8::from(byte == b';') | u8::from(byte == b'%')
    });
    marks != 0
}

/// Writes the folded reading of `path` to `out`. Segments that become empty or `..` are resolved.
fn fold(path: &str, case: PathCase, out: &mut String) {
    out.clear();
    let Some(relative) = path.strip_prefix('/') else { return out.push_str(path) };
    out.push('/');
    let mut segments = relative.split('/').peekable();
    while let Some(segment) = segments.next() {
        let begin = out.len();
        fold_segment(segment, case, out);
        close_segment(out, begin, segments.peek().is_some());
    }
}

/// Appends `segment` of a normalised path without its parameters, with its delimiters decoded and, unless case matters,
/// in lower case.
pub(crate) fn fold_segment(segment: &str, case: PathCase, out: &mut String) {
    // Some servers decode `%3B` before they look for parameters.
    let end = |mark: &str| segment.find(mark).unwrap_or(segment.len());
    let mut rest = &segment[..end(";").min(end("%3B"))];
    while let Some(first) = rest.chars().next() {
        let (character, length) = match first {
            '%' => escaped_character(rest),
            other => (Some(other), other.len_utf8()),
        };
        match character {
            Some(character) if case == PathCase::Insensitive => push_lowercase(character, out),
            Some(character) if character.is_ascii() => out.push(character),
            _ => out.push_str(&rest[..length]),
        }
        rest = &rest[length..];
    }
}

/// Decodes the escaped character that `text` begins with, and returns the length of its escapes. Decodes non-ASCII
/// characters and delimiters, which most servers decode before they route (`%3A` is `:`). Other ASCII characters are not
/// decoded: a normalised path has no escaped letters, and [`decode`] handles slashes and control characters.
fn escaped_character(text: &str) -> (Option<char>, usize) {
    let bytes = text.as_bytes();
    let mut decoded = [0; 4];
    for length in 1..=decoded.len() {
        let at = 3 * (length - 1);
        match escaped(bytes, at) {
            Ok(byte) if bytes.get(at) == Some(&b'%') => decoded[length - 1] = byte,
            _ => break,
        }
        if let Ok(text) = str::from_utf8(&decoded[..length]) {
            let is_decoded = |character: &char| !character.is_ascii() || "!$&'()*+,=:@".contains(*character);
            let length = if text.is_ascii() { 3 } else { 3 * length };
            return (text.chars().next().filter(is_decoded), length);
        }
    }
    (None, 1)
}

/// Appends `character` in lower case, percent-encoded if it is not ASCII. Some characters equal a letter only in upper
/// case, such as `ſ` and `s`, so the character is converted to upper case first.
fn push_lowercase(character: char, out: &mut String) {
    if character.is_ascii() {
        return out.push(character.to_ascii_lowercase());
    }
    let mut upper = character.to_uppercase();
    let upper = upper.next().filter(|_| upper.next().is_none()).unwrap_or(character);
    for lower in upper.to_lowercase() {
        if lower.is_ascii() {
            out.push(lower);
            continue;
        }
        for byte in lower.encode_utf8(&mut [0; 4]).bytes() {
            super::push_escape(out, byte);
        }
    }
}

/// Writes the decoded reading of `path` to `out`, or nothing if there is nothing to decode.
fn decode(path: &str, out: &mut String) {
    out.clear();
    let (Some(mut rest), true) = (path.strip_prefix('/'), has_ambiguous(path)) else { return };
    out.push('/');
    loop {
        let separator = separator(rest);
        let (segment, others) = match separator {
            Some((at, length)) => (&rest[..at], Some(&rest[at + length..])),
            None => (rest, None),
        };
        let begin = out.len();
        out.push_str(without_control_at_end(segment));
        close_segment(out, begin, others.is_some());
        let Some(others) = others else { return };
        rest = others;
    }
}

fn has_ambiguous(path: &str) -> bool {
    escapes(path).any(is_ambiguous)
}

/// The first control character that is escaped in `path`.
pub(crate) fn encoded_control(path: &str) -> Option<u8> {
    escapes(path).find(u8::is_ascii_control)
}

/// The decoded bytes of the escapes in a normalised path.
fn escapes(path: &str) -> impl Iterator<Item = u8> {
    let bytes = path.as_bytes();
    path.match_indices('%').filter_map(move |(at, _)| escaped(bytes, at).ok())
}

/// Decodes the encoded slashes and backslashes of a normalised path. The result is not normalised.
pub(crate) fn decode_slashes(path: &str) -> String {
    path.replace("%2F", "/").replace("%5C", "/")
}

/// The offset and length of the first slash, encoded or not.
fn separator(text: &str) -> Option<(usize, usize)> {
    let is_encoded = |at: usize| matches!(text.as_bytes().get(at + 1..at + 3), Some(b"2F" | b"5C"));
    let found = text.match_indices(['/', '%']).find(|(at, mark)| *mark == "/" || is_encoded(*at));
    found.map(|(at, mark)| (at, if mark == "/" { 1 } else { 3 }))
}

fn without_control_at_end(mut segment: &str) -> &str {
    while let Some((name, last)) = segment.len().checked_sub(3).and_then(|at| segment.split_at_checked(at)) {
        let is_control =
            last.starts_with('%') && escaped(last.as_bytes(), 0).is_ok_and(|b| b.is_ascii_control());
        if !is_control {
            break;
        }
        segment = name;
    }
    segment
}

/// Resolves the segment that begins at `begin` and ends the text, as [`super::normalize`] does.
fn close_segment(out: &mut String, begin: usize, has_next: bool) {
    match &out[begin..] {
        "" => {}
        "." => out.truncate(begin),
        ".." => {
            let parent = out[..begin - 1].rfind('/').map_or(1, |slash| slash + 1);
            out.truncate(parent);
        }
        _ if has_next => out.push('/'),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

    use super::*;
    use crate::path::normalize;

    fn readings(path: &str, case: PathCase) -> Vec<String> {
        let normal = normalize(path).unwrap();
        let mut readings = Readings::default();
        readings.set(&normal, case);
        readings.others(&normal).map(str::to_owned).collect()
    }

    #[test]
    fn escaped_delimiter_folds_to_the_delimiter() {
        for case in [PathCase::Insensitive, PathCase::Sensitive] {
            assert_eq!(readings("/v1/gpt%3Agenerate", case), ["/v1/gpt:generate"]);
            assert_eq!(readings("/%40me/a%2bb", case), ["/@me/a+b"]);
            assert_eq!(readings("/a%21%24%26%27%28%29%2A%2C%3Db", case), ["/a!$&'()*,=b"]);
            assert_eq!(readings("/a%20b%22", case), Vec::<String>::new(), "not delimiters");
        }
    }

    #[test]
    fn plain_path_has_no_other_reading() {
        for path in ["/", "*", "/api/v1/orders/4711/", "/a.b-c_d~e/f:g@h,i", "/caf%C3%A9", "/a%20b"] {
            assert!(readings(path, PathCase::Insensitive).is_empty(), "{path}");
        }
    }

    #[test]
    fn folded_reading_is_lower_case_without_parameters() {
        for (path, expected) in [
            ("/LOGIN", "/login"),
            ("/Login/", "/login/"),
            ("/a;v=1/B;c", "/a/b"),
            ("/login/;x", "/login/"),
            ("/;x/login", "/login"),
            ("/a%3Bx/b", "/a/b"),
            ("/x/..%3By/login", "/login"),
            ("/a%3fB", "/a%3Fb"),
            ("/%C3%89t%C3%89", "/%C3%A9t%C3%A9"),
            ("/%E2%84%AAey", "/key"),
            ("/%C5%BFign", "/sign"),
            ("/%CE%A3", "/%CF%83"),
            ("/%CF%82", "/%CF%83"),
            ("/%C4%B0", "/i%CC%87"),
        ] {
            assert_eq!(readings(path, PathCase::Insensitive), [expected], "{path}");
        }
        assert_eq!(readings("/A;v=1/%C3%89", PathCase::Sensitive), ["/A/%C3%89"]);
        assert!(readings("/LOGIN", PathCase::Sensitive).is_empty());
        assert!(readings("/stra%C3%9Fe", PathCase::Insensitive).is_empty());
    }

    #[test]
    fn decoded_reading_has_slashes_and_no_trailing_control_characters() {
        for (path, expected) in [
            ("/api%2flogin", "/api/login"),
            ("/api%5Clogin", "/api/login"),
            ("/x/..%2flogin", "/login"),
            ("/%2F%2Flogin", "/login"),
            ("/login%0A", "/login"),
            ("/login%0d%0A/", "/login/"),
            ("/login%0A%2F", "/login/"),
            ("/..%2F..%2F", "/"),
        ] {
            assert_eq!(readings(path, PathCase::Sensitive), [expected], "{path}");
        }
        assert_eq!(
            readings("/API%2FLogin", PathCase::Insensitive),
            ["/api%2Flogin", "/API/Login", "/api/login"]
        );
        assert_eq!(
            readings("/x%2f..;y/Login", PathCase::Insensitive),
            ["/x%2F../login", "/x/..;y/Login", "/login"]
        );
    }

    proptest! {
        #[test]
        fn folding_is_idempotent(
            parts in prop::collection::vec(
                prop::sample::select(vec![
                    "/", "a", "B", ";", "%3B", "..", ".", "%C3%89", "%E2%84%AA", "%2F", "%0A", "%20", "\u{1e9e}", "ǅ", "ΐ",
                ]),
                0..12,
            ),
            any in ".{0,4}",
        ) {
            let Ok(path) = normalize(&format!("/{}{any}", parts.concat())).map(String::from) else { return Ok(()) };
            for case in PathCase::ALL {
                let (mut once, mut twice) = (String::new(), String::new());
                fold(&path, case, &mut once);
                fold(&once, case, &mut twice);
                prop_assert_eq!(&once, &twice, "{}", path);
                prop_assert!(normalize(&once).is_ok_and(|normal| normal == once), "{} {}", path, once);
            }
        }
    }
}
