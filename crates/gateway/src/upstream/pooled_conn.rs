//! A connection in use by one request.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response, Version};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use tidegate_store::Clock;

use super::abandon::{AbandonedExchange, GRACE, SocketHandoff};
use super::client_shares::ClientId;
use super::forwarded_request::ForwardedRequest;
use super::framing::normalize;
use super::head_profile::HeadProfile;
use super::http1_fast::{PlainConn, PlainError, PlainResponse};
use super::permits::ExchangePermits;
use super::pool::KeepSettings;
use super::server::{InFlightGuard, Server, ServerProtocol, UpstreamGroup};
use super::stream::{HyperIo, ReplayIo, UpstreamStream};
use super::transport::{SendError, Transport};
use crate::executor::LocalExecutor;
use crate::http::request_body::{RequestBody, UploadHandle, UploadProgress};
use crate::http::response_body::{BodyError, UpstreamBody};
use crate::http::unsent_bodies::UnsentBodies;

/// Concurrent streams of one HTTP/2 connection, even if the server allows more.
pub(super) const MAX_STREAMS: usize = 128;
/// The same until the server has said how many it allows.
pub(super) const INITIAL_STREAMS: usize = 100;

/// Requests that may be reset over one HTTP/2 connection. Servers close a connection with many resets (200 in 30 s in Netty), and
/// with it the requests of others, so it gets no further ones in time: those that it has may be reset too.
pub(super) const MAX_RESETS: usize = 64;
/// The same while connections are scarce: a connection that is replaced keeps its slot until its last request has ended. Envoy
/// closes a connection with 500 resets.
const MAX_RESETS_IF_SCARCE: usize = 256;

/// Which connections a request can use.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnNeed {
    /// The fast path may serve it.
    pub(super) is_plain: bool,
    /// It may make an HTTP/2 server close the connection, so no other request shares it.
    pub(super) is_alone: bool,
    /// It has a body, for which an HTTP/2 connection needs a window.
    pub(super) has_body: bool,
    /// Its client has HTTP/2 connections of its own.
    pub(super) owner: Option<ClientId>,
}

impl ConnNeed {
    #[inline]
    pub(super) fn new(upstream: &UpstreamGroup, server: &Server, request: &ForwardedRequest) -> Self {
        if server.protocol == ServerProtocol::Http1 {
            return Self { is_plain: request.is_plain(), is_alone: false, has_body: false, owner: None };
        }
        Self::for_http2(upstream, server, request)
    }

    fn for_http2(upstream: &UpstreamGroup, server: &Server, request: &ForwardedRequest) -> Self {
        let is_accepted = request.head_profile().is_none_or(|head| server.accepted_head.includes(head));
        let has_body = request.upload().progress() != UploadProgress::Empty;
        let client = request.client();
        let lone = upstream.resilience.lone_connections.as_ref();
        // Without a free slot it shares one, or clients that are suspected wrongly would wait for each other.
        let is_isolated = server.suspects.isolates(client, || upstream.clock.now())
            && lone.is_none_or(|slots| slots.in_use() < slots.config().concurrent);
        // Bounded connections are not kept for one client.
        let is_alone = !is_accepted || (is_isolated && lone.is_some());
        Self { is_plain: false, is_alone, has_body, owner: is_isolated.then_some(client) }
    }
}

/// A connection to a server, by protocol implementation.
#[derive(Debug)]
pub(super) enum Conn {
    /// The fast path.
    Plain(PlainConn),
    Http1(Http1Conn),
    Http2(Http2Conn),
}

/// An HTTP/1.1 connection of hyper.
#[derive(Debug)]
pub(super) struct Http1Conn {
    pub(super) sender: http1::SendRequest<RequestBody>,
    pub(super) handoff: Arc<SocketHandoff>,
}

/// An HTTP/2 connection of hyper. It carries many requests; each has a clone.
#[derive(Clone, Debug)]
pub(super) struct Http2Conn {
    pub(super) sender: http2::SendRequest<RequestBody>,
    /// The reference count is the number of streams.
    shared: Rc<Http2State>,
}

