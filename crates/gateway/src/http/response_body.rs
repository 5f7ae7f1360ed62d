//! The bodies that pass through: never held whole.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Sleep, sleep};

use crate::exclusion::Held;
use crate::resource_limits::MinRate;
use crate::upstream::{Lease, PlainBody};

/// What a client is answered with.
#[derive(Debug)]
pub(crate) enum ResponseBody {
    /// Our own words.
    Own(Option<Bytes>),
    /// An upstream's, as it comes. In a box: a response changes hands often, and most of ours are small.
    Upstream(Box<UpstreamBody>),
}

impl ResponseBody {
    pub(crate) fn empty() -> Self {
        Self::Own(None)
    }

    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        Self::Own(Some(Bytes::from(bytes)))
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
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(bytes) => bytes.is_none(),
            Self::Upstream(body) => body.source.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Upstream(body) => body.source.size_hint(),
        }
    }
}

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// The connection it came over did.
    #[error(transparent)]
    Broken(#[from] hyper::Error),
    /// The same, where nobody but us was reading.
    #[error("the server broke off")]
    BrokeOff(#[from] std::io::Error),
    /// Too little came.
    #[error("too little of the body came within {} s", .0.as_secs())]
    TooSlow(Duration),
    /// It is longer than we take.
    #[error("the body is longer than {0} bytes")]
    TooLarge(u64),
    /// The rest of a request's body is of no use. An HTTP/2 server is told `CANCEL`.
    #[error("the rest of the body is not needed")]
    NotNeeded(#[source] h2::Error),
}

impl BodyError {
    pub(crate) fn not_needed() -> Self {
        Self::NotNeeded(h2::Reason::CANCEL.into())
    }
}

/// Where an upstream's body comes from.
#[derive(Debug)]
pub(crate) enum Source {
    Hyper(Incoming),
    /// Over the line that was leased.
    Plain(PlainBody),
}

impl Source {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
        lease: Option<&mut Lease>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self {
            Self::Hyper(incoming) => {
                Pin::new(incoming).poll_frame(cx).map(|frame| Some(frame?.map_err(BodyError::from)))
            }
            Self::Plain(plain) => {
                let piece = plain.poll_piece(cx, lease.and_then(Lease::line));
                piece.map(|piece| Some(piece?.map(Frame::data).map_err(BodyError::from)))
            }
        }
    }

    /// Whether its connection is not needed any more.
    fn has_come(&self) -> bool {
        match self {
            Self::Hyper(incoming) => incoming.is_end_stream(),
            Self::Plain(plain) => plain.has_come(),
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

/// An upstream's body. Its connection goes back to the pool when it has come; until then the lease has the permits of
/// the request, afterwards the body has them until it was taken.
#[derive(Debug)]
pub(crate) struct UpstreamBody {
    source: Source,
    lease: Option<Lease>,
    patience: Patience,
    permits: Held,
}

impl UpstreamBody {
    pub(crate) fn new(source: Source, lease: Lease, pace: MinRate) -> Self {
        let mut body =
            Self { source, lease: Some(lease), patience: Patience::new(pace), permits: Held::new() };
        body.let_go_at_the_end();
        body
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = match self.source.poll_frame(cx, self.lease.as_mut()) {
            Poll::Ready(frame) => frame,
            Poll::Pending => return self.patience.poll(cx).map(|error| Some(Err(error))),
        };
        match &frame {
            Some(Ok(frame)) => {
                self.patience.saw(frame.data_ref().map_or(1, Bytes::len));
                self.let_go_at_the_end();
            }
            // What broke off is not used again.
            Some(Err(_)) => self.lease = None,
            None => self.let_go(),
        }
        Poll::Ready(frame)
    }

    fn let_go_at_the_end(&mut self) {
        if self.source.is_end_stream() {
            self.let_go();
        } else if self.source.has_come() {
            self.give_back();
        }
    }

    fn let_go(&mut self) {
        self.give_back();
        self.permits.clear();
    }

    fn give_back(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.permits = lease.give_back();
        }
    }
}

/// How little a body may bring in a period. A timer is made only for one that has to be waited for.
#[derive(Debug)]
pub(crate) struct Patience {
    pace: MinRate,
    moved: u64,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Patience {
    pub(crate) fn new(pace: MinRate) -> Self {
        Self { pace, moved: 0, timer: None }
    }

    pub(crate) fn saw(&mut self, bytes: usize) {
        self.moved = self.moved.saturating_add(bytes as u64);
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<BodyError> {
        let period = self.pace.period;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(period)));
        loop {
            ready!(timer.as_mut().poll(cx));
            if self.moved < self.pace.bytes {
                return Poll::Ready(BodyError::TooSlow(period));
            }
            self.moved = 0;
            let deadline = timer.deadline() + period;
            timer.as_mut().reset(deadline);
        }
    }
}
