//! What one look at the headers of a message finds of those that mean something on the way.
//!
//! Most messages have hardly any of them, and looking at a handful of names once costs less than a search for each.

use http::HeaderMap;
use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION,
    TE, TRANSFER_ENCODING, UPGRADE,
};

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
            _ => match name.as_str() {
                "keep-alive" | "proxy-connection" => Self::OF_A_HOP,
                "x-real-ip" | "x-forwarded-port" => Self::UNTRUSTED,
                "x-forwarded-host" => Self::UNTRUSTED.and(Self::HOST_ASKED),
                "x-request-id" => Self::REQUEST_ID,
                _ => Self::default(),
            },
        }
    }

    const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn has(self, any: Self) -> bool {
        self.0 & any.0 != 0
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::forward;

    #[test]
    fn whatever_is_looked_for_has_its_mark() {
        let marked = |name: &HeaderName| {
            let mut headers = HeaderMap::new();
            headers.insert("accept", HeaderValue::from_static("*/*"));
            headers.insert(name, HeaderValue::from_static("1"));
            headers.insert("user-agent", HeaderValue::from_static("a"));
            Marks::of(&headers)
        };
        for name in &forward::OF_A_HOP {
            assert!(marked(name).has(Marks::OF_A_HOP), "{name}");
        }
        for name in &forward::UNTRUSTED {
            assert!(marked(name).has(Marks::UNTRUSTED), "{name}");
        }
        let single = [
            (CONNECTION, Marks::CONNECTION),
            (UPGRADE, Marks::UPGRADE),
            (TRANSFER_ENCODING, Marks::TRANSFER_ENCODING),
            (CONTENT_LENGTH, Marks::CONTENT_LENGTH),
            (TE, Marks::TE),
            (EXPECT, Marks::EXPECT),
            (COOKIE, Marks::COOKIE),
            (HOST, Marks::HOST),
            (forward::HOST_ASKED, Marks::HOST_ASKED),
            (forward::REQUEST_ID, Marks::REQUEST_ID),
        ];
        for (name, mark) in single {
            assert!(marked(&name).has(mark), "{name}");
        }
        assert_eq!(marked(&http::header::ACCEPT_ENCODING), Marks::default());
    }
}
