//! Finds the endpoint of a request, and checks everything that does not depend on its body.

use std::net::IpAddr;
use std::rc::Rc;

use http::{HeaderValue, Method, StatusCode, Version};
use serde::Deserialize;
use tidegate_headers::{BodyStyle, REQUEST_ID, random_request_id};
use tidegate_listener::bearer;
use tidegate_store::Store;
use tidegate_telemetry::{Protocol, RequestRecord, RequestSummary};

use super::authorize::{self, authorize};
use super::error::HttpError;
use super::local_host::is_local;
use super::request::{EndpointBody, EndpointRequest, RequestHeaders};
use super::response::{HttpAnswer, HttpResponse, PendingAnswer};
use super::{charges, check, original, reserve};
use crate::auth;
use crate::grpc;
use crate::worker::{ServedPolicy, ServiceWorker};

/// The longest body of a request.
pub(super) const MAX_BODY: usize = 64 << 10;
/// The longest body of a batch.
pub(super) const MAX_BATCH_BODY: usize = 1 << 20;
/// The description of this interface.
const OPENAPI: &[u8] = include_bytes!("openapi.json");

/// What a path asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServiceEndpoint {
    Check,
    Peek,
    Refund,
    Reset,
    Reserve,
    Commit,
    Authorize,
    /// `/json`: a call of Envoy's rate limit service.
    Json,
    OpenApi,
    /// `/healthz` and `/readyz`.
    Health,
}

impl ServiceEndpoint {
    fn find(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/check" => Self::Check,
            "/v1/authorize" => Self::Authorize,
            "/v1/peek" => Self::Peek,
            "/v1/refund" => Self::Refund,
            "/v1/reset" => Self::Reset,
            "/v1/reserve" => Self::Reserve,
            "/v1/commit" => Self::Commit,
            "/json" => Self::Json,
            "/openapi.json" => Self::OpenApi,
            "/healthz" | "/readyz" => Self::Health,
            _ => return None,
        })
    }

    /// The methods of `Allow`; `None` if all are allowed.
    fn methods(self) -> Option<&'static str> {
        match self {
            Self::Authorize => None,
            Self::OpenApi | Self::Health => Some("GET, HEAD"),
            _ => Some("POST"),
        }
    }

    fn allows(self, method: &Method) -> bool {
        self.methods().is_none_or(|methods| methods.split(", ").any(|allowed| method == allowed))
    }
}

/// A request to an endpoint.
pub(super) struct EndpointCall<'c, S> {
    pub(super) worker: &'c Rc<ServiceWorker<S>>,
    pub(super) policy: Rc<ServedPolicy>,
    pub(super) record: RequestRecord<'c>,
}

/// Whether there is an endpoint with this path.
pub(super) fn is_endpoint(path: &str) -> bool {
    ServiceEndpoint::find(path).is_some()
}

/// Answers a request.
pub(super) async fn dispatch<S: Store + 'static>(
    worker: &Rc<ServiceWorker<S>>,
    peer: IpAddr,
    request: EndpointRequest<'_>,
    body: EndpointBody<'_>,
) -> HttpResponse {
    let endpoint = match ServiceEndpoint::find(request.path) {
        Some(ServiceEndpoint::Health) if ServiceEndpoint::Health.allows(&request.method) => {
            return HttpResponse::new("text/plain", b"ok\n".as_slice());
        }
        Some(endpoint) => endpoint,
        None => return HttpError::NO_ENDPOINT.into_response(BodyStyle::Problem),
    };
    let policy = worker.policy();
    let record = worker.recorder(Protocol::Http).start();
    let mut call = EndpointCall { worker, policy, record };
    call.record.join_trace(|| request.headers.values("traceparent"));
    call.record.describe(|| summarize(&request, peer));
    let is_authorize = endpoint == ServiceEndpoint::Authorize;
    let style = if is_authorize { authorize::body_style(&call) } else { BodyStyle::Problem };
    let answered = match answer(&mut call, endpoint, &request, peer, body) {
        Ok(answer) => answer.wait().await,
        Err(error) => Err(error),
    };
    let answered = match answered {
        Ok(HttpAnswer { response, delay: Some(delay) }) => delay.wait(worker).await.map(|()| response),
        Ok(HttpAnswer { response, delay: None }) => Ok(response),
        Err(error) => Err(error),
    };
    let mut response = answered.unwrap_or_else(|error| {
        call.record.set_error(|| (error.code(), None));
        error.with_rule_names(&call.policy.active).into_response(style)
    });
    if is_authorize && !response.body.is_empty() {
        authorize::repeat_body(&request.headers, &mut response);
    }
    if response.status.is_client_error() || response.status.is_server_error() {
        identify(&mut response, &request.headers, &mut call.record);
    }
    call.record.set_response(response.status.as_u16(), Some(response.body.len() as u64));
    response
}

