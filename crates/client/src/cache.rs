//! A response cache in memory (RFC 9111). The rules are those of `http-cache-semantics`.
//!
//! The cache is a *private* one for each user: one client may act for several users, so responses are kept separately for
//! each partition, and for each value of every request header that might identify a user. Nothing is assumed to be fresh
//! without the server saying so. A fresh response is served without a request; a stale one is validated, and served again
//! if the server says that it has not changed. Requests other than a plain GET bypass the cache; those that change a
//! resource remove its responses.
//!
//! A response is stored while the caller reads it, once its body is complete. What is stored is copied: the parts of a
//! response refer to the buffers that it was read into, which are much larger.

mod size;
mod storing_body;
mod table;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_CHARSET, ACCEPT_ENCODING, ACCEPT_LANGUAGE, AGE, CACHE_CONTROL, CONNECTION,
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderName, IF_MATCH, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, LAST_MODIFIED, PRAGMA, RANGE, TE, TRANSFER_ENCODING,
    USER_AGENT,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use http_cache_semantics::{AfterResponse, BeforeRequest};
use tidegate_core::Timestamp;
use tidegate_headers::{CacheKind, cache_policy, clamp_age, normal_request, owned_headers};
use tidegate_store::to_system_time;

use self::storing_body::{PendingEntry, StoringBody};
use self::table::{CacheEntry, CacheKey, CacheTable};
use crate::body::SendBody;
use crate::call::Call;
use crate::client::ClientState;
use crate::error::ClientError;
use crate::response::{BodyEnd, BodyTimeouts, ClientResponse, IncomingBody, ResponsePermits};

/// A response that is longer than this part of the cache is not stored.
const LARGEST_PART: usize = 8;
/// Request headers that identify no user. Responses that depend on them say so in `Vary`. All other headers might be
/// credentials, whatever their names are.
const IMPERSONAL: [HeaderName; 13] = [
    ACCEPT,
    ACCEPT_CHARSET,
    ACCEPT_ENCODING,
    ACCEPT_LANGUAGE,
    CACHE_CONTROL,
    CONNECTION,
    PRAGMA,
    TE,
    USER_AGENT,
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("x-correlation-id"),
    HeaderName::from_static("x-request-id"),
];

/// Stored responses, the least recently used of which are removed first.
pub(crate) struct ResponseCache {
    max_bytes: usize,
    table: Mutex<CacheTable>,
}

/// A request that may change a resource. Unless it is known that it has not, dropping it removes the responses of the resource:
/// the server may have the request, also if the caller no longer waits for the response.
struct PossibleChange<'a> {
    cache: &'a ResponseCache,
    /// `None` if nothing has changed.
    url: Option<String>,
}

impl Drop for PossibleChange<'_> {
    fn drop(&mut self) {
        if let Some(url) = &self.url {
            self.cache.table().remove_url(url);
        }
    }
}

/// A request whose response may be stored.
struct CacheableGet {
    key: CacheKey,
    /// As the caller sent it, without the conditions of a validation.
    request: Request<()>,
    /// The changes of resources before it was sent.
    changes: u64,
}

