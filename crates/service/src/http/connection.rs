//! One connection: plain requests, then whatever else it brings, HTTP/1.1 or HTTP/2, in hyper.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Version};
use hyper::body::{Body, Incoming};
use hyper::rt::Executor;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tidegate_headers::BodyStyle;
use tidegate_listener::{FramedIo, NextBody};
use tidegate_policy::{RequestError, check_http1_headers};
use tidegate_store::Store;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::task::unconstrained;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::io::InspectReader;

use super::dispatch::{MAX_BATCH_BODY, dispatch};
use super::error::HttpError;
use super::idle_timeout::{ConnectionCounts, IdleTimeout, TICK};
use super::plain_connection::{PlainConnection, PlainRest};
use super::request::{EndpointBody, EndpointRequest, RequestHeaders};
use super::response::HttpResponse;
use crate::accept::ServiceConnection;
use crate::fair_io::FairIo;
use crate::worker::ServiceWorker;

/// The longest head, and the most bytes of a body that are buffered before they are read.
const MAX_HEAD: u32 = 32 << 10;
/// The time for the end of a connection to be sent.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// HTTP/2 requests of a connection at once. Each may buffer a batch, so this also limits the memory of a connection.
const MAX_STREAMS: u32 = 32;

/// Spawns the tasks of HTTP/2 streams on the runtime of the current worker.
#[derive(Clone, Copy, Debug)]
struct StreamSpawner;

impl<F: Future + 'static> Executor<F> for StreamSpawner {
    fn execute(&self, stream: F) {
        tokio::task::spawn_local(stream);
    }
}

/// Serves a connection until it ends, is idle for too long, or the service stops.
pub(crate) async fn serve<S, IO>(connection: ServiceConnection<S, IO>)
where
    S: Store + 'static,
    IO: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let ServiceConnection { mut io, peer, worker, stop } = connection;
    let peer = peer.ip().to_canonical();
    match PlainConnection::new(&mut io, peer, &worker, &stop).run().await {
        Some(rest) => Box::pin(serve_any(io, rest, peer, worker, stop)).await,
        // TLS has to be told that this is the end. The client may be gone.
        None => drop(timeout(SHUTDOWN_TIMEOUT, io.shutdown()).await),
    }
}

/// Serves any request, of which `rest` was read already.
async fn serve_any<S, IO>(
    io: IO,
    rest: PlainRest,
    peer: IpAddr,
    worker: Rc<ServiceWorker<S>>,
    mut stop: watch::Receiver<bool>,
) where
    S: Store + 'static,
    IO: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (counts, next_body) = (Rc::new(ConnectionCounts::default()), NextBody::default());
    let io = FramedIo::new(FairIo::new(io), rest.bytes, &next_body, MAX_BATCH_BODY as u64);
    let io = TokioIo::new(InspectReader::new(io, {
        let counts = Rc::clone(&counts);
        move |bytes: &[u8]| counts.count_read(bytes)
    }));
    let (worker, counted) = (&worker, &counts);
    let service = {
        let (worker, counts) = (Rc::clone(worker), Rc::clone(counted));
        service_fn(move |request: Request<Incoming>| {
            let worker = Rc::clone(&worker);
            let in_flight = counts.begin_request(request.version() == Version::HTTP_2);
            if request.version() < Version::HTTP_2 && !request.body().is_end_stream() {
                next_body.follows(request.body().size_hint().exact());
            }
            async move {
                let (Parts { method, uri, version, headers, .. }, body) = request.into_parts();
                let (path, authority, is_head) = (uri.path(), uri.host(), method == Method::HEAD);
                if let Err(error) = check_http1_headers(version, &headers) {
                    return Ok(misframed(error).into_hyper(is_head));
                }
                let headers = RequestHeaders::Map(headers);
                let request = EndpointRequest { method, path, authority, version, headers };
                let response = dispatch(&worker, peer, request, EndpointBody::Stream(body)).await;
                drop(in_flight);
                Ok::<_, Infallible>(response.into_hyper(is_head))
            }
        })
    };
    let builder = if rest.is_first { builder() } else { builder().http1_only() };
    let mut connection = pin!(builder.serve_connection(io, service));
    let mut idle = IdleTimeout::default();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    let mut is_stopping = false;
    loop {
        tokio::select! {
            biased;
            // An error of the connection means that the client is gone, or that it has been told what is wrong.
            _ = connection.as_mut() => return,
            // A client that always sends would use up the budget of the task before the end of the service and each tick.
            _ = unconstrained(stop.wait_for(|stop| *stop)), if !is_stopping => {
                is_stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            _ = unconstrained(ticks.tick()) => {
                if idle.has_passed(&counts) {
                    return;
                }
            }
        }
    }
}

/// The response to a request whose host or framing servers may read in several ways. What follows it may be read so too.
fn misframed(error: RequestError) -> HttpResponse {
    let mut response = HttpError::Request(error).into_response(BodyStyle::Problem);
    response.headers.insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// hyper's settings. Head and idle timeouts are those of `idle_timeout`.
fn builder() -> auto::Builder<StreamSpawner> {
    let mut builder = auto::Builder::new(StreamSpawner);
    builder.http1().header_read_timeout(None).max_buf_size(MAX_HEAD as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(64)
        .max_local_error_reset_streams(256)
        .max_header_list_size(MAX_HEAD)
        .max_send_buf_size(64 << 10)
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20));
    builder
}
