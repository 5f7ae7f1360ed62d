//! Serves the last complete response to a request that exceeds its limit.
//!
//! The responses are those that clients within their limits got: a response to a plain GET is copied while it is forwarded. They
//! are served at most as long as the limit and the server allow, to requests of the same key. A request that may change a resource
//! makes its responses invalid.

mod copying_body;
mod memory;
mod plain_get;

use std::sync::Arc;

use http::header::{AGE, CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Response, StatusCode, Uri, Version};
use tidegate_core::{ActionKind, TimeSpan, Timestamp};
use tidegate_limiter::RulingReport;
use tidegate_policy::{NormalRequest, Plan};
use tidegate_store::Store;

pub(crate) use self::copying_body::CopyingBody;
use self::copying_body::{PendingResponse, StorePlace};
use self::memory::{ResourceVersion, ResponseMemory, StoredResponse};
use self::plain_get::{ClientHeaders, PlainGet, RequestTarget};
use crate::error::ServeError;
use crate::http::response_body::ResponseBody;
use crate::service::Exchange;

const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// The memory of responses as a policy uses it.
#[derive(Debug)]
pub(crate) struct PolicyMemory {
    memory: Arc<ResponseMemory>,
    max_bytes: usize,
    /// The number of the policy. Another policy may tell clients apart in another way, or have another upstream.
    epoch: u64,
}

impl PolicyMemory {
    /// The memory of a policy, which all policies share; `None` if none of its limits uses it.
    pub(crate) fn new(plan: &Plan, previous: Option<&Self>) -> Option<Self> {
        if !plan.rate_limits.iter().any(|rule| rule.on_exceed.kind() == ActionKind::Cached) {
            return None;
        }
        let max_bytes = usize::try_from(plan.cache_memory).unwrap_or(usize::MAX);
        Some(match previous {
            Some(Self { memory, epoch, .. }) => {
                Self { memory: Arc::clone(memory), max_bytes, epoch: epoch + 1 }
            }
            None => Self { memory: Arc::default(), max_bytes, epoch: 0 },
        })
    }
}

/// What a request has to do with the memory.
#[derive(Debug)]
pub(crate) enum ResponseReuse {
    /// It may be served from it, and fill it.
    Get {
        request: PlainGet,
        /// The state of its resource when it arrived.
        version: ResourceVersion,
        /// When it was admitted; `None` if its response is not stored.
        admitted: Option<Timestamp>,
    },
    /// It may change its resource.
    Change(ResourceVersion),
}

/// A request that may change a resource. Unless it is known that it has not, dropping this makes the responses of the resource
/// invalid: the server may have the request, also if the client no longer waits for the response.
#[derive(Debug)]
pub(crate) struct ResourceChange {
    memory: Arc<ResponseMemory>,
    /// `None` if nothing has changed.
    version: Option<ResourceVersion>,
}

impl ResourceChange {
    /// The request has got its response.
    pub(crate) fn end(&mut self, result: &Result<Response<ResponseBody>, ServeError>) {
        let is_error = |status: StatusCode| status.is_client_error() || status.is_server_error();
        if result.as_ref().is_ok_and(|response| is_error(response.status())) {
            self.version = None;
        }
    }
}

impl Drop for ResourceChange {
    fn drop(&mut self) {
        if let Some(version) = self.version {
            self.memory.change(version);
        }
    }
}

/// A request as it was sent, before it is read.
#[derive(Debug)]
pub(crate) struct SentTarget {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) has_body: bool,
}

impl<S: Store + 'static> Exchange<'_, S> {
    /// What a request has to do with the memory; `None` if nothing.
    pub(crate) fn response_reuse(
        &self,
        SentTarget { method, uri, has_body }: &SentTarget,
        read: &NormalRequest<'_, '_>,
    ) -> Option<Box<ResponseReuse>> {
        let PolicyMemory { memory, epoch, .. } = self.snapshot.memory()?;
        let facts = read.facts();
        let scheme = &self.conn_info.proto;
        let target =
            RequestTarget { method, has_body: *has_body, scheme, host: facts.host, path: facts.path, uri };
        let version = || memory.version(&target.resource());
        if !method.is_safe() {
            return Some(Box::new(ResponseReuse::Change(version())));
        }
        // What a client with an invalid token or key gets is not for others.
        if read.refused.is_some() {
            return None;
        }
        let identity = self.snapshot.policy.matcher.header_rules().identity_headers();
        let clients = ClientHeaders { identity, is_trusted: read.is_trusted };
        let request = PlainGet::new(target, facts.headers, clients, *epoch)?;
        Some(Box::new(ResponseReuse::Get { request, version: version(), admitted: None }))
    }