impl ResponseCache {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, table: Mutex::default() }
    }

    /// Sends a request, unless there is a fresh response to it.
    pub(crate) async fn run(
        self: &Arc<Self>,
        mut call: Call<'_>,
        body: SendBody,
        partition: &str,
        client: &ClientState,
    ) -> Result<ClientResponse, ClientError> {
        if !is_plain_get(call.parts(), &body) {
            return self.bypass(call, body).await;
        }
        let get = CacheableGet::new(call.parts(), partition, self.table().changes());
        let mut stored = self.table().get(&get.key);
        if let Some(entry) = &stored {
            match entry.policy.before_request(&get.request, to_system_time(client.clock.now())) {
                BeforeRequest::Fresh(parts) => return Ok(entry.response(parts.headers.get(AGE), 0, client)),
                BeforeRequest::Stale { request, matches: true } => {
                    for name in [IF_NONE_MATCH, IF_MODIFIED_SINCE] {
                        if let Some(value) = request.headers.get(&name) {
                            call.headers_mut().insert(name, value.clone());
                        }
                    }
                }
                BeforeRequest::Stale { matches: false, .. } => stored = None,
            }
        }
        let response = call.run(body).await?;
        let (Some(entry), StatusCode::NOT_MODIFIED) = (stored, response.status()) else {
            return Ok(self.store(get, response, client));
        };
        if let Some(renewed) = self.renew(&get, &entry, &response, client) {
            return Ok(renewed);
        }
        // The server means another response than the stored one, and the caller has none to use a 304 for.
        self.table().remove(&get.key);
        let attempts = response.attempts();
        drop(response);
        for name in [IF_NONE_MATCH, IF_MODIFIED_SINCE] {
            call.headers_mut().remove(name);
        }
        let response = call.run(SendBody::empty()).await?.with_earlier_attempts(attempts);
        Ok(self.store(get, response, client))
    }

    /// Sends a request that is never served from the cache. One that may have changed a resource removes its responses, also
    /// if its result is not known.
    async fn bypass(&self, call: Call<'_>, body: SendBody) -> Result<ClientResponse, ClientError> {
        if call.parts().method.is_safe() {
            return call.run(body).await;
        }
        let mut change = PossibleChange { cache: self, url: Some(call.parts().uri.to_string()) };
        let response = call.run(body).await;
        let is_error = |status: StatusCode| status.is_client_error() || status.is_server_error();
        if response.as_ref().is_ok_and(|response| is_error(response.status())) {
            change.url = None;
        }
        response
    }

    /// The stored response, if it is the one that the server says has not changed.
    fn renew(
        &self,
        get: &CacheableGet,
        entry: &CacheEntry,
        response: &ClientResponse,
        client: &ClientState,
    ) -> Option<ClientResponse> {
        let (now, not_modified) = (client.clock.now(), head(response.status(), response.headers().clone()));
        let after = entry.policy.after_response(&get.request, &not_modified, to_system_time(now));
        if !matches!(after, AfterResponse::NotModified(..)) {
            return None;
        }
        let mut headers = entry.headers.clone();
        // The stored response is as old as its confirmation.
        headers.remove(AGE);
        // The body is still the old one.
        let of_body = [CONTENT_LENGTH, CONTENT_ENCODING, CONTENT_RANGE, TRANSFER_ENCODING];
        for name in response.headers().keys().filter(|name| !of_body.contains(name)) {
            headers.remove(name);
            for value in response.headers().get_all(name) {
                headers.append(name, value.clone());
            }
        }
        let renewed =
            CacheEntry::new(get, head(entry.status, owned_headers(&headers)), entry.body.clone(), now);
        let renewed_response = renewed.response(None, response.attempts(), client);
        if renewed.policy.is_storable() {
            self.insert(get, renewed);
        } else {
            self.table().remove(&get.key);
        }
        Some(renewed_response)
    }

    /// Stores a response while it is read, if that is allowed and it is small enough.
    fn store(
        self: &Arc<Self>,
        get: CacheableGet,
        response: ClientResponse,
        client: &ClientState,
    ) -> ClientResponse {
        let now = client.clock.now();
        let entry = CacheEntry::new(
            &get,
            head(response.status(), owned_headers(response.headers())),
            Bytes::new(),
            now,
        );
        let is_useful = !entry.policy.time_to_live(to_system_time(now)).is_zero()
            || [ETAG, LAST_MODIFIED].iter().any(|validator| entry.headers.contains_key(validator));
        let largest = (self.max_bytes / LARGEST_PART).saturating_sub(entry.size);
        if !entry.policy.is_storable() || !is_useful || largest == 0 {
            // An older response must not be served as a stale one any more.
            if response.status().is_success() {
                self.table().remove(&get.key);
            }
            return response;
        }
        response.map_body(|body| {
            if body.size_hint().lower() > largest as u64 {
                return body;
            }
            match PendingEntry::new(Arc::clone(self), get, entry, largest) {
                Some(pending) => body.map_transport(|body| StoringBody::new(body, pending).boxed_unsync()),
                None => body,
            }
        })
    }

    /// Stores a response, unless a resource was changed since it was requested: it may be the one before the change.
    fn insert(&self, get: &CacheableGet, entry: CacheEntry) {
        let mut table = self.table();
        if table.changes() == get.changes {
            table.insert(get.key.clone(), entry);
            table.shrink_to(self.max_bytes);
        }
    }

    fn table(&self) -> MutexGuard<'_, CacheTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CacheableGet {
    fn new(parts: &Parts, partition: &str, changes: u64) -> Self {
        let url = parts.uri.to_string();
        // A URI that is parsed again has memory of its own.
        let request = normal_request(url.parse().unwrap_or_default(), owned_headers(&parts.headers));
        let key =
            CacheKey { url: url.into(), partition: partition.into(), user: user_of(&parts.headers).into() };
        Self { key, request, changes }
    }
}

