//! Closes the connection of a client that is still sending.
//!
//! Closing a socket with unread bytes resets the connection, and a reset may overtake the response that was just
//! written: the client would not see why it was rejected. So the gateway closes only its own side first. It reads and
//! discards input until the client closes its side, or until one of the limits below is reached.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Closes after this long without input.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Closes after this long in total.
const MAX_DURATION: Duration = Duration::from_secs(30);
/// Closes after discarding this many bytes.
const MAX_DISCARDED: usize = 64 << 20;

/// Discards the input of a client until the connection can be closed.
#[derive(Debug)]
pub(super) struct LingeringClose {
    left: usize,
    end: Pin<Box<Sleep>>,
    idle: Pin<Box<Sleep>>,
}

impl LingeringClose {
    pub(super) fn new() -> Self {
        Self { left: MAX_DISCARDED, end: Box::pin(sleep(MAX_DURATION)), idle: Box::pin(sleep(IDLE_TIMEOUT)) }
    }

    /// Ready when the connection may be closed.
    pub(super) fn poll(&mut self, mut stream: Pin<&mut impl AsyncRead>, cx: &mut Context<'_>) -> Poll<()> {
        let mut buffer = [0; 8 << 10];
        let mut has_read = false;
        loop {
            if self.left == 0 || self.end.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let mut buf = ReadBuf::new(&mut buffer);
            match stream.as_mut().poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                    self.left = self.left.saturating_sub(buf.filled().len());
                    has_read = true;
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => break,
            }
        }
        if has_read {
            self.idle = Box::pin(sleep(IDLE_TIMEOUT));
        }
        self.idle.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncWriteExt, duplex};
    use tokio::time::Instant;

    use super::*;

    #[expect(clippy::disallowed_methods, reason = "paused time")]
    async fn linger(mut stream: impl AsyncRead + Unpin) -> Duration {
        let (since, mut linger) = (Instant::now(), LingeringClose::new());
        poll_fn(|cx| linger.poll(Pin::new(&mut stream), cx)).await;
        since.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn lingering_close_ends_at_eof_when_idle_or_after_the_maximum() {
        let (mut client, server) = duplex(64 << 10);
        client.write_all(&[0; 10_000]).await.unwrap();
        drop(client);
        assert!(linger(server).await < Duration::from_millis(10), "the client has closed its side");

        let (_silent, server) = duplex(64);
        let silent = linger(server).await;
        assert!((IDLE_TIMEOUT..IDLE_TIMEOUT * 2).contains(&silent), "{silent:?}");

        let (mut drips, server) = duplex(64);
        let dripping = tokio::spawn(async move {
            while drips.write_all(b"a").await.is_ok() {
                sleep(IDLE_TIMEOUT / 2).await;
            }
        });
        let dripped = linger(server).await;
        assert!((MAX_DURATION..MAX_DURATION + IDLE_TIMEOUT).contains(&dripped), "{dripped:?}");
        dripping.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn lingering_close_stops_after_the_maximum_of_discarded_bytes() {
        let (mut client, server) = duplex(1 << 20);
        let sending = tokio::spawn(async move {
            let piece = vec![0; 1 << 20];
            let mut sent = 0;
            while client.write_all(&piece).await.is_ok() {
                sent += piece.len();
            }
            sent
        });
        linger(server).await;
        let sent = sending.await.unwrap();
        assert!((MAX_DISCARDED..MAX_DISCARDED + (4 << 20)).contains(&sent), "{sent}");
    }
}
