//! Request bodies: streamed to the upstream, with a maximum size and a minimum rate, never buffered as a whole.
//!
//! hyper reads a [`RequestBody`]. The sender of the request keeps an [`UploadHandle`]. The handle reports progress and
//! failures of the client, stops an upload that is not needed any more, and opens the body for another attempt as long as
//! nothing of it was read.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tidegate_policy::UnderscoreHeaders;

use crate::conn::{Activity, UnreadBody};
use crate::http::hop_headers;
use crate::http::response_body::{BodyError, StallTimer};
use crate::resource_limits::MinRate;
use crate::worker::WorkerSnapshot;

/// The body of a request, as hyper reads it.
#[derive(Debug)]
pub(crate) struct RequestBody {
    /// `None` for an empty body.
    upload: Option<Rc<RefCell<Upload>>>,
    /// Only the latest body of an upload may read it.
    generation: u32,
}

/// Counts the bytes of a body. Dropped when the body has ended or is not needed any more.
pub(crate) trait ByteMeter: std::fmt::Debug {
    /// Adds received bytes.
    fn record(&mut self, bytes: usize);
}

/// Why an upload failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UploadFailure {
    /// The body is malformed or incomplete.
    Malformed,
    TooLarge,
    TooSlow,
}

/// The state of a body, shared by hyper and the sender of the request.
#[derive(Debug)]
struct Upload {
    state: UploadState,
    generation: u32,
    left: u64,
    max_bytes: u64,
    stall_timer: StallTimer,
    has_progress: bool,
    /// Some of the body was read: it cannot be sent again.
    is_read: bool,
    failure: Option<UploadFailure>,
    /// `None` after the body has ended or was stopped.
    unread: Option<UnreadBody>,
    /// The policy and the setting of the route decide which trailers are removed.
    trailers: (Rc<WorkerSnapshot>, UnderscoreHeaders),
    meter: Option<Box<dyn ByteMeter>>,
    /// The task that waits for more data.
    reader: Option<Waker>,
}

#[derive(Debug)]
enum UploadState {
    Open(Incoming),
    Ended,
    /// The upload failed, or the rest is not needed.
    Stopped,
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(upload) = &self.upload else { return Poll::Ready(None) };
        let mut upload = upload.borrow_mut();
        if upload.generation != self.generation {
            return Poll::Ready(Some(Err(BodyError::not_needed())));
        }
        upload.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.upload.as_ref().is_none_or(|upload| matches!(upload.borrow().state, UploadState::Ended))
    }

    fn size_hint(&self) -> SizeHint {
        self.upload.as_ref().map_or(SizeHint::with_exact(0), |upload| match &upload.borrow().state {
            UploadState::Open(incoming) => incoming.size_hint(),
            UploadState::Ended => SizeHint::with_exact(0),
            UploadState::Stopped => SizeHint::default(),
        })
    }
}

impl Drop for RequestBody {
    /// Stops the upload if hyper drops a body that it has started to read.
    fn drop(&mut self) {
        if let Some(upload) = &self.upload {
            let mut upload = upload.borrow_mut();
            if upload.generation == self.generation && upload.is_read {
                upload.stop();
            }
        }
    }
}