    /// Notes that a request was admitted. Its response is stored if a limit may need it.
    #[cold]
    pub(crate) fn note_admission(&mut self, report: &RulingReport<'_>, now: Timestamp) {
        if let Some(ResponseReuse::Get { admitted, .. }) = self.reuse.as_deref_mut() {
            *admitted = report.has_cached_limit().then_some(now);
        }
    }

    /// The change of a resource that is about to be requested.
    pub(crate) fn take_change(&mut self) -> Option<Box<ResourceChange>> {
        let Some(ResponseReuse::Change(version)) = self.reuse.as_deref() else { return None };
        let (memory, version) = (Arc::clone(&self.snapshot.memory()?.memory), Some(*version));
        self.reuse = None;
        Some(Box::new(ResourceChange { memory, version }))
    }

    /// The stored response to this request, if it is at most this old and may be served.
    pub(super) fn stored_response(
        &self,
        max_age: TimeSpan,
        now: Timestamp,
    ) -> Option<Box<Response<ResponseBody>>> {
        let Some(ResponseReuse::Get { request, .. }) = self.reuse.as_deref() else { return None };
        let stored = self.snapshot.memory()?.memory.get(&request.key)?;
        let resident = now.since(stored.received);
        let age = now.since(stored.generated);
        let is_fresh = resident < stored.fresh_for;
        let is_served = age <= max_age
            && age <= request.max_age?
            && (is_fresh || stored.allows_stale)
            && stored.varying.iter().all(|(name, values)| request.others.get_all(name).iter().eq(values));
        is_served.then(|| Box::new(served(&stored, age, resident)))
    }

    /// Copies a response with a marked end while it is forwarded, if it may be stored.
    pub(crate) fn copied(&mut self, response: Response<ResponseBody>) -> Response<ResponseBody> {
        let is_candidate = self.degradation.is_none() && response.status() == StatusCode::OK;
        let Some(policy) = self.snapshot.memory().filter(|_| is_candidate) else { return response };
        let (request, version, at) = match self.reuse.take().map(|usage| *usage) {
            Some(ResponseReuse::Get { request, version, admitted: Some(at) }) if request.fills => {
                (request, version, at)
            }
            _ => return response,
        };
        let (parts, body) = response.into_parts();
        let head = Response::from_parts(parts, ());
        let place = StorePlace { memory: &policy.memory, max_bytes: policy.max_bytes, version };
        // As if it had been generated when it was requested: it is no younger than it says.
        let pending = PendingResponse::new(request, &head, place, at);
        let body = match (body, pending) {
            (ResponseBody::Upstream(body), Some(pending)) => {
                ResponseBody::Copying(Box::new(CopyingBody::new(body, pending)))
            }
            (body, _) => body,
        };
        head.map(|()| body)
    }
}

/// Whether the end of a response of an upstream is marked: the end of a connection may come too early.
pub(crate) fn has_marked_end<B>(response: &Response<B>) -> bool {
    let headers = response.headers();
    response.version() == Version::HTTP_2
        || headers.contains_key(CONTENT_LENGTH)
        || headers.contains_key(TRANSFER_ENCODING)
}

/// The response that is served, with its age and why (RFC 9211).
fn served(stored: &StoredResponse, age: TimeSpan, resident: TimeSpan) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Own(Some(stored.body.clone())));
    let mut headers = stored.headers.clone();
    headers.reserve(12);
    headers.insert(AGE, age.as_secs_ceil().into());
    let ttl = i128::from(stored.fresh_for.as_micros()) - i128::from(resident.as_micros());
    let status = format!("tidegate; hit; ttl={}", ttl.div_euclid(1_000_000));
    if let Ok(status) = HeaderValue::try_from(status) {
        headers.insert(CACHE_STATUS, status);
    }
    *response.headers_mut() = headers;
    response
}
