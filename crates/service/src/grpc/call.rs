//! One call: validation, authentication, dispatch, response.

use std::cell::Cell;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use prost::Message;
use tidegate_listener::bearer;
use tidegate_store::Store;
use tidegate_telemetry::{Protocol, RequestSummary};
use tidegate_tower::deadline::Deadline;
use tokio::sync::watch;

use super::bad_descriptor::{BadDescriptor, RlsError};
use super::frame::{self, MAX_MESSAGE, MAX_OTHER_MESSAGE, MessageReader, PartialBytes};
use super::message::{RateLimitRequest, ResponseCode};
use super::rate_limit;
use super::status::{GRPC, GrpcCode, GrpcError, ok_trailers, shown};
use super::{health, reflection};
use crate::auth;
use crate::worker::ServiceWorker;

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const PARENT: HeaderName = HeaderName::from_static("traceparent");
/// The largest number of health checks and reflection calls at once on a connection. Their responses may be long or last.
const MAX_STREAMING: usize = 16;
/// The largest number of reflection calls among them. Tools use one.
const MAX_REFLECTING: usize = 2;
/// How long the body of a call may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// What the calls of a connection share.
pub(super) struct CallContext<S> {
    pub(super) worker: Rc<ServiceWorker<S>>,
    pub(super) peer: IpAddr,
    /// Turns true when the service stops.
    pub(super) stop: watch::Receiver<bool>,
    /// The health checks and reflection calls in progress.
    pub(super) streaming: Cell<usize>,
    /// The reflection calls among them.
    pub(super) reflecting: Cell<usize>,
    /// The messages that have arrived in part.
    pub(super) partial: PartialBytes,
}

/// Serves a call.
pub(super) async fn serve<S: Store + 'static>(
    context: Rc<CallContext<S>>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let (parts, body) = request.into_parts();
    if let Err(status) = check_head(&parts) {
        let mut response = Response::new(());
        *response.status_mut() = status;
        // The client has gone if this fails, here and below.
        let _ = respond.send_response(response, true);
        return;
    }
    let is_rate_limit = parts.uri.path() == SHOULD_RATE_LIMIT;
    let max = if is_rate_limit { MAX_MESSAGE } else { MAX_OTHER_MESSAGE };
    let mut messages = MessageReader::new(body, max, context.partial.clone());
    if is_rate_limit {
        let reply = should_rate_limit(&context, parts, &mut messages).await;
        send_reply(&mut respond, reply);
        return;
    }
    // Boxed, so that the future of a rate limit call is small.
    Box::pin(serve_other(&context, parts, messages, &mut respond)).await;
}

/// Serves health checks, which need no token, and reflection.
async fn serve_other<S: Store + 'static>(
    context: &CallContext<S>,
    parts: Parts,
    mut messages: MessageReader,
    respond: &mut SendResponse<Bytes>,
) {
    let _open = match StreamingGuard::new(&context.streaming, MAX_STREAMING) {
        Ok(open) => open,
        Err(error) => return send_reply(respond, Err(error)),
    };
    let method = OtherMethod::of(&parts, &context.worker);
    // The call may last, and its head may be long.
    drop(parts);
    let served = match method {
        Ok(OtherMethod::HealthCheck) => {
            let reply = single(&mut messages, || {}).await.and_then(|request| health::check(&request));
            return send_reply(respond, reply.map(|reply| frame::encode(&reply)));
        }
        Ok(OtherMethod::HealthWatch) => match single(&mut messages, || {}).await {
            Ok(request) => health::watch(&request, respond, context.stop.clone()).await,
            Err(error) => Err(error),
        },
        Ok(OtherMethod::Reflection) => match StreamingGuard::new(&context.reflecting, MAX_REFLECTING) {
            Ok(_open) => reflection::serve(messages, respond).await,
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    };
    if let Err(error) = served {
        let _ = respond.send_response(error.response(), true);
    }
}

/// A method that is not that of the rate limit service.
enum OtherMethod {
    HealthCheck,
    HealthWatch,
    Reflection,
}

impl OtherMethod {
    /// The method of a call, if there is one and the call may use it.
    fn of<S: Store + 'static>(parts: &Parts, worker: &ServiceWorker<S>) -> Result<Self, GrpcError> {
        match parts.uri.path() {
            health::CHECK => Ok(Self::HealthCheck),
            health::WATCH => Ok(Self::HealthWatch),
            path if reflection::is_served(path) => {
                authorize(worker, &parts.headers).map(|()| Self::Reflection)
            }
            path => {
                let message = format!("unknown method {}", shown(path));
                Err(GrpcError::new(GrpcCode::Unimplemented, message))
            }
        }
    }
}

