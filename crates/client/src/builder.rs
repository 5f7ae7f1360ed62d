//! The settings of a client.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use tidegate_core::{Backoff, Breaker, BreakerConfig, Jitter, RetryBudget, TimeSpan};
use tidegate_store::Clock;
use tidegate_tower::bulkhead::BulkheadConfig;
use tidegate_tower::system_clock;

use crate::client::{Client, ClientSettings, ClientState};
use crate::error::ClientBuildError;
use crate::host::{HostSettings, HostTable};
use crate::transport::{ConnectionSettings, Http2Pings, HttpTransport, PooledTransport};

/// The settings of a [`Client`]. Every setting has a default.
#[must_use = "a builder does nothing until it builds a client"]
pub struct ClientBuilder {
    attempts: u32,
    backoff: (Duration, Duration, Jitter),
    budget: RetryBudget,
    breaker: Option<BreakerConfig>,
    bulkhead: Option<BulkheadConfig>,
    timeout: Duration,
    body_timeout: Duration,
    connect_timeout: Duration,
    idle_timeout: Duration,
    deadline: Option<Duration>,
    max_wait: Duration,
    max_body: usize,
    headers: HeaderMap,
    http2_only: bool,
    tls: Option<rustls::ClientConfig>,
    clock: Option<Arc<dyn Clock>>,
    #[cfg(feature = "cache")]
    cache_bytes: Option<usize>,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        let agent = HeaderValue::from_static(concat!("tidegate-client/", env!("CARGO_PKG_VERSION")));
        Self {
            attempts: 5,
            backoff: (Duration::from_secs(1), Duration::from_secs(30), Jitter::Decorrelated),
            budget: RetryBudget::default(),
            breaker: Some(BreakerConfig::default()),
            bulkhead: Some(BulkheadConfig::new(64).queue(1_024, Duration::from_secs(10))),
            timeout: Duration::from_secs(30),
            body_timeout: Duration::from_mins(5),
            connect_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_mins(1),
            deadline: None,
            max_wait: Duration::from_mins(1),
            max_body: 64 << 20,
            headers: HeaderMap::from_iter([(USER_AGENT, agent)]),
            http2_only: false,
            tls: None,
            clock: None,
            #[cfg(feature = "cache")]
            cache_bytes: None,
        }
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Default headers may hold secrets.
        f.debug_struct("ClientBuilder").field("attempts", &self.attempts).finish_non_exhaustive()
    }
}

impl ClientBuilder {
    /// How often a request is sent at most. Default: 5. 1 means no retries.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// The waits between attempts. Default: from 1 s to 30 s with decorrelated jitter.
    pub fn backoff(mut self, base: Duration, cap: Duration, jitter: Jitter) -> Self {
        self.backoff = (base, cap, jitter);
        self
    }

    /// The retries that all requests to one host may have together. Default: 10 % of the requests of the last ten seconds,
    /// plus 10 per second. Each host has a budget of its own with this share and minimum.
    pub fn retry_budget(mut self, budget: RetryBudget) -> Self {
        self.budget = budget;
        self
    }

    /// The circuit breaker of each host. Default: it opens after 5 failures in a row, for 30 s. `None`: no breaker.
    pub fn breaker(mut self, config: impl Into<Option<BreakerConfig>>) -> Self {
        self.breaker = config.into();
        self
    }

    /// The requests to each host that may be in progress. Default: 64, and 1,024 more may wait for up to 10 s. `None`: any
    /// number.
    pub fn bulkhead(mut self, config: impl Into<Option<BulkheadConfig>>) -> Self {
        self.bulkhead = config.into();
        self
    }

    /// The time that one attempt may take until the head of the response, and that its body may stall. Default: 30 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The time that a response body may take after the head, with the time that the caller takes to read it. A host whose
    /// bodies never end could otherwise occupy its whole bulkhead for ever. Default: 5 minutes.
    pub fn body_timeout(mut self, timeout: Duration) -> Self {
        self.body_timeout = timeout;
        self
    }

    /// The time in which a TCP connection must be made. Default: 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long an unused connection is kept. Default: 60 s.
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// The deadline of requests that set none. Default: none.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.deadline = Some(after);
        self
    }

    /// How long a request waits at most because a server says so, in all its attempts together, plus a tenth for jitter.
    /// Default: 60 s. A request that would have to wait for longer for a rate limit fails at once with [`ClientError::RateLimited`](crate::ClientError::RateLimited).
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = wait;
        self
    }

    /// The longest response body that is read as a whole. Default: 64 MiB.
    pub fn max_response_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    /// A header of all requests that do not set it. `User-Agent` has a default.
    pub fn default_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Speaks only HTTP/2, also without TLS. Default: HTTP/1.1, and HTTP/2 where a TLS server offers it.
    pub fn http2_only(mut self, only: bool) -> Self {
        self.http2_only = only;
        self
    }

    /// The TLS settings: other roots, client certificates. ALPN is set by the client. Default: the roots of the system.
    pub fn tls_config(mut self, config: rustls::ClientConfig) -> Self {
        self.tls = Some(config);
        self
    }

    /// The clock. It must run at the speed of tokio's timers. Default: the system clock.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Keeps responses in memory, as far as they allow it, in up to `bytes` with all that belongs to them. Default: no cache.
    #[cfg(feature = "cache")]
    pub fn cache(mut self, bytes: usize) -> Self {
        self.cache_bytes = Some(bytes);
        self
    }

    /// The client.
    pub fn build(mut self) -> Result<Client, ClientBuildError> {
        let tls = match self.tls.take() {
            Some(mut tls) => {
                tls.alpn_protocols.clear();
                tls
            }
            None => system_tls()?,
        };
        let transport = PooledTransport::new(ConnectionSettings {
            tls,
            connect_timeout: self.connect_timeout,
            idle_timeout: self.idle_timeout,
            http2_only: self.http2_only,
            http2_pings: Http2Pings::DEFAULT,
        });
        self.build_with(Arc::new(transport))
    }

    pub(crate) fn build_with(self, transport: Arc<dyn HttpTransport>) -> Result<Client, ClientBuildError> {
        let (base, cap, jitter) = self.backoff;
        let backoff = Backoff::new(base, cap, jitter)?;
        if let Some(config) = self.breaker {
            Breaker::new(config)?;
        }
        let clock = self.clock.unwrap_or_else(system_clock);
        let max_wait = TimeSpan::from(self.max_wait);
        let hosts = HostTable::new(HostSettings {
            clock: Arc::clone(&clock),
            breaker: self.breaker,
            bulkhead: self.bulkhead,
            retries: (self.budget.share(), self.budget.min_per_second()),
            max_wait,
        });
        Ok(Client::from_state(ClientState {
            transport,
            clock,
            hosts,
            settings: ClientSettings {
                attempts: self.attempts,
                backoff,
                timeout: self.timeout,
                body_timeout: self.body_timeout,
                deadline: self.deadline,
                max_wait,
                max_body: self.max_body,
                headers: self.headers,
            },
            random: provider().secure_random,
            #[cfg(feature = "cache")]
            cache: self.cache_bytes.map(|bytes| Arc::new(crate::cache::ResponseCache::new(bytes))),
        }))
    }
}

fn provider() -> CryptoProvider {
    aws_lc_rs::default_provider()
}

/// TLS with the roots of the system. Without any, every `https` request fails with the reason.
fn system_tls() -> Result<rustls::ClientConfig, rustls::Error> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}
