//! What one look at the headers of a message finds of those that mean something on the way.
//!
//! Most messages have hardly any of them, and looking at a handful of names once costs less than a search for each.

use http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH,
    CONTENT_TYPE, COOKIE, EXPECT, HOST, HeaderName, HeaderValue, ORIGIN, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, REFERER, TE, TRANSFER_ENCODING, UPGRADE, USER_AGENT,
};
use http::{HeaderMap, Version};

/// Which of them are there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks(u16);

impl Marks {
    pub(crate) const CONNECTION: Self = Self(1);
    pub(crate) const UPGRADE: Self = Self(1 << 1);
    /// What else belongs to one connection, whatever `Connection` says.
    pub(crate) const OF_A_HOP: Self = Self(1 << 2);
    pub(crate) const TRANSFER_ENCODING: Self = Self(1 << 3);
    pub(crate) const CONTENT_LENGTH: Self = Self(1 << 4);
    pub(crate) const TE: Self = Self(1 << 5);
    pub(crate) const EXPECT: Self = Self(1 << 6);
    pub(crate) const COOKIE: Self = Self(1 << 7);
    pub(crate) const HOST: Self = Self(1 << 8);
    /// What only a proxy that is trusted may say.
    pub(crate) const UNTRUSTED: Self = Self(1 << 9);
    pub(crate) const HOST_ASKED: Self = Self(1 << 10);
    pub(crate) const REQUEST_ID: Self = Self(1 << 11);
    /// A name with an underscore.
    pub(crate) const UNDERSCORE: Self = Self(1 << 12);

    /// Looks at a request, before anything else reads its headers. HTTP/2 leaves white space around values in place, which
    /// servers and HTTP/1.1 remove: it is removed here, so that a value has one spelling.
    pub(crate) fn of_request(version: Version, headers: &mut HeaderMap) -> Self {
        if version == Version::HTTP_2 { Self::trimming(headers) } else { Self::of(headers) }
    }

    /// The same look, which also removes white space around values.
    pub(crate) fn trimming(headers: &mut HeaderMap) -> Self {
        headers.iter_mut().fold(Self::default(), |all, (name, value)| {
            trim(value);
            all.and(Self::of_one(name))
        })
    }

    pub(crate) fn of(headers: &HeaderMap) -> Self {
        headers.keys().fold(Self::default(), |all, name| all.and(Self::of_one(name)))
    }

    fn of_one(name: &HeaderName) -> Self {
        match *name {
            CONNECTION => Self::CONNECTION,
            UPGRADE => Self::UPGRADE,
            PROXY_AUTHENTICATE | PROXY_AUTHORIZATION => Self::OF_A_HOP,
            TRANSFER_ENCODING => Self::TRANSFER_ENCODING.and(Self::OF_A_HOP),
            CONTENT_LENGTH => Self::CONTENT_LENGTH,
            TE => Self::TE,
            EXPECT => Self::EXPECT,
            COOKIE => Self::COOKIE,
            HOST => Self::HOST,
            // The most frequent ones that mean nothing here need no look at their letters.
            ACCEPT | ACCEPT_ENCODING | ACCEPT_LANGUAGE | AUTHORIZATION | CACHE_CONTROL | CONTENT_TYPE
            | ORIGIN | REFERER | USER_AGENT => Self::default(),
            _ => match name.as_str() {
                "keep-alive" | "proxy-connection" => Self::OF_A_HOP,
                "x-forwarded-host" => Self::UNTRUSTED.and(Self::HOST_ASKED),
                "x-request-id" => Self::REQUEST_ID,
                name => {
                    let untrusted = Self::UNTRUSTED.only_if(is_untrusted(name));
                    untrusted.and(Self::UNDERSCORE.only_if(name.as_bytes().contains(&b'_')))
                }
            },
        }
    }

    const fn only_if(self, is_there: bool) -> Self {
        if is_there { self } else { Self(0) }
    }

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn has(self, any: Self) -> bool {
        self.0 & any.0 != 0
    }
}