impl Upload {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let incoming = match &mut self.state {
            UploadState::Open(incoming) => incoming,
            UploadState::Ended => return Poll::Ready(None),
            UploadState::Stopped => return Poll::Ready(Some(Err(BodyError::not_needed()))),
        };
        let frame = match Pin::new(&mut *incoming).poll_frame(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                return match self.stall_timer.poll(cx) {
                    Poll::Ready(error) => Poll::Ready(Some(Err(self.fail(UploadFailure::TooSlow, error)))),
                    Poll::Pending => {
                        self.wait(cx);
                        Poll::Pending
                    }
                };
            }
        };
        let has_ended = incoming.is_end_stream();
        let mut frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                let error = self.fail(UploadFailure::Malformed, error.into());
                return Poll::Ready(Some(Err(error)));
            }
            None => {
                self.end();
                return Poll::Ready(None);
            }
        };
        self.has_progress = true;
        self.is_read = true;
        if let Some(trailers) = frame.trailers_mut() {
            let (snapshot, underscored) = &self.trailers;
            hop_headers::strip_trailers(trailers, (snapshot.policy.matcher.header_rules(), *underscored));
        }
        let length = frame.data_ref().map_or(0, Bytes::len);
        self.stall_timer.record(length);
        if let Some(meter) = &mut self.meter {
            meter.record(length);
        }
        // A chunked body has no known length; trailers are its last frame.
        if has_ended || frame.is_trailers() {
            self.end();
        }
        let Some(left) = self.left.checked_sub(length as u64) else {
            let error = self.fail(UploadFailure::TooLarge, BodyError::TooLarge(self.max_bytes));
            return Poll::Ready(Some(Err(error)));
        };
        self.left = left;
        Poll::Ready(Some(Ok(frame)))
    }

    /// Stores the waker for [`Self::stop`].
    fn wait(&mut self, cx: &Context<'_>) {
        match &mut self.reader {
            Some(reader) => reader.clone_from(cx.waker()),
            reader => *reader = Some(cx.waker().clone()),
        }
    }

    /// The body is complete.
    fn end(&mut self) {
        self.state = UploadState::Ended;
        self.meter = None;
        if let Some(unread) = self.unread.take() {
            unread.end();
        }
    }

    fn fail(&mut self, failure: UploadFailure, error: BodyError) -> BodyError {
        self.failure = Some(failure);
        self.state = UploadState::Stopped;
        self.unread = None;
        self.meter = None;
        error
    }

    /// Drops the rest of the body. Its reader gets an error.
    fn stop(&mut self) {
        if matches!(self.state, UploadState::Open(_)) {
            self.state = UploadState::Stopped;
            self.unread = None;
            self.meter = None;
            if let Some(reader) = self.reader.take() {
                reader.wake();
            }
        }
    }
}

/// The sender's handle of a request body.
#[derive(Clone, Debug, Default)]
pub(crate) struct UploadHandle(Option<Rc<RefCell<Upload>>>);

/// How much of a body was read and may have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UploadProgress {
    /// There is no body.
    Empty,
    /// Nothing was read: it can be sent to another server.
    Unread,
    /// Some or all was read, or the upload was stopped.
    Started,
}

impl UploadHandle {
    /// The policy and the setting of the route decide which trailers are removed. `meter` counts the received bytes.
    pub(crate) fn new(
        incoming: Incoming,
        (max_bytes, min_rate): (u64, MinRate),
        activity: &Arc<Activity>,
        (snapshot, underscored): (&Rc<WorkerSnapshot>, UnderscoreHeaders),
        meter: Option<Box<dyn ByteMeter>>,
    ) -> Self {
        if incoming.is_end_stream() {
            return Self::default();
        }
        let upload = Upload {
            state: UploadState::Open(incoming),
            generation: 0,
            left: max_bytes,
            max_bytes,
            stall_timer: StallTimer::new(min_rate),
            has_progress: false,
            is_read: false,
            failure: None,
            unread: Some(UnreadBody::for_latest(activity)),
            trailers: (Rc::clone(snapshot), underscored),
            meter,
            reader: None,
        };
        Self(Some(Rc::new(RefCell::new(upload))))
    }

    /// The body for an attempt; `None` if some of it was read. The body of the previous attempt becomes invalid.
    pub(crate) fn open(&self) -> Option<RequestBody> {
        let Some(upload) = &self.0 else { return Some(RequestBody { upload: None, generation: 0 }) };
        if self.progress() == UploadProgress::Started {
            return None;
        }
        let mut shared = upload.borrow_mut();
        shared.generation += 1;
        shared.reader = None;
        Some(RequestBody { upload: Some(Rc::clone(upload)), generation: shared.generation })
    }

    pub(crate) fn progress(&self) -> UploadProgress {
        let Some(upload) = &self.0 else { return UploadProgress::Empty };
        let upload = upload.borrow();
        let is_unread = !upload.is_read && matches!(upload.state, UploadState::Open(_));
        if is_unread { UploadProgress::Unread } else { UploadProgress::Started }
    }

    /// Whether some of the body was read since the last call.
    pub(crate) fn has_progress(&self) -> bool {
        self.0.as_ref().is_some_and(|upload| std::mem::take(&mut upload.borrow_mut().has_progress))
    }

    /// Why the upload failed, if it did.
    pub(crate) fn failure(&self) -> Option<UploadFailure> {
        self.0.as_ref().and_then(|upload| upload.borrow().failure)
    }

    /// Stops the upload: the rest of the body is not needed.
    pub(crate) fn stop(&self) {
        if let Some(upload) = &self.0 {
            upload.borrow_mut().stop();
        }
    }
}