/// What all requests of an HTTP/2 connection share.
#[derive(Debug)]
struct Http2State {
    /// How many concurrent streams the server allows.
    max_streams: Cell<usize>,
    /// A request has reported that the connection broke.
    is_broken: Cell<bool>,
    /// Requests that ended early.
    resets: Cell<usize>,
    /// The only client that has the connection.
    owner: Option<ClientId>,
    /// The first client with a request.
    first_client: Cell<Option<ClientId>>,
    /// Several clients have had requests.
    has_several: Cell<bool>,
    /// Bodies that wait for the server.
    unsent_bodies: Rc<UnsentBodies>,
}

impl Http2Conn {
    /// Spawns a task that drives the connection.
    pub(super) fn new(
        sender: http2::SendRequest<RequestBody>,
        connection: http2::Connection<TokioIo<HyperIo>, RequestBody, LocalExecutor>,
        owner: Option<ClientId>,
    ) -> Self {
        let max_streams = Cell::new(connection.current_max_send_streams());
        let state = Rc::new(Http2State {
            max_streams,
            is_broken: Cell::new(false),
            resets: Cell::new(0),
            owner,
            first_client: Cell::new(None),
            has_several: Cell::new(false),
            unsent_bodies: Rc::default(),
        });
        let shared = Rc::downgrade(&state);
        tokio::task::spawn_local(async move {
            let mut connection = pin!(connection);
            // An error is reported to the exchanges that wait for a response.
            let _ = std::future::poll_fn(|cx| {
                let ended = connection.as_mut().poll(cx);
                if let Some(shared) = shared.upgrade() {
                    shared.max_streams.set(connection.current_max_send_streams());
                }
                ended
            })
            .await;
        });
        Self { sender, shared: state }
    }

    /// The number of streams: each has a clone, and the pool has one.
    pub(super) fn streams(&self) -> usize {
        Rc::strong_count(&self.shared) - 1
    }

    /// Whether a request can be sent now. Without capacity it would wait until others have ended.
    pub(super) fn has_capacity(&self) -> bool {
        !self.sender.is_closed() && self.streams() < self.shared.max_streams.get().min(MAX_STREAMS)
    }

    /// Whether a body waits for the server. One that the server does not read may have used up the window of the connection.
    pub(super) fn has_stuck_body(&self, server: &Server, clock: &dyn Clock) -> bool {
        self.shared.unsent_bodies.are_stuck(|| clock.now(), |client, now| server.suspects.record(client, now))
    }

    /// Whether it gets no more bodies.
    pub(super) fn has_lost_window(&self) -> bool {
        self.shared.unsent_bodies.have_lost_window()
    }

    /// Whether requests with `owner` use it.
    pub(super) fn is_for(&self, owner: Option<ClientId>) -> bool {
        self.shared.owner == owner
    }

    /// A request of `client` is about to be sent.
    fn record_client(&self, client: ClientId) {
        match self.shared.first_client.get() {
            Some(first) if first == client => {}
            Some(_) => self.shared.has_several.set(true),
            None => self.shared.first_client.set(Some(client)),
        }
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.shared, &other.shared)
    }

    /// Whether an error is one of the connection, in contrast to one of its streams. Some servers reset the streams before they
    /// close it (Node.js).
    fn has_failed(&self, error: &hyper::Error) -> bool {
        is_connection_error(error) || self.sender.is_closed()
    }

    /// Whether the server has ended the connection with requests in progress, and not because it stops.
    fn is_broken_by(&self, error: &hyper::Error) -> bool {
        let error_of_h2 =
            std::error::Error::source(error).and_then(|error| error.downcast_ref::<h2::Error>());
        let stops = |error: &h2::Error| error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
        self.has_failed(error) && !error_of_h2.is_some_and(stops)
    }

    /// Counts a request that ended early. Returns whether the connection must get no further ones.
    fn count_reset(&self, settings: &KeepSettings) -> bool {
        let resets = self.shared.resets.get() + 1;
        self.shared.resets.set(resets);
        resets >= MAX_RESETS && settings.can_replace()
            || resets >= MAX_RESETS_IF_SCARCE && settings.has_free_slot()
    }

    /// Why a request without a response failed. Of all requests that a broken connection ends, one counts. A server that resets
    /// a stream because of an overload may mean the connection, too: all of its requests together have caused it.
    fn failure(&self, error: hyper::Error, head: Option<HeadProfile>) -> SendError {
        let is_of_connection = self.has_failed(&error);
        if head.is_some_and(HeadProfile::is_unusual) {
            SendError::UnusualHead
        } else if !is_of_connection && !is_overload(&error) {
            SendError::Broken(error)
        } else if is_of_connection && self.shared.is_broken.replace(true) {
            SendError::NoResponseShared
        } else if self.shared.has_several.get() {
            SendError::NoResponseOfSeveral
        } else {
            SendError::NoResponse
        }
    }
}

