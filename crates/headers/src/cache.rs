//! When a response may be stored and served again (RFC 9111), for the caches of the workspace.
//!
//! The rules are those of `http-cache-semantics`. What it reads less strictly than a cache must is corrected here: directives in
//! upper case, headers of several lines, and numbers beyond its range.

use std::time::{Duration, UNIX_EPOCH};

use http::header::{
    AGE, AUTHORIZATION, CACHE_CONTROL, CONTENT_RANGE, COOKIE, Entry, HeaderMap, HeaderName, HeaderValue,
    PRAGMA, SET_COOKIE, TRAILER, VARY,
};
use http::{Request, Response, StatusCode, Uri};
use http_cache_semantics::{CacheOptions, CachePolicy};
use tidegate_core::Timestamp;

/// A response that says to be older is taken to be this old: sums of times must not overflow.
const OLDEST: u64 = u32::MAX as u64;

/// Whom a cache serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheKind {
    /// One user.
    Private,
    /// Many users.
    Shared,
}

/// The policy of a response to a `request` that [`normal_request`] has made. Freshness is never guessed: a resource that has not
/// changed for years may change now.
pub fn cache_policy(
    request: &Request<()>,
    response: &Response<()>,
    received: Timestamp,
    kind: CacheKind,
) -> CachePolicy {
    let options = CacheOptions {
        shared: kind == CacheKind::Shared,
        cache_heuristic: 0.0,
        immutable_min_time_to_live: Duration::from_hours(24),
        ignore_cargo_cult: false,
    };
    let mut normal = Response::new(());
    (*normal.status_mut(), *normal.headers_mut()) = (response.status(), response.headers().clone());
    clamp_age(normal.headers_mut());
    normalize(normal.headers_mut());
    forbid_stale(normal.headers_mut());
    CachePolicy::new_options(request, &normal, UNIX_EPOCH + since_epoch(received), options)
}

fn since_epoch(time: Timestamp) -> Duration {
    Duration::from_micros(time.as_micros())
}

/// A request as the rules read it. `headers` are lost to the caller.
pub fn normal_request(uri: Uri, headers: HeaderMap) -> Request<()> {
    let mut request = Request::new(());
    (*request.uri_mut(), *request.headers_mut()) = (uri, headers);
    normalize(request.headers_mut());
    join_lines(request.headers_mut());
    request
}

/// Writes an age beyond the range of the rules, which would take it for none, and one that is a list by mistake, as a number.
pub fn clamp_age(headers: &mut HeaderMap) {
    if let Some(age) = age(headers) {
        headers.insert(AGE, age.min(OLDEST).into());
    }
}

/// How a shared cache may serve a response to several users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedUse {
    /// How old it was when it was received.
    pub age: Duration,
    /// How long it stays fresh from then on.
    pub fresh_for: Duration,
    /// Whether an operator may choose to serve it when it is no longer fresh.
    pub allows_stale: bool,
}

impl SharedUse {
    /// How a complete response to a GET may be served; `None` if never. What could be meant for one user is not stored, also if the
    /// rules allow it: responses to requests with credentials or cookies, responses that set cookies, and those that a server must
    /// be asked about each time.
    pub fn of(request: &Request<()>, response: &Response<()>, received: Timestamp) -> Option<Self> {
        let (sent, headers) = (request.headers(), response.headers());
        let is_personal = [AUTHORIZATION, COOKIE].iter().any(|name| sent.contains_key(name))
            || [SET_COOKIE, CONTENT_RANGE, TRAILER].iter().any(|name| headers.contains_key(name));
        // By their text: a value that the rules cannot parse may mean them.
        let says = |name: &HeaderName, words: &[&str]| {
            headers.get_all(name).iter().any(|value| {
                let text = value.as_bytes().to_ascii_lowercase();
                words.iter().any(|word| text.windows(word.len()).any(|part| part == word.as_bytes()))
            })
        };
        if is_personal
            || response.status() != StatusCode::OK
            || says(&CACHE_CONTROL, &["private", "no-store", "no-cache"])
            || says(&PRAGMA, &["no-cache"])
            || says(&VARY, &["*"])
        {
            return None;
        }
        let policy = cache_policy(request, response, received, CacheKind::Shared);
        let received = UNIX_EPOCH + since_epoch(received);
        policy.is_storable().then(|| Self {
            age: policy.age(received),
            fresh_for: policy.time_to_live(received),
            allows_stale: !says(&CACHE_CONTROL, &["must-revalidate", "proxy-revalidate", "s-maxage"]),
        })
    }
}

/// The headers that `Vary` names; `None` if a value is none.
pub fn varying_headers(response: &HeaderMap) -> Option<Vec<HeaderName>> {
    let mut names = Vec::new();
    for value in response.get_all(VARY) {
        for name in value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            if !name.is_empty() {
                names.push(HeaderName::from_bytes(name).ok()?);
            }
        }
    }
    Some(names)
}

/// Headers with memory of their own, and none beyond it.
pub fn owned_headers(headers: &HeaderMap) -> HeaderMap {
    let mut copies = HeaderMap::with_capacity(headers.keys_len());
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_str().as_bytes());
        if let (Ok(name), Ok(mut copy)) = (name, HeaderValue::from_bytes(value.as_bytes())) {
            copy.set_sensitive(value.is_sensitive());
            copies.append(name, copy);
        }
    }
    copies
}

/// Writes directives in lower case and in ASCII. The rules know directives only in this form, and ignore a whole value with any
/// other byte: `No-Store` would be stored.
fn normalize(headers: &mut HeaderMap) {
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
fn join_lines(headers: &mut HeaderMap) {
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
fn forbid_stale(headers: &mut HeaderMap) {
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
fn age(headers: &HeaderMap) -> Option<u64> {
    let first = headers.get(AGE)?.to_str().ok()?.split(',').next()?.trim();
    let is_number = !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| first.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
