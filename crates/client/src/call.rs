//! One request with all its attempts.
//!
//! Each attempt passes, in this order: deadline → breaker (an open one fails at once) → pace (may wait) → bulkhead (may
//! wait) → breaker permit → retry permit → timeout → transport. What an attempt holds is returned when its future is
//! dropped; nothing is charged to the pace or the budget for an attempt that was not sent.

use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderName;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use tidegate_core::{BackoffDelays, CallEnd, TimeSpan};
use tidegate_headers::{AdvertisedLimits, RejectionBody};
use tidegate_tower::breaker::BreakerOpen;
use tidegate_tower::bulkhead::BulkheadPermit;
use tidegate_tower::deadline::Deadline;
use tidegate_tower::retry::RetryPermit;

use crate::body::SendBody;
use crate::client::ClientState;
use crate::error::ClientError;
use crate::host::{HostState, host_name};
use crate::pace::{PacePermit, PaceTooSlow, Pacer, with_jitter};
use crate::request::RequestOptions;
use crate::response::{BodyTimeouts, ClientResponse, IncomingBody, ResponsePermits, collect};
use crate::transport::{TransportBody, TransportError};

pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// More of a rejection or of a response that is retried is not read.
const MAX_DISCARDED: usize = 16 << 10;
/// How long the body of a rejection or of a response that is retried is waited for.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// A request that is being sent.
pub(crate) struct Call<'a> {
    client: &'a ClientState,
    host: Arc<HostState>,
    pacer: Arc<Pacer>,
    parts: Parts,
    deadline: Option<Deadline>,
    timeout: Duration,
    /// Whether the server may process the request more than once.
    is_repeatable: bool,
}

/// An attempt without a usable response.
struct AttemptFailure {
    error: ClientError,
    retry: RetryKind,
}

/// How a failure may be retried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RetryKind {
    /// Not at all: the client itself rejects the request.
    Never,
    /// As soon as the pace allows it: the server has rejected the request.
    Paced,
    /// After a backoff, if the request may be repeated.
    Backoff,
}

impl RetryKind {
    fn failure(self, error: ClientError) -> AttemptFailure {
        AttemptFailure { error, retry: self }
    }
}

type AttemptResponse = Result<Response<IncomingBody>, AttemptFailure>;

impl<'a> Call<'a> {
    /// Prepares a request. Returns it with its body.
    pub(crate) fn new(
        client: &'a ClientState,
        request: Request<SendBody>,
        options: &RequestOptions,
    ) -> Result<(Self, SendBody), ClientError> {
        let (mut parts, body) = request.into_parts();
        let host = client.hosts.get(&host_name(&parts.uri)?);
        for (name, value) in &client.settings.headers {
            if !parts.headers.contains_key(name) {
                parts.headers.insert(name, value.clone());
            }
        }
        if options.idempotency_key && !parts.headers.contains_key(IDEMPOTENCY_KEY) {
            parts.headers.insert(IDEMPOTENCY_KEY, client.random_key()?);
        }
        let is_keyed_post = parts.method == Method::POST && parts.headers.contains_key(IDEMPOTENCY_KEY);
        let is_repeatable = parts.method.is_idempotent() || is_keyed_post || options.allow_replay;
        let pacer = client.hosts.pacer(&host, &options.partition);
        let timeout = options.timeout.unwrap_or(client.settings.timeout);
        let deadline = client.deadline(options.deadline);
        Ok((Self { client, host, pacer, parts, deadline, timeout, is_repeatable }, body))
    }

    /// The head of the request.
    #[cfg(feature = "cache")]
    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Replaces the headers of the request.
    #[cfg(feature = "cache")]
    pub(crate) fn set_headers(&mut self, headers: http::HeaderMap) {
        self.parts.headers = headers;
    }

    /// Sends the request until it succeeds, cannot be retried or must not be.
    pub(crate) async fn run(&self, mut body: SendBody) -> Result<ClientResponse, ClientError> {
        let settings = &self.client.settings;
        self.client.budget.record_request();
        let (mut delays, mut permit, mut rejection) = (settings.backoff.delays(), None, None);
        let mut attempt = 1;
        loop {
            let copy = if attempt < settings.attempts { body.try_clone() } else { None };
            let end = self.attempt(body, permit.take()).await;
            let wait = copy.and_then(|copy| Some((self.retry_wait(&end, &mut delays)?, copy)));
            let Some((wait, copy)) = wait else {
                return match end {
                    Ok(response) => Ok(ClientResponse::new(response, attempt, settings.max_body)),
                    // A server that rejected the request knows more about it than the pace does.
                    Err(AttemptFailure {
                        error: ClientError::RateLimited { .. },
                        retry: RetryKind::Never,
                    }) if let Some(rejection) = rejection => Err(rejection),
                    Err(failure) => Err(failure.error),
                };
            };
            let Some(granted) = self.client.budget.try_withdraw() else {
                return match end {
                    Ok(response) => Ok(ClientResponse::new(response, attempt, settings.max_body)),
                    Err(failure) => Err(ClientError::BudgetExhausted { last: Box::new(failure.error) }),
                };
            };
            let error = discard(end).await;
            rejection = matches!(error, ClientError::RateLimited { .. }).then_some(error);
            tokio::time::sleep(wait.into()).await;
            (permit, body) = (Some(granted), copy);
            attempt += 1;
        }
    }