/// Why an attempt failed.
#[derive(Debug)]
pub(super) enum AttemptError {
    /// Nothing was sent; the request can be sent again.
    NotSent,
    /// The server reports that it has not processed the request; it can be sent again.
    Refused,
    /// The server may have processed it.
    Failed(SendError),
}

impl From<SendError> for AttemptError {
    fn from(error: SendError) -> Self {
        Self::Failed(error)
    }
}

/// What the upstream of a connection says about it.
#[derive(Clone, Debug)]
pub(super) struct ConnSettings {
    pub(super) keep: KeepSettings,
    /// How long a server may take until its response starts.
    pub(super) request_timeout: Duration,
}

/// A connection in use. Drop closes it; with permits, by [`AbandonedExchange`]. [`Self::give_back`] keeps it.
#[derive(Debug)]
pub(crate) struct PooledConn {
    transport: Rc<Transport>,
    /// `None` after it was given back or closed.
    conn: Option<Conn>,
    settings: ConnSettings,
    in_flight: InFlightGuard,
    permits: ExchangePermits,
    upload: UploadHandle,
    client: ClientId,
    has_response: bool,
    /// The start of the next response is ambiguous.
    is_unusable: bool,
}

impl PooledConn {
    pub(super) fn new(
        transport: &Rc<Transport>,
        (conn, settings): (Conn, ConnSettings),
        in_flight: InFlightGuard,
        permits: ExchangePermits,
        request: &ForwardedRequest,
    ) -> Self {
        if let Conn::Http1(http1) = &conn
            && !permits.is_empty()
        {
            http1.handoff.begin();
        }
        Self {
            transport: Rc::clone(transport),
            conn: Some(conn),
            settings,
            in_flight,
            permits,
            upload: request.upload().clone(),
            client: request.client(),
            has_response: false,
            is_unusable: false,
        }
    }

    /// The connection of a plain response body.
    pub(crate) fn plain(&mut self) -> Option<&mut PlainConn> {
        match &mut self.conn {
            Some(Conn::Plain(plain)) => Some(plain),
            _ => None,
        }
    }

    /// Sends a request and waits for the head of the response.
    pub(super) async fn exchange(
        &mut self,
        request: &mut ForwardedRequest,
    ) -> Result<Response<UpstreamBody>, AttemptError> {
        let response = match &mut self.conn {
            Some(Conn::Plain(plain)) => {
                let head = request.http1_head(self.in_flight.server()).ok_or(SendError::NotRepeatable)?;
                match plain.exchange(&self.transport.buffers, head).await {
                    Ok(PlainResponse::Plain(response)) => {
                        request.mark_sent();
                        response
                    }
                    Ok(PlainResponse::Other(read)) => Box::pin(self.hand_over(read, request)).await?,
                    Err(PlainError::NotSent) => return Err(AttemptError::NotSent),
                    Err(PlainError::NoResponse) => return Err(SendError::NoResponse.into()),
                }
            }
            // Boxed because hyper's futures are large.
            Some(Conn::Http1(_)) => Box::pin(self.exchange_http1(request)).await?,
            Some(Conn::Http2(_)) => Box::pin(self.exchange_http2(request)).await?,
            None => return Err(AttemptError::NotSent),
        };
        self.has_response = true;
        Ok(response)
    }

