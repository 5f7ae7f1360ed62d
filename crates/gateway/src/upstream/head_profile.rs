//! What an HTTP/2 server may not accept in the head of a request.
//!
//! A server may close a connection because of a head that is too large, or because of trailers; nginx does both. That ends
//! all requests of the connection. So a head larger than any that the server has accepted gets a connection of its own, as
//! does a request that announces trailers, and because the client has chosen that, its failure says nothing about the
//! server.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::StatusCode;
use http::header::TRAILER;
use http::request::Parts;

/// Larger heads may be refused: common limits start at twice as much.
const USUAL_HEAD: usize = 8 << 10;
/// The same for a single field: common limits start here.
const USUAL_FIELD: usize = 4 << 10;

/// The bytes of the longest Huffman code of HPACK (RFC 7541), which is used for all values.
const LONGEST_CODE: usize = 4;

/// How long a text is at most in the Huffman code of HPACK. Some servers limit this length. It is longer than the text
/// itself for all but letters, digits and the usual punctuation: three times for bytes that are not ASCII.
fn coded_length(text: &[u8]) -> usize {
    text.iter().map(|byte| code_length(*byte)).sum()
}

/// The bytes of a Huffman code, rounded up.
fn code_length(byte: u8) -> usize {
    match byte {
        b'a'..=b'z'
        | b'A'..=b'Z'
        | b'0'..=b'9'
        | b' '
        | b'%'
        | b'&'
        | b'*'
        | b','
        | b'-'
        | b'.'
        | b'/'
        | b':'
        | b';'
        | b'='
        | b'_' => 1,
        b'\\' => 3,
        b'!'..=b'~' => 2,
        _ => LONGEST_CODE,
    }
}

/// The properties of a request head that a server may not accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeadProfile {
    total: usize,
    longest_field: usize,
    /// Others are not forwarded.
    pub(super) announces_trailers: bool,
}

impl HeadProfile {
    pub(super) fn of(head: &Parts) -> Self {
        let lengths = Self::measure(head, <[u8]>::len);
        // Smaller heads are usual in any coding.
        let is_small =
            lengths.longest_field <= USUAL_FIELD / LONGEST_CODE && lengths.total <= USUAL_HEAD / LONGEST_CODE;
        if is_small { lengths } else { Self::measure(head, coded_length) }
    }

    fn measure(head: &Parts, length: impl Fn(&[u8]) -> usize) -> Self {
        let target = head.uri.path_and_query().map_or(0, |target| length(target.as_str().as_bytes()));
        let mut profile = Self { total: target, longest_field: target, announces_trailers: false };
        for (name, value) in &head.headers {
            let field = name.as_str().len() + length(value.as_bytes());
            profile.total += field;
            profile.longest_field = profile.longest_field.max(field);
            profile.announces_trailers |= *name == TRAILER;
        }
        profile
    }

    /// Whether a server may refuse it.
    pub(super) fn is_unusual(self) -> bool {
        self.total > USUAL_HEAD || self.longest_field > USUAL_FIELD || self.announces_trailers
    }
}

/// The largest head that a server has accepted.
#[derive(Debug)]
pub(super) struct AcceptedHead {
    total: AtomicUsize,
    longest_field: AtomicUsize,
}

impl Default for AcceptedHead {
    fn default() -> Self {
        Self { total: AtomicUsize::new(USUAL_HEAD), longest_field: AtomicUsize::new(USUAL_FIELD) }
    }
}

impl AcceptedHead {
    /// Whether the server has accepted such a head. A response may precede trailers, so it does not say that they are
    /// accepted.
    pub(super) fn includes(&self, head: HeadProfile) -> bool {
        head.total <= self.total.load(Ordering::Relaxed)
            && head.longest_field <= self.longest_field.load(Ordering::Relaxed)
            && !head.announces_trailers
    }

    /// The server has responded to such a head.
    pub(super) fn record(&self, head: HeadProfile, status: StatusCode) {
        if !status.is_client_error() && !self.includes(head) {
            self.total.fetch_max(head.total, Ordering::Relaxed);
            self.longest_field.fetch_max(head.longest_field, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn profile(uri: &str, headers: &[(&str, usize)]) -> HeadProfile {
        let mut request = Request::get(uri);
        for (name, length) in headers {
            request = request.header(*name, "a".repeat(*length));
        }
        HeadProfile::of(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn head_profile_counts_target_names_and_values() {
        let head = profile("http://a.example/abc?d", &[("x-a", 10), ("x-a", 20)]);
        assert_eq!((head.total, head.longest_field), (6 + 13 + 23, 23));
        assert!(!head.is_unusual());
        assert!(profile("/", &[("x-a", USUAL_FIELD)]).is_unusual());
        let many = [("x-a", 3_000), ("x-b", 3_000), ("x-c", 3_000)];
        assert!(profile("/", &many).is_unusual() && !profile("/", &many[..2]).is_unusual());
        assert!(profile("/", &[("trailer", 5)]).is_unusual());
    }

    #[test]
    fn head_profile_of_a_large_head_counts_the_longest_codes() {
        let field = |byte: u8, length: usize| {
            let value = http::HeaderValue::from_bytes(&vec![byte; length]).unwrap();
            let request = Request::get("/").header("x-a", value).body(()).unwrap();
            HeadProfile::of(&request.into_parts().0)
        };
        assert_eq!(field(0x80, 1_000).longest_field, 1_003, "cannot be too long");
        assert_eq!(field(0x80, 2_000).longest_field, 8_003);
        assert_eq!(field(b'\\', 2_000).longest_field, 6_003);
        assert_eq!(field(b'{', 2_000).longest_field, 4_003);
        assert_eq!(field(b'a', 2_000).longest_field, 2_003);
        assert!(field(0x80, 2_000).is_unusual() && !field(b'a', 2_000).is_unusual());
    }

    #[test]
    fn accepted_head_grows_with_responses_other_than_client_errors() {
        let (accepted, large) = (AcceptedHead::default(), profile("/", &[("x-a", 20_000)]));
        assert!(accepted.includes(profile("/", &[("x-a", 100)])) && !accepted.includes(large));
        for status in [StatusCode::BAD_REQUEST, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE] {
            accepted.record(large, status);
            assert!(!accepted.includes(large));
        }
        accepted.record(large, StatusCode::OK);
        assert!(accepted.includes(large) && !accepted.includes(profile("/", &[("x-a", 20_001)])));
    }

    #[test]
    fn accepted_head_of_many_fields_does_not_include_one_long_field() {
        let accepted = AcceptedHead::default();
        accepted.record(profile("/", &[("x-a", 4_000); 10]), StatusCode::OK);
        assert!(accepted.includes(profile("/", &[("x-a", 4_000); 9])));
        assert!(!accepted.includes(profile("/", &[("x-a", 20_000)])));
        accepted.record(profile("/", &[("trailer", 5)]), StatusCode::OK);
        assert!(!accepted.includes(profile("/", &[("trailer", 5)])));
    }
}
