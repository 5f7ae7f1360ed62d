//! Responses over HTTP/2: the slow-reader limit applies to each stream separately.
//!
//! hyper polls a chunk of a body, waits until the flow-control window has room for at least one byte of it, and passes the
//! whole chunk to h2. So when hyper polls the next chunk, the client has made room for all chunks but the last. The size
//! of the chunks decides how precisely this measures the client: chunks are small where a stream may be blocked.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::rt::Executor;
use slab::Slab;
use tokio::task::AbortHandle;

use super::activity::{Activity, RequestGuard};
use super::idle_policy::{ReaderRate, SlowReader};

/// The default maximum size of an HTTP/2 frame.
const LARGE: usize = 16 << 10;
/// The default initial flow-control window of a stream.
const DEFAULT_WINDOW: u32 = 65_535;
const PREFACE: usize = 24;

/// The responses of one HTTP/2 connection.
#[derive(Debug)]
pub(super) struct ResponseStreams {
    streams: RefCell<Slab<ResponseStream>>,
    /// A request whose task has not been spawned yet.
    unspawned: Cell<Option<usize>>,
    /// The initial flow-control window of each stream.
    window: u64,
    /// The minimum read rate of each response.
    rate: ReaderRate,
}

/// The stream of a request, from its head to the last chunk of its response.
#[derive(Debug, Default)]
struct ResponseStream {
    task: Option<AbortHandle>,
    /// The rest of a data frame of which a chunk was sent.
    rest: Bytes,
    /// A chunk was sent, and hyper has not polled for the next one.
    is_waiting: bool,
    /// Bytes of chunks that h2 has taken, now and at the last tick.
    taken: u64,
    seen: u64,
    /// The length of the last chunk, and how much of it may be blocked by flow control after h2 has taken it.
    last: u64,
    last_stuck: u64,
    /// The same for the chunk before.
    stuck: u64,
    /// Bytes that may still be sent in large chunks: initially the flow-control window.
    large: u64,
    /// Bytes in small chunks since then.
    run: u64,
    reader: SlowReader,
    /// Bytes that the socket had accepted when h2 last took a chunk of this stream.
    written: u64,
}

impl ResponseStreams {
    /// `start` is what the client has sent: the preface, and possibly its settings.
    pub(super) fn new(start: &[u8], rate: ReaderRate) -> Self {
        let window = initial_window(start.get(PREFACE..).unwrap_or_default()).unwrap_or(DEFAULT_WINDOW);
        Self {
            streams: RefCell::default(),
            unspawned: Cell::new(None),
            window: u64::from(window),
            rate: ReaderRate { bytes: rate.bytes.max(1), ..rate },
        }
    }

    /// Registers a request. The next spawned task is its own.
    pub(super) fn begin(self: &Rc<Self>) -> StreamGuard {
        let key = self
            .streams
            .borrow_mut()
            .insert(ResponseStream { large: self.window, ..ResponseStream::default() });
        self.unspawned.set(Some(key));
        StreamGuard { streams: Rc::clone(self), key }
    }

    /// Called at every tick. Resets the streams that the client reads too slowly; others continue.
    pub(super) fn tick(&self, activity: &Activity) {
        let mut streams = self.streams.borrow_mut();
        let waiting = streams.iter().filter(|(_, stream)| stream.is_waiting).count();
        let (is_blocked, written) = (activity.is_blocked(), activity.written());
        for (_, stream) in &mut *streams {
            if !stream.is_waiting || stream.taken != stream.seen {
                (stream.seen, stream.written) = (stream.taken, written);
            }
            if stream.is_waiting {
                // The next chunks are small.
                (stream.large, stream.run) = (0, 0);
                // While the socket is full, all streams share what it accepts: this one may be waiting for its turn.
                if is_blocked && written.wrapping_sub(stream.written) < (waiting * LARGE) as u64 {
                    continue;
                }
            }
            // A large chunk may be blocked entirely: it gets the time that the minimum rate needs for it.
            let windows = u32::try_from(1 + stream.stuck / self.rate.bytes).unwrap_or(u32::MAX);
            let rate = ReaderRate { ticks: self.rate.ticks.saturating_mul(windows), ..self.rate };
            let taken = stream.taken;
            if stream.reader.is_too_slow(stream.is_waiting, rate, || taken)
                && let Some(task) = &stream.task
            {
                // Dropping the task resets the stream and releases its upstream resources.
                task.abort();
            }
        }
    }