    async fn exchange_http1(
        &mut self,
        request: &mut ForwardedRequest,
    ) -> Result<Response<UpstreamBody>, AttemptError> {
        let Some(Conn::Http1(http1)) = &mut self.conn else { return Err(AttemptError::NotSent) };
        let message = request.take_http1(self.in_flight.server()).ok_or(SendError::NotRepeatable)?;
        http1.handoff.expect_response(request.is_multiplexed());
        match http1.sender.try_send_request(message).await {
            Ok(response) => self.take_response(response),
            Err(mut error) => match error.take_message() {
                Some(unsent) => {
                    request.put_back(unsent);
                    Err(AttemptError::NotSent)
                }
                None if !http1.handoff.has_response_bytes() => Err(SendError::NoResponse.into()),
                None => Err(http1_failure(error.into_error()).into()),
            },
        }
    }

    async fn exchange_http2(
        &mut self,
        request: &mut ForwardedRequest,
    ) -> Result<Response<UpstreamBody>, AttemptError> {
        let Some(Conn::Http2(http2)) = &mut self.conn else { return Err(AttemptError::NotSent) };
        let head = request.http2(self.in_flight.server()).ok_or(SendError::Host)?;
        let profile = request.head_profile();
        let body = self.upload.open().ok_or(SendError::NotRepeatable)?;
        if !profile.is_some_and(|profile| profile.announces_trailers) {
            body.drop_trailers();
        }
        body.use_http2(&http2.shared.unsent_bodies, self.client);
        http2.record_client(self.client);
        let mut error = match http2.sender.try_send_request(head.map(|()| body)).await {
            Ok(response) => {
                request.mark_sent();
                if let Some(profile) = profile {
                    self.in_flight.server().accepted_head.record(profile, response.status());
                }
                return self.take_response(response);
            }
            Err(error) => error,
        };
        let (server, message) = (self.in_flight.server(), error.take_message());
        let error = error.into_error();
        if message.is_none() && http2.is_broken_by(&error) {
            server.suspects.record(self.client, self.transport.clock.now());
        }
        let can_resend = self.upload.progress() != UploadProgress::Started;
        let why = match message {
            Some(_) => AttemptError::NotSent,
            None if can_resend && is_unprocessed(&error) => AttemptError::Refused,
            None if is_overload(&error) => http2.failure(error, profile).into(),
            None => return Err(http2.failure(error, profile).into()),
        };
        self.transport.pool.remove_http2(server, http2);
        Err(why)
    }

    /// Lets hyper parse a response that is not plain; `read` is the part that was received.
    async fn hand_over(
        &mut self,
        read: Bytes,
        request: &mut ForwardedRequest,
    ) -> Result<Response<UpstreamBody>, AttemptError> {
        let Some(Conn::Plain(plain)) = self.conn.take() else { return Err(AttemptError::NotSent) };
        let (stream, count) = plain.into_parts();
        let io = HyperIo::new(UpstreamStream::Replay(Box::new(ReplayIo::new(stream, read))), count, false);
        if !self.permits.is_empty() {
            io.handoff().begin();
        }
        io.handoff().expect_response(request.is_multiplexed());
        let http1 = self.transport.open_http1(io).await.map_err(SendError::Broken)?;
        let Some(mut message) = request.take_sent() else { return Err(SendError::Framing.into()) };
        // Not written to the server; hyper needs the method to parse the response.
        *message.headers_mut() = HeaderMap::new();
        let Conn::Http1(http1) = self.conn.insert(Conn::Http1(http1)) else {
            return Err(SendError::Framing.into());
        };
        match http1.sender.try_send_request(message).await {
            Ok(response) => self.take_response(response),
            // The request was sent, so it cannot be sent again.
            Err(error) => Err(http1_failure(error.into_error()).into()),
        }
    }

    fn take_response(
        &mut self,
        mut response: Response<Incoming>,
    ) -> Result<Response<UpstreamBody>, AttemptError> {
        let is_clear = normalize(&mut response).map_err(|_| SendError::Framing)?;
        // hyper would send HTTP/1.0 from now on, which has no chunked bodies.
        self.is_unusable = !is_clear || response.version() == Version::HTTP_10;
        Ok(response.map(UpstreamBody::Hyper))
    }

