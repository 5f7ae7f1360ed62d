//! Headers as the caching rules read them.

use http::header::{AGE, CACHE_CONTROL, Entry, HeaderMap, HeaderName, HeaderValue, PRAGMA, VARY};

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

/// Writes each header on one line. The rules compare only the first line of a header that `Vary` names.
pub(super) fn join_lines(headers: &mut HeaderMap) {
    if headers.len() == headers.keys_len() {
        return;
    }
    let names: Vec<HeaderName> = headers.keys().cloned().collect();
    for name in names {
        let lines: Vec<_> = headers.get_all(&name).iter().map(HeaderValue::as_bytes).collect();
        if lines.len() > 1
            && let Ok(line) = HeaderValue::from_bytes(&lines.join(&b", "[..]))
        {
            headers.insert(name, line);
        }
    }
}

/// Forbids to serve a response with `no-cache` without validation, also to requests that accept stale ones. The rules obey only
/// `must-revalidate` in this case.
pub(super) fn forbid_stale(headers: &mut HeaderMap) {
    let has_no_cache = |name| {
        let mut values = headers.get_all(name).iter();
        values.any(|value| value.to_str().is_ok_and(|text| text.contains("no-cache")))
    };
    let is_legacy = !headers.contains_key(CACHE_CONTROL) && has_no_cache(PRAGMA);
    if is_legacy || has_no_cache(CACHE_CONTROL) {
        headers.append(CACHE_CONTROL, HeaderValue::from_static("no-cache, must-revalidate"));
    }
}

/// The age in seconds: the first member if it is a list by mistake. A number beyond the range is the largest: the rules would
/// take it for none.
pub(super) fn age(headers: &HeaderMap) -> Option<u64> {
    let first = headers.get(AGE)?.to_str().ok()?.split(',').next()?.trim();
    let is_number = !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| first.parse().unwrap_or(u64::MAX))
}
