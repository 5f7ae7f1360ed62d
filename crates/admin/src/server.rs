//! The listener of the admin API: its own thread, with limits on connections, time and size.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tidegate_listener::{ChunkError, FramedIo, NextBody};
use tidegate_policy::check_transfer_encoding;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::api;
use crate::auth::{Access, Auth};
use crate::backend::Backend;
use crate::connections::{ConnectionEntry, ConnectionTable, Eviction};
use crate::gateway_paths::GatewayPaths;
use crate::proof::ConnectionAddresses;
use crate::response::{self, ApiError, ApiResponse};
use crate::state::AdminState;
use crate::token::AdminToken;

/// Most open connections.
const MAX_CONNECTIONS: usize = 128;
/// Most requests with the token in progress. The other connections are left to health checks.
const MAX_REQUESTS: usize = 64;
/// The timeout for a complete request head, from the start of the connection or the end of the previous request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_HEAD_BYTES: usize = 16 << 10;
/// The timeout for a request body.
const BODY_TIMEOUT: Duration = Duration::from_mins(1);
const MAX_BODY_BYTES: usize = 64 << 10;
/// How long requests in progress may take when the API stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause after a failed accept, for example without free file descriptors; a retry at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The admin API.
#[derive(Debug)]
pub struct AdminServer<R: Backend> {
    pub(crate) backend: Arc<R>,
    pub(crate) state: Arc<AdminState<R>>,
    auth: Auth,
    paths: GatewayPaths,
}

/// The admin API cannot be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the admin API")]
pub struct AdminStartError(#[from] io::Error);

impl<R: Backend> AdminServer<R> {
    /// Creates the API for a gateway. Clients need `token`.
    pub fn new(backend: Arc<R>, state: Arc<AdminState<R>>, token: AdminToken) -> Self {
        let paths = GatewayPaths {
            policy: backend.policy_file(),
            state: state.path().and_then(Path::parent).and_then(|folder| std::path::absolute(folder).ok()),
        };
        Self { backend, state, auth: Auth { token, is_loopback: true }, paths }
    }

    /// Serves `listener` in a new thread until `stop`.
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
                // Each connection keeps a sender, so `recv` returns when all connections are closed.
                let (open, mut all_closed) = mpsc::channel(1);
                tokio::select! {
                    () = accept(Arc::new(self), listener, open, stop.clone()) => {}
                    // An error means that the sender was dropped: stop as well.
                    _ = stop.wait_for(|stop| *stop) => {}
                }
                let _ = timeout(DRAIN_TIMEOUT, all_closed.recv()).await;
            });
        })?)
    }

    /// Handles one request.
    async fn handle(
        &self,
        request: Request<Incoming>,
        connection: &ConnectionEntry,
        addresses: ConnectionAddresses,
    ) -> ApiResponse {
        let (head, body) = request.into_parts();
        if let Err(error) = check_transfer_encoding(&head.headers) {
            return misframed(&error.to_string()).into_response();
        }
        let result = match self.auth.authorize(&head.method, head.uri.path(), &head.headers, addresses) {
            Err(error) => Err(error),
            // The body is not read, so clients without a token never count as busy.
            Ok(Access::Public) => api::handle(self, &head, &[]).await,
            Ok(Access::Proof(proof)) => Ok(response::json(StatusCode::OK, &json!({ "proof": proof }))),
            Ok(Access::Operator) => {
                let result = match connection.begin_request() {
                    Some(_request) => self.handle_operator(&head, body).await,
                    None => Err(ApiError::unavailable(
                        "too_many_requests_in_progress",
                        format!("limit of {MAX_REQUESTS} requests in progress reached; retry later"),
                    )),
                };
                let mut response = result.unwrap_or_else(ApiError::into_response);
                self.paths.write(response.headers_mut());
                return response;
            }
        };
        result.unwrap_or_else(ApiError::into_response)
    }

    async fn handle_operator(&self, head: &Parts, body: Incoming) -> Result<ApiResponse, ApiError> {
        let expected = GatewayPaths::read(&head.headers);
        if !self.paths.are(&expected) {
            let message = format!("this gateway has {}, not {expected}", self.paths);
            return Err(ApiError::new(StatusCode::CONFLICT, "other_gateway", message).hint(
                "each gateway needs an address of its own in `admin.listen` of its policy; to reach this one all the \
                 same, specify it with --admin URL",
            ));
        }
        match timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY_BYTES).collect()).await {
            Ok(Ok(body)) => api::handle(self, head, &body.to_bytes()).await,
            Ok(Err(error)) if ChunkError::of(&*error) == Some(ChunkError::Malformed) => {
                Err(misframed("the chunked body is malformed"))
            }
            Ok(Err(_)) => Err(ApiError::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "body_too_large",
                format!("the body is incomplete or larger than {MAX_BODY_BYTES} bytes"),
            )),
            Err(_) => {
                let message = "timeout while reading the body";
                Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_too_slow", message))
            }
        }
    }
}