    /// Ends the exchange and returns the connection to the pool, unless it cannot be reused. Returns the permits.
    pub(crate) fn give_back(mut self) -> ExchangePermits {
        let permits = self.take_permits();
        if !self.upload.is_complete() {
            self.count_reset();
        }
        if let Some(conn) = self.conn.take()
            && !self.is_unusable
        {
            self.transport.pool.keep(self.in_flight.server(), conn, &self.settings.keep);
        }
        permits
    }

    /// The body of the response has failed.
    #[cold]
    pub(crate) fn fail(self, error: &BodyError) {
        if let (Some(Conn::Http2(http2)), BodyError::Broken(error)) = (&self.conn, error)
            && http2.is_broken_by(error)
        {
            self.in_flight.server().suspects.record(self.client, self.transport.clock.now());
        }
    }

    /// Ends an attempt that another one follows, and closes the connection. The server is done with it.
    pub(crate) fn give_up(mut self) {
        self.upload = UploadHandle::default();
        self.take_permits();
    }

    /// The request ends early, which resets its stream. After too many of these, new requests use another connection.
    #[cold]
    fn count_reset(&self) {
        if let Some(Conn::Http2(http2)) = &self.conn
            && http2.count_reset(&self.settings.keep)
        {
            self.transport.pool.remove_http2(self.in_flight.server(), http2);
        }
    }

    fn take_permits(&mut self) -> ExchangePermits {
        if let Some(Conn::Http1(http1)) = &self.conn
            && !self.permits.is_empty()
        {
            http1.handoff.finish();
        }
        std::mem::take(&mut self.permits)
    }
}

impl Drop for PooledConn {
    fn drop(&mut self) {
        // The rest of the request body is not needed.
        self.upload.abandon();
        if self.conn.is_some() {
            self.count_reset();
        }
        if self.permits.is_empty() {
            return;
        }
        let timeout = self.settings.request_timeout;
        let abandoned = AbandonedExchange {
            permits: std::mem::take(&mut self.permits),
            in_flight: self.in_flight.server().begin(),
            timeout: if self.has_response { timeout.min(GRACE) } else { timeout },
        };
        match self.conn.take() {
            Some(Conn::Plain(plain)) => abandoned.close(plain.into_socket()),
            Some(Conn::Http1(http1)) => http1.handoff.abandon(abandoned),
            Some(Conn::Http2(_)) => abandoned.release_after_reset(),
            None => {}
        }
    }
}

/// Why there is no valid response over HTTP/1.1.
fn http1_failure(error: hyper::Error) -> SendError {
    if error.is_parse_too_large() { SendError::ResponseHead } else { SendError::Broken(error) }
}

/// Whether the server reports that it has not processed the request: `GOAWAY` with a lower last stream, or `REFUSED_STREAM`
/// (RFC 9113, section 8.7). hyper reports a `GOAWAY` for no other streams.
fn is_unprocessed(error: &hyper::Error) -> bool {
    let Some(error) = std::error::Error::source(error).and_then(|error| error.downcast_ref::<h2::Error>())
    else {
        return false;
    };
    let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    error.is_remote() && (error.is_go_away() || is_refused)
}

/// Whether the server has reset a stream because its client, the gateway, sends too much.
fn is_overload(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error).and_then(|error| error.downcast_ref::<h2::Error>());
    source.is_some_and(|error| {
        error.is_reset() && error.is_remote() && error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM)
    })
}

/// Whether an HTTP/2 connection broke, in contrast to one of its streams.
fn is_connection_error(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error);
    if let Some(error) = source.and_then(|source| source.downcast_ref::<h2::Error>()) {
        return error.is_io() || error.is_go_away();
    }
    let is_io = source.and_then(|source| source.downcast_ref::<std::io::Error>()).is_some();
    is_io || error.is_closed() || error.is_canceled() || error.is_timeout()
}