/// Gives a refusal or an error the id of its request: that of the program or proxy that asks, or a new one.
fn identify(response: &mut HttpResponse, headers: &RequestHeaders<'_>, record: &mut RequestRecord<'_>) {
    let received = headers.values("x-request-id").next();
    let id = received.filter(|id| !id.is_empty()).and_then(|id| HeaderValue::from_bytes(id).ok());
    let id = id.unwrap_or_else(|| random_request_id(fastrand::u128(..).to_be_bytes()));
    record.set_id(|| id.to_str().ok());
    response.headers.insert(REQUEST_ID, id);
}

/// Answers a request, without a future if nothing has to be awaited: its room would cost as much as the decision.
fn answer<'f, S: Store + 'static>(
    call: &'f mut EndpointCall<'_, S>,
    endpoint: ServiceEndpoint,
    request: &'f EndpointRequest<'_>,
    peer: IpAddr,
    body: EndpointBody<'f>,
) -> Result<PendingAnswer<'f>, HttpError> {
    check_head(call, endpoint, request, peer)?;
    match (endpoint, body) {
        (ServiceEndpoint::OpenApi, _) => Ok(HttpResponse::new("application/json", OPENAPI).into()),
        (ServiceEndpoint::Authorize, _) => authorize(call, &request.headers, peer, request.version),
        (ServiceEndpoint::Check, EndpointBody::Whole(body)) if body.len() <= MAX_BODY => {
            check::check(call, body)
        }
        (_, body) => Ok(PendingAnswer::Waiting(Box::pin(answer_message(call, endpoint, peer, body)))),
    }
}

/// Answers a request whose body is the message.
async fn answer_message<S: Store + 'static>(
    call: &mut EndpointCall<'_, S>,
    endpoint: ServiceEndpoint,
    peer: IpAddr,
    body: EndpointBody<'_>,
) -> Result<HttpAnswer, HttpError> {
    let max = if endpoint == ServiceEndpoint::Check { MAX_BATCH_BODY } else { MAX_BODY };
    let body = body.read(max).await?;
    let answered = match endpoint {
        ServiceEndpoint::Check => return check::check(call, &body)?.wait().await,
        ServiceEndpoint::Peek => check::peek(call, &body).await,
        ServiceEndpoint::Refund => charges::refund(call, &body).await,
        ServiceEndpoint::Reset => charges::reset(call, &body).await,
        ServiceEndpoint::Reserve => reserve::reserve(call, &body).await,
        ServiceEndpoint::Commit => reserve::commit(call, &body).await,
        ServiceEndpoint::Json => {
            let (status, json) = grpc::json::handle(call.worker, peer, &body, &mut call.record).await;
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            Ok(HttpResponse { status, ..HttpResponse::json(json.into_bytes()) })
        }
        // They have no message.
        ServiceEndpoint::Authorize | ServiceEndpoint::OpenApi | ServiceEndpoint::Health => {
            Err(HttpError::NO_ENDPOINT)
        }
    };
    answered.map(HttpAnswer::from)
}

