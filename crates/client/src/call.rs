//! One request with all its attempts.
//!
//! Each attempt passes, in this order: deadline → breaker (an open one fails at once) → pace (may wait) → bulkhead (may
//! wait; then the pace is asked again) → breaker permit → retry permit → transport with its timeout. What an attempt holds is returned when its future is
//! dropped; nothing is charged to the pace or the budget for an attempt that was not sent.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, HeaderName};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;
use tidegate_core::{BackoffDelays, CallEnd, TimeSpan, Timestamp};
use tidegate_headers::{AdvertisedLimits, RejectionBody};
use tidegate_tower::breaker::BreakerOpen;
use tidegate_tower::bulkhead::{BulkheadFull, BulkheadPermit};
use tidegate_tower::deadline::Deadline;
use tidegate_tower::retry::RetryPermit;

use crate::body::SendBody;
use crate::client::ClientState;
use crate::error::ClientError;
use crate::host::{HostState, normalize_host};
use crate::pace::{PacePermit, PaceTooSlow, Pacer, with_jitter};
use crate::request::RequestOptions;
use crate::response::{BodyEnd, BodyTimeouts, ClientResponse, IncomingBody, ResponsePermits, collect};
use crate::transport::{ConnectionChoice, TransportBody, TransportError};

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
    body_timeout: Duration,
    /// Whether the server may process the request more than once.
    is_repeatable: bool,
}

/// An attempt without a usable response.
struct FailedAttempt {
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
    fn failure(self, error: ClientError) -> FailedAttempt {
        FailedAttempt { error, retry: self }
    }
}

type AttemptResponse = Result<Response<IncomingBody>, FailedAttempt>;

impl<'a> Call<'a> {
    /// Prepares a request. Returns it with its body.
    pub(crate) fn new(
        client: &'a ClientState,
        request: Request<SendBody>,
        options: &RequestOptions,
    ) -> Result<(Self, SendBody), ClientError> {
        let (mut parts, body) = request.into_parts();
        let host = client.hosts.get(&normalize_host(&mut parts.uri)?);
        for (name, value) in &client.settings.headers {
            if !parts.headers.contains_key(name) {
                parts.headers.insert(name, value.clone());
            }
        }
        if options.idempotency_key && !parts.headers.contains_key(IDEMPOTENCY_KEY) {
            parts.headers.insert(IDEMPOTENCY_KEY, client.random_key()?);
        }
        check_length(&parts.headers, &body)?;
        let is_keyed_post = parts.method == Method::POST && parts.headers.contains_key(IDEMPOTENCY_KEY);
        let is_repeatable = parts.method.is_idempotent() || is_keyed_post || options.allow_replay;
        let pacer = client.hosts.pacer(&host, &options.partition);
        let timeout = options.timeout.unwrap_or(client.settings.timeout);
        let body_timeout = options.body_timeout.unwrap_or(client.settings.body_timeout);
        let deadline = client.deadline(options.deadline);
        Ok((Self { client, host, pacer, parts, deadline, timeout, body_timeout, is_repeatable }, body))
    }

    /// The head of the request.
    #[cfg(feature = "cache")]
    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    /// The headers of the request.
    #[cfg(feature = "cache")]
    pub(crate) fn headers_mut(&mut self) -> &mut HeaderMap {
        &mut self.parts.headers
    }

    /// Sends the request until it succeeds, cannot be retried or must not be.
    pub(crate) async fn run(&self, mut body: SendBody) -> Result<ClientResponse, ClientError> {
        let settings = &self.client.settings;
        self.host.budget.record_request();
        let (mut delays, mut permit, mut rejection) = (settings.backoff.delays(), None, None);
        // What all attempts together may wait because a server says so, with a tenth for jitter.
        let mut waits = TimeSpan::from_micros(settings.max_wait.as_micros().saturating_mul(11) / 10);
        let (mut attempt, mut connection) = (1, ConnectionChoice::Any);
        loop {
            let copy = if attempt < settings.attempts { body.try_clone() } else { None };
            let end = self.attempt(body, permit.take(), &mut waits, connection).await;
            let wait = copy.and_then(|copy| Some((self.retry_wait(&end, &mut delays, &mut waits)?, copy)));
            let Some((wait, copy)) = wait else {
                return match end {
                    Ok(response) => Ok(ClientResponse::new(response, attempt, settings.max_body)),
                    // A server that rejected the request knows more about it than the pace does.
                    Err(FailedAttempt {
                        error: ClientError::RateLimited { .. },
                        retry: RetryKind::Never,
                    }) if let Some(rejection) = rejection => Err(rejection),
                    Err(failure) => Err(failure.error),
                };
            };
            let Some(granted) = self.host.budget.try_withdraw() else {
                return match end {
                    Ok(response) => Ok(ClientResponse::new(response, attempt, settings.max_body)),
                    Err(failure) => Err(ClientError::BudgetExhausted { last: Box::new(failure.error) }),
                };
            };
            rejection = match end {
                Ok(response) => {
                    discard_for(wait.into(), response).await;
                    None
                }
                Err(FailedAttempt { error, .. }) => {
                    tokio::time::sleep(wait.into()).await;
                    let is_timeout = matches!(error, ClientError::Timeout { .. });
                    connection = if is_timeout { ConnectionChoice::New } else { ConnectionChoice::Any };
                    Some(error).filter(|error| matches!(error, ClientError::RateLimited { .. }))
                }
            };
            (permit, body) = (Some(granted), copy);
            attempt += 1;
        }
    }