/// The error of a request whose body has no certain end.
fn misframed(reason: &str) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "bad_body", reason)
}

async fn accept<R: Backend>(
    server: Arc<AdminServer<R>>,
    listener: tokio::net::TcpListener,
    open: mpsc::Sender<Infallible>,
    stop: watch::Receiver<bool>,
) {
    let connections = ConnectionTable::new(MAX_CONNECTIONS, MAX_REQUESTS);
    loop {
        let accepted = listener.accept().await.and_then(|(stream, client)| {
            let server = stream.local_addr()?;
            Ok((stream, ConnectionAddresses { client, server }))
        });
        let Ok((stream, addresses)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (connection, eviction) = connections.add();
        let (server, stop, open) = (Arc::clone(&server), stop.clone(), open.clone());
        tokio::spawn(async move {
            let next_body = NextBody::default();
            let stream = FramedIo::new(stream, Bytes::new(), &next_body, MAX_BODY_BYTES as u64);
            let service = service_fn(|request: Request<Incoming>| {
                if !request.body().is_end_stream() {
                    next_body.follows(request.body().size_hint().exact());
                }
                async { Ok::<_, Infallible>(server.handle(request, &connection, addresses).await) }
            });
            serve_connection(stream, service, eviction, stop).await;
            drop(open);
        });
        // Read a request that has arrived before more connections can evict this one.
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
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service)
    );
    tokio::select! {
        biased;
        () = eviction.wait() => return,
        // Connection errors are not reported: the client has gone.
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

    /// Serves a client that sends only `bytes`. Returns what the client receives until the connection is closed.
    async fn exchange(bytes: &[u8]) -> String {
        let (mut client, server) = tokio::io::duplex(4 << 10);
        let (_entry, eviction) = ConnectionTable::new(2, 1).add();
        let (_stop, stopping) = watch::channel(false);
        let service = service_fn(|_| async {
            Ok::<_, Infallible>(response::with_body(StatusCode::OK, "served", "text/plain"))
        });
        client.write_all(bytes).await.unwrap();
        let mut received = String::new();
        let read = client.read_to_string(&mut received);
        let ((), read) = tokio::join!(serve_connection(server, service, eviction, stopping), read);
        read.unwrap();
        received
    }

    #[tokio::test(start_paused = true)]
    async fn connection_without_a_complete_head_is_closed_at_the_head_timeout() {
        for bytes in ["", "GET / HTTP/1.1\r\nHost:"] {
            let received =
                timeout(HEAD_TIMEOUT + Duration::from_millis(10), exchange(bytes.as_bytes())).await;
            assert_eq!(received.as_deref(), Ok(""));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connection_idle_after_a_request_is_closed_at_the_head_timeout() {
        let request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let received = timeout(HEAD_TIMEOUT + Duration::from_millis(10), exchange(request)).await.unwrap();
        assert!(received.ends_with("served"), "{received}");
    }

    #[tokio::test(start_paused = true)]
    async fn evicted_connection_is_closed_at_once() {
        let (mut client, server) = tokio::io::duplex(4 << 10);
        let (entry, eviction) = ConnectionTable::new(2, 1).add();
        let (_stop, stopping) = watch::channel(false);
        let service = service_fn(|_| std::future::pending::<Result<ApiResponse, Infallible>>());
        let task = tokio::spawn(serve_connection(server, service, eviction, stopping));
        drop(entry);
        let closed = timeout(Duration::from_millis(1), client.read(&mut [0])).await;
        assert_eq!(closed.unwrap().unwrap(), 0);
        task.await.unwrap();
    }
}
