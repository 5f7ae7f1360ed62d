//! Looks up a cookie of a request.

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
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(fits) {
            return Err(CookieNameError { name: name.to_owned() });
        }
        Ok(Self(name.into()))
    }

    /// The value, if all cookies of this name have the same one. Servers disagree about which of several values they use.
    pub fn find<'a>(&self, headers: &'a HeaderMap) -> Option<&'a [u8]> {
        let mut values = self.values(headers);
        let value = values.next()?;
        (values.all(|other| other == value) && !value.is_empty()).then_some(value)
    }

    /// All values of the cookie. A server may use any of them.
    pub(crate) fn values<'a>(&self, headers: &'a HeaderMap) -> impl Iterator<Item = &'a [u8]> {
        let lines = headers.get_all(COOKIE).iter();
        let pairs = lines.flat_map(|line| line.as_bytes().split(|&byte| byte == b';'));
        pairs.filter_map(|pair| {
            let (name, value) = pair.trim_ascii().split_at_checked(self.0.len())?;
            let value = value.trim_ascii_start().strip_prefix(b"=")?.trim_ascii();
            let bare = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value);
            (name == self.0.as_bytes()).then_some(bare)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(name: &str, lines: &[&'static str]) -> Option<String> {
        let headers = lines.iter().map(|line| (COOKIE, line.parse().unwrap())).collect();
        let value = CookieName::new(name).unwrap().find(&headers).map(<[u8]>::to_vec);
        value.map(|value| String::from_utf8(value).unwrap())
    }

    #[test]
    fn cookie_is_found_among_others() {
        let lines = ["a=1; session=abc=; sessions=x", "other=\"q\""];
        assert_eq!(find("session", &lines).as_deref(), Some("abc="));
        assert_eq!(find("other", &lines).as_deref(), Some("q"));
        assert_eq!(find("a", &lines).as_deref(), Some("1"));
        assert_eq!(find("sess", &lines), None);
        assert_eq!(find("Session", &lines), None, "names are case-sensitive");
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
    fn cookie_name_that_is_not_a_token_is_rejected() {
        for name in ["", "a b", "a=b", "a;b", "é"] {
            assert!(CookieName::new(name).is_err(), "{name}");
        }
    }
}
