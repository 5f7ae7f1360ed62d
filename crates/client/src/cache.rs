//! A response cache in memory (RFC 9111). The rules are those of `http-cache-semantics`.
//!
//! The cache behaves as a *shared* one: one client may act for several users, so responses that are `private`, or that
//! belong to an `Authorization` and are not explicitly public, are not stored. One response is kept for each URL and partition. A fresh
//! response is served without a request; a stale one is validated, and served again if the server says that it has not
//! changed. Requests other than a plain GET bypass the cache; those that change a resource remove its response.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::header::{IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE};
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode, response};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use http_cache_semantics::{AfterResponse, BeforeRequest, CacheOptions, CachePolicy};
use tidegate_core::Timestamp;
use tidegate_store::to_system_time;

use crate::body::SendBody;
use crate::call::Call;
use crate::client::ClientState;
use crate::error::ClientError;
use crate::response::{BodyEnd, BodyTimeouts, ClientResponse, IncomingBody, ResponsePermits, collect};

/// What an entry occupies beside its texts: its policy, its places in two tables and the tables of its headers.
const ENTRY_BYTES: usize = 1 << 10;
/// What a header occupies beside its name and value.
const HEADER_BYTES: usize = 64;
/// A response that is longer than this part of the cache is not stored.
const LARGEST_PART: usize = 8;

/// Stored responses, the least recently used of which are removed first.
pub(crate) struct ResponseCache {
    max_bytes: usize,
    table: Mutex<CacheTable>,
}

#[derive(Default)]
struct CacheTable {
    entries: BTreeMap<CacheKey, CacheEntry>,
    /// The keys in the order of their last use.
    order: BTreeMap<u64, CacheKey>,
    uses: u64,
    bytes: usize,
}

/// What a response is stored for. Partitions are accounts, so each has responses of its own.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct CacheKey {
    url: Arc<str>,
    partition: Arc<str>,
}

/// A request whose response may be stored.
struct CacheableGet {
    key: CacheKey,
    /// As the caller sent it, without the conditions of a validation.
    request: Parts,
}

#[derive(Clone)]
struct CacheEntry {
    policy: Arc<CachePolicy>,
    body: Bytes,
    /// What the entry occupies.
    size: usize,
    last_use: u64,
}

impl ResponseCache {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, table: Mutex::default() }
    }

    /// Sends a request, unless there is a fresh response to it.
    pub(crate) async fn run(
        &self,
        mut call: Call<'_>,
        body: SendBody,
        partition: &str,
        client: &ClientState,
    ) -> Result<ClientResponse, ClientError> {
        let key = CacheKey { url: call.parts().uri.to_string().into(), partition: partition.into() };
        if !is_plain_get(call.parts()) {
            let changes = !call.parts().method.is_safe();
            let response = call.run(body).await?;
            if changes && !response.status().is_client_error() && !response.status().is_server_error() {
                self.table().remove_url(&key.url);
            }
            return Ok(response);
        }
        let get = CacheableGet { key, request: call.parts().clone() };
        // A body that cannot be sent again allows no second request, which a failed validation needs.
        let copy = body.try_clone();
        let mut stored = copy.is_some().then(|| self.table().get(&get.key)).flatten();
        if let Some(entry) = &stored {
            match entry.policy.before_request(&get.request, to_system_time(client.clock.now())) {
                BeforeRequest::Fresh(parts) => return Ok(complete(parts, entry.body.clone(), 0, client)),
                BeforeRequest::Stale { request, matches: true } => call.set_headers(request.headers),
                BeforeRequest::Stale { matches: false, .. } => stored = None,
            }
        }
        let response = call.run(body).await?;
        let (Some(entry), Some(copy), StatusCode::NOT_MODIFIED) = (stored, copy, response.status()) else {
            return self.store(get, response, client).await;
        };
        if let Some(renewed) = self.renew(&get, entry, &response, client) {
            return Ok(renewed);
        }
        // The server means another response than the stored one, and the caller has none to use a 304 for.
        self.table().remove(&get.key);
        let attempts = response.attempts();
        drop(response);
        call.set_headers(get.request.headers.clone());
        let response = call.run(copy).await?.with_earlier_attempts(attempts);
        self.store(get, response, client).await
    }

    /// The stored response, if it is the one that the server says has not changed.
    fn renew(
        &self,
        get: &CacheableGet,
        entry: CacheEntry,
        response: &ClientResponse,
        client: &ClientState,
    ) -> Option<ClientResponse> {
        let head = head_of(response);
        let now = to_system_time(client.clock.now());
        let AfterResponse::NotModified(policy, parts) = entry.policy.after_response(&get.request, &head, now)
        else {
            return None;
        };
        let size = get.size_of_entry(&parts.headers) + entry.body.len();
        self.insert(get.key.clone(), policy, entry.body.clone(), size);
        Some(complete(parts, entry.body, response.attempts(), client))
    }

    /// Stores a response if that is allowed and it is small enough.
    async fn store(
        &self,
        get: CacheableGet,
        response: ClientResponse,
        client: &ClientState,
    ) -> Result<ClientResponse, ClientError> {
        let options = CacheOptions { shared: true, ..CacheOptions::default() };
        let now = to_system_time(client.clock.now());
        let policy = CachePolicy::new_options(&get.request, &head_of(&response), now, options);
        let attempts = response.attempts();
        let (parts, body) = response.into_http().into_parts();
        let head = get.size_of_entry(&parts.headers);
        let largest = (self.max_bytes / LARGEST_PART).saturating_sub(head);
        let is_small = largest > 0 && body.size_hint().upper().is_some_and(|length| length <= largest as u64);
        if !policy.is_storable() || !is_small {
            let response = Response::from_parts(parts, body);
            return Ok(ClientResponse::new(response, attempts, client.settings.max_body));
        }
        let body = collect(body, largest).await?;
        let size = head + body.len();
        self.insert(get.key, policy, body.clone(), size);
        Ok(complete(parts, body, attempts, client))
    }

    fn insert(&self, key: CacheKey, policy: CachePolicy, body: Bytes, size: usize) {
        let mut table = self.table();
        table.insert(key, policy, body, size);
        table.shrink_to(self.max_bytes);
    }

    fn table(&self) -> MutexGuard<'_, CacheTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CacheableGet {
    /// What an entry occupies, except its body. Its policy holds the headers of the request and of the response.
    fn size_of_entry(&self, response: &HeaderMap) -> usize {
        let headers = self.request.headers.iter().chain(response);
        let headers = headers.map(|(name, value)| HEADER_BYTES + name.as_str().len() + value.len());
        // The URL is held by the key and by the policy.
        ENTRY_BYTES + 2 * self.key.url.len() + self.key.partition.len() + headers.sum::<usize>()
    }
}

