//! Responses over HTTP/2: each stream has a slow-reader limit of its own.
//!
//! hyper takes a piece of a body, waits until the client has made room for a byte of it, and hands it to HTTP/2 whole. So
//! when the next piece is asked for, all pieces but the last have been taken out of the stream. How finely that shows
//! what a client takes is a matter of how large the pieces are: small ones where a stream may have to wait.

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

/// What goes into one frame of HTTP/2 unless its client allows more.
const LARGE: usize = 16 << 10;
/// The room that a client makes for each stream unless it says so.
const DEFAULT_WINDOW: u32 = 65_535;
const PREFACE: usize = 24;

/// The responses of one HTTP/2 connection.
#[derive(Debug)]
pub(super) struct ResponseStreams {
    streams: RefCell<Slab<ResponseStream>>,
    /// A request whose task has not been spawned yet.
    unspawned: Cell<Option<usize>>,
    /// The room that the client makes for each stream when it begins.
    window: u64,
    /// What a client must take of each response.
    rate: ReaderRate,
}

/// A request over HTTP/2, from its head to the last piece of its response.
#[derive(Debug, Default)]
struct ResponseStream {
    task: Option<AbortHandle>,
    /// What is left of a frame of which a piece was handed over.
    rest: Bytes,
    /// There is more to send than the client has made room for.
    is_waiting: bool,
    /// Bytes of pieces that HTTP/2 has taken, and the same at the last tick.
    taken: u64,
    seen: u64,
    /// The length of the last piece, which HTTP/2 takes next, and how much of it may then still wait for room.
    last: u64,
    last_stuck: u64,
    /// The same of the piece before.
    stuck: u64,
    /// Bytes that may be handed over in large pieces: at first what the client's window has room for.
    large: u64,
    /// Bytes in small pieces since then.
    run: u64,
    reader: SlowReader,
    /// What the socket had accepted when a piece of this stream was last taken.
    written: u64,
}

impl ResponseStreams {
    /// `start` is what the client has sent: its preface, and settings that may follow.
    pub(super) fn new(start: &[u8], rate: ReaderRate) -> Self {
        let window = initial_window(start.get(PREFACE..).unwrap_or_default()).unwrap_or(DEFAULT_WINDOW);
        Self {
            streams: RefCell::default(),
            unspawned: Cell::new(None),
            window: u64::from(window),
            rate: ReaderRate { bytes: rate.bytes.max(1), ..rate },
        }
    }

    /// A request has come. The task that is spawned next is its own.
    pub(super) fn begin(self: &Rc<Self>) -> StreamGuard {
        let key = self
            .streams
            .borrow_mut()
            .insert(ResponseStream { large: self.window, ..ResponseStream::default() });
        self.unspawned.set(Some(key));
        StreamGuard { streams: Rc::clone(self), key }
    }

