//! Looks up a cookie of a request.
//!
//! Frameworks decode cookies in different ways: some decode `%61`, some `+`, some `"\141"`. So that a client has one counter in
//! all spellings, a value counts in its canonical form, which is the same for everything that decodes to it. A cookie for
//! which that is impossible is rejected.

use std::borrow::Cow;
use std::fmt;

use http::HeaderMap;
use http::header::COOKIE;

/// The name of a cookie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CookieName(Box<str>);

/// An invalid cookie name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid cookie name `{name}`; use letters, digits, `-` and `_`")]
pub struct CookieNameError {
    /// The invalid name.
    pub name: String,
}

impl CookieName {
    /// Validates the name of a cookie.
    pub fn new(name: &str) -> Result<Self, CookieNameError> {
        if name.is_empty() || !name.bytes().all(is_name_byte) {
            return Err(CookieNameError { name: name.to_owned() });
        }
        Ok(Self(name.into()))
    }

    /// The value, if all cookies of this name have the same one. Servers disagree about which of several values they use.
    pub fn find<'a>(&self, headers: &'a HeaderMap) -> Option<Cow<'a, [u8]>> {
        let mut values = self.values(headers).map(canonical);
        let value = values.next()?;
        (values.all(|other| other == value) && !value.is_empty()).then_some(value)
    }

    /// Whether all servers that find the cookie read the same value, except for its decoding.
    pub(super) fn is_unambiguous(&self, headers: &HeaderMap) -> bool {
        let lines = headers.get_all(COOKIE).iter().map(http::HeaderValue::as_bytes);
        let mut pairs = lines.flat_map(|line| line.split(|&byte| byte == b';'));
        pairs.all(|pair| is_valid_pair(pair) || self.has_one_reading(pair))
    }

    /// Whether all servers that find the cookie in this pair, which is not valid, read the same value. Some separate cookies by
    /// commas and white space too, or skip bytes until the rest is a cookie (ASP.NET Core does both).
    fn has_one_reading(&self, pair: &[u8]) -> bool {
        let value = self.value_in(pair);
        value.is_none_or(is_plain_value) && !self.may_begin_in(value.unwrap_or(pair))
    }

    /// Whether the name and `=` occur in `text`, and not behind a byte that could belong to the name.
    fn may_begin_in(&self, text: &[u8]) -> bool {
        let name = self.0.as_bytes();
        let mut found = text.windows(name.len()).enumerate().filter(|(_, part)| is_same_name(part, name));
        found.any(|(at, _)| {
            let (before, after) = (text[..at].last(), &text[at + name.len()..]);
            before.is_none_or(|byte| !is_name_byte(*byte))
                && after.iter().find(|byte| byte.is_ascii_graphic()) == Some(&b'=')
        })
    }

    /// All values of the cookie as sent. A server may use any of them.
    pub(crate) fn values<'a>(&self, headers: &'a HeaderMap) -> impl Iterator<Item = &'a [u8]> {
        let lines = headers.get_all(COOKIE).iter();
        let pairs = lines.flat_map(|line| line.as_bytes().split(|&byte| byte == b';'));
        pairs.filter_map(|pair| self.value_in(pair)).map(unquoted)
    }

    /// The value in a pair of this name.
    fn value_in<'p>(&self, pair: &'p [u8]) -> Option<&'p [u8]> {
        let (name, value) = pair.trim_ascii().split_at_checked(self.0.len())?;
        let value = value.trim_ascii_start().strip_prefix(b"=")?.trim_ascii();
        is_same_name(name, self.0.as_bytes()).then_some(value)
    }
}

impl fmt::Display for CookieName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a pair is valid in RFC 6265, so that every server reads it as this one cookie.
fn is_valid_pair(pair: &[u8]) -> bool {
    let pair = pair.trim_ascii();
    let name = pair.iter().take_while(|byte| is_name_byte(**byte)).count();
    name > 0 && pair[name..].strip_prefix(b"=").is_some_and(is_plain_value)
}

/// Whether a value, with or without quotes around it, is valid in RFC 6265.
fn is_plain_value(value: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b',');
    unquoted(value).iter().all(is_plain)
}

