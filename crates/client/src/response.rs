//! Responses and their bodies.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tidegate_core::{BreakerState, CallEnd, CallOutcome, Timestamp};
use tidegate_store::Clock;
use tidegate_tower::breaker::{BreakerOpen, BreakerPermit, CircuitBreaker};
use tidegate_tower::bulkhead::BulkheadPermit;
use tokio::time::Sleep;

use crate::error::ClientError;
use crate::transport::TransportBody;

/// A response. Its body is read with [`bytes`](Self::bytes), [`text`](Self::text) or as a [stream](Self::into_body).
///
/// It occupies a place in the bulkhead of its host until the body was read or the response is dropped.
#[derive(Debug)]
pub struct ClientResponse {
    response: Response<IncomingBody>,
    attempts: u32,
    max_body: usize,
}

impl ClientResponse {
    pub(crate) fn new(response: Response<IncomingBody>, attempts: u32, max_body: usize) -> Self {
        Self { response, attempts, max_body }
    }

    /// Counts attempts of an earlier request for the same response.
    #[cfg(feature = "cache")]
    pub(crate) fn with_earlier_attempts(mut self, attempts: u32) -> Self {
        self.attempts = self.attempts.saturating_add(attempts);
        self
    }

    /// Changes the body.
    #[cfg(feature = "cache")]
    pub(crate) fn map_body(self, change: impl FnOnce(IncomingBody) -> IncomingBody) -> Self {
        Self { response: self.response.map(change), ..self }
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// The version of HTTP.
    pub fn version(&self) -> Version {
        self.response.version()
    }

    /// The headers.
    pub fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// How many times the request was sent; 0 if the response comes from the cache.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Turns a 4xx or 5xx into [`ClientError::Status`].
    pub fn error_for_status(self) -> Result<Self, ClientError> {
        let status = self.status();
        let is_error = status.is_client_error() || status.is_server_error();
        if is_error { Err(ClientError::Status { status }) } else { Ok(self) }
    }

    /// The whole body, up to the longest body that the client accepts.
    pub async fn bytes(self) -> Result<Bytes, ClientError> {
        let limit = self.max_body;
        collect(self.response.into_body(), limit).await
    }

    /// The whole body as text. Invalid UTF-8 is replaced.
    pub async fn text(self) -> Result<String, ClientError> {
        let bytes = self.bytes().await?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The whole body, decoded from JSON.
    #[cfg(feature = "json")]
    pub async fn json<T: serde::de::DeserializeOwned>(self) -> Result<T, ClientError> {
        let bytes = self.bytes().await?;
        serde_json::from_slice(&bytes).map_err(|source| ClientError::Json { source })
    }

    /// The body as a stream.
    pub fn into_body(self) -> IncomingBody {
        self.response.into_body()
    }

    /// The response as the `http` crate knows it.
    pub fn into_http(self) -> Response<IncomingBody> {
        self.response
    }
}

/// Reads a body of at most `limit` bytes. The parts are copied as they arrive: each refers to the buffer that it was read into,
/// so that many small ones would occupy a multiple of the limit.
pub(crate) async fn collect(mut body: IncomingBody, limit: usize) -> Result<Bytes, ClientError> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if data.len() > limit - whole.len() {
            return Err(ClientError::BodyTooLarge { limit });
        }
        if whole.is_empty() && body.is_end_stream() {
            return Ok(data);
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

/// The body of a response.
///
/// A body that stalls for longer than the timeout of an attempt, or that is not complete at the deadline or after the timeout
/// of bodies, ends with an error.
pub struct IncomingBody {
    body: TransportBody,
    timeouts: BodyTimeouts,
    /// Runs while the body is waited for.
    timer: Option<BodyTimer>,
    permits: Option<ResponsePermits>,
}

/// How long a body is waited for.
#[derive(Clone, Debug)]
pub(crate) struct BodyTimeouts {
    pub(crate) clock: Arc<dyn Clock>,
    /// The longest time without a frame.
    pub(crate) stall: Duration,
    /// When the body must be complete.
    pub(crate) end_at: Timestamp,
    /// What ends it then.
    pub(crate) end: BodyEnd,
}

/// What ends a body that is not complete.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BodyEnd {
    Deadline,
    Timeout(Duration),
}

impl BodyEnd {
    fn error(self) -> ClientError {
        match self {
            Self::Deadline => ClientError::DeadlineExceeded,
            Self::Timeout(after) => ClientError::Timeout { after },
        }
    }
}

struct BodyTimer {
    sleep: Pin<Box<Sleep>>,
    end: BodyEnd,
}

impl BodyTimeouts {
    fn start(&self) -> BodyTimer {
        let remaining = Duration::from(self.end_at.since(self.clock.now()));
        let (wait, end) = if remaining <= self.stall {
            (remaining, self.end)
        } else {
            (self.stall, BodyEnd::Timeout(self.stall))
        };
        BodyTimer { sleep: Box::pin(tokio::time::sleep(wait)), end }
    }

    fn has_ended(&self) -> bool {
        self.clock.now() >= self.end_at
    }
}

/// What an attempt occupies. The place in the bulkhead is held until the body of the response has ended; the breaker is
/// told the result as soon as it is known.
#[derive(Debug)]
pub(crate) struct ResponsePermits {
    breaker: Option<CircuitBreaker>,
    /// Dropping it cancels the call. `None` once a result is recorded.
    call: Option<BreakerPermit>,
    _bulkhead: Option<BulkheadPermit>,
    /// Whether the head of the response was a success. The body may still fail.
    is_success: bool,
}

impl ResponsePermits {
    /// Asks the breaker for a call.
    pub(crate) fn acquire(
        breaker: Option<&CircuitBreaker>,
        bulkhead: Option<BulkheadPermit>,
    ) -> Result<Self, BreakerOpen> {
        let call = breaker.map(CircuitBreaker::try_acquire).transpose()?;
        Ok(Self { breaker: breaker.cloned(), call, _bulkhead: bulkhead, is_success: false })
    }

    /// Those of a response that came from no host.
    #[cfg(feature = "cache")]
    pub(crate) const fn none() -> Self {
        Self { breaker: None, call: None, _bulkhead: None, is_success: false }
    }

    /// Records the status of a response whose body is still to be read.
    ///
    /// The caller may take any time to read the body: a probe must not wait for it, and it is not time that the host took.
    /// Otherwise, a success is recorded at the end of the body, so that bodies that break one after another open
    /// the breaker.
    pub(crate) fn record_head(&mut self, status: StatusCode) {
        let end = CallEnd::Status(status.as_u16());
        let is_timed = self.breaker.as_ref().is_some_and(|breaker| breaker.breaker().measures_duration());
        let is_probe = self.call.as_ref().is_some_and(BreakerPermit::is_probe);
        self.is_success = end.outcome() == CallOutcome::Success;
        if is_timed || is_probe || !self.is_success {
            self.record(end);
        }
    }

    /// Records how the attempt ended, unless that is known already.
    pub(crate) fn record(&mut self, end: CallEnd) {
        if let Some(call) = self.call.take() {
            call.record(end.outcome());
        }
    }

    /// Records how the body failed, as a call of its own if the success of the head is recorded already.
    fn record_body(&mut self, end: CallEnd) {
        let breaker = self.breaker.as_ref().filter(|breaker| breaker.state() == BreakerState::Closed);
        if let (None, true, Some(breaker)) = (&self.call, self.is_success, breaker) {
            self.call = breaker.try_acquire().ok();
        }
        self.record(end);
    }
}

impl Drop for ResponsePermits {
    fn drop(&mut self) {
        if let (true, Some(call)) = (self.is_success, self.call.take()) {
            call.record(CallOutcome::Success);
        }
    }
}

impl IncomingBody {
    /// `permits` are held until the body has ended.
    pub(crate) fn new(body: TransportBody, timeouts: BodyTimeouts, permits: ResponsePermits) -> Self {
        let permits = if body.is_end_stream() { None } else { Some(permits) };
        Self { body, timeouts, timer: None, permits }
    }

    /// Changes the body as the transport delivers it.
    #[cfg(feature = "cache")]
    pub(crate) fn map_transport(mut self, change: impl FnOnce(TransportBody) -> TransportBody) -> Self {
        self.body = change(self.body);
        self
    }

    fn fail(&mut self, end: CallEnd, error: ClientError) -> ClientError {
        if let Some(mut permits) = self.permits.take() {
            permits.record_body(end);
        }
        error
    }

    /// The error of a body that is waited for, once it is due.
    fn poll_timer(&mut self, context: &mut Context<'_>) -> Poll<ClientError> {
        let timer = self.timer.get_or_insert_with(|| self.timeouts.start());
        ready!(timer.sleep.as_mut().poll(context));
        let end = timer.end;
        Poll::Ready(match end {
            // The caller's deadline says nothing about the host.
            BodyEnd::Deadline => self.fail(CallEnd::Cancelled, end.error()),
            BodyEnd::Timeout(_) => self.fail(CallEnd::Timeout, end.error()),
        })
    }
}

impl Body for IncomingBody {
    type Data = Bytes;
    type Error = ClientError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ClientError>>> {
        let this = self.get_mut();
        let frame = match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(frame) => frame,
            Poll::Pending => return this.poll_timer(context).map(|error| Some(Err(error))),
        };
        this.timer = None;
        Poll::Ready(match frame {
            // A body that never stalls has an end too. It says nothing about the host: the caller may have been slow.
            Some(Ok(_)) if this.timeouts.has_ended() => {
                Some(Err(this.fail(CallEnd::Cancelled, this.timeouts.end.error())))
            }
            Some(Ok(frame)) => {
                if this.body.is_end_stream() {
                    this.permits = None;
                }
                Some(Ok(frame))
            }
            Some(Err(source)) => Some(Err(this.fail(CallEnd::Reset, ClientError::Body { source }))),
            None => {
                this.permits = None;
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl fmt::Debug for IncomingBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IncomingBody").field("size", &self.size_hint()).finish_non_exhaustive()
    }
}