/// Counts a call until it is dropped.
struct StreamingGuard<'c>(&'c Cell<usize>);

impl<'c> StreamingGuard<'c> {
    /// Counts a call unless `max` calls are counted.
    fn new(open: &'c Cell<usize>, max: usize) -> Result<Self, GrpcError> {
        if open.get() >= max {
            let message = "too many calls at once on this connection";
            return Err(GrpcError::new(GrpcCode::ResourceExhausted, message));
        }
        open.set(open.get() + 1);
        Ok(Self(open))
    }
}

impl Drop for StreamingGuard<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

/// Checks what makes a request a gRPC call.
fn check_head(parts: &Parts) -> Result<(), StatusCode> {
    if parts.method != Method::POST {
        return Err(StatusCode::METHOD_NOT_ALLOWED);
    }
    let is_grpc = |value: &HeaderValue| {
        let rest = value.as_bytes().strip_prefix(b"application/grpc");
        rest.is_some_and(|rest| rest.is_empty() || rest == b"+proto" || rest.starts_with(b";"))
    };
    match parts.headers.get(CONTENT_TYPE) {
        Some(value) if is_grpc(value) => Ok(()),
        _ => Err(StatusCode::UNSUPPORTED_MEDIA_TYPE),
    }
}

/// Checks the token, if one is required.
fn authorize<S: Store + 'static>(worker: &ServiceWorker<S>, headers: &HeaderMap) -> Result<(), GrpcError> {
    let policy = worker.policy();
    let plan = &policy.tokens;
    if !auth::needs_token(plan, Protocol::Grpc) {
        return Ok(());
    }
    if auth::is_authorized(plan, Protocol::Grpc, bearer_token(headers)) {
        return Ok(());
    }
    let message = "missing or invalid token; send it as `authorization: Bearer TOKEN`";
    Err(GrpcError::new(GrpcCode::Unauthenticated, message))
}

/// The token of a call. Two headers have none: clients and proxies disagree about which one counts.
fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().filter(|_| values.next().is_none())?;
    bearer(value.as_bytes())
}

/// The only message of a call, within [`BODY_TIMEOUT`]. Calls `before_wait` if it has not arrived yet.
async fn single<M: Message + Default>(
    messages: &mut MessageReader,
    before_wait: impl FnOnce(),
) -> Result<M, GrpcError> {
    let mut reading = pin!(messages.single());
    // A message that has arrived needs no timer.
    let message = match poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await {
        Poll::Ready(message) => message,
        Poll::Pending => {
            before_wait();
            tokio::time::timeout(BODY_TIMEOUT, reading).await.unwrap_or_else(|_| {
                Err(GrpcError::new(GrpcCode::DeadlineExceeded, "the message did not arrive in time"))
            })
        }
    };
    frame::decode(message?)
}

/// Drops what is no longer needed of a head, which may be long.
fn release_head(parts: &mut Parts) {
    parts.headers = HeaderMap::new();
    // A copy, because a part of the address keeps all of the head in memory.
    let host = parts.uri.authority().map(|authority| shown(authority.as_str()).to_owned());
    parts.uri = host
        .and_then(|host| Uri::builder().scheme("http").authority(host).path_and_query("/").build().ok())
        .unwrap_or_default();
}