/// Whether a byte may occur in the name of a cookie.
fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Whether a server may read both names as one. Some ignore case, and PHP writes `_` for a dot, a space and `[`.
fn is_same_name(one: &[u8], other: &[u8]) -> bool {
    let folded = |byte: &u8| match byte {
        b'.' | b' ' | b'[' => b'_',
        other => other.to_ascii_lowercase(),
    };
    one.len() == other.len() && one.iter().map(folded).eq(other.iter().map(folded))
}

fn unquoted(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value)
}

/// The canonical form of a value: percent-decoded until nothing is left to decode, with a space for each `+`, without spaces
/// around it. Decoding any part of a value does not change it.
pub(super) fn canonical(value: &[u8]) -> Cow<'_, [u8]> {
    let value = value.trim_ascii();
    if !value.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Cow::Borrowed(value);
    }
    let mut decoded = Vec::with_capacity(value.len());
    for byte in value {
        decoded.push(if *byte == b'+' { b' ' } else { *byte });
        // A decoded byte may complete another escape.
        while let [.., b'%', high, low] = decoded[..]
            && let (Some(high), Some(low)) = (char::from(high).to_digit(16), char::from(low).to_digit(16))
        {
            decoded.truncate(decoded.len() - 3);
            let byte = u8::try_from(high << 4 | low).unwrap_or_default();
            decoded.push(if byte == b'+' { b' ' } else { byte });
        }
    }
    Cow::Owned(decoded.trim_ascii().to_vec())
}