    /// How long to wait before the next attempt; `None` if there is none.
    fn retry_wait(&self, end: &AttemptResponse, delays: &mut BackoffDelays) -> Option<TimeSpan> {
        let now = self.client.clock.now();
        let wait = match end {
            Err(AttemptFailure { retry: RetryKind::Never, .. }) => return None,
            // The pace makes the next attempt wait.
            Err(AttemptFailure { retry: RetryKind::Paced, .. }) => TimeSpan::ZERO,
            _ if !self.is_repeatable => return None,
            Err(AttemptFailure { retry: RetryKind::Backoff, .. }) => delays.next_delay(fastrand::u64(..)),
            Ok(response) if is_retryable(response.status()) => {
                let backoff = delays.next_delay(fastrand::u64(..));
                match AdvertisedLimits::parse(response.headers(), now).retry_after {
                    Some(wait) if wait > self.client.settings.max_wait => return None,
                    // A server that fails and says 0 must not get all attempts at once.
                    Some(wait) => with_jitter(wait, fastrand::u64(..)).max(backoff),
                    None => backoff,
                }
            }
            Ok(_) => return None,
        };
        let is_in_time = self.deadline.is_none_or(|deadline| wait < deadline.remaining(now));
        is_in_time.then_some(wait)
    }

    async fn attempt(&self, body: SendBody, retry: Option<RetryPermit>) -> AttemptResponse {
        let never = |error| RetryKind::Never.failure(error);
        self.check_deadline().map_err(never)?;
        self.check_breaker().map_err(never)?;
        let deadline = self.deadline.map(Deadline::instant);
        let pace = self.pacer.acquire(self.parts.uri.path(), deadline).await;
        let mut pace = pace.map_err(|too_slow| never(too_slow.into()))?;
        let permits = self.acquire_permits().await.map_err(never)?;
        pace.mark_sent();
        if let Some(retry) = retry {
            retry.spend();
        }
        self.send(body, pace, permits).await
    }

    /// Sends the request once, with everything it needs.
    async fn send(&self, body: SendBody, pace: PacePermit, mut permits: ResponsePermits) -> AttemptResponse {
        let now = self.client.clock.now();
        let mut parts = self.parts.clone();
        let remaining = self.deadline.map(|deadline| {
            deadline.write_headers(&mut parts.headers, now);
            Duration::from(deadline.remaining(now))
        });
        let is_deadline = remaining.is_some_and(|remaining| remaining <= self.timeout);
        let timeout = remaining.map_or(self.timeout, |remaining| remaining.min(self.timeout));
        let sent = self.client.transport.send(Request::from_parts(parts, body));
        let host = || self.host.name.to_string();
        let (end, failure) = match tokio::time::timeout(timeout, sent).await {
            Ok(Ok(response)) => {
                permits.record_head(response.status());
                return self.receive(response, pace, permits).await;
            }
            Err(_) if is_deadline => {
                (CallEnd::Cancelled, RetryKind::Never.failure(ClientError::DeadlineExceeded))
            }
            Err(_) => (CallEnd::Timeout, RetryKind::Backoff.failure(ClientError::Timeout { after: timeout })),
            Ok(Err(TransportError::Connect(source))) => {
                pace.cancel_unsent();
                let error = ClientError::Connect { host: host(), source };
                (CallEnd::ConnectError, RetryKind::Backoff.failure(error))
            }
            Ok(Err(TransportError::Lost(source))) => {
                let error = ClientError::ConnectionLost { host: host(), source };
                (CallEnd::Reset, RetryKind::Backoff.failure(error))
            }
            Ok(Err(TransportError::Upload(source))) => {
                (CallEnd::Cancelled, RetryKind::Never.failure(ClientError::Upload { source }))
            }
            Ok(Err(TransportError::Invalid(source))) => {
                (CallEnd::Cancelled, RetryKind::Never.failure(ClientError::InvalidRequest { source }))
            }
        };
        permits.record(end);
        Err(failure)
    }

