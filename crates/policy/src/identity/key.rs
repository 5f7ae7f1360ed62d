//! Finds API keys in `Authorization`.
//!
//! Services read this header in many ways: the second word, the last word, everything after the seventh byte, the value without
//! `Bearer `, a parameter (`Token token="KEY"`), the user or the password of `Basic` credentials. A key in any of these
//! places counts, so that no spelling evades its limits and bans.

use std::borrow::Cow;

use super::token;

/// The longest scheme that is removed by its length, with the character after it.
const LONGEST_PREFIX: usize = 16;
/// Longer values are not searched for a key behind a prefix, which takes time for each length of the prefix.
const LONGEST_WITH_PREFIX: usize = 4096;

/// The key that most services read: the value without a scheme. Services ignore its case and the white space after it.
pub(super) fn without_scheme(value: &[u8]) -> &[u8] {
    let space = value.iter().position(u8::is_ascii_whitespace);
    space.map_or(value, |space| value[space..].trim_ascii_start())
}

/// Whether the value is one word behind the usual scheme, or without one, so that there are no other readings if that word is a key.
pub(super) fn is_usual(value: &[u8]) -> bool {
    let key = without_scheme(value);
    let is_word = !key.iter().any(u8::is_ascii_whitespace);
    let scheme = value.get(..value.len() - key.len()).unwrap_or_default().trim_ascii_end();
    is_word && (scheme.is_empty() || scheme.eq_ignore_ascii_case(b"Bearer"))
}

/// The keys that services may read in separate words or in `Basic` credentials.
pub(super) fn in_words(value: &[u8]) -> impl Iterator<Item = Cow<'_, [u8]>> {
    let words = value.split(u8::is_ascii_whitespace).flat_map(|word| {
        let parameter = word.iter().position(|byte| *byte == b'=').map(|at| &word[at + 1..]);
        [Some(word), parameter].into_iter().flatten().map(|key| Cow::Borrowed(unquoted(key)))
    });
    let basic = token::basic(value).into_iter().flat_map(|credentials| {
        let colon = credentials.iter().position(|byte| *byte == b':').unwrap_or(credentials.len());
        let password = credentials.get(colon + 1..).unwrap_or_default().to_vec();
        [credentials[..colon].to_vec(), password].map(Cow::Owned)
    });
    words.chain(token::joined(value).map(Cow::Owned)).chain(basic).filter(|key| !key.is_empty())
}

/// The keys that services may read behind a prefix whose length they know.
pub(super) fn behind_prefixes(value: &[u8]) -> impl Iterator<Item = Cow<'_, [u8]>> {
    let longest = if value.len() > LONGEST_WITH_PREFIX { 0 } else { LONGEST_PREFIX };
    (1..=longest).filter_map(|length| Some(Cow::Borrowed(unquoted(value.get(length..)?.trim_ascii_start()))))
}

fn unquoted(word: &[u8]) -> &[u8] {
    let is_mark = |byte: &u8| matches!(byte, b'"' | b'\'' | b';' | b':');
    let start = word.iter().position(|byte| !is_mark(byte)).unwrap_or(word.len());
    let end = word.iter().rposition(|byte| !is_mark(byte)).map_or(start, |last| last + 1);
    &word[start..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_found_in_every_place_where_services_read_it() {
        let values = [
            "Bearer KEY x",
            "x Bearer KEY",
            "Bearer x KEY",
            "KEY x",
            "Bearer Bearer KEY",
            "Token token=KEY",
            "Token token=\"KEY\"",
            "Bearer \"KEY\"",
            "Bearer KEY;",
            "KBearer EY",
            "Basic S0VZOg==",
            "basic eDpLRVk",
        ];
        for value in values {
            let found: Vec<_> = in_words(value.as_bytes()).collect();
            assert!(found.iter().any(|key| **key == *b"KEY"), "{value} {found:?}");
        }
        for value in ["1234567KEY", "Bearer:KEY", "Bearer=KEY", "Bearer KEY", "x KEY"] {
            let found: Vec<_> = behind_prefixes(value.as_bytes()).collect();
            assert!(found.iter().any(|key| **key == *b"KEY"), "{value} {found:?}");
        }
    }

    #[test]
    fn usual_value_is_one_word_behind_bearer_or_nothing() {
        for value in ["KEY", "Bearer KEY", "bearer  KEY"] {
            assert!(is_usual(value.as_bytes()) && without_scheme(value.as_bytes()) == b"KEY", "{value}");
        }
        for value in ["KEY KEY", "Bearer KEY x", "Basic S0VZOg=="] {
            assert!(!is_usual(value.as_bytes()), "{value}");
        }
    }
}
