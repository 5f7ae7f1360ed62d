//! The input and output of a connection.
//!
//! Commands are executed in the buffer of the worker into which they are read, and replies are written from there. A
//! connection keeps bytes of its own only while a command is incomplete or its client does not read, so idle connections
//! hold no buffers. Whatever one read brings is answered with one write.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tidegate_store::Store;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::task::unconstrained;

use super::batch::{BatchEnd, MAX_LOCKED_INPUT, MAX_LOCKED_OUTPUT, MAX_OUTPUT, Workspace};
use super::client_state::RespClientState;
use crate::accept::ServiceConnection;
use crate::connection_events::{ConnectionEvent, ConnectionEvents, requeue};
use crate::worker::ServiceWorker;

/// How often a connection is checked for progress.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);
/// The checks after which an idle connection is closed: an hour.
const MAX_IDLE_CHECKS: u32 = 240;
/// The bytes that a client which has not read everything must read between two checks.
const MIN_READ: usize = 16 << 10;
/// After this many commands, other connections get their turn.
const COMMANDS_PER_TURN: usize = 1024;
/// Replies up to this size wait until the other connections that are ready have had their turn.
const SMALL_OUTPUT: usize = 512;
/// How long a closed connection is drained, so that the client gets the last reply.
const LINGER: Duration = Duration::from_secs(1);
/// How long a client may stay connected without the token that it needs.
const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(10);
/// The most that is read at once while a closed connection is drained.
const LINGER_READ: usize = 4 << 10;
/// The most that is drained.
const MAX_LINGER: usize = 1 << 20;

/// A connection with its bytes in transit.
pub(super) struct RespConnection<S, IO> {
    io: IO,
    worker: Rc<ServiceWorker<S>>,
    client: RespClientState,
    state: ConnectionState,
    /// An incomplete command, or commands that are executed after their predecessors' replies are sent.
    input: Vec<u8>,
    /// Replies that the client has not taken yet.
    unsent: BytesMut,
    /// Whether bytes may be buffered below, by TLS.
    needs_flush: bool,
    progress: ProgressCheck,
    events: ConnectionEvents,
}

/// What a connection does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionState {
    /// It reads commands and executes them, and sends replies.
    Reading,
    /// It sends replies before it executes the commands in `input`.
    Writing,
    /// It sends its replies after the other connections that are ready have had their turn (see [`requeue`]).
    Deferred,
    /// It is to be closed after the replies are sent.
    Closing,
}

/// What happened on a connection.
enum IoEvent {
    /// Commands can be executed: those in `input`, and this many bytes that were read into the workspace.
    Input(Box<Workspace>, usize),
    /// Replies were sent.
    Written,
    /// The connection is to be closed: the client has closed it or makes no progress, or the service stops.
    Ended,
}

/// Detects connections without progress, at intervals: commands need no timer of their own.
#[derive(Debug, Default)]
struct ProgressCheck {
    commands: usize,
    sent: usize,
    had_input: bool,
    had_output: bool,
    idle_checks: u32,
}

impl ProgressCheck {
    /// Whether the connection may stay open. `has_input` and `has_output` state whether bytes are kept for it.
    fn is_alive(&mut self, has_input: bool, has_output: bool) -> bool {
        let is_idle = self.commands == 0;
        let is_stuck = (self.had_input && has_input && is_idle)
            || (self.had_output && has_output && self.sent < MIN_READ);
        let idle_checks = if is_idle && self.sent == 0 { self.idle_checks + 1 } else { 0 };
        *self = Self { commands: 0, sent: 0, had_input: has_input, had_output: has_output, idle_checks };
        !is_stuck && idle_checks < MAX_IDLE_CHECKS
    }
}