/// Checks everything that does not depend on the body.
fn check_head<S: Store + 'static>(
    call: &EndpointCall<'_, S>,
    endpoint: ServiceEndpoint,
    request: &EndpointRequest<'_>,
    peer: IpAddr,
) -> Result<(), HttpError> {
    if let Some(allowed) = endpoint.methods().filter(|_| !endpoint.allows(&request.method)) {
        return Err(HttpError::Method { allowed });
    }
    check_token(call, endpoint, &request.headers)?;
    match endpoint {
        ServiceEndpoint::OpenApi | ServiceEndpoint::Health => Ok(()),
        ServiceEndpoint::Authorize if authorize::is_trusted(call, peer) => Ok(()),
        ServiceEndpoint::Authorize => Err(HttpError::UNTRUSTED_PEER),
        _ => {
            check_host(call, request, peer)?;
            check_content_type(&request.headers)
        }
    }
}

/// Checks the token of the listener. The `Authorization` of a request to `authorize` is that of the original client.
fn check_token<S: Store + 'static>(
    call: &EndpointCall<'_, S>,
    endpoint: ServiceEndpoint,
    headers: &RequestHeaders<'_>,
) -> Result<(), HttpError> {
    let service = &call.policy.tokens;
    if !auth::needs_token(service, Protocol::Http) {
        return Ok(());
    }
    let (given, header) = if endpoint == ServiceEndpoint::Authorize {
        (headers.single(original::TOKEN), "X-Tidegate-Token")
    } else {
        (headers.single("authorization").and_then(bearer), "Authorization: Bearer TOKEN")
    };
    let is_authorized = auth::is_authorized(service, Protocol::Http, given);
    if is_authorized { Ok(()) } else { Err(HttpError::Token { header }) }
}

/// Checks the host of a request that needs neither a token nor TLS because it comes from this machine: a browser here may have
/// sent it for a page of that host (see `local_host`). Requests to `authorize` may have the host of the original request.
fn check_host<S: Store + 'static>(
    call: &EndpointCall<'_, S>,
    request: &EndpointRequest<'_>,
    peer: IpAddr,
) -> Result<(), HttpError> {
    let plan = || call.policy.active.matcher.plan().service.http.as_ref();
    if !peer.is_loopback()
        || auth::needs_token(&call.policy.tokens, Protocol::Http)
        || plan().is_some_and(|listener| listener.tls.is_some())
    {
        return Ok(());
    }
    // A request without a host is not from a browser.
    let authority = request.authority.map(str::as_bytes);
    let is_local = request.headers.values("host").chain(authority).all(is_local);
    if is_local { Ok(()) } else { Err(HttpError::FOREIGN_HOST) }
}

/// A web page can send a body without asking this server first only if it is not declared as JSON. So JSON must be declared:
/// then a browser on this machine cannot be used to reset or to exhaust counters.
fn check_content_type(headers: &RequestHeaders<'_>) -> Result<(), HttpError> {
    let value = headers.single("content-type").ok_or(HttpError::MEDIA_TYPE)?;
    let media_type = value.split(|byte| *byte == b';').next().unwrap_or_default();
    let is_json = media_type.trim_ascii().eq_ignore_ascii_case(b"application/json");
    if is_json { Ok(()) } else { Err(HttpError::MEDIA_TYPE) }
}

/// Reads a message.
pub(super) fn parse<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, HttpError> {
    serde_json::from_slice(body).map_err(HttpError::Json)
}

pub(super) fn version_text(version: Version) -> &'static str {
    match version {
        Version::HTTP_2 => "2",
        Version::HTTP_10 => "1.0",
        _ => "1.1",
    }
}

/// Summarizes a request to this service. Its path is one of the endpoints.
fn summarize(request: &EndpointRequest<'_>, peer: IpAddr) -> RequestSummary {
    let length = request.headers.values("content-length").next();
    RequestSummary {
        method: request.method.as_str().to_owned(),
        host: request.host(),
        path: request.path.to_owned(),
        peer,
        version: version_text(request.version),
        bytes: length.and_then(|length| std::str::from_utf8(length).ok()?.parse().ok()),
    }
}
