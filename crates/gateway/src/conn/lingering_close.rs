//! Closing the connection of a client that is still sending.
//!
//! Closing a socket with unread bytes resets the connection, and a reset may overtake the response that was just
//! written: the client would never read why it was rejected. So only our side is closed at first, and what still comes is
//! read and discarded until the client closes its side, or one of the limits below is reached.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long the client may send nothing.
const SILENCE: Duration = Duration::from_secs(5);
/// How long it may take in all.
const LONGEST: Duration = Duration::from_secs(30);
/// How many bytes are discarded at most.
const MOST: usize = 64 << 20;

/// Discards what a client still sends.
#[derive(Debug)]
pub(super) struct LingeringClose {
    left: usize,
    end: Pin<Box<Sleep>>,
    silence: Pin<Box<Sleep>>,
}

impl LingeringClose {
    pub(super) fn new() -> Self {
        Self { left: MOST, end: Box::pin(sleep(LONGEST)), silence: Box::pin(sleep(SILENCE)) }
    }

    /// Ready when the connection may be closed.
    pub(super) fn poll(&mut self, mut stream: Pin<&mut impl AsyncRead>, cx: &mut Context<'_>) -> Poll<()> {
        let mut scrap = [0; 8 << 10];
        let mut has_read = false;
        loop {
            if self.left == 0 || self.end.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let mut buf = ReadBuf::new(&mut scrap);
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
            self.silence = Box::pin(sleep(SILENCE));
        }
        self.silence.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncWriteExt, duplex};
    use tokio::time::Instant;

    use super::*;

    #[expect(clippy::disallowed_methods, reason = "paused time")]
    async fn lingered(mut stream: impl AsyncRead + Unpin) -> Duration {
        let (since, mut linger) = (Instant::now(), LingeringClose::new());
        poll_fn(|cx| linger.poll(Pin::new(&mut stream), cx)).await;
        since.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_with_the_client_with_its_silence_or_in_the_end() {
        let (mut client, server) = duplex(64 << 10);
        client.write_all(&[0; 10_000]).await.unwrap();
        drop(client);
        assert!(lingered(server).await < Duration::from_millis(10), "the client has ended");

        let (_silent, server) = duplex(64);
        let silent = lingered(server).await;
        assert!((SILENCE..SILENCE * 2).contains(&silent), "{silent:?}");

        let (mut drips, server) = duplex(64);
        let dripping = tokio::spawn(async move {
            while drips.write_all(b"a").await.is_ok() {
                sleep(SILENCE / 2).await;
            }
        });
        let dripped = lingered(server).await;
        assert!((LONGEST..LONGEST + SILENCE).contains(&dripped), "{dripped:?}");
        dripping.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn it_reads_no_more_than_so_much() {
        let (mut client, server) = duplex(1 << 20);
        let sending = tokio::spawn(async move {
            let piece = vec![0; 1 << 20];
            let mut sent = 0;
            while client.write_all(&piece).await.is_ok() {
                sent += piece.len();
            }
            sent
        });
        lingered(server).await;
        let sent = sending.await.unwrap();
        assert!((MOST..MOST + (4 << 20)).contains(&sent), "{sent}");
    }
}