    fn spawned(&self, task: AbortHandle) {
        if let Some(key) = self.unspawned.take()
            && let Some(stream) = self.streams.borrow_mut().get_mut(key)
        {
            stream.task = Some(task);
        }
    }

    /// The size of small chunks: at the minimum rate, a reader takes several in each window.
    fn small(&self) -> usize {
        usize::try_from(self.rate.bytes / 4).unwrap_or(LARGE).clamp(256, LARGE)
    }
}

impl ResponseStream {
    /// hyper polls again: h2 has taken the last chunk.
    fn took_last(&mut self) {
        if self.last > 0 {
            self.taken = self.taken.wrapping_add(std::mem::take(&mut self.last));
            self.stuck = self.last_stuck;
        }
    }

    /// The next chunk of the current frame; `None` if it is used up.
    fn next_chunk(&mut self, min_bytes: u64, small: usize) -> Option<Bytes> {
        if self.rest.is_empty() {
            return None;
        }
        let most =
            if self.large > 0 { LARGE.min(usize::try_from(self.large).unwrap_or(LARGE)) } else { small };
        let chunk = self.rest.split_to(most.min(self.rest.len()));
        let length = chunk.len() as u64;
        // A chunk that ends with the window fits into it.
        self.last_stuck = if self.large == length { 0 } else { length };
        if self.large > 0 {
            self.large = self.large.saturating_sub(length);
        } else {
            self.run += length;
            // A client that reads this much between two ticks is not slow.
            if self.run >= 4 * min_bytes {
                self.large = u64::MAX;
            }
        }
        self.last = length;
        self.is_waiting = true;
        Some(chunk)
    }
}

/// Removes the entry of a request on drop.
#[derive(Debug)]
pub(super) struct StreamGuard {
    streams: Rc<ResponseStreams>,
    key: usize,
}

impl StreamGuard {
    fn with<R>(&self, act: impl FnOnce(&mut ResponseStream, &ResponseStreams) -> R) -> Option<R> {
        self.streams.streams.borrow_mut().get_mut(self.key).map(|stream| act(stream, &self.streams))
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        // The removed stream is dropped after the borrow has ended.
        let _stream = self.streams.streams.borrow_mut().try_remove(self.key);
    }
}

/// Spawns the tasks of one HTTP/2 connection. hyper spawns one for each request, right after it has called the service.
#[derive(Clone, Debug)]
pub(super) struct StreamExecutor(pub(super) Rc<ResponseStreams>);

impl<F: Future + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, task: F) {
        self.0.spawned(tokio::task::spawn_local(task).abort_handle());
    }
}

/// A response body. Its request is in flight until the body is dropped.
#[derive(Debug)]
pub(super) struct InFlightBody<B> {
    body: B,
    _in_flight: RequestGuard,
    /// `None` over HTTP/1.1.
    stream: Option<StreamGuard>,
}

impl<B> InFlightBody<B> {
    pub(super) fn new(body: B, in_flight: RequestGuard, stream: Option<StreamGuard>) -> Self {
        if stream.is_none() {
            in_flight.activity().response_was_returned();
        }
        Self { body, _in_flight: in_flight, stream }
    }

