//! Request bodies: streamed to the upstream, with a maximum size and a minimum rate, never buffered as a whole.
//!
//! hyper reads a [`RequestBody`]. The sender of the request keeps an [`UploadHandle`]. The handle reports progress and
//! failures of the client, stops an upload that is not needed any more, and opens the body for another attempt: as long as
//! nothing of it was read, or from its beginning if everything that was read is recorded.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tidegate_limiter::ChargeMeter;
use tidegate_listener::ChunkError;
use tidegate_policy::UnderscoreHeaders;

use crate::conn::{Activity, UnreadBody};
use crate::http::hop_headers;
use crate::http::response_body::{BodyError, StallTimer};
use crate::http::small_frames::SmallFrames;
use crate::http::unsent_bodies::{UnsentBodies, UnsentFrame};
use crate::resource_limits::MinRate;
use crate::upstream::ClientId;
use crate::worker::WorkerSnapshot;

/// The body of a request, as hyper reads it. It is moved often while a request is sent, so all state is in the upload.
#[derive(Debug)]
pub(crate) struct RequestBody {
    /// `None` for an empty body.
    upload: Option<Rc<RefCell<Upload>>>,
    /// Only the latest body of an upload may read it.
    generation: u32,
}

/// How the frames of a body are sent to an HTTP/2 server.
#[derive(Debug)]
struct Http2Frames {
    unsent: UnsentFrame,
    small: SmallFrames,
}

impl RequestBody {
    /// Prepares the body for an HTTP/2 server: small frames are joined, and the body counts in `bodies` while a frame of it
    /// waits to be sent.
    pub(crate) fn use_http2(&self, bodies: &Rc<UnsentBodies>, client: ClientId) {
        if let Some(upload) = &self.upload {
            let unsent = UnsentFrame::new(bodies, client);
            upload.borrow_mut().frames =
                Some(Box::new(Http2Frames { unsent, small: SmallFrames::default() }));
        }
    }

    /// Ends the body before its trailers.
    pub(crate) fn drop_trailers(&self) {
        if let Some(upload) = &self.upload {
            upload.borrow_mut().drops_trailers = true;
        }
    }
}

/// Why an upload failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UploadFailure {
    /// The body is malformed or incomplete.
    Malformed,
    TooLarge,
    TooSlow,
}

impl UploadFailure {
    /// Why hyper cannot read the body of a request.
    fn of(error: &hyper::Error) -> Self {
        match ChunkError::of(error) {
            Some(ChunkError::TooLarge) => Self::TooLarge,
            Some(ChunkError::Malformed) | None => Self::Malformed,
        }
    }
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
    client_wait: ClientWait,
    /// Some of the body was read: without a recording, it cannot be sent again.
    is_read: bool,
    recording: Option<Box<Recording>>,
    /// What earlier attempts have read; comes first in the latest body.
    replay: Bytes,
    /// Trailers that the latest body replays.
    replayed_trailers: Option<HeaderMap>,
    /// The latest body ends before its trailers.
    drops_trailers: bool,
    /// Of the latest body, if it is sent to an HTTP/2 server.
    frames: Option<Box<Http2Frames>>,
    failure: Option<UploadFailure>,
    /// `None` after the body has ended or was stopped.
    unread: Option<UnreadBody>,
    /// The policy and the setting of the route decide which trailers are removed.
    trailers: (Rc<WorkerSnapshot>, UnderscoreHeaders),
    /// Dropped when the body has ended or is not needed any more.
    meter: Option<ChargeMeter>,
    /// The task that waits for more data.
    reader: Option<Waker>,
}

/// Whether the body of the latest attempt has to wait for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientWait {
    Never,
    Before,
    /// The latest read found nothing: the client has not sent more.
    Now,
}

/// Everything that was read of a body, so that it can be sent again from its beginning.
#[derive(Debug)]
struct Recording {
    bytes: BytesMut,
    trailers: Option<HeaderMap>,
    max_bytes: u64,
    /// hyper has dropped the latest body.
    is_body_dropped: bool,
}