impl<S, IO> RespConnection<S, IO>
where
    S: Store + 'static,
    IO: AsyncRead + AsyncWrite + Unpin + 'static,
{
    pub(super) fn new(connection: ServiceConnection<S, IO>) -> Self {
        let ServiceConnection { io, peer, worker, stop } = connection;
        let events = ConnectionEvents::new(&stop, CHECK_INTERVAL);
        let mut client = RespClientState::new(peer.ip().to_canonical());
        client.update_lock(&worker.policy().tokens);
        Self {
            io,
            worker,
            client,
            state: ConnectionState::Reading,
            input: Vec::new(),
            unsent: BytesMut::new(),
            needs_flush: false,
            progress: ProgressCheck::default(),
            events,
        }
    }

    /// Serves the connection until it ends or the service stops.
    pub(super) async fn run(mut self) {
        // Polled only while the client has to authenticate. Without the budget of the task, which a client that always sends
        // uses up.
        let mut too_late = pin!(unconstrained(tokio::time::sleep(AUTHENTICATION_TIMEOUT)));
        let mut commands = 0;
        while self.state != ConnectionState::Closing {
            if self.state == ConnectionState::Deferred {
                requeue().await;
                self.state = ConnectionState::Reading;
            }
            let event =
                if self.state == ConnectionState::Writing && self.unsent.len() <= self.max_output() / 2 {
                    IoEvent::Input(self.worker.resp.take(), 0)
                } else {
                    poll_fn(|cx| self.poll_event(too_late.as_mut(), cx)).await
                };
            match event {
                IoEvent::Input(workspace, len) => {
                    let was_locked = self.client.is_locked;
                    commands += self.execute(workspace, len).await;
                    if self.client.is_locked && !was_locked {
                        too_late.set(unconstrained(tokio::time::sleep(AUTHENTICATION_TIMEOUT)));
                    }
                }
                IoEvent::Written => {}
                IoEvent::Ended => self.state = ConnectionState::Closing,
            }
            if commands >= COMMANDS_PER_TURN {
                commands = 0;
                tokio::task::yield_now().await;
            }
        }
        // The client gets all replies unless it stops reading them.
        let _ = tokio::time::timeout(LINGER, self.close()).await;
    }

    /// The next event. `too_late` ends when a client that needs a token had to send it.
    fn poll_event(
        &mut self,
        too_late: Pin<&mut impl Future<Output = ()>>,
        cx: &mut Context<'_>,
    ) -> Poll<IoEvent> {
        // Before reading: a client that always has more to send must not delay the stop.
        if self.events.is_stopped() {
            return Poll::Ready(IoEvent::Ended);
        }
        // Also before reading: such a client must not stay because it always sends.
        if self.client.is_locked && too_late.poll(cx).is_ready() {
            return Poll::Ready(IoEvent::Ended);
        }
        match self.poll_io(cx) {
            Poll::Ready(event) => Poll::Ready(event),
            Poll::Pending => self.poll_connection_events(cx),
        }
    }

    /// Executes the commands in `input` and the `len` bytes that were read into `workspace`. Returns their number.
    async fn execute(&mut self, mut workspace: Box<Workspace>, len: usize) -> usize {
        let Workspace { read, batch } = &mut *workspace;
        let read = read.get(..len).unwrap_or_default();
        let has_input = !self.input.is_empty();
        if has_input {
            self.input.extend_from_slice(read);
        }
        let input = if has_input { &self.input } else { read };
        let progress = batch.execute(input, self.unsent.len(), &mut self.client, &self.worker).await;
        if has_input {
            self.discard_input(progress.consumed);
        } else {
            self.input.extend_from_slice(read.get(progress.consumed..).unwrap_or_default());
        }
        let is_deferred = self.send(&mut batch.output).await;
        self.worker.resp.put_back(workspace);
        self.state = match progress.end {
            BatchEnd::Incomplete if is_deferred => ConnectionState::Deferred,
            BatchEnd::Incomplete => ConnectionState::Reading,
            BatchEnd::OutputFull => ConnectionState::Writing,
            BatchEnd::Close => ConnectionState::Closing,
        };
        self.progress.commands += progress.commands;
        progress.commands
    }

    fn discard_input(&mut self, len: usize) {
        if len >= self.input.len() {
            // Frees the memory.
            self.input = Vec::new();
        } else {
            self.input.drain(..len);
        }
    }

    /// Sends as much of `output` as the socket takes and keeps the rest. Returns whether it is small enough to be deferred.
    async fn send(&mut self, output: &mut Vec<u8>) -> bool {
        let is_deferred = self.unsent.is_empty() && !output.is_empty() && output.len() <= SMALL_OUTPUT;
        let mut sent = 0;
        if self.unsent.is_empty() && output.len() > SMALL_OUTPUT {
            let io = &mut self.io;
            let written = poll_fn(|cx| Poll::Ready(Pin::new(&mut *io).poll_write(cx, output)));
            // An error is found again by the next read or write.
            if let Poll::Ready(Ok(written)) = written.await {
                sent = written;
                self.progress.sent += written;
                let io = &mut self.io;
                let flushed = poll_fn(|cx| Poll::Ready(Pin::new(&mut *io).poll_flush(cx)));
                self.needs_flush = flushed.await.is_pending();
            }
        }
        self.unsent.extend_from_slice(output.get(sent..).unwrap_or_default());
        output.clear();
        is_deferred
    }

    /// Writes what is unsent, and reads unless too much is.
    fn poll_io(&mut self, cx: &mut Context<'_>) -> Poll<IoEvent> {
        if !self.unsent.is_empty()
            && let Poll::Ready(written) = Pin::new(&mut self.io).poll_write(cx, &self.unsent)
        {
            let Ok(written @ 1..) = written else { return Poll::Ready(IoEvent::Ended) };
            self.progress.sent += written;
            self.needs_flush = true;
            if written < self.unsent.len() {
                self.unsent.advance(written);
            } else if self.unsent.capacity() <= 2 * SMALL_OUTPUT {
                self.unsent.clear();
            } else {
                // Frees the memory.
                self.unsent = BytesMut::new();
            }
            if !self.is_reading() || !self.unsent.is_empty() {
                return Poll::Ready(IoEvent::Written);
            }
        }
        if self.needs_flush
            && let Poll::Ready(flushed) = Pin::new(&mut self.io).poll_flush(cx)
        {
            self.needs_flush = false;
            if flushed.is_err() {
                return Poll::Ready(IoEvent::Ended);
            }
        }
        if !self.is_reading() {
            return Poll::Pending;
        }
        self.poll_read(cx)
    }

    /// The bytes of replies above which nothing is read.
    fn max_output(&self) -> usize {
        if self.client.is_locked { MAX_LOCKED_OUTPUT } else { MAX_OUTPUT }
    }

    /// Whether commands are read, and not postponed until replies are sent.
    fn is_reading(&self) -> bool {
        self.state == ConnectionState::Reading && self.unsent.len() <= self.max_output()
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<IoEvent> {
        let mut workspace = self.worker.resp.take();
        let max = if self.client.is_locked { MAX_LOCKED_INPUT } else { workspace.read.len() };
        let mut buffer = ReadBuf::new(workspace.read.get_mut(..max).unwrap_or_default());
        let polled = Pin::new(&mut self.io).poll_read(cx, &mut buffer);
        let len = buffer.filled().len();
        match polled {
            Poll::Ready(Ok(())) if len > 0 => Poll::Ready(IoEvent::Input(workspace, len)),
            Poll::Ready(_) => {
                self.worker.resp.put_back(workspace);
                Poll::Ready(IoEvent::Ended)
            }
            Poll::Pending => {
                self.worker.resp.put_back(workspace);
                Poll::Pending
            }
        }
    }

    fn poll_connection_events(&mut self, cx: &mut Context<'_>) -> Poll<IoEvent> {
        while let Poll::Ready(event) = self.events.poll(cx) {
            if event == ConnectionEvent::Stop {
                return Poll::Ready(IoEvent::Ended);
            }
            let has_output = !self.unsent.is_empty() || self.needs_flush;
            // While nothing is read, only the client's reading counts.
            let has_input = !self.input.is_empty() && self.is_reading();
            if !self.progress.is_alive(has_input, has_output) {
                // Nothing of it can be sent.
                self.unsent.clear();
                return Poll::Ready(IoEvent::Ended);
            }
        }
        Poll::Pending
    }

    /// Sends the rest and closes the connection. Bytes that were not read would make the system discard the last replies.
    async fn close(mut self) -> std::io::Result<()> {
        self.io.write_all_buf(&mut self.unsent).await?;
        self.io.shutdown().await?;
        let (mut buffer, mut drained) = (vec![0; LINGER_READ], 0);
        while drained < MAX_LINGER {
            match self.io.read(&mut buffer).await? {
                0 => break,
                len => drained += len,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
