//! A connection in use by one request, from before anything is sent until the response has come.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use http_body::Body;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;

use super::abandon::{AbandonedExchange, GRACE, Handoff};
use super::framing::normalize;
use super::http1_fast::{Answered, Failed, Line, Plain, write_head};
use super::pool::{Pools, SendError, drive};
use super::server::Busy;
use super::stream::{Handed, HyperIo, Stream};
use crate::http::request_body::{RequestBody, UploadHandle};
use crate::http::response_body::Source;
use tidegate_store::Permit;

/// How a server is asked.
#[derive(Debug)]
pub(super) enum Way {
    Line(Line),
    Http1(Http1),
    Http2(Http2),
}

/// An HTTP/1.1 connection that hyper has.
#[derive(Debug)]
pub(super) struct Http1 {
    pub(super) sender: http1::SendRequest<RequestBody>,
    pub(super) handoff: Arc<Handoff>,
}

/// An HTTP/2 connection that hyper has. It carries many requests; each has a clone.
#[derive(Clone, Debug)]
pub(super) struct Http2 {
    pub(super) sender: http2::SendRequest<RequestBody>,
    /// How many streams the server allows at once. The clones of it count the streams there are.
    pub(super) most_streams: Rc<Cell<usize>>,
}

/// Why an attempt has no response.
#[derive(Debug)]
pub(super) enum AttemptError {
    /// Nothing was sent; the request is where it was.
    NotSent,
    /// The server says that it has not processed the request and will not; it is where it was.
    Refused,
    /// The server may have processed it.
    Failed(SendError),
}

impl From<SendError> for AttemptError {
    fn from(error: SendError) -> Self {
        Self::Failed(error)
    }
}

type PendingRequest<'r> = &'r mut Option<Request<RequestBody>>;

/// A connection in use. It is closed unless it is given back; while the request holds permits, see [`AbandonedExchange`].
#[derive(Debug)]
pub(crate) struct Lease {
    pools: Rc<Pools>,
    /// `None` once it was given back or closed.
    way: Option<Way>,
    busy: Busy,
    permits: Vec<Permit>,
    upload: UploadHandle,
    has_response: bool,
    /// The next response could begin anywhere.
    is_spent: bool,
}

impl Lease {
    pub(super) fn new(
        pools: &Rc<Pools>,
        way: Way,
        busy: Busy,
        permits: Vec<Permit>,
        upload: UploadHandle,
    ) -> Self {
        if let Way::Http1(http1) = &way
            && !permits.is_empty()
        {
            http1.handoff.begin();
        }
        let (pools, way) = (Rc::clone(pools), Some(way));
        Self { pools, way, busy, permits, upload, has_response: false, is_spent: false }
    }

    /// The line that a plain answer comes over.
    pub(crate) fn line(&mut self) -> Option<&mut Line> {
        match &mut self.way {
            Some(Way::Line(line)) => Some(line),
            _ => None,
        }
    }

    /// Sends a request and waits for the head of the response.
    pub(super) async fn ask(
        &mut self,
        request: PendingRequest<'_>,
    ) -> Result<Response<Source>, AttemptError> {
        let response = match &mut self.way {
            Some(Way::Line(line)) => match ask_line(&self.pools, (line, &self.busy), request).await? {
                Ok(response) => response,
                Err(read) => Box::pin(self.hand_over(read, request)).await?,
            },
            // In a box: what hyper takes along is large.
            Some(Way::Http1(_)) => Box::pin(self.ask_http1(request)).await?,
            Some(Way::Http2(_)) => Box::pin(self.ask_http2(request)).await?,
            None => return Err(AttemptError::NotSent),
        };
        self.has_response = true;
        Ok(response)
    }