impl CacheEntry {
    /// A response to `get` that was received at `now`. `head` has memory of its own.
    fn new(get: &CacheableGet, mut head: Response<()>, body: Bytes, now: Timestamp) -> Self {
        clamp_age(head.headers_mut());
        let policy = Arc::new(cache_policy(&get.request, &head, now, CacheKind::Private));
        let size = size::of_entry(get, head.headers()) + body.len();
        let (parts, ()) = head.into_parts();
        Self { policy, status: parts.status, headers: parts.headers, body, size, last_use: 0 }
    }

    /// The response that is served.
    fn response(&self, age: Option<&HeaderValue>, attempts: u32, client: &ClientState) -> ClientResponse {
        let body = Full::new(self.body.clone()).map_err(|never| match never {}).boxed_unsync();
        let timeouts = BodyTimeouts {
            clock: Arc::clone(&client.clock),
            stall: client.settings.timeout,
            end_at: Timestamp::MAX,
            end: BodyEnd::Deadline,
        };
        let mut response = Response::new(IncomingBody::new(body, timeouts, ResponsePermits::none()));
        (*response.status_mut(), *response.headers_mut()) = (self.status, self.headers.clone());
        if let Some(age) = age {
            response.headers_mut().insert(AGE, age.clone());
        }
        ClientResponse::new(response, attempts, client.settings.max_body)
    }
}

impl fmt::Debug for ResponseCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseCache").field("max_bytes", &self.max_bytes).finish_non_exhaustive()
    }
}

/// A GET that is not conditional, does not ask for a range and has no body, on which the response could depend.
fn is_plain_get(request: &Parts, body: &SendBody) -> bool {
    let conditions = [IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE];
    let is_conditional = conditions.iter().any(|name| request.headers.contains_key(name));
    request.method == Method::GET && !is_conditional && body.is_end_stream()
}

/// All headers of a request that might identify a user.
fn user_of(headers: &HeaderMap) -> String {
    let mut names: Vec<_> = headers.keys().filter(|name| !IMPERSONAL.contains(name)).collect();
    names.sort_unstable_by_key(|name| name.as_str());
    let mut user = String::new();
    for name in names {
        for value in headers.get_all(name) {
            // Values have no line ends, and a character for each byte keeps different ones different.
            user.push_str(name.as_str());
            user.push(':');
            user.extend(value.as_bytes().iter().map(|byte| char::from(*byte)));
            user.push('\n');
        }
    }
    user
}

fn head(status: StatusCode, headers: HeaderMap) -> Response<()> {
    let mut head = Response::new(());
    (*head.status_mut(), *head.headers_mut()) = (status, headers);
    head
}

#[cfg(test)]
mod tests;
