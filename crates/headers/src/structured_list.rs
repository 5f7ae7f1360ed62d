//! Writes lists of strings with parameters (structured fields, RFC 9651).

use bytes::Bytes;
use http::HeaderValue;

use crate::scan::is_plain;

/// The largest integer of a structured field.
pub(crate) const LARGEST_INTEGER: u64 = 999_999_999_999_999;

/// A list that is being written.
pub(crate) struct ListWriter(Vec<u8>);

impl Default for ListWriter {
    fn default() -> Self {
        // Enough for most policies.
        Self(Vec::with_capacity(96))
    }
}

impl ListWriter {
    /// Begins a member; its parameters follow.
    pub(crate) fn member(&mut self, name: &str) {
        if !self.0.is_empty() {
            self.0.extend_from_slice(b", ");
        }
        self.quoted(name);
    }

    pub(crate) fn integer(&mut self, parameter: &str, value: u64) {
        self.0.extend_from_slice(parameter.as_bytes());
        let value = value.min(LARGEST_INTEGER);
        self.0.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }

    pub(crate) fn string(&mut self, parameter: &str, value: &str) {
        self.0.extend_from_slice(parameter.as_bytes());
        self.quoted(value);
    }

    pub(crate) fn finish(self) -> HeaderValue {
        // Visible ASCII is always a valid value.
        HeaderValue::from_maybe_shared(Bytes::from(self.0)).unwrap_or(HeaderValue::from_static(""))
    }

    /// A string may hold visible ASCII only; other bytes are left out.
    fn quoted(&mut self, text: &str) {
        self.0.push(b'"');
        if is_plain(text) {
            self.0.extend_from_slice(text.as_bytes());
            self.0.push(b'"');
            return;
        }
        for byte in text.bytes().filter(|byte| matches!(byte, b' '..=b'~')) {
            if matches!(byte, b'"' | b'\\') {
                self.0.push(b'\\');
            }
            self.0.push(byte);
        }
        self.0.push(b'"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_member_with_special_characters_is_quoted() {
        let mut list = ListWriter::default();
        list.member("a \"b\" \\ ü");
        list.integer(";q=", 1);
        list.string(";qu=", "content-bytes");
        list.member("c");
        list.integer(";q=", u64::MAX);
        assert_eq!(list.finish(), r#""a \"b\" \\ ";q=1;qu="content-bytes", "c";q=999999999999999"#);
    }
}
