//! Bodies of requests.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};

use crate::error::BoxError;

/// The body of a request: empty, complete, or a stream.
///
/// An empty or complete body can be sent again by a retry. A stream cannot: a request with one has one attempt.
#[derive(Default)]
pub struct SendBody(BodyKind);

#[derive(Default)]
enum BodyKind {
    #[default]
    Empty,
    Complete(Full<Bytes>),
    Stream(UnsyncBoxBody<Bytes, BoxError>, BodyErrorSlot),
}

/// The error of a stream. Connections report it in different ways, or only as a reset; what is found here was certainly the
/// caller's.
#[derive(Clone, Debug, Default)]
pub(crate) struct BodyErrorSlot(Arc<Mutex<Option<BoxError>>>);

impl BodyErrorSlot {
    fn set(&self, error: BoxError) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    pub(crate) fn take(&self) -> Option<BoxError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl SendBody {
    /// No body.
    pub const fn empty() -> Self {
        Self(BodyKind::Empty)
    }

    /// A body that is produced while it is sent.
    pub fn stream<B>(body: B) -> Self
    where
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        Self(BodyKind::Stream(body.map_err(Into::into).boxed_unsync(), BodyErrorSlot::default()))
    }

    /// Where the error of a stream will be found.
    pub(crate) fn failure(&self) -> Option<BodyErrorSlot> {
        match &self.0 {
            BodyKind::Stream(_, failure) => Some(failure.clone()),
            BodyKind::Empty | BodyKind::Complete(_) => None,
        }
    }

    /// A copy from the beginning; `None` for a stream.
    pub(crate) fn try_clone(&self) -> Option<Self> {
        match &self.0 {
            BodyKind::Empty => Some(Self::empty()),
            BodyKind::Complete(bytes) => Some(Self(BodyKind::Complete(bytes.clone()))),
            BodyKind::Stream(..) => None,
        }
    }
}

impl<T: Into<Bytes>> From<T> for SendBody {
    fn from(bytes: T) -> Self {
        let bytes = bytes.into();
        if bytes.is_empty() { Self::empty() } else { Self(BodyKind::Complete(Full::new(bytes))) }
    }
}

impl Body for SendBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.get_mut().0 {
            BodyKind::Empty => Poll::Ready(None),
            BodyKind::Complete(body) => {
                Pin::new(body).poll_frame(context).map_err(|never: Infallible| match never {})
            }
            BodyKind::Stream(body, failure) => Pin::new(body).poll_frame(context).map_err(|error| {
                failure.set(error);
                "the request body failed".into()
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            BodyKind::Empty => true,
            BodyKind::Complete(body) => body.is_end_stream(),
            BodyKind::Stream(body, _) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodyKind::Empty => SizeHint::with_exact(0),
            BodyKind::Complete(body) => body.size_hint(),
            BodyKind::Stream(body, _) => body.size_hint(),
        }
    }
}

impl fmt::Debug for SendBody {
    /// Bodies may hold secrets: only the kind is shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            BodyKind::Empty => "Empty",
            BodyKind::Complete(_) => "Complete",
            BodyKind::Stream(..) => "Stream",
        })
    }
}
