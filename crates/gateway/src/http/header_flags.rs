//! The headers of a message that the gateway must process, found in one pass.
//!
//! Most messages have few of them, and comparing each name once costs less than a lookup for each of them.

use bitflags::bitflags;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH,
    CONTENT_TYPE, COOKIE, EXPECT, HOST, HeaderName, ORIGIN, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, REFERER,
    TE, TRANSFER_ENCODING, UPGRADE, USER_AGENT,
};
use http::{HeaderMap, Version};
use tidegate_policy::{HeaderTraits, has_unusual_character, is_proxy_header, trim_value};

bitflags! {
    /// Which headers a message has.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct HeaderFlags: u16 {
        const CONNECTION = 1;
        const UPGRADE = 1 << 1;
        /// Other hop-by-hop headers, listed in `Connection` or not.
        const HOP_BY_HOP = 1 << 2;
        const TRANSFER_ENCODING = 1 << 3;
        const CONTENT_LENGTH = 1 << 4;
        const TE = 1 << 5;
        const EXPECT = 1 << 6;
        const COOKIE = 1 << 7;
        /// Headers that only a trusted proxy may send.
        const UNTRUSTED = 1 << 8;
        const FORWARDED_HOST = 1 << 9;
        const REQUEST_ID = 1 << 10;
        /// A name with an underscore or another unusual character.
        const UNUSUAL_NAME = 1 << 11;
        /// How long the client waits.
        const DEADLINE = 1 << 12;
        const HOST = 1 << 13;
    }
}

impl HeaderFlags {
    /// Scans a request. Must run before anything else reads its headers: it trims values over HTTP/2. HTTP/1.1 and servers
    /// trim them anyway, so a value has one spelling.
    pub(crate) fn scan_request(version: Version, headers: &mut HeaderMap) -> Self {
        if version == Version::HTTP_2 { Self::scan_and_trim(headers) } else { Self::scan(headers) }
    }

    /// Scans headers and trims their values.
    pub(crate) fn scan_and_trim(headers: &mut HeaderMap) -> Self {
        headers.iter_mut().fold(Self::empty(), |all, (name, value)| {
            trim_value(value);
            all | Self::for_name(name)
        })
    }

    pub(crate) fn scan(headers: &HeaderMap) -> Self {
        headers.keys().fold(Self::empty(), |all, name| all | Self::for_name(name))
    }

    /// Those that the reading of a request needs.
    #[inline]
    pub(crate) fn traits(self) -> HeaderTraits {
        HeaderTraits {
            connection: self.contains(Self::CONNECTION),
            transfer_encoding: self.contains(Self::TRANSFER_ENCODING),
            proxy: self.contains(Self::UNTRUSTED),
            unusual_name: self.contains(Self::UNUSUAL_NAME),
        }
    }