    /// Called at every tick. Resets the streams whose client takes too little of them; the others go on.
    pub(super) fn tick(&self, activity: &Activity) {
        let mut streams = self.streams.borrow_mut();
        let waiting = streams.iter().filter(|(_, stream)| stream.is_waiting).count();
        let (is_blocked, written) = (activity.is_blocked(), activity.written());
        for (_, stream) in &mut *streams {
            if !stream.is_waiting || stream.taken != stream.seen {
                (stream.seen, stream.written) = (stream.taken, written);
            }
            if stream.is_waiting {
                // The next few pieces are small.
                (stream.large, stream.run) = (0, 0);
                // While the socket is full all streams share what it accepts: this one may wait for its turn.
                if is_blocked && written.wrapping_sub(stream.written) < (waiting * LARGE) as u64 {
                    continue;
                }
            }
            // A large piece may be under way in full: it has as long as the least rate takes for it.
            let windows = u32::try_from(1 + stream.stuck / self.rate.bytes).unwrap_or(u32::MAX);
            let rate = ReaderRate { ticks: self.rate.ticks.saturating_mul(windows), ..self.rate };
            let taken = stream.taken;
            if stream.reader.is_too_slow(stream.is_waiting, rate, || taken)
                && let Some(task) = &stream.task
            {
                // Dropping what sends the response resets the stream and frees what it holds upstream.
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

    /// Pieces so small that even the slowest reader takes several in a window.
    fn small(&self) -> usize {
        usize::try_from(self.rate.bytes / 4).unwrap_or(LARGE).clamp(256, LARGE)
    }
}

impl ResponseStream {
    /// HTTP/2 asks for more: it has taken the last piece.
    fn took_last(&mut self) {
        if self.last > 0 {
            self.taken = self.taken.wrapping_add(std::mem::take(&mut self.last));
            self.stuck = self.last_stuck;
        }
    }

    /// The next piece of what is at hand; `None` if that is nothing.
    fn next_piece(&mut self, least: u64, small: usize) -> Option<Bytes> {
        if self.rest.is_empty() {
            return None;
        }
        let most =
            if self.large > 0 { LARGE.min(usize::try_from(self.large).unwrap_or(LARGE)) } else { small };
        let piece = self.rest.split_to(most.min(self.rest.len()));
        let length = piece.len() as u64;
        // A piece that ends where the client's window ends fits into it.
        self.last_stuck = if self.large == length { 0 } else { length };
        if self.large > 0 {
            self.large = self.large.saturating_sub(length);
        } else {
            self.run += length;
            // Whoever takes so much between two ticks is not slow.
            if self.run >= 4 * least {
                self.large = u64::MAX;
            }
        }
        self.last = length;
        self.is_waiting = true;
        Some(piece)
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
        // What is left of it is dropped when nothing is borrowed any more.
        let _stream = self.streams.streams.borrow_mut().try_remove(self.key);
    }
}

/// Spawns the tasks of one HTTP/2 connection: one for each request, right after the request was handed to its service.
#[derive(Clone, Debug)]
pub(super) struct StreamExecutor(pub(super) Rc<ResponseStreams>);

impl<F: Future + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, task: F) {
        self.0.spawned(tokio::task::spawn_local(task).abort_handle());
    }
}

/// A response's body. Its request is in flight until it has ended.
#[derive(Debug)]
pub(super) struct InFlightBody<B> {
    body: B,
    _in_flight: RequestGuard,
    /// Over HTTP/2.
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
        let piece = stream.with(|stream, all| {
            stream.took_last();
            stream.next_piece(all.rate.bytes, all.small())
        });
        if let Some(piece) = piece.flatten() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let frame = Pin::new(&mut this.body).poll_frame(cx);
        let Poll::Ready(Some(Ok(frame))) = frame else {
            // While it is the upstream that is waited for, the client owes nothing.
            stream.with(|stream, _| stream.is_waiting = false);
            return frame;
        };
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
        };
        let piece = stream.with(|stream, all| {
            stream.rest = data;
            stream.next_piece(all.rate.bytes, all.small()).unwrap_or_default()
        });
        Poll::Ready(Some(Ok(Frame::data(piece.unwrap_or_default()))))
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

/// The room for each stream that a client's first frame, its settings, asks for.
fn initial_window(frame: &[u8]) -> Option<u32> {
    const SETTINGS: u8 = 4;
    const INITIAL_WINDOW_SIZE: [u8; 2] = [0, 4];
    let (header, payload) = frame.split_at_checked(9)?;
    if header[3] != SETTINGS {
        return None;
    }
    let length = usize::try_from(u32::from_be_bytes([0, header[0], header[1], header[2]])).ok()?;
    let settings = payload.get(..length)?.chunks_exact(6);
    // If it is told more than once, the last time counts.
    let window = settings.rev().find(|setting| setting.starts_with(&INITIAL_WINDOW_SIZE))?;
    Some(u32::from_be_bytes(window.get(2..)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::task::{LocalSet, yield_now};

    use super::*;

    const LEAST: u64 = 3_000;
    const WINDOW: u32 = 6;
    const RATE: ReaderRate = ReaderRate { bytes: LEAST, ticks: WINDOW };
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
    fn window_of_a_client_is_read_from_its_settings() {
        let window = |start: &[u8]| ResponseStreams::new(start, RATE).window;
        assert_eq!(window(&settings(Some(0))), 0);
        assert_eq!(window(&settings(Some(1 << 20))), 1 << 20);
        let unsaid = u64::from(DEFAULT_WINDOW);
        assert_eq!(window(&settings(None)), unsaid);
        let whole = settings(Some(9));
        for length in 0..whole.len() {
            assert_eq!(window(&whole[..length]), unsaid, "settings that have not all come");
        }
        let ping = [&whole[..PREFACE], &[0, 0, 8, 6, 0, 0, 0, 0, 0], &[0; 8]].concat();
        assert_eq!(window(&ping), unsaid);
    }

    /// A response of which HTTP/2 has taken everything but a piece.
    fn sending(streams: &Rc<ResponseStreams>) -> StreamGuard {
        let guard = streams.begin();
        guard.with(|stream, _| stream.rest = Bytes::from(vec![0; 1 << 20]));
        guard
    }

    /// HTTP/2 takes the last piece, and gets the next.
    fn takes(guard: &StreamGuard) -> usize {
        let piece = guard.with(|stream, all| {
            stream.took_last();
            stream.next_piece(all.rate.bytes, all.small())
        });
        piece.flatten().map_or(0, |piece| piece.len())
    }

    #[test]
    fn pieces_are_large_within_the_window_then_small_until_the_client_is_fast() {
        let streams = streams(40_000);
        let guard = sending(&streams);
        let lengths: Vec<_> = (0..3).map(|_| takes(&guard)).collect();
        assert_eq!(lengths, [LARGE, LARGE, 40_000 - 2 * LARGE], "up to the edge of the window");
        let small = (0..1_000).take_while(|_| takes(&guard) == SMALL).count();
        assert_eq!(small, 4 * 3_000 / SMALL);
        assert_eq!(takes(&guard), LARGE);
        streams.tick(&Activity::default());
        assert_eq!(takes(&guard), SMALL, "whoever is behind at a tick is measured again");
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
    async fn stream_that_takes_nothing_is_reset_and_no_other() {
        let test = async {
            let (streams, activity) = (streams(0), Activity::default());
            let (stalled, stalled_task) = spawned(&streams);
            let (reads, reads_task) = spawned(&streams);
            let (_waits_upstream, waits_task) = spawned(&streams);
            takes(&stalled);
            takes(&reads);
            for tick in 1..=3 * WINDOW {
                takes(&reads);
                streams.tick(&activity);
                assert_eq!(is_reset(&stalled_task).await, tick > WINDOW, "{tick}");
            }
            assert!(!is_reset(&reads_task).await && !is_reset(&waits_task).await);
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test]
    async fn stream_with_a_large_piece_under_way_has_the_time_that_the_least_rate_takes_for_it() {
        let test = async {
            let (streams, activity) = (streams(1 << 20), Activity::default());
            let (guard, task) = spawned(&streams);
            takes(&guard);
            takes(&guard);
            let windows = u32::try_from(1 + LARGE as u64 / LEAST).unwrap();
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
    async fn stream_behind_a_full_socket_is_judged_only_after_a_round_of_all_streams() {
        let test = async {
            let (streams, activity) = (streams(0), Arc::new(Activity::default()));
            let (stalled, task) = spawned(&streams);
            takes(&stalled);
            for _ in 0..5 * WINDOW {
                // Slow, but faster than the least.
                activity.socket_wrote(&Poll::Ready(Ok(100)));
                activity.socket_wrote(&Poll::Pending);
                streams.tick(&activity);
            }
            assert!(!is_reset(&task).await, "the socket has not accepted a whole piece");
            activity.socket_wrote(&Poll::Ready(Ok(LARGE)));
            activity.socket_wrote(&Poll::Pending);
            for _ in 0..=WINDOW {
                streams.tick(&activity);
            }
            assert!(is_reset(&task).await, "others were served meanwhile");
        };
        LocalSet::new().run_until(test).await;
    }
}