    /// How long to wait before the next attempt; `None` if there is none. What the server asks for is taken from `waits`.
    fn retry_wait(
        &self,
        end: &AttemptResponse,
        delays: &mut BackoffDelays,
        waits: &mut TimeSpan,
    ) -> Option<TimeSpan> {
        let now = self.client.clock.now();
        let wait = match end {
            Err(FailedAttempt { retry: RetryKind::Never, .. }) => return None,
            // The pace makes the next attempt wait.
            Err(FailedAttempt { retry: RetryKind::Paced, .. }) => TimeSpan::ZERO,
            _ if !self.is_repeatable => return None,
            Err(FailedAttempt { retry: RetryKind::Backoff, .. }) => delays.next_delay(fastrand::u64(..)),
            Ok(response) if is_retryable(response.status()) => {
                let backoff = delays.next_delay(fastrand::u64(..));
                let asked = AdvertisedLimits::parse(response.headers(), now).retry_after;
                let asked = asked.map_or(TimeSpan::ZERO, |wait| with_jitter(wait, fastrand::u64(..)));
                *waits = TimeSpan::from_micros(waits.as_micros().checked_sub(asked.as_micros())?);
                // A server that fails and says 0 must not get all attempts at once.
                asked.max(backoff)
            }
            Ok(_) => return None,
        };
        let is_in_time = self.deadline.is_none_or(|deadline| wait < deadline.remaining(now));
        is_in_time.then_some(wait)
    }

    async fn attempt(
        &self,
        body: SendBody,
        retry: Option<RetryPermit>,
        waits: &mut TimeSpan,
        connection: ConnectionChoice,
    ) -> AttemptResponse {
        let never = |error| RetryKind::Never.failure(error);
        self.check_deadline().map_err(never)?;
        self.check_breaker().map_err(never)?;
        let (mut pace, bulkhead) = self.acquire_place(waits).await.map_err(never)?;
        // Waiting may have taken until the deadline.
        self.check_deadline().map_err(never)?;
        let permits = ResponsePermits::acquire(self.host.breaker.as_ref(), bulkhead);
        let permits = permits.map_err(|open| never(self.breaker_open(open)))?;
        pace.mark_sent();
        if let Some(retry) = retry {
            retry.spend();
        }
        self.send(body, pace, permits, connection).await
    }

