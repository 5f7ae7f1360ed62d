//! Serves the plain requests of a connection.
//!
//! Requests are answered in the buffers of the worker into which they are read, so idle connections hold next to nothing.
//! Whatever one read brings is answered with one write.

use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tidegate_store::Store;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

use super::dispatch::dispatch;
use super::idle_timeout::{IDLE_TICKS, TICK};
use super::plain::{MAX_LINES, PlainRequest};
use super::state::ConnectionBuffers;
use crate::connection_events::{ConnectionEvent, ConnectionEvents};
use crate::worker::ServiceWorker;

/// Responses are sent before they become longer than this, except for the last one.
const MAX_OUTPUT: usize = 32 << 10;
/// Responses up to this size wait until the other connections that are ready have had their turn.
const SMALL_OUTPUT: usize = 1 << 10;
/// The most bytes that are read while a request waits for its answer.
const MAX_EARLY: usize = 512;

/// A connection that has brought only plain requests.
pub(super) struct PlainConnection<'c, S, IO> {
    io: &'c mut IO,
    peer: IpAddr,
    worker: &'c Rc<ServiceWorker<S>>,
    events: ConnectionEvents,
    /// Ticks since the last request.
    idle_ticks: u32,
    /// Whether a request was answered.
    has_answered: bool,
    /// A small output that is to be sent. Its memory is kept.
    deferred: Vec<u8>,
}

/// What was read of a request that is not plain.
pub(super) struct PlainRest {
    pub(super) bytes: Bytes,
    /// Whether it is the first request of its connection. Only then may it be the beginning of HTTP/2.
    pub(super) is_first: bool,
}