impl Recording {
    /// Adds a frame. Returns whether there was room for it.
    fn add(&mut self, frame: &Frame<Bytes>) -> bool {
        if let Some(trailers) = frame.trailers_ref() {
            self.trailers = Some(trailers.clone());
        }
        let Some(data) = frame.data_ref() else { return true };
        let has_room = (self.bytes.len() + data.len()) as u64 <= self.max_bytes;
        if has_room {
            self.bytes.extend_from_slice(data);
        }
        has_room
    }
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
        if upload.replay.is_empty() && upload.frames.is_none() && !upload.drops_trailers {
            return upload.poll_frame(cx);
        }
        upload.poll_latest(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.upload.as_ref().is_none_or(|upload| upload.borrow().has_ended())
    }

    fn size_hint(&self) -> SizeHint {
        let Some(upload) = &self.upload else { return SizeHint::with_exact(0) };
        let upload = upload.borrow();
        let replayed = upload.replay.len() as u64;
        match &upload.state {
            UploadState::Open(incoming) => match incoming.size_hint().exact() {
                Some(rest) => SizeHint::with_exact(rest.saturating_add(replayed)),
                None => SizeHint::default(),
            },
            // HTTP/1.1 sends trailers only after chunks, and hyper sends chunks only without a length.
            UploadState::Ended if upload.replayed_trailers.is_some() => SizeHint::default(),
            UploadState::Ended => SizeHint::with_exact(replayed),
            UploadState::Stopped => SizeHint::default(),
        }
    }
}

impl Drop for RequestBody {
    /// Stops the upload if hyper drops a body that it has started to read.
    fn drop(&mut self) {
        if let Some(upload) = &self.upload {
            let mut upload = upload.borrow_mut();
            if upload.generation == self.generation {
                (upload.replay, upload.frames) = (Bytes::new(), None);
                if let Some(recording) = &mut upload.recording {
                    recording.is_body_dropped = true;
                } else if upload.is_read {
                    upload.stop();
                }
            }
        }
    }
}

impl Upload {
    /// Whether the body has ended, trailers included.
    fn has_ended(&self) -> bool {
        self.replay.is_empty()
            && matches!(self.state, UploadState::Ended)
            && self.replayed_trailers.is_none()
            && self.frames.as_ref().is_none_or(|frames| frames.small.is_empty())
    }

    /// The next frame of the latest body, as its server gets it.
    fn poll_latest(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(mut frames) = self.frames.take() else { return self.poll_replayed(cx) };
        let frame = self.poll_joined(&mut frames.small, cx);
        frames.unsent.replace(matches!(&frame, Poll::Ready(Some(Ok(frame))) if frame.is_data()));
        self.frames = Some(frames);
        frame
    }

    /// The next frame with small ones joined.
    fn poll_joined(
        &mut self,
        small: &mut SmallFrames,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(trailers) = small.take_trailers() {
            return Poll::Ready(Some(Ok(trailers)));
        }
        loop {
            let polled = self.poll_replayed(cx);
            if let Some(result) = small.join(polled, self.has_ended(), cx) {
                return result;
            }
        }
    }

