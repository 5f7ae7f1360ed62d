//! Headers as the caching rules read them.

use http::header::{CACHE_CONTROL, Entry, HeaderMap, HeaderValue, PRAGMA, VARY};

/// Writes directives in lower case and in ASCII. The rules know directives only in this form, and ignore a whole value with any
/// other byte: `No-Store` would be stored.
pub(super) fn normalize(headers: &mut HeaderMap) {
    for name in [CACHE_CONTROL, PRAGMA, VARY] {
        let Entry::Occupied(mut values) = headers.entry(name) else { continue };
        for value in values.iter_mut() {
            let to_ascii = |byte: &u8| if byte.is_ascii() { byte.to_ascii_lowercase() } else { b'?' };
            let normal: Vec<u8> = value.as_bytes().iter().map(to_ascii).collect();
            if let Ok(normal) = HeaderValue::from_bytes(&normal) {
                *value = normal;
            }
        }
    }
}