impl<'c, S, IO> PlainConnection<'c, S, IO>
where
    S: Store + 'static,
    IO: AsyncRead + AsyncWrite + Unpin,
{
    pub(super) fn new(
        io: &'c mut IO,
        peer: IpAddr,
        worker: &'c Rc<ServiceWorker<S>>,
        stop: &watch::Receiver<bool>,
    ) -> Self {
        Self {
            io,
            peer,
            worker,
            events: ConnectionEvents::new(stop, TICK),
            idle_ticks: 0,
            has_answered: false,
            deferred: Vec::new(),
        }
    }

    /// Serves requests until one is not plain, and returns what was read of it; `None` if the connection is to be closed.
    pub(super) async fn run(mut self) -> Option<PlainRest> {
        loop {
            let (mut buffers, length) = poll_fn(|cx| self.poll_read(cx)).await?;
            let answered = self.answer_all(&mut buffers, length).await;
            self.worker.http.put_back(buffers);
            let rest = answered?;
            if !self.deferred.is_empty() {
                self.worker.http.deferral.wait().await;
                let mut deferred = std::mem::take(&mut self.deferred);
                self.send(&mut deferred).await?;
                self.deferred = deferred;
            }
            if !rest.is_empty() {
                return Some(PlainRest { bytes: rest.into(), is_first: !self.has_answered });
            }
        }
    }

    /// Reads into buffers of the worker; `None` if the connection ends.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Option<(ConnectionBuffers, usize)>> {
        let mut buffers = self.worker.http.take_buffers();
        let mut buffer = ReadBuf::new(&mut buffers.read);
        let polled = Pin::new(&mut *self.io).poll_read(cx, &mut buffer);
        let length = buffer.filled().len();
        if polled.is_ready() && length > 0 {
            return Poll::Ready(Some((buffers, length)));
        }
        self.worker.http.put_back(buffers);
        match polled {
            Poll::Ready(_) => Poll::Ready(None),
            Poll::Pending => self.poll_end(cx, true).map(|()| None),
        }
    }

    /// Whether the connection is idle for too long or, with `may_stop`, the service stops.
    fn poll_end(&mut self, cx: &mut Context<'_>, may_stop: bool) -> Poll<()> {
        while let Poll::Ready(event) = self.events.poll(cx) {
            match event {
                ConnectionEvent::Tick => self.idle_ticks += 1,
                ConnectionEvent::Stop if may_stop => return Poll::Ready(()),
                // Connections that are still open at the end of the drain are aborted.
                ConnectionEvent::Stop => return Poll::Pending,
            }
            if self.idle_ticks > IDLE_TICKS {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    /// Answers the plain requests among the `length` bytes that were read, and returns the rest; `None` if the connection is to be
    /// closed.
    async fn answer_all(&mut self, buffers: &mut ConnectionBuffers, length: usize) -> Option<Vec<u8>> {
        let ConnectionBuffers { read, output } = buffers;
        let mut input = read.get(..length)?;
        let (worker, mut early) = (self.worker, Vec::new());
        loop {
            input = skip_empty_lines(input);
            if input.is_empty() {
                break;
            }
            let mut lines = [const { MaybeUninit::uninit() }; MAX_LINES];
            let Some(PlainRequest { head, body, length }) = PlainRequest::parse(input, &mut lines) else {
                break;
            };
            let mut answering = pin!(dispatch(worker, self.peer, head, body));
            let response = match poll_fn(|cx| Poll::Ready(answering.as_mut().poll(cx))).await {
                Poll::Ready(response) => response,
                Poll::Pending => {
                    // The answers to earlier requests do not wait for this one.
                    self.send(output).await?;
                    let next = skip_empty_lines(input.get(length..)?);
                    if next.is_empty() && early.is_empty() {
                        while_connected(answering, self.io, &mut early).await?
                    } else {
                        answering.await
                    }
                }
            };
            (self.idle_ticks, self.has_answered) = (0, true);
            let closes = self.events.is_stopped();
            worker.http.with_date(&**worker.limiter.clock(), |date| response.write(date, closes, output));
            input = input.get(length..)?;
            if closes || output.len() > MAX_OUTPUT {
                self.send(output).await?;
            }
            if closes {
                return None;
            }
        }
        if output.len() <= SMALL_OUTPUT {
            self.deferred.extend_from_slice(output);
        } else {
            self.send(output).await?;
        }
        early.splice(..0, input.iter().copied());
        let empty_lines = early.len() - skip_empty_lines(&early).len();
        early.drain(..empty_lines);
        Some(early)
    }

    /// Sends all of `output`; `None` if the client has closed the connection or reads too slowly.
    async fn send(&mut self, output: &mut Vec<u8>) -> Option<()> {
        let mut unsent = output.as_slice();
        poll_fn(|cx| {
            while !unsent.is_empty() {
                match Pin::new(&mut *self.io).poll_write(cx, unsent) {
                    Poll::Ready(Ok(written @ 1..)) => unsent = unsent.get(written..).unwrap_or_default(),
                    Poll::Ready(_) => return Poll::Ready(None),
                    Poll::Pending => return self.poll_end(cx, false).map(|()| None),
                }
            }
            match Pin::new(&mut *self.io).poll_flush(cx) {
                Poll::Ready(flushed) => Poll::Ready(flushed.ok()),
                Poll::Pending => self.poll_end(cx, false).map(|()| None),
            }
        })
        .await?;
        output.clear();
        Some(())
    }
}

/// Clients may send empty lines before a request.
fn skip_empty_lines(mut input: &[u8]) -> &[u8] {
    while let Some(rest) = input.strip_prefix(b"\r\n") {
        input = rest;
    }
    input
}

/// The result of `answering`; `None` if the client closes the connection first, because no client waits for the answer then. If
/// the client sends the beginning of another request, it is read into `early`, and nothing is read after it: a client that has
/// sent all of its requests may close its side and still wait for the answers.
async fn while_connected<T>(
    mut answering: Pin<&mut impl Future<Output = T>>,
    io: &mut (impl AsyncRead + Unpin),
    early: &mut Vec<u8>,
) -> Option<T> {
    poll_fn(|cx| {
        if let Poll::Ready(answer) = answering.as_mut().poll(cx) {
            return Poll::Ready(Some(answer));
        }
        if early.is_empty() {
            let mut bytes = [0; MAX_EARLY];
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut *io).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    early.extend_from_slice(buffer.filled());
                }
                Poll::Ready(_) => return Poll::Ready(None),
                Poll::Pending => {}
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests;
