//! The listener: a thread of its own, with bounds on everything.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::api;
use crate::auth::{Access, Auth};
use crate::backend::Backend;
use crate::connections::{ConnectionEntry, ConnectionTable, Eviction};
use crate::response::{ApiError, ApiResponse};
use crate::state::AdminState;
use crate::token::AdminToken;

/// Open connections. Operators and their scrapers are few.
const MAX_CONNECTIONS: usize = 128;
/// Requests of operators in progress. The other connections are left to health checks.
const MAX_REQUESTS: usize = 64;
/// For a complete request head, from the start of the connection or the end of the request before.
const HEAD: Duration = Duration::from_secs(5);
const HEAD_BYTES: usize = 16 << 10;
/// For a whole request.
const WHOLE: Duration = Duration::from_mins(1);
const BODY_BYTES: usize = 64 << 10;
/// What is being answered at a stop gets this long to end.
const DRAIN: Duration = Duration::from_secs(2);
/// When descriptors run out, accepting again at once would only spin.
const PAUSE: Duration = Duration::from_millis(100);

/// The admin API, before it listens.
#[derive(Debug)]
pub struct AdminServer<R: Backend> {
    pub(crate) backend: Arc<R>,
    pub(crate) state: Arc<AdminState<R>>,
    auth: Auth,
}

/// Why nobody listens.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the admin API")]
pub struct AdminStartError(#[from] io::Error);

impl<R: Backend> AdminServer<R> {
    /// An API for what runs, open to whoever has the token.
    pub fn new(backend: Arc<R>, state: Arc<AdminState<R>>, token: AdminToken) -> Self {
        Self { backend, state, auth: Auth { token, is_loopback: true } }
    }

    /// Answers on `listener` until `stop`.
    pub fn start(
        mut self,
        listener: TcpListener,
        mut stop: watch::Receiver<bool>,
    ) -> Result<JoinHandle<()>, AdminStartError> {
        self.auth.is_loopback = listener.local_addr()?.ip().to_canonical().is_loopback();
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("admin".to_owned());
        Ok(thread.spawn(move || {
            runtime.block_on(async {
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
                // Each connection holds a sender: when all are closed, nothing can be received.
                let (open, mut all_closed) = mpsc::channel(1);
                tokio::select! {
                    () = accept(Arc::new(self), listener, open, stop.clone()) => {}
                    // If nobody can stop it any more, it is to stop.
                    _ = stop.wait_for(|stop| *stop) => {}
                }
                let _ = timeout(DRAIN, all_closed.recv()).await;
            });
        })?)
    }

    /// One request.
    async fn answer(&self, request: Request<Incoming>, connection: &ConnectionEntry) -> ApiResponse {
        let (head, body) = request.into_parts();
        let answered = match self.auth.admit(&head.method, head.uri.path(), &head.headers) {
            Err(refusal) => Err(refusal),
            // Clients without a token never occupy a place while a body is read.
            Ok(Access::Public) => api::answer(self, &head, &[]).await,
            Ok(Access::Operator) => match connection.begin_request() {
                Some(_request) => self.answer_operator(&head, body).await,
                None => Err(ApiError::unavailable(
                    "too_many_requests_in_progress",
                    format!("{MAX_REQUESTS} requests are in progress"),
                )),
            },
        };
        answered.unwrap_or_else(ApiError::into_answer)
    }

    async fn answer_operator(&self, head: &Parts, body: Incoming) -> Result<ApiResponse, ApiError> {
        match timeout(WHOLE, Limited::new(body, BODY_BYTES).collect()).await {
            Ok(Ok(body)) => api::answer(self, head, &body.to_bytes()).await,
            Ok(Err(_)) => Err(ApiError::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "body_too_large",
                format!("the body is larger than {BODY_BYTES} bytes, or broke off"),
            )),
            Err(_) => {
                let what = "the body came too slowly";
                Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_too_slow", what))
            }
        }
    }
}

async fn accept<R: Backend>(
    server: Arc<AdminServer<R>>,
    listener: tokio::net::TcpListener,
    open: mpsc::Sender<Infallible>,
    stop: watch::Receiver<bool>,
) {
    let connections = ConnectionTable::new(MAX_CONNECTIONS, MAX_REQUESTS);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let (connection, eviction) = connections.add();
        let (server, stop, open) = (Arc::clone(&server), stop.clone(), open.clone());
        tokio::spawn(async move {
            let answer = service_fn(|request| async {
                Ok::<_, Infallible>(server.answer(request, &connection).await)
            });
            serve_connection(stream, answer, eviction, stop).await;
            drop(open);
        });
        // A request that has arrived is read before more connections can evict this one.
        tokio::task::yield_now().await;
    }
}

/// Serves a connection until it ends, is evicted, or the admin API stops.
async fn serve_connection<S>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    service: S,
    mut eviction: Eviction,
    mut stop: watch::Receiver<bool>,
) where
    S: HttpService<Incoming, ResBody = Full<Bytes>, Error = Infallible>,
{
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service)
    );
    tokio::select! {
        biased;
        () = eviction.wait() => return,
        // How a connection ends is its client's business.
        _ = connection.as_mut() => return,
        _ = stop.wait_for(|stop| *stop) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::response;

    /// Serves a connection that sends `bytes` and nothing more; what is sent back until it is closed.
    async fn exchange(bytes: &[u8]) -> String {
        let (mut client, server) = tokio::io::duplex(4 << 10);
        let (_entry, eviction) = ConnectionTable::new(2, 1).add();
        let (_stop, stopping) = watch::channel(false);
        let answer = service_fn(|_| async {
            Ok::<_, Infallible>(response::with(StatusCode::OK, "served", "text/plain"))
        });
        client.write_all(bytes).await.unwrap();
        let mut received = String::new();
        let read = client.read_to_string(&mut received);
        let ((), read) = tokio::join!(serve_connection(server, answer, eviction, stopping), read);
        read.unwrap();
        received
    }

    #[tokio::test(start_paused = true)]
    async fn connection_without_a_complete_head_is_closed_at_the_head_timeout() {
        for bytes in ["", "GET / HTTP/1.1\r\nHost:"] {
            let received = timeout(HEAD + Duration::from_millis(10), exchange(bytes.as_bytes())).await;
            assert_eq!(received.as_deref(), Ok(""));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connection_idle_after_a_request_is_closed_at_the_head_timeout() {
        let request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let received = timeout(HEAD + Duration::from_millis(10), exchange(request)).await.unwrap();
        assert!(received.ends_with("served"), "{received}");
    }

    #[tokio::test(start_paused = true)]
    async fn evicted_connection_is_closed_at_once() {
        let (mut client, server) = tokio::io::duplex(4 << 10);
        let (entry, eviction) = ConnectionTable::new(2, 1).add();
        let (_stop, stopping) = watch::channel(false);
        let answer = service_fn(|_| std::future::pending::<Result<ApiResponse, Infallible>>());
        let task = tokio::spawn(serve_connection(server, answer, eviction, stopping));
        drop(entry);
        let closed = timeout(Duration::from_millis(1), client.read(&mut [0])).await;
        assert_eq!(closed.unwrap().unwrap(), 0);
        task.await.unwrap();
    }
}