    fn for_name(name: &HeaderName) -> Self {
        match *name {
            CONNECTION => Self::CONNECTION,
            UPGRADE => Self::UPGRADE,
            PROXY_AUTHENTICATE | PROXY_AUTHORIZATION => Self::HOP_BY_HOP,
            TRANSFER_ENCODING => Self::TRANSFER_ENCODING.union(Self::HOP_BY_HOP),
            CONTENT_LENGTH => Self::CONTENT_LENGTH,
            TE => Self::TE,
            EXPECT => Self::EXPECT,
            COOKIE => Self::COOKIE,
            HOST => Self::HOST,
            // The most frequent others are compared without their text.
            ACCEPT | ACCEPT_ENCODING | ACCEPT_LANGUAGE | AUTHORIZATION | CACHE_CONTROL | CONTENT_TYPE
            | ORIGIN | REFERER | USER_AGENT => Self::empty(),
            _ => match name.as_str() {
                "keep-alive" | "proxy-connection" => Self::HOP_BY_HOP,
                "x-forwarded-host" => Self::UNTRUSTED.union(Self::FORWARDED_HOST),
                "x-request-id" => Self::REQUEST_ID,
                "grpc-timeout" | "x-request-deadline-ms" | "x-envoy-expected-rq-timeout-ms" => Self::DEADLINE,
                name => {
                    let mut flags = Self::empty();
                    flags.set(Self::UNTRUSTED, is_proxy_header(name));
                    flags.set(Self::UNUSUAL_NAME, has_unusual_character(name));
                    flags
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header::HeaderValue;

    use super::*;
    use crate::http::hop_headers;

    #[test]
    fn scan_headers_sets_the_flag_of_each_name() {
        let flags_of = |name: &HeaderName| {
            let mut headers = HeaderMap::new();
            headers.insert("accept", HeaderValue::from_static("*/*"));
            headers.insert(name, HeaderValue::from_static("1"));
            headers.insert("user-agent", HeaderValue::from_static("a"));
            HeaderFlags::scan(&headers)
        };
        for name in &hop_headers::HOP_BY_HOP {
            assert!(flags_of(name).contains(HeaderFlags::HOP_BY_HOP), "{name}");
        }
        let untrusted = [
            "x-real-ip",
            "x-forwarded-host",
            "x-forwarded-port",
            "x-forwarded-prefix",
            "x-original-url",
            "x-original-host",
            "x-rewrite-url",
            "x-criticality",
            "x-tidegate-degrade",
        ];
        for name in untrusted.map(HeaderName::from_static) {
            assert!(flags_of(&name).contains(HeaderFlags::UNTRUSTED), "{name}");
        }
        for name in ["x-forwarded-for", "x-forwarded-proto", "x-forwarded", "x-originality", "forwarded"] {
            assert_eq!(flags_of(&HeaderName::from_static(name)), HeaderFlags::empty(), "{name}");
        }
        for name in ["x_api_key", "x.api.key", "x-api~key"] {
            assert_eq!(flags_of(&HeaderName::from_static(name)), HeaderFlags::UNUSUAL_NAME, "{name}");
        }
        let both = flags_of(&HeaderName::from_static("x-original-a_b"));
        assert_eq!(both, HeaderFlags::UNTRUSTED | HeaderFlags::UNUSUAL_NAME);
        for name in ["grpc-timeout", "x-request-deadline-ms", "x-envoy-expected-rq-timeout-ms"] {
            assert_eq!(flags_of(&HeaderName::from_static(name)), HeaderFlags::DEADLINE, "{name}");
        }
        let single = [
            (CONNECTION, HeaderFlags::CONNECTION),
            (UPGRADE, HeaderFlags::UPGRADE),
            (TRANSFER_ENCODING, HeaderFlags::TRANSFER_ENCODING),
            (CONTENT_LENGTH, HeaderFlags::CONTENT_LENGTH),
            (TE, HeaderFlags::TE),
            (EXPECT, HeaderFlags::EXPECT),
            (COOKIE, HeaderFlags::COOKIE),
            (hop_headers::FORWARDED_HOST, HeaderFlags::FORWARDED_HOST),
            (tidegate_headers::REQUEST_ID, HeaderFlags::REQUEST_ID),
        ];
        for (name, flag) in single {
            assert!(flags_of(&name).contains(flag), "{name}");
        }
        assert_eq!(flags_of(&ACCEPT_ENCODING), HeaderFlags::empty());
    }

    #[test]
    fn scan_and_trim_value_with_whitespace_is_trimmed_and_stays_sensitive() {
        for (sent, expected) in
            [("k", "k"), (" k", "k"), ("k\t", "k"), (" \t k k \t ", "k k"), (" ", ""), ("", "")]
        {
            let mut headers = HeaderMap::new();
            headers.append("x-a", HeaderValue::from_static("first"));
            let mut value = HeaderValue::from_static(sent);
            value.set_sensitive(true);
            headers.append("x-a", value);
            HeaderFlags::scan_and_trim(&mut headers);
            let last = headers.get_all("x-a").iter().next_back().expect("two values");
            assert_eq!((last.as_bytes(), last.is_sensitive()), (expected.as_bytes(), true), "{sent:?}");
        }
    }
}
