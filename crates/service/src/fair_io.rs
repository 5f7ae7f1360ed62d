//! Shares the thread fairly between connections, whatever their frames cost.
//!
//! A connection is served until nothing more can be read. tokio bounds the number of reads in a turn, not their size: HTTP/2
//! frames that need no request, such as pings, would keep the thread busy for 60,000 frames. So reads use up the budget of the
//! task by their bytes. When it is used up, the other connections of the thread have their turn first.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop;

/// A unit of the budget for so many bytes. A task has 128 units in a turn, which are 32 KiB: many requests, or 1,900 pings.
const BYTES_PER_UNIT: usize = 256;

/// A stream whose reads use up the budget of the task.
#[derive(Debug)]
pub(crate) struct FairIo<IO>(IO);

impl<IO> FairIo<IO> {
    pub(crate) fn new(io: IO) -> Self {
        Self(io)
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for FairIo<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read_before = buffer.filled().len();
        let progress = ready!(coop::poll_proceed(cx));
        ready!(Pin::new(&mut self.0).poll_read(cx, buffer))?;
        progress.made_progress();
        for _ in 0..(buffer.filled().len() - read_before) / BYTES_PER_UNIT {
            match coop::poll_proceed(cx) {
                Poll::Ready(progress) => progress.made_progress(),
                // The next read is pending, and wakes the task after the others.
                Poll::Pending => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for FairIo<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
