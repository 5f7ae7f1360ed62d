//! Joins small frames of a request body for HTTP/2 servers.
//!
//! A client may send its body byte by byte. Each byte would become a frame, which costs a server much more than its content:
//! some servers close the connection after a number of such frames (Tomcat, nginx), and with it the requests of other clients.
//! So a small frame waits while more of the body arrives, and for one turn of the worker, in which the connection of the client
//! can deliver more. That does not delay bodies whose client waits for a response to each part.

use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::Frame;

/// Larger frames are not joined. Tomcat counts smaller ones.
const SMALL: usize = 1 << 10;

/// What a body returns when it is polled.
type Polled<E> = Poll<Option<Result<Frame<Bytes>, E>>>;

/// What was read of a body and not yet returned.
#[derive(Debug, Default)]
pub(crate) struct SmallFrames {
    joined: BytesMut,
    /// The worker has had a turn since the last frame.
    has_waited: bool,
    /// The last frame of the body, after what was joined.
    trailers: Option<Frame<Bytes>>,
}

impl SmallFrames {
    pub(crate) fn is_empty(&self) -> bool {
        self.joined.is_empty() && self.trailers.is_none()
    }

    /// Adds what was polled from a body that `has_ended` with it. Returns what the reader gets; `None` if it is to poll again.
    pub(crate) fn join<E>(
        &mut self,
        polled: Polled<E>,
        has_ended: bool,
        cx: &Context<'_>,
    ) -> Option<Polled<E>> {
        let frame = match polled {
            Poll::Ready(Some(Ok(frame))) => frame,
            Poll::Pending if !self.joined.is_empty() && !self.has_waited => {
                self.has_waited = true;
                cx.waker().wake_by_ref();
                return Some(Poll::Pending);
            }
            Poll::Pending | Poll::Ready(None) if !self.joined.is_empty() => return Some(self.take()),
            polled => return Some(polled),
        };
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(trailers) if self.joined.is_empty() => return Some(Poll::Ready(Some(Ok(trailers)))),
            Err(trailers) => {
                self.trailers = Some(trailers);
                return Some(self.take());
            }
        };
        let is_last = has_ended || data.len() >= SMALL;
        if is_last && self.joined.is_empty() {
            return Some(Poll::Ready(Some(Ok(Frame::data(data)))));
        }
        self.joined.extend_from_slice(&data);
        self.has_waited = false;
        (is_last || self.joined.len() >= SMALL).then(|| self.take())
    }

    /// The trailers that were read with the last data.
    pub(crate) fn take_trailers(&mut self) -> Option<Frame<Bytes>> {
        self.trailers.take()
    }

    fn take<E>(&mut self) -> Polled<E> {
        Poll::Ready(Some(Ok(Frame::data(self.joined.split().freeze()))))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::task::Waker;

    use http::HeaderMap;

    use super::*;

    fn data(length: usize) -> Polled<Infallible> {
        Poll::Ready(Some(Ok(Frame::data(vec![b'a'; length].into()))))
    }

    fn trailers() -> Polled<Infallible> {
        Poll::Ready(Some(Ok(Frame::trailers(HeaderMap::new()))))
    }

    /// Reads a body that consists of `frames`, and is pending before it ends if it does not end with trailers. Returns the
    /// lengths of the frames, 0 for trailers, and how often it was pending.
    fn read(frames: Vec<Polled<Infallible>>) -> (Vec<usize>, usize) {
        let (mut small, cx) = (SmallFrames::default(), Context::from_waker(Waker::noop()));
        let (mut lengths, mut pending, mut frames) = (Vec::new(), 0, frames.into_iter());
        loop {
            if let Some(frame) = small.take_trailers() {
                lengths.push(frame.data_ref().map_or(0, Bytes::len));
            }
            let Some(result) = small.join(frames.next().unwrap_or(Poll::Ready(None)), false, &cx) else {
                continue;
            };
            match result {
                Poll::Ready(Some(Ok(frame))) => lengths.push(frame.data_ref().map_or(0, Bytes::len)),
                Poll::Ready(None) => break,
                Poll::Pending => pending += 1,
            }
        }
        assert!(small.is_empty());
        (lengths, pending)
    }

    #[test]
    fn small_frames_that_have_arrived_are_joined_up_to_the_limit() {
        assert_eq!(read((0..2_500).map(|_| data(1)).collect()), (vec![SMALL, SMALL, 2_500 - 2 * SMALL], 0));
        assert_eq!(read(vec![data(10), data(5_000), data(5_000)]), (vec![5_010, 5_000], 0));
        assert_eq!(read(vec![data(3), trailers()]), (vec![3, 0], 0));
        assert_eq!(read(vec![trailers()]), (vec![0], 0));
    }

    #[test]
    fn small_frame_waits_for_one_turn_of_the_worker() {
        let frames = vec![data(1), Poll::Pending, data(1), Poll::Pending, Poll::Pending, data(1)];
        assert_eq!(read(frames), (vec![2, 1], 2));
        let (mut small, cx) = (SmallFrames::default(), Context::from_waker(Waker::noop()));
        assert!(small.join(data(1), true, &cx).is_some_and(|polled| polled.is_ready()), "the last frame");
        assert!(small.join(data(SMALL), false, &cx).is_some_and(|polled| polled.is_ready()));
    }
}