    async fn ask_http1(&mut self, request: PendingRequest<'_>) -> Result<Response<Source>, AttemptError> {
        let Some(Way::Http1(http1)) = &mut self.way else { return Err(AttemptError::NotSent) };
        let Some(mut sent) = request.take() else { return Err(AttemptError::NotSent) };
        let adds_host = self.busy.server().address_http1(&mut sent);
        // hyper would drop the body of a GET whose length is not known.
        if !sent.body().is_end_stream() && sent.body().size_hint().exact().is_none() {
            sent.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        match http1.sender.try_send_request(sent).await {
            Ok(response) => self.take_response(response),
            Err(mut error) => match error.take_message() {
                Some(mut unsent) => {
                    if adds_host {
                        unsent.headers_mut().remove(HOST);
                    }
                    *request = Some(unsent);
                    Err(AttemptError::NotSent)
                }
                None => Err(SendError::Broken(error.into_error()).into()),
            },
        }
    }

    async fn ask_http2(&mut self, request: PendingRequest<'_>) -> Result<Response<Source>, AttemptError> {
        let Some(Way::Http2(http2)) = &mut self.way else { return Err(AttemptError::NotSent) };
        let Some(asked) = request.take() else { return Err(AttemptError::NotSent) };
        let head = self.busy.server().http2_head(&asked).ok_or(SendError::Host)?;
        // The head is kept: hyper does not give back that of a request that the server refuses.
        let (kept, body) = asked.into_parts();
        let error = match http2.sender.try_send_request(head.map(|()| body)).await {
            Ok(response) => return self.take_response(response),
            Err(error) => error,
        };
        let mut error = error;
        let (body, why) = match error.take_message() {
            Some(unsent) => (Some(unsent.into_body()), AttemptError::NotSent),
            None if is_unprocessed(error.error()) => (self.upload.take_back(), AttemptError::Refused),
            None => (None, AttemptError::Refused),
        };
        let Some(body) = body else { return Err(SendError::Broken(error.into_error()).into()) };
        *request = Some(Request::from_parts(kept, body));
        self.pools.forget_http2(self.busy.server(), http2);
        Err(why)
    }

    /// Has hyper judge an answer that is not plain, of which this has been read.
    async fn hand_over(
        &mut self,
        read: Bytes,
        request: PendingRequest<'_>,
    ) -> Result<Response<Source>, AttemptError> {
        let Some(Way::Line(line)) = self.way.take() else { return Err(AttemptError::NotSent) };
        let (stream, connected) = line.into_parts();
        let handed = Stream::Handed(Box::new(Handed::new(stream, read)));
        let io = HyperIo::new(handed, connected, false);
        let handoff = io.handoff();
        if !self.permits.is_empty() {
            handoff.begin();
        }
        let shaken = http1::Builder::new().handshake(TokioIo::new(io)).await;
        let (sender, connection) = shaken.map_err(SendError::Broken)?;
        drive(connection.with_upgrades());
        let Some(mut asked) = request.take() else { return Err(SendError::Unanswered.into()) };
        // Written to nobody; its method says what kind of answer it is.
        *asked.headers_mut() = HeaderMap::new();
        let http1 = Http1 { sender, handoff };
        let Way::Http1(http1) = self.way.insert(Way::Http1(http1)) else {
            return Err(SendError::Unanswered.into());
        };
        match http1.sender.try_send_request(asked).await {
            Ok(response) => self.take_response(response),
            // It was sent, whatever hyper says.
            Err(error) => Err(SendError::Broken(error.into_error()).into()),
        }
    }

    fn take_response(
        &mut self,
        mut response: Response<hyper::body::Incoming>,
    ) -> Result<Response<Source>, AttemptError> {
        let is_clear = normalize(&mut response).map_err(|_| SendError::Framing)?;
        // hyper would speak HTTP/1.0 from now on, and could send no body whose length is not known.
        self.is_spent = !is_clear || response.version() == Version::HTTP_10;
        Ok(response.map(Source::Hyper))
    }

    /// The exchange is over: another may use the connection, unless some of the request was never needed. The permits
    /// come back.
    pub(crate) fn give_back(mut self) -> Vec<Permit> {
        let permits = self.take_permits();
        if let Some(way) = self.way.take()
            && !self.is_spent
        {
            self.pools.keep(self.busy.server(), way);
        }
        permits
    }

    /// The attempt came to nothing: the connection is closed, and the request can be sent again with its permits.
    pub(super) fn give_up(mut self) -> Vec<Permit> {
        self.upload = UploadHandle::default();
        self.take_permits()
    }

    fn take_permits(&mut self) -> Vec<Permit> {
        if let Some(Way::Http1(http1)) = &self.way
            && !self.permits.is_empty()
        {
            http1.handoff.finish();
        }
        std::mem::take(&mut self.permits)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Nobody needs the rest of the request.
        self.upload.stop();
        if self.permits.is_empty() {
            return;
        }
        let answer = self.pools.response_timeout;
        let abandoned = AbandonedExchange {
            permits: std::mem::take(&mut self.permits),
            busy: self.busy.server().begin(),
            timeout: if self.has_response { answer.min(GRACE) } else { answer },
        };
        match self.way.take() {
            Some(Way::Line(line)) => abandoned.close(line.into_socket()),
            Some(Way::Http1(http1)) => http1.handoff.abandon(abandoned),
            Some(Way::Http2(_)) => abandoned.release_after_reset(),
            None => {}
        }
    }
}

/// Whether a server has said that it has not processed a request: a stream above the last of its `GOAWAY`, or one that
/// it refused (RFC 9113, section 8.7). hyper reports a `GOAWAY` for no other streams.
fn is_unprocessed(error: &hyper::Error) -> bool {
    let Some(error) = std::error::Error::source(error).and_then(|error| error.downcast_ref::<h2::Error>())
    else {
        return false;
    };
    let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    error.is_remote() && (error.is_go_away() || is_refused)
}

/// Asks over a line. The request is left where it is, without its headers. What is not plain is an error: what was
/// read of it.
async fn ask_line(
    pools: &Pools,
    (line, busy): (&mut Line, &Busy),
    request: PendingRequest<'_>,
) -> Result<Result<Response<Source>, Bytes>, AttemptError> {
    let Some(asked) = request else { return Err(AttemptError::NotSent) };
    let adds_host = busy.server().address_http1(asked);
    let sent = {
        let mut head = pools.head.take();
        head.clear();
        write_head(&mut head, asked);
        let sent = line.send(&head).await;
        pools.head.replace(head);
        sent
    };
    match sent {
        Ok(()) => {}
        Err(Failed::Unsent) => {
            if adds_host {
                asked.headers_mut().remove(HOST);
            }
            return Err(AttemptError::NotSent);
        }
        Err(Failed::Unanswered) => return Err(SendError::Unanswered.into()),
    }
    let method = asked.method().clone();
    let answered =
        poll_fn(|cx| line.poll_answer(cx, &method, &mut pools.room.borrow_mut(), asked.headers_mut()));
    match answered.await {
        Ok(Answered::Plain(Plain { status, headers, body })) => {
            let mut response = Response::new(Source::Plain(body));
            *response.status_mut() = status;
            *response.headers_mut() = headers;
            Ok(Ok(response))
        }
        Ok(Answered::Other(read)) => Ok(Err(read)),
        Err(_) => Err(SendError::Unanswered.into()),
    }
}
