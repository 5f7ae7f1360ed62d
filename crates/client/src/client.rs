//! The client and what all its requests share.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Request};
use rustls::crypto::SecureRandom;
use tidegate_core::{Backoff, TimeSpan};
use tidegate_store::Clock;
use tidegate_tower::deadline::Deadline;

use crate::body::SendBody;
use crate::builder::ClientBuilder;
use crate::call::{Call, uuid};
use crate::error::{ClientBuildError, ClientError};
use crate::host::{HostTable, normalize_host};
use crate::request::{ClientRequest, RequestOptions, parse_url};
use crate::response::ClientResponse;
use crate::transport::HttpTransport;

/// An HTTP client for rate-limited and unreliable APIs. Clones share connections, pace, breakers and retry budgets.
#[derive(Clone, Debug)]
pub struct Client {
    state: Arc<ClientState>,
}

/// What all requests of a client share.
pub(crate) struct ClientState {
    pub(crate) transport: Arc<dyn HttpTransport>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) hosts: HostTable,
    pub(crate) settings: ClientSettings,
    pub(crate) random: &'static dyn SecureRandom,
    #[cfg(feature = "cache")]
    pub(crate) cache: Option<Arc<crate::cache::ResponseCache>>,
}

/// The settings that apply to every request.
#[derive(Clone, Debug)]
pub(crate) struct ClientSettings {
    pub(crate) attempts: u32,
    pub(crate) backoff: Backoff,
    pub(crate) timeout: Duration,
    pub(crate) body_timeout: Duration,
    pub(crate) deadline: Option<Duration>,
    pub(crate) max_wait: TimeSpan,
    pub(crate) max_body: usize,
    pub(crate) headers: HeaderMap,
}

impl Client {
    /// A client with the default settings.
    pub fn new() -> Result<Self, ClientBuildError> {
        Self::builder().build()
    }

    /// A client with settings of its own.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    pub(crate) fn from_state(state: ClientState) -> Self {
        Self { state: Arc::new(state) }
    }

    /// A GET of `url`.
    pub fn get(&self, url: impl AsRef<str>) -> ClientRequest {
        self.method(Method::GET, url.as_ref())
    }

    /// A HEAD of `url`.
    pub fn head(&self, url: impl AsRef<str>) -> ClientRequest {
        self.method(Method::HEAD, url.as_ref())
    }

    /// A POST to `url`. It is sent again after a 429, which says that the server has not processed it. After other failures
    /// it is sent again only if it has an [idempotency key](ClientRequest::idempotency_key) or
    /// [may be repeated](ClientRequest::allow_replay).
    pub fn post(&self, url: impl AsRef<str>) -> ClientRequest {
        self.method(Method::POST, url.as_ref())
    }

    /// A PUT to `url`.
    pub fn put(&self, url: impl AsRef<str>) -> ClientRequest {
        self.method(Method::PUT, url.as_ref())
    }

    /// A PATCH of `url`. It is sent again after a 429; after other failures only if it
    /// [may be repeated](ClientRequest::allow_replay).
    pub fn patch(&self, url: impl AsRef<str>) -> ClientRequest {
        self.method(Method::PATCH, url.as_ref())
    }

    /// A DELETE of `url`.
    pub fn delete(&self, url: impl AsRef<str>) -> ClientRequest {
        self.method(Method::DELETE, url.as_ref())
    }

    /// Any request. Its URL is absolute.
    pub fn request<B: Into<SendBody>>(&self, request: Request<B>) -> ClientRequest {
        ClientRequest::new(self.clone(), Ok(request.map(Into::into)))
    }

    /// The retries that the budget of the host of `url` allows now.
    pub fn retries_left(&self, url: impl AsRef<str>) -> Result<u64, ClientError> {
        let host = normalize_host(&mut parse_url(url.as_ref())?)?;
        Ok(self.state.hosts.get(&host).budget.remaining())
    }

    fn method(&self, method: Method, url: &str) -> ClientRequest {
        ClientRequest::with_url(self.clone(), method, url)
    }

    pub(crate) async fn execute(
        &self,
        request: Request<SendBody>,
        options: RequestOptions,
    ) -> Result<ClientResponse, ClientError> {
        let (call, body) = Call::new(&self.state, request, &options)?;
        #[cfg(feature = "cache")]
        if let Some(cache) = &self.state.cache {
            // On the heap, it does not make the future of every request larger.
            return Box::pin(cache.run(call, body, &options.partition, &self.state)).await;
        }
        call.run(body).await
    }
}

impl ClientState {
    /// The deadline of a request: the earliest of its own, the client's and that of the current task.
    pub(crate) fn deadline(&self, requested: Option<Duration>) -> Option<Deadline> {
        let own = requested.or(self.settings.deadline);
        let own = own.map(|after| self.clock.now() + TimeSpan::from(after));
        match (Deadline::current(), own) {
            (Some(current), Some(own)) => Some(current.at_most(own)),
            (Some(current), None) => Some(current),
            (None, own) => own.map(Deadline::at),
        }
    }

    /// A key that no other request has.
    pub(crate) fn random_key(&self) -> Result<HeaderValue, ClientError> {
        let mut random = [0; 16];
        match self.random.fill(&mut random) {
            Ok(()) => Ok(uuid(random)),
            Err(_) => Err(ClientError::InvalidRequest { source: "no random bytes for a key".into() }),
        }
    }
}

impl fmt::Debug for ClientState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Default headers may hold secrets.
        f.debug_struct("ClientState").field("attempts", &self.settings.attempts).finish_non_exhaustive()
    }
}
