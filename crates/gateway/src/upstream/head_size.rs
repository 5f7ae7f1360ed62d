//! How large the head of a request is for an HTTP/2 server.
//!
//! A server may close a connection because of a head that it does not accept; nginx does. That ends all requests of the
//! connection. So a head larger than any that the server has accepted gets a connection of its own, and because the client
//! has chosen its size, its failure says nothing about the server.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::StatusCode;
use http::request::Parts;

/// Larger heads may be refused: common limits start at twice as much.
const USUAL_HEAD: usize = 8 << 10;
/// The same for a single field: common limits start here.
const USUAL_FIELD: usize = 4 << 10;

/// The size of a request head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeadSize {
    total: usize,
    longest_field: usize,
}

impl HeadSize {
    pub(super) fn of(head: &Parts) -> Self {
        let target = head.uri.path_and_query().map_or(0, |target| target.as_str().len());
        let mut size = Self { total: target, longest_field: target };
        for (name, value) in &head.headers {
            let field = name.as_str().len() + value.len();
            size.total += field;
            size.longest_field = size.longest_field.max(field);
        }
        size
    }

    /// Whether a server may refuse it.
    pub(super) fn is_large(self) -> bool {
        self.total > USUAL_HEAD || self.longest_field > USUAL_FIELD
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
    /// Whether the server has accepted a head of this size.
    pub(super) fn includes(&self, size: HeadSize) -> bool {
        size.total <= self.total.load(Ordering::Relaxed)
            && size.longest_field <= self.longest_field.load(Ordering::Relaxed)
    }

    /// The server has responded to a head of this size.
    pub(super) fn record(&self, size: HeadSize, status: StatusCode) {
        if !status.is_client_error() && !self.includes(size) {
            self.total.fetch_max(size.total, Ordering::Relaxed);
            self.longest_field.fetch_max(size.longest_field, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn size(uri: &str, headers: &[(&str, usize)]) -> HeadSize {
        let mut request = Request::get(uri);
        for (name, length) in headers {
            request = request.header(*name, "a".repeat(*length));
        }
        HeadSize::of(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn head_size_includes_target_names_and_values() {
        let sized = size("http://a.example/abc?d", &[("x-a", 10), ("x-a", 20)]);
        assert_eq!(sized, HeadSize { total: 6 + 13 + 23, longest_field: 23 });
        assert!(!sized.is_large());
        assert!(size("/", &[("x-a", USUAL_FIELD)]).is_large());
        let many = [("x-a", 3_000), ("x-b", 3_000), ("x-c", 3_000)];
        assert!(size("/", &many).is_large() && !size("/", &many[..2]).is_large());
    }

    #[test]
    fn accepted_head_grows_with_responses_other_than_client_errors() {
        let (accepted, large) = (AcceptedHead::default(), size("/", &[("x-a", 20_000)]));
        assert!(accepted.includes(size("/", &[("x-a", 100)])) && !accepted.includes(large));
        for status in [StatusCode::BAD_REQUEST, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE] {
            accepted.record(large, status);
            assert!(!accepted.includes(large));
        }
        accepted.record(large, StatusCode::OK);
        assert!(accepted.includes(large) && !accepted.includes(size("/", &[("x-a", 20_001)])));
    }

    #[test]
    fn accepted_head_of_many_fields_does_not_include_one_long_field() {
        let accepted = AcceptedHead::default();
        accepted.record(size("/", &[("x-a", 4_000); 10]), StatusCode::OK);
        assert!(accepted.includes(size("/", &[("x-a", 4_000); 9])));
        assert!(!accepted.includes(size("/", &[("x-a", 20_000)])));
    }
}