/// The text with all escapes of cookies decoded, `%61` as well as `\141`; `None` if it has none.
pub(super) fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    if !text.iter().any(|byte| matches!(byte, b'%' | b'\\')) {
        return None;
    }
    let octal = |digits: &[u8]| {
        let digits = std::str::from_utf8(digits).ok()?;
        u8::from_str_radix(digits, 8).ok()
    };
    let (mut decoded, mut rest) = (Vec::with_capacity(text.len()), text);
    while let [byte, others @ ..] = rest {
        rest = others;
        if *byte == b'\\' {
            let code = others.get(..3).and_then(octal);
            decoded.extend(code);
            rest = others.get(if code.is_some() { 3 } else { 0 }..).unwrap_or_default();
        } else {
            decoded.push(*byte);
        }
    }
    Some(canonical(&decoded).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(name: &str, lines: &[&'static str]) -> Option<String> {
        let headers = lines.iter().map(|line| (COOKIE, line.parse().unwrap())).collect();
        let value = CookieName::new(name).unwrap().find(&headers);
        value.map(|value| String::from_utf8(value.into_owned()).unwrap())
    }

    #[test]
    fn cookie_is_found_among_others() {
        let lines = ["a=1; session=abc=; sessions=x", "other=\"q\""];
        assert_eq!(find("session", &lines).as_deref(), Some("abc="));
        assert_eq!(find("other", &lines).as_deref(), Some("q"));
        assert_eq!(find("a", &lines).as_deref(), Some("1"));
        assert_eq!(find("sess", &lines), None);
        assert_eq!(find("Session", &lines).as_deref(), Some("abc="), "some servers ignore the case of names");
        assert_eq!(find("A", &["a=1; A=2"]), None);
    }

    #[test]
    fn cookie_name_with_marks_that_php_replaces_is_the_same() {
        for line in
            ["user_id=7", "user.id=7", "user id=7", "USER[ID=7", "a=b; user.id=7", "user_id=7; user.id=7"]
        {
            assert_eq!(find("user_id", &[line]).as_deref(), Some("7"), "{line}");
            assert_eq!(find("user.id", &[line]).as_deref(), Some("7"), "{line}");
        }
        assert_eq!(find("user_id", &["user-id=7; userid=7"]), None);
        assert_eq!(
            find("user_id", &["user_id=7; user.id=8"]),
            None,
            "PHP uses the first, others the name itself"
        );
    }

    #[test]
    fn escapes_of_all_kinds_are_decoded() {
        let decoded = |text: &str| unescaped(text.as_bytes()).map(|text| String::from_utf8(text).unwrap());
        for text in ["a%2Eb", "a\\056b", "a%252eb", "\\a\\.b"] {
            assert_eq!(decoded(text).as_deref(), Some("a.b"), "{text}");
        }
        assert_eq!(decoded("a=b; c=\"d\""), None);
    }

    #[test]
    fn cookie_empty_or_with_two_values_is_none() {
        assert_eq!(find("a", &["a="]), None);
        assert_eq!(find("a", &["a=\"\""]), None);
        assert_eq!(find("a", &["a=1; a=2"]), None);
        assert_eq!(find("a", &["a=1; a="]), None);
        assert_eq!(find("a", &["a=1", "a=1; a=\"1\""]).as_deref(), Some("1"), "all values are equal");
        assert_eq!(find("a", &["a", ""]), None);
    }

    #[test]
    fn cookie_counts_in_its_canonical_form() {
        for spelling in
            ["abc", "%61bc", "%61%62%63", "\"%61bc\"", "%2561bc", "%20abc+", "%%361bc", "%25%36%31bc"]
        {
            assert_eq!(find("a", &[&*format!("a={spelling}").leak()]).as_deref(), Some("abc"), "{spelling}");
        }
        for spelling in ["s:a b+", "s%3Aa+b%2B", "s%3aa%20b "] {
            assert!(
                find("a", &[&*format!("a={spelling}").leak()]).unwrap().starts_with("s:a b"),
                "{spelling}"
            );
        }
        assert_eq!(find("a", &["a=100%"]).as_deref(), Some("100%"));
        assert_eq!(find("a", &["a=%zz%4"]).as_deref(), Some("%zz%4"));
        assert_eq!(find("a", &["a=%61; a=a"]).as_deref(), Some("a"), "all values are equal");
    }

    proptest::proptest! {
        #[test]
        fn decoding_any_escapes_keeps_the_canonical_form(value in "(%20|%2|%61|%25|%2b|[a-f0-9+ %]){0,8}", at in 0_usize..16) {
            let escape = value.get(at..at + 3).filter(|text| text.starts_with('%'));
            let byte = escape.and_then(|text| u8::from_str_radix(text.get(1..).unwrap(), 16).ok());
            if let Some(byte) = byte.filter(|_| !escape.unwrap().contains('+')) {
                let decoded = [&value.as_bytes()[..at], &[byte], &value.as_bytes()[at + 3..]].concat();
                assert_eq!(canonical(&decoded), canonical(value.as_bytes()));
            }
            assert_eq!(canonical(&canonical(value.as_bytes())), canonical(value.as_bytes()));
        }
    }

    #[test]
    fn cookie_that_servers_read_differently_is_ambiguous() {
        let is_unambiguous = |line: &[u8]| {
            let headers = [(COOKIE, http::HeaderValue::from_bytes(line).unwrap())].into_iter().collect();
            CookieName::new("session").unwrap().is_unambiguous(&headers)
        };
        let ambiguous = [
            &b"session=\"\\141bc123\""[..],
            b"session=a\\b",
            b"session=\"abc",
            b"session=abc\"",
            b"session=\"a\"b\"",
            b"session=\"a; session=b\"",
            b"session=abc\xa0",
            b"session=\xa0abc",
            b"a=b; \xa0session=abc",
            b"session\xa0=abc",
            b"session=abc x",
            b"session=\" abc\"",
            b"$ session=abc",
            b"a=b session=abc",
            b"a=b, session=abc",
            b"a=b,session =abc",
            b"session=abc,",
            b"session=abc,x=1",
            b"Session=abc,x=1",
            b"@session=abc",
            b"session= session=abc",
            b"a[SESSION=abc",
            b"a=\"b\\session=abc",
        ];
        for line in ambiguous {
            assert!(!is_unambiguous(line), "{}", line.escape_ascii());
        }
        let plain = [
            "session=%61bc",
            "session=\"abc\"",
            " session = ab ",
            "session",
            "a=/?session=b; session=c",
            "a=[session=b]; b=\"(session=c\"",
            "a=session b",
            "a=\\\"; sessions=\u{a0}",
            "=",
        ];
        for line in plain {
            assert!(is_unambiguous(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn cookie_name_that_is_not_a_token_is_rejected() {
        for name in ["", "a b", "a=b", "a;b", "é"] {
            assert!(CookieName::new(name).is_err(), "{name}");
        }
    }
}