    /// Reads what a response says about limits. A 429 becomes an error.
    async fn receive(
        &self,
        response: Response<TransportBody>,
        pace: PacePermit,
        permits: ResponsePermits,
    ) -> AttemptResponse {
        let timeouts = BodyTimeouts {
            clock: Arc::clone(&self.client.clock),
            stall: self.timeout,
            deadline: self.deadline.map(Deadline::instant),
        };
        let response = response.map(|body| IncomingBody::new(body, timeouts, permits));
        let mut limits = AdvertisedLimits::parse(response.headers(), self.client.clock.now());
        if response.status() != StatusCode::TOO_MANY_REQUESTS {
            pace.observe(&limits, None);
            return Ok(response);
        }
        let body = tokio::time::timeout(DISCARD_TIMEOUT, collect(response.into_body(), MAX_DISCARDED)).await;
        let details = match body {
            Ok(Ok(body)) => RejectionBody::parse(&body),
            _ => RejectionBody::default(),
        };
        limits.retry_after = limits.retry_after.or(details.retry_after);
        pace.observe(&limits, Some(&details));
        Err(RetryKind::Paced.failure(rejection(&limits, details)))
    }

    fn check_deadline(&self) -> Result<(), ClientError> {
        let now = self.client.clock.now();
        match self.deadline {
            Some(deadline) if deadline.has_passed(now) => Err(ClientError::DeadlineExceeded),
            _ => Ok(()),
        }
    }

    /// Fails if the breaker would certainly reject the request, before the request waits for anything.
    fn check_breaker(&self) -> Result<(), ClientError> {
        self.host.breaker_open().map_or(Ok(()), |open| Err(self.breaker_open(open)))
    }

    async fn acquire_permits(&self) -> Result<ResponsePermits, ClientError> {
        let bulkhead = self.acquire_bulkhead().await?;
        // Waiting may have taken until the deadline.
        self.check_deadline()?;
        let breaker = self.host.breaker.as_ref();
        ResponsePermits::acquire(breaker, bulkhead).map_err(|open| self.breaker_open(open))
    }

    async fn acquire_bulkhead(&self) -> Result<Option<BulkheadPermit>, ClientError> {
        let Some(bulkhead) = &self.host.bulkhead else { return Ok(None) };
        let acquired = match self.deadline {
            Some(deadline) => {
                let remaining = deadline.remaining(self.client.clock.now());
                let acquired = tokio::time::timeout(remaining.into(), bulkhead.acquire()).await;
                acquired.map_err(|_| ClientError::DeadlineExceeded)?
            }
            None => bulkhead.acquire().await,
        };
        let full = |concurrent| ClientError::BulkheadFull { host: self.host.name.to_string(), concurrent };
        acquired.map(Some).map_err(|error| full(error.concurrent))
    }

    fn breaker_open(&self, open: BreakerOpen) -> ClientError {
        let retry_after = open.retry_after.map(Duration::from);
        ClientError::BreakerOpen { host: self.host.name.to_string(), retry_after }
    }
}

impl From<PaceTooSlow> for ClientError {
    fn from(PaceTooSlow { policy, limit, retry_after }: PaceTooSlow) -> Self {
        Self::RateLimited { policy, limit, retry_after: retry_after.map(Duration::from) }
    }
}

/// The error of a 429. The body names the policy; without one, the first limit that is exhausted does.
fn rejection(limits: &AdvertisedLimits, details: RejectionBody) -> ClientError {
    let is_meant = |name: &Option<String>| details.policy.is_none() || *name == details.policy;
    let exhausted = limits.limits.iter().filter(|limit| limit.remaining == Some(0));
    let limit = exhausted.clone().find(|limit| is_meant(&limit.name)).or(exhausted.clone().next());
    let wait = limits.retry_after.or(limit.and_then(|limit| limit.reset_after));
    ClientError::RateLimited {
        limit: details.limit.or(limit.and_then(|limit| limit.quota)),
        policy: details.policy.or(limit.and_then(|limit| limit.name.clone())),
        retry_after: wait.map(Duration::from),
    }
}

/// The failure of an attempt that is retried. The body of its response is read, so that the connection can be used again.
async fn discard(end: AttemptResponse) -> ClientError {
    match end {
        Ok(response) => {
            let status = response.status();
            // A body that is long, slow or broken costs only its connection.
            let _ = tokio::time::timeout(DISCARD_TIMEOUT, collect(response.into_body(), MAX_DISCARDED)).await;
            ClientError::Status { status }
        }
        Err(failure) => failure.error,
    }
}

const fn is_retryable(status: StatusCode) -> bool {
    matches!(status.as_u16(), 500 | 502 | 503 | 504)
}

/// A random key in the form of a UUID of version 4.
pub(crate) fn uuid(mut random: [u8; 16]) -> HeaderValue {
    random[6] = random[6] & 0x0f | 0x40;
    random[8] = random[8] & 0x3f | 0x80;
    let mut text = String::with_capacity(36);
    for (index, byte) in random.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        for digit in [byte >> 4, byte & 0xf] {
            text.push(char::from_digit(digit.into(), 16).unwrap_or('0'));
        }
    }
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}