/// Decides a rate limit call and records it.
async fn should_rate_limit<S: Store + 'static>(
    context: &CallContext<S>,
    mut parts: Parts,
    messages: &mut MessageReader,
) -> Result<Bytes, GrpcError> {
    let worker = &*context.worker;
    let mut record = worker.recorder(Protocol::Grpc).start();
    record.join_trace(|| parts.headers.get_all(PARENT).iter().map(HeaderValue::as_bytes));
    // The time that the client waits counts from the arrival of the call.
    let has_timeout = parts.headers.contains_key(TIMEOUT);
    let deadline = if has_timeout { Deadline::from_headers(&parts.headers, worker.now()) } else { None };
    let decided = async {
        authorize(worker, &parts.headers)?;
        let request: RateLimitRequest = match single(messages, || release_head(&mut parts)).await {
            Err(error) if error.code == GrpcCode::ResourceExhausted => {
                return Err(BadDescriptor::too_large().into());
            }
            request => request?,
        };
        record.describe(|| summarize(&parts, &request, context.peer));
        rate_limit::decide(worker, &request, context.peer, deadline, &mut record).await
    };
    match decided.await {
        Err(RlsError::Descriptor(bad)) => {
            let style = worker.policy().active.matcher.plan().error_body;
            let reply = frame::encode(&bad.response(style));
            record.set_error(|| (bad.code(), None));
            record.set_response(400, u64::try_from(reply.len()).ok());
            Ok(reply)
        }
        Ok(response) => {
            let is_over = response.overall_code == ResponseCode::OverLimit as i32;
            let reply = frame::encode(&response);
            let length = u64::try_from(reply.len()).ok();
            record.set_response(if is_over { 429 } else { 200 }, length);
            Ok(reply)
        }
        Err(RlsError::Call(error)) => {
            record.set_response(error.http_status(), Some(0));
            Err(error)
        }
    }
}

/// Decides an encoded message; `None` if the call fails.
pub(crate) async fn decide_encoded<S: Store + 'static>(
    worker: &ServiceWorker<S>,
    message: &[u8],
) -> Option<Vec<u8>> {
    let request: RateLimitRequest = frame::decode(Bytes::copy_from_slice(message)).ok()?;
    let mut record = worker.recorder(Protocol::Grpc).start();
    let peer = IpAddr::from([127, 0, 0, 1]);
    let response = match rate_limit::decide(worker, &request, peer, None, &mut record).await {
        Ok(response) => response,
        Err(RlsError::Descriptor(bad)) => bad.response(worker.policy().active.matcher.plan().error_body),
        Err(RlsError::Call(_)) => return None,
    };
    // The path in logs must be made of any keys.
    debug_assert!(rate_limit::path(&request).len() <= 1024);
    Some(response.encode_to_vec())
}

/// The call in logs and traces: its domain and the keys of its descriptors, without their values.
fn summarize(parts: &Parts, request: &RateLimitRequest, peer: IpAddr) -> RequestSummary {
    let host = parts.uri.authority().map(ToString::to_string).unwrap_or_default();
    let path = rate_limit::path(request);
    RequestSummary { method: "POST".to_owned(), host, path, peer, version: "2", bytes: None }
}

/// Sends the reply to a unary call.
fn send_reply(respond: &mut SendResponse<Bytes>, reply: Result<Bytes, GrpcError>) {
    let _ = match reply {
        Ok(message) => begin_reply(respond).and_then(|mut stream| {
            stream.send_data(message, false)?;
            stream.send_trailers(ok_trailers())
        }),
        Err(error) => respond.send_response(error.response(), true).map(drop),
    };
}

/// Sends the head of a reply that has messages.
pub(super) fn begin_reply(respond: &mut SendResponse<Bytes>) -> Result<SendStream<Bytes>, h2::Error> {
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    respond.send_response(response, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearer_token_is_read_from_one_header_only() {
        let token = |values: &[&'static str]| {
            let lines = values.iter().map(|value| (AUTHORIZATION, HeaderValue::from_static(value)));
            bearer_token(&lines.collect()).map(<[u8]>::to_vec)
        };
        for given in ["Bearer secret", "bearer  secret ", " BEARER secret"] {
            assert_eq!(token(&[given]).as_deref(), Some(&b"secret"[..]), "{given}");
        }
        for other in
            [&[][..], &["secret"], &["Basic secret"], &["Bearer"], &["Bearer secret", "Bearer secret"]]
        {
            assert_eq!(token(other), None, "{other:?}");
        }
    }
}
