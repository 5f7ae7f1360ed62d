//! The listener: a thread of its own, with bounds on everything.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::answer::{Answer, Refusal};
use crate::api;
use crate::desk::Desk;
use crate::door::Door;
use crate::running::Running;
use crate::token::Token;

/// Operators and their scrapers are few.
const CONNECTIONS: usize = 64;
/// For a head, and between two requests.
const HEAD: Duration = Duration::from_secs(30);
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
pub struct Console<R: Running> {
    pub(crate) running: Arc<R>,
    pub(crate) desk: Arc<Desk<R>>,
    door: Door,
}

/// Why nobody listens.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the admin API")]
pub struct StartError(#[from] io::Error);

impl<R: Running> Console<R> {
    /// An API for what runs, open to whoever has the token.
    pub fn new(running: Arc<R>, desk: Arc<Desk<R>>, token: Token) -> Self {
        Self { running, desk, door: Door { token, is_loopback: true } }
    }

    /// Answers on `listener` until `stop`.
    pub fn start(
        mut self,
        listener: TcpListener,
        mut stop: watch::Receiver<bool>,
    ) -> Result<JoinHandle<()>, StartError> {
        self.door.is_loopback = listener.local_addr()?.ip().to_canonical().is_loopback();
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("admin".to_owned());
        Ok(thread.spawn(move || {
            runtime.block_on(async {
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
                let (console, room) = (Arc::new(self), Arc::new(Semaphore::new(CONNECTIONS)));
                tokio::select! {
                    () = accept(console, listener, Arc::clone(&room), stop.clone()) => {}
                    // If nobody can stop it any more, it is to stop.
                    _ = stop.wait_for(|stop| *stop) => {}
                }
                // Whoever is still being answered holds a permit.
                let all = u32::try_from(CONNECTIONS).unwrap_or(u32::MAX);
                let _ = timeout(DRAIN, room.acquire_many(all)).await;
            });
        })?)
    }

    /// One request.
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let (head, body) = request.into_parts();
        let admitted = self.door.admit(&head.method, head.uri.path(), &head.headers);
        let answered = match admitted {
            Err(refusal) => Err(refusal),
            Ok(()) => match timeout(WHOLE, Limited::new(body, BODY_BYTES).collect()).await {
                Ok(Ok(body)) => api::answer(self, &head, &body.to_bytes()).await,
                Ok(Err(_)) => Err(Refusal::new(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "body_too_large",
                    format!("the body is larger than {BODY_BYTES} bytes, or broke off"),
                )),
                Err(_) => {
                    let what = "the body came too slowly";
                    Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "body_too_slow", what))
                }
            },
        };
        answered.unwrap_or_else(Refusal::into_answer)
    }
}

async fn accept<R: Running>(
    console: Arc<Console<R>>,
    listener: tokio::net::TcpListener,
    room: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
) {
    loop {
        // Who finds no room waits in the queue of the socket.
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let (console, mut stop) = (Arc::clone(&console), stop.clone());
        tokio::spawn(async move {
            let answer = service_fn(|request| async { Ok::<_, Infallible>(console.answer(request).await) });
            let mut connection = std::pin::pin!(
                http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEAD)
                    .max_buf_size(HEAD_BYTES)
                    .serve_connection(TokioIo::new(stream), answer)
            );
            let is_stopping = tokio::select! {
                // How a connection ends is its client's business.
                _ = connection.as_mut() => false,
                _ = stop.wait_for(|stop| *stop) => true,
            };
            if is_stopping {
                connection.as_mut().graceful_shutdown();
                let _ = connection.await;
            }
            drop(permit);
        });
    }
}