    /// Sends the request once, with everything it needs.
    async fn send(
        &self,
        body: SendBody,
        pace: PacePermit,
        mut permits: ResponsePermits,
        connection: ConnectionChoice,
    ) -> AttemptResponse {
        let now = self.client.clock.now();
        let mut parts = self.parts.clone();
        let remaining = self.deadline.map(|deadline| {
            deadline.write_headers(&mut parts.headers, now);
            Duration::from(deadline.remaining(now))
        });
        let is_deadline = remaining.is_some_and(|remaining| remaining <= self.timeout);
        let timeout = remaining.map_or(self.timeout, |remaining| remaining.min(self.timeout));
        let sent = self.client.transport.send(Request::from_parts(parts, body), timeout, connection);
        let host = || self.host.name.to_string();
        let (end, failure) = match sent.await {
            Ok(response) => {
                permits.record_head(response.status());
                return self.receive(response, pace, permits).await;
            }
            Err(TransportError::Timeout) if is_deadline => {
                (CallEnd::Cancelled, RetryKind::Never.failure(ClientError::DeadlineExceeded))
            }
            Err(TransportError::Timeout) => {
                (CallEnd::Timeout, RetryKind::Backoff.failure(ClientError::Timeout { after: timeout }))
            }
            Err(TransportError::Connect(source)) => {
                pace.cancel_unsent();
                let error = ClientError::Connect { host: host(), source };
                (CallEnd::ConnectError, RetryKind::Backoff.failure(error))
            }
            Err(TransportError::Lost(source)) => {
                let error = ClientError::ConnectionLost { host: host(), source };
                (CallEnd::Reset, RetryKind::Backoff.failure(error))
            }
            Err(TransportError::Upload(source)) => {
                (CallEnd::Cancelled, RetryKind::Never.failure(ClientError::Upload { source }))
            }
            Err(TransportError::Invalid(source)) => {
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
        let now = self.client.clock.now();
        let timeouts = self.body_timeouts(now);
        let response = response.map(|body| IncomingBody::new(body, timeouts, permits));
        let limits = AdvertisedLimits::parse(response.headers(), now);
        if response.status() != StatusCode::TOO_MANY_REQUESTS {
            pace.observe(&limits, None);
            return Ok(response);
        }
        let mut report = RejectionReport { limits, pace: Some(pace) };
        let body = tokio::time::timeout(DISCARD_TIMEOUT, collect(response.into_body(), MAX_DISCARDED));
        let mut body = pin!(body);
        let body = tokio::select! {
            biased;
            body = &mut body => body,
            // Other requests must not wait for a slow body if the head says how long to wait.
            () = std::future::ready(()), if report.limits.retry_after.is_some() => {
                report.send(&RejectionBody::default());
                body.await
            }
        };
        let details = match body {
            Ok(Ok(body)) => RejectionBody::parse(&body),
            _ => RejectionBody::default(),
        };
        report.limits.retry_after = report.limits.retry_after.or(details.retry_after);
        report.send(&details);
        Err(RetryKind::Paced.failure(rejection(&report.limits, details)))
    }

    /// The timeouts of a body whose head arrived at `now`.
    fn body_timeouts(&self, now: Timestamp) -> BodyTimeouts {
        let (clock, stall) = (Arc::clone(&self.client.clock), self.timeout);
        let end_at = now + TimeSpan::from(self.body_timeout);
        match self.deadline.map(Deadline::instant) {
            Some(deadline) if deadline <= end_at => {
                BodyTimeouts { clock, stall, end_at: deadline, end: BodyEnd::Deadline }
            }
            _ => BodyTimeouts { clock, stall, end_at, end: BodyEnd::Timeout(self.body_timeout) },
        }
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

    /// Waits for the pace and for a place in the bulkhead.
    async fn acquire_place(
        &self,
        waits: &mut TimeSpan,
    ) -> Result<(PacePermit, Option<BulkheadPermit>), ClientError> {
        let (path, deadline) = (self.parts.uri.path(), self.deadline.map(Deadline::instant));
        loop {
            let mut pace = self.pacer.acquire(path, deadline, waits).await?;
            let (bulkhead, has_waited) = self.acquire_bulkhead().await?;
            if !has_waited || pace.renew() {
                return Ok((pace, bulkhead));
            }
            // The place is free for requests that need not wait for the pace.
            drop(bulkhead);
            self.check_breaker()?;
        }
    }

    /// A place in the bulkhead, and whether the request had to wait for it.
    async fn acquire_bulkhead(&self) -> Result<(Option<BulkheadPermit>, bool), ClientError> {
        let Some(bulkhead) = &self.host.bulkhead else { return Ok((None, false)) };
        let full = |error: BulkheadFull| ClientError::BulkheadFull {
            host: self.host.name.to_string(),
            concurrent: error.concurrent,
        };
        let mut acquire = pin!(bulkhead.acquire());
        tokio::select! {
            biased;
            acquired = &mut acquire => return Ok((Some(acquired.map_err(full)?), false)),
            () = std::future::ready(()) => {}
        }
        let acquired = match self.deadline {
            Some(deadline) => {
                let remaining = deadline.remaining(self.client.clock.now());
                let acquired = tokio::time::timeout(remaining.into(), acquire).await;
                acquired.map_err(|_| ClientError::DeadlineExceeded)?
            }
            None => acquire.await,
        };
        Ok((Some(acquired.map_err(full)?), true))
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

/// What the head of a 429 says about limits. Dropping it tells the pace: a caller that does not wait for the body has been
/// rejected as well.
struct RejectionReport {
    limits: AdvertisedLimits,
    /// `None` once the pace knows.
    pace: Option<PacePermit>,
}

impl RejectionReport {
    fn send(&mut self, details: &RejectionBody) {
        if let Some(pace) = self.pace.take() {
            pace.observe(&self.limits, Some(details));
        }
    }
}

impl Drop for RejectionReport {
    fn drop(&mut self) {
        self.send(&RejectionBody::default());
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

/// Fails if the caller states another length than that of the body: a connection would cut the body off there.
fn check_length(headers: &HeaderMap, body: &SendBody) -> Result<(), ClientError> {
    let Some(length) = body.size_hint().exact() else { return Ok(()) };
    if headers.get_all(CONTENT_LENGTH).iter().all(|stated| *stated == HeaderValue::from(length)) {
        return Ok(());
    }
    let source = format!("Content-Length is not the length of the body, {length}").into();
    Err(ClientError::InvalidRequest { source })
}

/// Waits before a retry, and reads the body of the response meanwhile, so that the connection can be used again. A body that
/// is long, slow or broken costs only its connection.
async fn discard_for(wait: Duration, response: Response<IncomingBody>) {
    let body = collect(response.into_body(), MAX_DISCARDED);
    let _ = tokio::join!(tokio::time::timeout(wait.min(DISCARD_TIMEOUT), body), tokio::time::sleep(wait));
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