    /// The next frame: what is replayed of the body comes first.
    fn poll_replayed(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = if self.replay.is_empty() {
            self.poll_frame(cx)
        } else {
            Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.replay)))))
        };
        match frame {
            Poll::Ready(Some(Ok(frame))) if frame.is_trailers() && self.drops_trailers => Poll::Ready(None),
            frame => frame,
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let incoming = match &mut self.state {
            UploadState::Open(incoming) => incoming,
            UploadState::Ended => {
                return Poll::Ready(
                    self.replayed_trailers.take().map(|trailers| Ok(Frame::trailers(trailers))),
                );
            }
            UploadState::Stopped => return Poll::Ready(Some(Err(BodyError::not_needed()))),
        };
        let frame = match Pin::new(&mut *incoming).poll_frame(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                return match self.stall_timer.poll(cx) {
                    Poll::Ready(error) => Poll::Ready(Some(Err(self.fail(UploadFailure::TooSlow, error)))),
                    Poll::Pending => {
                        self.client_wait = ClientWait::Now;
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
                let error = self.fail(UploadFailure::of(&error), error.into());
                return Poll::Ready(Some(Err(error)));
            }
            None => {
                self.end();
                return Poll::Ready(None);
            }
        };
        self.record_progress();
        if let Some(trailers) = frame.trailers_mut() {
            let (snapshot, underscored) = &self.trailers;
            hop_headers::strip_trailers(trailers, snapshot.policy.matcher.header_rules(), *underscored);
        }
        if let Some(recording) = &mut self.recording
            && !recording.add(&frame)
        {
            self.recording = None;
        }
        let length = frame.data_ref().map_or(0, Bytes::len);
        self.stall_timer.record(length);
        if let Some(meter) = &mut self.meter {
            meter.add(length);
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

    /// Reads frames into the recording until it has `max_bytes` or the body has ended.
    fn poll_fill(&mut self, cx: &mut Context<'_>, max_bytes: u64) -> Poll<Result<(), UploadFailure>> {
        loop {
            let is_full =
                self.recording.as_ref().is_none_or(|recording| recording.bytes.len() as u64 >= max_bytes);
            if is_full || matches!(self.state, UploadState::Ended) {
                return Poll::Ready(Ok(()));
            }
            if let Some(Err(_)) = ready!(self.poll_frame(cx)) {
                return Poll::Ready(Err(self.failure.unwrap_or(UploadFailure::Malformed)));
            }
        }
    }

    fn record_progress(&mut self) {
        self.has_progress = true;
        self.is_read = true;
        if self.client_wait == ClientWait::Now {
            self.client_wait = ClientWait::Before;
        }
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
        self.recording = None;
        self.unread = None;
        self.meter = None;
        error
    }

    /// Drops the rest of the body. Its reader gets an error.
    fn stop(&mut self) {
        self.recording = None;
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
    /// Nothing was read, or everything that was read is recorded: it can be sent to another server.
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
        meter: Option<ChargeMeter>,
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
            client_wait: ClientWait::Never,
            is_read: false,
            recording: None,
            replay: Bytes::new(),
            replayed_trailers: None,
            drops_trailers: false,
            frames: None,
            failure: None,
            unread: Some(UnreadBody::for_latest(activity)),
            trailers: (Rc::clone(snapshot), underscored),
            meter,
            reader: None,
        };
        Self(Some(Rc::new(RefCell::new(upload))))
    }

    /// Records up to `max_bytes` of the body while it is sent, so that it can be sent again from its beginning.
    pub(crate) fn record(&self, max_bytes: u64) {
        let Some(upload) = &self.0 else { return };
        let mut upload = upload.borrow_mut();
        let UploadState::Open(incoming) = &upload.state else { return };
        if !upload.is_read && incoming.size_hint().lower() <= max_bytes {
            let bytes = BytesMut::new();
            let recording = Recording { bytes, trailers: None, max_bytes, is_body_dropped: false };
            upload.recording = Some(Box::new(recording));
        }
    }

    /// Receives the body before it is sent, up to about `max_bytes` of it.
    pub(crate) async fn fill(&self, max_bytes: u64) -> Result<(), UploadFailure> {
        let Some(upload) = &self.0 else { return Ok(()) };
        if upload.borrow().is_read {
            return Ok(());
        }
        self.record(u64::MAX);
        let filled = std::future::poll_fn(|cx| upload.borrow_mut().poll_fill(cx, max_bytes)).await;
        self.bound_recording(max_bytes);
        filled
    }

    /// Records no more than this much, besides what is recorded already.
    pub(crate) fn bound_recording(&self, max_bytes: u64) {
        if let Some(upload) = &self.0
            && let Some(recording) = &mut upload.borrow_mut().recording
        {
            recording.max_bytes = max_bytes;
        }
    }

    /// Everything that was received before the body is sent; `None` if it is not recorded.
    pub(crate) fn received(&self) -> Option<Vec<u8>> {
        match &self.0 {
            Some(upload) => upload.borrow().recording.as_ref().map(|recording| recording.bytes.to_vec()),
            None => Some(Vec::new()),
        }
    }

    /// Counts the bytes of the body, also those that were received before.
    pub(crate) fn measure(&self, mut meter: ChargeMeter) {
        let Some(upload) = &self.0 else { return };
        let mut upload = upload.borrow_mut();
        meter.add(upload.recording.as_ref().map_or(0, |recording| recording.bytes.len()));
        if matches!(upload.state, UploadState::Open(_)) {
            upload.meter = Some(meter);
        }
    }

    /// Whether the whole body has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.0.as_ref().is_none_or(|upload| matches!(upload.borrow().state, UploadState::Ended))
    }

    /// Ends the recording: the body will not be sent again.
    pub(crate) fn end_recording(&self) {
        let Some(upload) = &self.0 else { return };
        let mut upload = upload.borrow_mut();
        let recording = upload.recording.take();
        if upload.is_read && recording.is_some_and(|recording| recording.is_body_dropped) {
            upload.stop();
        }
    }

    /// The body for an attempt; `None` if some of it was read and not recorded. The body of the previous attempt becomes
    /// invalid.
    pub(crate) fn open(&self) -> Option<RequestBody> {
        let Some(upload) = &self.0 else {
            return Some(RequestBody { upload: None, generation: 0 });
        };
        if self.progress() == UploadProgress::Started {
            return None;
        }
        let mut shared = upload.borrow_mut();
        shared.generation += 1;
        shared.reader = None;
        shared.client_wait = ClientWait::Never;
        (shared.drops_trailers, shared.frames) = (false, None);
        let (mut replay, mut trailers) = (Bytes::new(), None);
        if let Some(recording) = &mut shared.recording {
            recording.is_body_dropped = false;
            replay = Bytes::copy_from_slice(&recording.bytes);
            trailers.clone_from(&recording.trailers);
        }
        (shared.replay, shared.replayed_trailers) = (replay, trailers);
        Some(RequestBody { upload: Some(Rc::clone(upload)), generation: shared.generation })
    }

    pub(crate) fn progress(&self) -> UploadProgress {
        let Some(upload) = &self.0 else { return UploadProgress::Empty };
        let upload = upload.borrow();
        let is_unread = !upload.is_read && matches!(upload.state, UploadState::Open(_));
        let is_recorded = upload.recording.is_some() && !matches!(upload.state, UploadState::Stopped);
        if is_unread || is_recorded { UploadProgress::Unread } else { UploadProgress::Started }
    }

    /// Whether some of the body was read since the last call.
    pub(crate) fn has_progress(&self) -> bool {
        self.0.as_ref().is_some_and(|upload| std::mem::take(&mut upload.borrow_mut().has_progress))
    }

    /// Whether the server cannot have the whole body yet because the client has not sent it.
    pub(crate) fn awaits_client(&self) -> bool {
        self.0.as_ref().is_some_and(|upload| {
            let upload = upload.borrow();
            upload.client_wait == ClientWait::Now && matches!(upload.state, UploadState::Open(_))
        })
    }

    /// Whether the latest attempt had to wait for the client: its duration says nothing about the server.
    pub(crate) fn has_awaited_client(&self) -> bool {
        self.0.as_ref().is_some_and(|upload| upload.borrow().client_wait != ClientWait::Never)
    }

    /// Whether the client is the reason that the server of the latest attempt has not got the whole body: it has not sent the
    /// rest, or what it sent is invalid.
    pub(crate) fn is_incomplete_by_client(&self) -> bool {
        self.0.as_ref().is_some_and(|upload| {
            let upload = upload.borrow();
            let is_late =
                upload.client_wait == ClientWait::Now && !matches!(upload.state, UploadState::Ended);
            is_late || upload.failure.is_some()
        })
    }

    /// Why the upload failed, if it did.
    pub(crate) fn failure(&self) -> Option<UploadFailure> {
        self.0.as_ref().and_then(|upload| upload.borrow().failure)
    }

    /// An attempt has ended. Unless the body is recorded for another one, the rest of it is not needed.
    pub(crate) fn abandon(&self) {
        if let Some(upload) = &self.0 {
            let mut upload = upload.borrow_mut();
            if upload.recording.is_none() {
                upload.stop();
            }
        }
    }

    /// Stops the upload: the rest of the body is not needed.
    pub(crate) fn stop(&self) {
        if let Some(upload) = &self.0 {
            upload.borrow_mut().stop();
        }
    }
}