/// Whether only a trusted proxy may send a header of this name: what it saw of the client, or another URL than that of the
/// request. `X-Forwarded-For` and `-Proto` are not among them, as they are always written anew.
pub(crate) fn is_untrusted(name: &str) -> bool {
    let Some(name) = name.strip_prefix("x-") else { return false };
    match name.strip_prefix("forwarded-") {
        Some(rest) => rest != "for" && rest != "proto",
        None => name == "real-ip" || name.starts_with("original-") || name.starts_with("rewrite-"),
    }
}

/// Removes white space around a value.
fn trim(value: &mut HeaderValue) {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let bytes = value.as_bytes();
    if !is_space(bytes.first()) && !is_space(bytes.last()) {
        return;
    }
    // A part of a value is a value.
    let Ok(mut trimmed) = HeaderValue::from_bytes(bytes.trim_ascii()) else { return };
    trimmed.set_sensitive(value.is_sensitive());
    *value = trimmed;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::hop_headers;

    #[test]
    fn whatever_is_looked_for_has_its_mark() {
        let marked = |name: &HeaderName| {
            let mut headers = HeaderMap::new();
            headers.insert("accept", HeaderValue::from_static("*/*"));
            headers.insert(name, HeaderValue::from_static("1"));
            headers.insert("user-agent", HeaderValue::from_static("a"));
            Marks::of(&headers)
        };
        for name in &hop_headers::OF_A_HOP {
            assert!(marked(name).has(Marks::OF_A_HOP), "{name}");
        }
        let untrusted = [
            "x-real-ip",
            "x-forwarded-host",
            "x-forwarded-port",
            "x-forwarded-prefix",
            "x-original-url",
            "x-original-host",
            "x-rewrite-url",
        ];
        for name in untrusted.map(HeaderName::from_static) {
            assert!(marked(&name).has(Marks::UNTRUSTED), "{name}");
        }
        for name in ["x-forwarded-for", "x-forwarded-proto", "x-forwarded", "x-originality", "forwarded"] {
            assert_eq!(marked(&HeaderName::from_static(name)), Marks::default(), "{name}");
        }
        assert_eq!(marked(&HeaderName::from_static("x_api_key")), Marks::UNDERSCORE);
        let both = marked(&HeaderName::from_static("x-original-a_b"));
        assert_eq!(both, Marks::UNTRUSTED.and(Marks::UNDERSCORE));
        let single = [
            (CONNECTION, Marks::CONNECTION),
            (UPGRADE, Marks::UPGRADE),
            (TRANSFER_ENCODING, Marks::TRANSFER_ENCODING),
            (CONTENT_LENGTH, Marks::CONTENT_LENGTH),
            (TE, Marks::TE),
            (EXPECT, Marks::EXPECT),
            (COOKIE, Marks::COOKIE),
            (HOST, Marks::HOST),
            (hop_headers::HOST_ASKED, Marks::HOST_ASKED),
            (hop_headers::REQUEST_ID, Marks::REQUEST_ID),
        ];
        for (name, mark) in single {
            assert!(marked(&name).has(mark), "{name}");
        }
        assert_eq!(marked(&ACCEPT_ENCODING), Marks::default());
    }

    #[test]
    fn value_with_white_space_around_it_is_trimmed_and_stays_sensitive() {
        for (sent, expected) in
            [("k", "k"), (" k", "k"), ("k\t", "k"), (" \t k k \t ", "k k"), (" ", ""), ("", "")]
        {
            let mut headers = HeaderMap::new();
            headers.append("x-a", HeaderValue::from_static("first"));
            let mut value = HeaderValue::from_static(sent);
            value.set_sensitive(true);
            headers.append("x-a", value);
            Marks::trimming(&mut headers);
            let last = headers.get_all("x-a").iter().next_back().expect("two values");
            assert_eq!((last.as_bytes(), last.is_sensitive()), (expected.as_bytes(), true), "{sent:?}");
        }
    }
}