    fn rest(&self) -> usize {
        let rest = self.stream.as_ref().and_then(|stream| stream.with(|stream, _| stream.rest.len()));
        rest.unwrap_or_default()
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for InFlightBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        let Some(stream) = &this.stream else { return Pin::new(&mut this.body).poll_frame(cx) };
        let chunk = stream.with(|stream, all| {
            stream.took_last();
            stream.next_chunk(all.rate.bytes, all.small())
        });
        if let Some(chunk) = chunk.flatten() {
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        let frame = Pin::new(&mut this.body).poll_frame(cx);
        let Poll::Ready(Some(Ok(frame))) = frame else {
            // While the upstream is slow, the client is not measured.
            stream.with(|stream, _| stream.is_waiting = false);
            return frame;
        };
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
        };
        let chunk = stream.with(|stream, all| {
            stream.rest = data;
            stream.next_chunk(all.rate.bytes, all.small()).unwrap_or_default()
        });
        Poll::Ready(Some(Ok(Frame::data(chunk.unwrap_or_default()))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && self.rest() == 0
    }

    fn size_hint(&self) -> SizeHint {
        let (body, rest) = (self.body.size_hint(), self.rest() as u64);
        if rest == 0 {
            return body;
        }
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower().saturating_add(rest));
        if let Some(upper) = body.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

/// The initial window that the client's first frame, `SETTINGS`, requests.
fn initial_window(frame: &[u8]) -> Option<u32> {
    const SETTINGS: u8 = 4;
    const INITIAL_WINDOW_SIZE: [u8; 2] = [0, 4];
    let (header, payload) = frame.split_at_checked(9)?;
    if header[3] != SETTINGS {
        return None;
    }
    let length = usize::try_from(u32::from_be_bytes([0, header[0], header[1], header[2]])).ok()?;
    let settings = payload.get(..length)?.chunks_exact(6);
    // The last value of a repeated setting applies.
    let window = settings.rev().find(|setting| setting.starts_with(&INITIAL_WINDOW_SIZE))?;
    Some(u32::from_be_bytes(window.get(2..)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::task::{LocalSet, yield_now};

    use super::*;

    const MIN_BYTES: u64 = 3_000;
    const WINDOW: u32 = 6;
    const RATE: ReaderRate = ReaderRate { bytes: MIN_BYTES, ticks: WINDOW };
    const SMALL: usize = 750;

    fn settings(window: Option<u32>) -> Vec<u8> {
        // Two other settings, one of them before.
        let mut payload = vec![0, 3, 0, 0, 0, 100];
        if let Some(window) = window {
            payload.extend([0, 4]);
            payload.extend(window.to_be_bytes());
        }
        payload.extend([0, 6, 0, 0, 64, 0]);
        let length = u8::try_from(payload.len()).unwrap();
        [&[b'P'; PREFACE][..], &[0, 0, length, 4, 0, 0, 0, 0, 0], &payload].concat()
    }

    fn streams(window: u32) -> Rc<ResponseStreams> {
        Rc::new(ResponseStreams::new(&settings(Some(window)), RATE))
    }

    #[test]
    fn initial_window_is_read_from_client_settings() {
        let window = |start: &[u8]| ResponseStreams::new(start, RATE).window;
        assert_eq!(window(&settings(Some(0))), 0);
        assert_eq!(window(&settings(Some(1 << 20))), 1 << 20);
        let default = u64::from(DEFAULT_WINDOW);
        assert_eq!(window(&settings(None)), default);
        let whole = settings(Some(9));
        for length in 0..whole.len() {
            assert_eq!(window(&whole[..length]), default, "incomplete settings");
        }
        let ping = [&whole[..PREFACE], &[0, 0, 8, 6, 0, 0, 0, 0, 0], &[0; 8]].concat();
        assert_eq!(window(&ping), default);
    }

    /// A stream with data to send.
    fn sending(streams: &Rc<ResponseStreams>) -> StreamGuard {
        let guard = streams.begin();
        guard.with(|stream, _| stream.rest = Bytes::from(vec![0; 1 << 20]));
        guard
    }

    /// h2 takes the last chunk, and polls the next. Returns its length.
    fn take_chunk(guard: &StreamGuard) -> usize {
        let chunk = guard.with(|stream, all| {
            stream.took_last();
            stream.next_chunk(all.rate.bytes, all.small())
        });
        chunk.flatten().map_or(0, |chunk| chunk.len())
    }

    #[test]
    fn chunks_within_window_are_large_then_small_until_client_is_fast() {
        let streams = streams(40_000);
        let guard = sending(&streams);
        let lengths: Vec<_> = (0..3).map(|_| take_chunk(&guard)).collect();
        assert_eq!(lengths, [LARGE, LARGE, 40_000 - 2 * LARGE], "up to the end of the window");
        let small = (0..1_000).take_while(|_| take_chunk(&guard) == SMALL).count();
        assert_eq!(small, 4 * 3_000 / SMALL);
        assert_eq!(take_chunk(&guard), LARGE);
        streams.tick(&Activity::default());
        assert_eq!(take_chunk(&guard), SMALL, "a stream that is blocked at a tick is measured again");
    }

    /// Spawns a task that never ends for a request, as HTTP/2 does.
    fn spawned(streams: &Rc<ResponseStreams>) -> (StreamGuard, AbortHandle) {
        let guard = sending(streams);
        StreamExecutor(Rc::clone(streams)).execute(std::future::pending::<()>());
        let task = guard.with(|stream, _| stream.task.clone()).flatten().unwrap();
        (guard, task)
    }

    async fn is_reset(task: &AbortHandle) -> bool {
        yield_now().await;
        task.is_finished()
    }

    #[tokio::test]
    async fn stalled_stream_is_reset_and_others_are_not() {
        let test = async {
            let (streams, activity) = (streams(0), Activity::default());
            let (stalled, stalled_task) = spawned(&streams);
            let (reads, reads_task) = spawned(&streams);
            let (_waits_upstream, waits_task) = spawned(&streams);
            take_chunk(&stalled);
            take_chunk(&reads);
            for tick in 1..=3 * WINDOW {
                take_chunk(&reads);
                streams.tick(&activity);
                assert_eq!(is_reset(&stalled_task).await, tick > WINDOW, "{tick}");
            }
            assert!(!is_reset(&reads_task).await && !is_reset(&waits_task).await);
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test]
    async fn stream_with_blocked_large_chunk_gets_time_for_it_at_the_minimum_rate() {
        let test = async {
            let (streams, activity) = (streams(1 << 20), Activity::default());
            let (guard, task) = spawned(&streams);
            take_chunk(&guard);
            take_chunk(&guard);
            let windows = u32::try_from(1 + LARGE as u64 / MIN_BYTES).unwrap();
            for _ in 0..windows * WINDOW {
                streams.tick(&activity);
            }
            assert!(!is_reset(&task).await);
            streams.tick(&activity);
            assert!(is_reset(&task).await);
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test]
    async fn stream_behind_full_socket_is_reset_only_after_all_streams_had_a_turn() {
        let test = async {
            let (streams, activity) = (streams(0), Arc::new(Activity::default()));
            let (stalled, task) = spawned(&streams);
            take_chunk(&stalled);
            for _ in 0..5 * WINDOW {
                // Slow, but above the minimum rate.
                activity.socket_wrote(&Poll::Ready(Ok(100)));
                activity.socket_wrote(&Poll::Pending);
                streams.tick(&activity);
            }
            assert!(!is_reset(&task).await, "the socket has not accepted a whole chunk");
            activity.socket_wrote(&Poll::Ready(Ok(LARGE)));
            activity.socket_wrote(&Poll::Pending);
            for _ in 0..=WINDOW {
                streams.tick(&activity);
            }
            assert!(is_reset(&task).await, "the socket has accepted data of other streams");
        };
        LocalSet::new().run_until(test).await;
    }
}
