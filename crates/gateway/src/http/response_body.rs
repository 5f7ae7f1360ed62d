//! Response bodies: streamed, never buffered as a whole.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Sleep, sleep};

use crate::act::cached::CopyingBody;
use crate::resource_limits::MinRate;
use crate::upstream::{ExchangePermits, PlainBody, PooledConn};

/// The body of a response to a client.
#[derive(Debug)]
pub(crate) enum ResponseBody {
    /// From the gateway itself.
    Own(Option<Bytes>),
    /// Streamed from an upstream. Boxed because responses are moved often.
    Upstream(Box<ForwardedBody>),
    /// The same, copied for others.
    Copying(Box<CopyingBody>),
}

impl ResponseBody {
    pub(crate) fn empty() -> Self {
        Self::Own(None)
    }

    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Self {
        Self::Own(Some(Bytes::from(bytes)))
    }

    /// Bounds what is held of a response while the client does not read it.
    pub(crate) fn limit_chunks(&mut self) {
        match self {
            Self::Own(_) => {}
            Self::Upstream(body) => body.limit_chunks(),
            Self::Copying(body) => body.limit_chunks(),
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Own(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Upstream(body) => body.poll_frame(cx),
            Self::Copying(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(bytes) => bytes.is_none(),
            Self::Upstream(body) => body.is_end_stream(),
            Self::Copying(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Upstream(body) => body.size_hint(),
            Self::Copying(body) => body.size_hint(),
        }
    }
}

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// The connection failed.
    #[error(transparent)]
    Broken(#[from] hyper::Error),
    /// The same on the fast path.
    #[error("the server closed the connection")]
    Closed(#[from] std::io::Error),
    /// The body is below the minimum rate.
    #[error("body below the minimum rate for {} s", .0.as_secs())]
    TooSlow(Duration),
    /// The client does not wait any longer.
    #[error("the deadline of the request has passed")]
    DeadlineExceeded,
    /// The body exceeds the size limit.
    #[error("the body is longer than {0} bytes")]
    TooLarge(u64),
    /// The rest of a request body is not needed. An HTTP/2 server gets `CANCEL`.
    #[error("the rest of the request body is not needed")]
    NotNeeded(#[source] h2::Error),
}

impl BodyError {
    pub(crate) fn not_needed() -> Self {
        Self::NotNeeded(h2::Reason::CANCEL.into())
    }
}

/// A response body from an upstream.
#[derive(Debug)]
pub(crate) enum UpstreamBody {
    Hyper(Incoming),
    /// Over the pooled connection.
    Plain(PlainBody),
}

impl UpstreamBody {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
        conn: Option<&mut PooledConn>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self {
            Self::Hyper(incoming) => {
                Pin::new(incoming).poll_frame(cx).map(|frame| Some(frame?.map_err(BodyError::from)))
            }
            Self::Plain(plain) => {
                let chunk = plain.poll_chunk(cx, conn.and_then(PooledConn::plain));
                chunk.map(|chunk| Some(chunk?.map(Frame::data).map_err(BodyError::from)))
            }
        }
    }

    /// Whether the body was received completely.
    pub(crate) fn is_received(&self) -> bool {
        match self {
            Self::Hyper(incoming) => incoming.is_end_stream(),
            Self::Plain(plain) => plain.is_received(),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Hyper(incoming) => incoming.is_end_stream(),
            Self::Plain(plain) => plain.length() == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Hyper(incoming) => incoming.size_hint(),
            Self::Plain(plain) => SizeHint::with_exact(plain.length()),
        }
    }
}

/// An upstream body that is forwarded to a client. Its connection returns to the pool when the body was received completely.
/// Until then the connection has the permits of the request; afterwards the body has them until it was forwarded.
#[derive(Debug)]
pub(crate) struct ForwardedBody {
    source: UpstreamBody,
    conn: Option<PooledConn>,
    stall_timer: StallTimer,
    /// When the client stops waiting, if it says so.
    deadline: Option<Pin<Box<Sleep>>>,
    permits: ExchangePermits,
}

impl ForwardedBody {
    /// `left` is the time until the deadline of the client.
    pub(crate) fn new(
        source: UpstreamBody,
        conn: PooledConn,
        min_rate: MinRate,
        left: Option<Duration>,
    ) -> Self {
        let mut body = Self {
            source,
            conn: Some(conn),
            stall_timer: StallTimer::new(min_rate),
            deadline: left.map(|left| Box::pin(sleep(left))),
            permits: ExchangePermits::default(),
        };
        body.release_at_end();
        body
    }

    /// Bounds what is held of the body while the client does not read it.
    pub(crate) fn limit_chunks(&mut self) {
        if let UpstreamBody::Plain(plain) = &mut self.source {
            plain.limit_chunks();
        }
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.source.is_end_stream()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.source.size_hint()
    }

    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = match self.source.poll_frame(cx, self.conn.as_mut()) {
            Poll::Ready(frame) => frame,
            Poll::Pending => return self.poll_timers(cx).map(|error| Some(Err(error))),
        };
        match &frame {
            Some(Ok(frame)) => {
                self.stall_timer.record(frame.data_ref().map_or(1, Bytes::len));
                self.release_at_end();
            }
            // The connection cannot be used again.
            Some(Err(error)) => {
                if let Some(conn) = self.conn.take() {
                    conn.fail(error);
                }
            }
            None => self.release(),
        }
        Poll::Ready(frame)
    }

    /// An error once the client does not wait any longer, or the server is too slow.
    fn poll_timers(&mut self, cx: &mut Context<'_>) -> Poll<BodyError> {
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            self.conn = None;
            return Poll::Ready(BodyError::DeadlineExceeded);
        }
        self.stall_timer.poll(cx)
    }

    fn release_at_end(&mut self) {
        if self.source.is_end_stream() {
            self.release();
        } else if self.source.is_received() {
            self.give_back();
        }
    }

    fn release(&mut self) {
        self.give_back();
        self.permits.clear();
    }

    fn give_back(&mut self) {
        if let Some(conn) = self.conn.take() {
            self.permits = conn.give_back();
        }
    }
}

/// Fails a body that is below a minimum rate. Creates a timer only when it has to wait.
#[derive(Debug)]
pub(crate) struct StallTimer {
    min_rate: MinRate,
    /// Bytes in the current period.
    moved: u64,
    timer: Option<Pin<Box<Sleep>>>,
}

impl StallTimer {
    pub(crate) fn new(min_rate: MinRate) -> Self {
        Self { min_rate, moved: 0, timer: None }
    }

    pub(crate) fn record(&mut self, bytes: usize) {
        self.moved = self.moved.saturating_add(bytes as u64);
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<BodyError> {
        let period = self.min_rate.period;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(period)));
        loop {
            ready!(timer.as_mut().poll(cx));
            if self.moved < self.min_rate.bytes {
                return Poll::Ready(BodyError::TooSlow(period));
            }
            self.moved = 0;
            let deadline = timer.deadline() + period;
            timer.as_mut().reset(deadline);
        }
    }
}
