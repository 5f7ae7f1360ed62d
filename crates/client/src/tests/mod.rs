//! Laws of the client on paused time, against servers that are functions.

mod hostile;
mod laws;
mod pacing;
mod protection;
mod retries;

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tidegate_core::{TimeSpan, Timestamp};
use tidegate_store::Clock;
use tokio::time::Instant;

use crate::transport::{ConnectionChoice, HttpTransport, TransportBody, TransportError, TransportFuture};
use crate::{Client, ClientBuilder, SendBody};

pub(crate) const START: Timestamp = Timestamp::from_secs(1_700_000_000);

/// A clock that follows tokio's time, which the tests pause.
#[derive(Debug)]
pub(crate) struct TokioClock(Instant);

impl TokioClock {
    #[expect(clippy::disallowed_methods, reason = "this is a clock")]
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Instant::now()))
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        START + TimeSpan::from(self.0.elapsed())
    }
}

/// What a server does with a request.
pub(crate) enum Script {
    Respond(u16, Vec<(&'static str, String)>, &'static str),
    /// Does the rest only after this time.
    Delay(Duration, Box<Script>),
    /// Responds with exactly this.
    Custom(Response<TransportBody>),
    RefuseConnection,
    Reset,
    Hang,
    /// The head of a response, and then a reset.
    ResetBody,
    /// A body without end that is always ready.
    EndlessBody,
    /// A body without end, one byte each second.
    DrippingBody,
    /// The head of a response with this status and these headers, and nothing more.
    HangingBody(u16, &'static [(&'static str, &'static str)]),
}

pub(crate) fn respond(status: u16) -> Script {
    Script::Respond(status, Vec::new(), "")
}

pub(crate) fn respond_with(status: u16, headers: &[(&'static str, &str)]) -> Script {
    let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned()));
    Script::Respond(status, headers.collect(), "")
}

/// Does what `script` says after this time.
pub(crate) fn delayed(after: Duration, script: Script) -> Script {
    Script::Delay(after, Box::new(script))
}

/// A request that a server received.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) at: Duration,
    pub(crate) host: String,
    pub(crate) path: String,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
}

type ScriptFn = dyn Fn(usize, &Received) -> Script + Send + Sync;

/// Servers that follow a script: all hosts of a client.
pub(crate) struct TestServer {
    script: Box<ScriptFn>,
    received: Mutex<Vec<Received>>,
    pub(crate) clock: Arc<TokioClock>,
}

impl std::fmt::Debug for TestServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TestServer")
    }
}

impl TestServer {
    /// The script gets the number of a request, from 0 on, and the request.
    pub(crate) fn new(script: impl Fn(usize, &Received) -> Script + Send + Sync + 'static) -> Arc<Self> {
        let clock = TokioClock::new();
        Arc::new(Self { script: Box::new(script), received: Mutex::default(), clock })
    }

    /// A client of this server.
    pub(crate) fn client(self: &Arc<Self>, builder: ClientBuilder) -> Client {
        let clock = Arc::clone(&self.clock);
        builder.clock(clock).build_with(Arc::new(TestTransport(Arc::clone(self)))).unwrap()
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.received.lock().unwrap().len()
    }

    /// When each request was received.
    pub(crate) fn times(&self) -> Vec<Duration> {
        self.received().iter().map(|received| received.at).collect()
    }

    async fn serve(&self, request: Request<SendBody>) -> Result<Response<TransportBody>, TransportError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map_err(TransportError::Upload)?.to_bytes();
        let received = Received {
            at: self.clock.elapsed(),
            host: parts.uri.host().unwrap_or_default().to_owned(),
            path: parts.uri.path().to_owned(),
            headers: parts.headers,
            body,
        };
        let script = {
            let mut list = self.received.lock().unwrap();
            let script = (self.script)(list.len(), &received);
            list.push(received);
            script
        };
        let script = match script {
            Script::Delay(delay, script) => {
                tokio::time::sleep(delay).await;
                *script
            }
            script => script,
        };
        match script {
            Script::Respond(status, headers, body) => Ok(response(status, headers, body)),
            // Scripts have one delay.
            Script::Delay(..) | Script::Hang => std::future::pending().await,
            Script::Custom(response) => Ok(response),
            Script::RefuseConnection => Err(TransportError::Connect("refused".into())),
            Script::Reset => Err(TransportError::Lost("reset".into())),
            Script::ResetBody => Ok(Response::new(BrokenBody.boxed_unsync())),
            Script::EndlessBody => Ok(Response::new(EndlessBody.boxed_unsync())),
            Script::DrippingBody => Ok(Response::new(DrippingBody::default().boxed_unsync())),
            Script::HangingBody(status, headers) => {
                let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
                Ok(response(status, headers, "").map(|_| HangingBody.boxed_unsync()))
            }
        }
    }
}

fn response(
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: &'static str,
) -> Response<TransportBody> {
    let mut builder = Response::builder().status(status);
    for (name, value) in headers {
        builder = builder.header(name, value);
    }
    builder.body(Full::from(body).map_err(|never| match never {}).boxed_unsync()).unwrap()
}

/// A body that fails at once.
struct BrokenBody;

impl http_body::Body for BrokenBody {
    type Data = Bytes;
    type Error = crate::BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, crate::BoxError>>> {
        Poll::Ready(Some(Err("reset".into())))
    }
}

/// A body that is always ready and never ends.
struct EndlessBody;

impl http_body::Body for EndlessBody {
    type Data = Bytes;
    type Error = crate::BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, crate::BoxError>>> {
        Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from_static(b"data")))))
    }
}

/// A body with one byte each second.
#[derive(Default)]
struct DrippingBody(Option<Pin<Box<tokio::time::Sleep>>>);

impl http_body::Body for DrippingBody {
    type Data = Bytes;
    type Error = crate::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, crate::BoxError>>> {
        let sleep = self.0.get_or_insert_with(|| Box::pin(tokio::time::sleep(secs(1))));
        std::task::ready!(sleep.as_mut().poll(context));
        self.0 = None;
        Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from_static(b".")))))
    }
}

/// A body of which nothing arrives.
struct HangingBody;

impl http_body::Body for HangingBody {
    type Data = Bytes;
    type Error = crate::BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, crate::BoxError>>> {
        Poll::Pending
    }
}

#[derive(Debug)]
struct TestTransport(Arc<TestServer>);

impl HttpTransport for TestTransport {
    fn send(&self, request: Request<SendBody>, timeout: Duration, _: ConnectionChoice) -> TransportFuture {
        let server = Arc::clone(&self.0);
        Box::pin(async move {
            let response = tokio::time::timeout(timeout, server.serve(request)).await;
            response.unwrap_or(Err(TransportError::Timeout))
        })
    }
}

pub(crate) const URL: &str = "http://api.example/items";

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}