impl CacheTable {
    fn get(&mut self, key: &CacheKey) -> Option<CacheEntry> {
        let entry = self.entries.get_mut(key)?;
        self.uses += 1;
        if let Some(key) = self.order.remove(&entry.last_use) {
            self.order.insert(self.uses, key);
        }
        entry.last_use = self.uses;
        Some(entry.clone())
    }

    fn insert(&mut self, key: CacheKey, policy: CachePolicy, body: Bytes, size: usize) {
        self.remove(&key);
        self.uses += 1;
        self.bytes += size;
        self.order.insert(self.uses, key.clone());
        let entry = CacheEntry { policy: Arc::new(policy), body, size, last_use: self.uses };
        self.entries.insert(key, entry);
    }

    fn remove(&mut self, key: &CacheKey) {
        if let Some(entry) = self.entries.remove(key) {
            self.order.remove(&entry.last_use);
            self.bytes -= entry.size;
        }
    }

    /// Removes the responses of all partitions: a change of a resource is one for all accounts.
    fn remove_url(&mut self, url: &Arc<str>) {
        let first = CacheKey { url: Arc::clone(url), partition: "".into() };
        let keys = self.entries.range(first..).map(|(key, _)| key);
        let keys: Vec<_> = keys.take_while(|key| key.url == *url).cloned().collect();
        for key in &keys {
            self.remove(key);
        }
    }

    fn shrink_to(&mut self, max_bytes: usize) {
        while self.bytes > max_bytes {
            let Some((_, oldest)) = self.order.first_key_value() else { return };
            let oldest = oldest.clone();
            self.remove(&oldest);
        }
    }
}

impl fmt::Debug for ResponseCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseCache").field("max_bytes", &self.max_bytes).finish_non_exhaustive()
    }
}

/// A GET that is not conditional and does not ask for a range.
fn is_plain_get(request: &Parts) -> bool {
    let conditions = [IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE];
    request.method == Method::GET && !conditions.iter().any(|name| request.headers.contains_key(name))
}

fn head_of(response: &ClientResponse) -> Response<()> {
    let mut head = Response::new(());
    *head.status_mut() = response.status();
    *head.headers_mut() = response.headers().clone();
    head
}

/// A response whose body is in memory.
fn complete(parts: response::Parts, body: Bytes, attempts: u32, client: &ClientState) -> ClientResponse {
    let body = Full::new(body).map_err(|never| match never {}).boxed_unsync();
    let timeouts = BodyTimeouts {
        clock: Arc::clone(&client.clock),
        stall: client.settings.timeout,
        end_at: Timestamp::MAX,
        end: BodyEnd::Deadline,
    };
    let body = IncomingBody::new(body, timeouts, ResponsePermits::none());
    ClientResponse::new(Response::from_parts(parts, body), attempts, client.settings.max_body)
}

#[cfg(test)]
mod tests;
