//! Servers that fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::AsyncReadExt;

use super::AcceptLoop;

/// A server that resets connections before anything can be sent over them.
#[derive(Debug)]
pub struct ResettingServer {
    accepting: AcceptLoop,
    accepted: Arc<AtomicUsize>,
}

impl ResettingServer {
    /// Listens at a free port.
    pub async fn start() -> Self {
        let accepted = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&accepted);
        let accepting = AcceptLoop::start(move |_, stream| {
            counted.fetch_add(1, Ordering::SeqCst);
            stream.set_zero_linger().expect("a live socket");
            // Dropped here: the peer sees a reset.
            std::future::ready(())
        })
        .await;
        Self { accepting, accepted }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        self.accepting.url()
    }

    /// How many connections it has reset.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

/// A server that reads HTTP/1.1 requests and never responds.
pub async fn silent_http1() -> AcceptLoop {
    AcceptLoop::start(|_, mut stream| async move {
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    })
    .await
}

/// A server that reads HTTP/2 requests and never responds.
pub async fn silent_http2() -> AcceptLoop {
    AcceptLoop::start(|_, stream| async move {
        let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
        // A stream that is dropped would be reset.
        let mut kept: Vec<(_, h2::server::SendResponse<bytes::Bytes>)> = Vec::new();
        while let Some(Ok(request)) = connection.accept().await {
            kept.push(request);
        }
    })
    .await
}

/// A server that reads the start of a request and closes the connection.
pub async fn breaks_off() -> AcceptLoop {
    AcceptLoop::start(|_, mut stream| async move {
        let _ = stream.read(&mut [0; 16]).await;
    })
    .await
}
