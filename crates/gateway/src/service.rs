//! Handles a request: validation, route, limits, upstream, response.
//!
//! The stack in the order in which a request passes it, with the reason for each position:
//!
//! 1. *errors* ([`serve`], [`Exchange::respond`]): outermost, so that every failure below becomes a response and is recorded.
//! 2. *reading*: framing, method, host, route and headers: nothing below may read a request that has two meanings.
//! 3. *deadline*: a request that is too late is not charged, and all waiting below is bounded by it.
//!    If a rule counts the user that a body names, it is received now (`user_body`).
//! 4. *limiter* (`limit`): before everything that is shared with other clients, so that a client over its limit cannot use
//!    that up. What is charged here and rejected below, before anything was sent, is refunded.
//! 5. *load shedding* (`admit`): rejects at once, so before anything that waits.
//! 6. *bulkheads* of the route and the upstream (`admit`): outside of retries, so that a request counts once, whatever the
//!    number of its attempts. Their permits are held until the response body has ended.
//! 7. *retry* (`forward`): outside of the breaker and the timeout, which apply to each attempt.
//! 8. *breaker* (`upstream::select`): chooses only servers that it admits, so that a retry finds one that works.
//! 9. *timeout of the attempt* (`time_bounds`): innermost, so that it measures the server and nothing else.
//! 10. *upstream* (`upstream`): the exchange itself.

use std::net::IpAddr;
use std::rc::Rc;

use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, Version};
use http_body::Body;
use hyper::body::Incoming;
use tidegate_headers::{DEGRADE, REQUEST_ID, RateLimitHeaders, grpc_content_type, is_rejected_by_upstream};
use tidegate_limiter::{Charge, ChargeMeter};
use tidegate_policy::{BodyFacts, Facts, NormalRequest, ReadOptions, RequestError, RequestHead, Route};
use tidegate_store::Store;
use tidegate_telemetry::{Log, RequestRecord};
use tidegate_tower::deadline::Deadline;

use crate::act::Degradation;
use crate::act::cached::{ResponseReuse, SentTarget};
use crate::error::{ServeError, rescue};
use crate::forward::{AttemptContext, OutboundRequest, PendingUpgrade};
use crate::http::access_log::summarize;
use crate::http::header_flags::HeaderFlags;
use crate::http::hop_headers::{self, ConnInfo, PreparedRequest};
use crate::http::request_body::UploadHandle;
use crate::http::request_id::RequestId;
use crate::http::response_body::ResponseBody;
use crate::http::{trace_context, validate};
use crate::limit::{AdmittedRequest, LimitOutcome};
use crate::upstream::{Caller, ClientId, ForwardedRequest};
use crate::user_body::ReceivedBody;
use crate::worker::{Worker, WorkerSnapshot};

/// One request and its response, with the state that their handling needs.
pub(crate) struct Exchange<'e, S> {
    pub(crate) worker: &'e Rc<Worker<S>>,
    pub(crate) snapshot: &'e Rc<WorkerSnapshot>,
    pub(crate) conn_info: &'e Rc<ConnInfo>,
    /// The headers that the request has.
    flags: HeaderFlags,
    /// Drop emits the record, so aborted requests are recorded too.
    pub(crate) record: RequestRecord<'e>,
    /// When the client stops waiting, if it says so.
    pub(crate) deadline: Option<Deadline>,
    /// The rate-limit headers of the response.
    pub(crate) headers: RateLimitHeaders,
    /// How the request is served in a cheaper way, if a limit requires that. The upstream is told.
    pub(crate) degradation: Option<Degradation>,
    /// What it has to do with the memory of responses, if the policy has one.
    pub(crate) reuse: Option<Box<ResponseReuse>>,
    /// A server may have received the request, whatever happened to later attempts.
    pub(crate) may_have_arrived: bool,
    /// The peer is a trusted proxy.
    is_trusted: bool,
    /// Known once its headers are prepared for an upstream.
    request_id: Option<RequestId>,
}

/// A request as it arrived. Forwarding moves its parts out.
pub(crate) struct ReceivedRequest {
    pub(crate) parts: Parts,
    pub(crate) body: Option<Incoming>,
    /// In place of `body`, once a part of it was received.
    pub(crate) upload: UploadHandle,
}

/// Serves one request. Errors become responses.
pub(crate) async fn serve<S: Store + 'static>(
    worker: &Rc<Worker<S>>,
    conn_info: &Rc<ConnInfo>,
    request: &mut ReceivedRequest,
) -> Response<ResponseBody> {
    let snapshot = &worker.snapshot();
    let mut exchange = Exchange::begin(worker, snapshot, conn_info, &mut request.parts);
    let served = exchange.run(request).await;
    exchange.respond(served, &mut request.parts)
}

impl<'e, S: Store + 'static> Exchange<'e, S> {
    fn begin(
        worker: &'e Rc<Worker<S>>,
        snapshot: &'e Rc<WorkerSnapshot>,
        conn_info: &'e Rc<ConnInfo>,
        parts: &mut Parts,
    ) -> Self {
        let flags = HeaderFlags::scan_request(parts.version, &mut parts.headers);
        let mut record = worker.recorder.start();
        trace_context::join(&mut record, &parts.headers);
        record.describe(|| summarize(parts, conn_info.peer, &snapshot.plan().identities));
        let headers = RateLimitHeaders::default();
        Self {
            worker,
            snapshot,
            conn_info,
            flags,
            record,
            deadline: None,
            headers,
            degradation: None,
            reuse: None,
            may_have_arrived: false,
            is_trusted: false,
            request_id: None,
        }
    }

    /// Validation, route, deadline, limits, permits, upstream.
    #[expect(clippy::too_many_lines, reason = "the stack of a request, in its order")]
    async fn run(&mut self, request: &mut ReceivedRequest) -> Result<Response<ResponseBody>, ServeError> {
        let snapshot = self.snapshot;
        let parts = &mut request.parts;
        let sent = snapshot.memory().map(|_| {
            let (method, uri) = (parts.method.clone(), parts.uri.clone());
            let has_body = request.body.as_ref().is_some_and(|body| !body.is_end_stream());
            Box::new(SentTarget { method, uri, has_body })
        });
        let mut read = self.read(parts)?;
        self.is_trusted = read.is_trusted;
        // A request without a route is not charged.
        let (route, upstream) = read
            .route
            .and_then(|route| Some((route, snapshot.upstream(route)?)))
            .ok_or(RequestError::NoRoute)?;
        self.read_deadline(read.headers)?;
        if let Some(sent) = sent {
            self.reuse = self.response_reuse(&sent, &read);
        }
        // A request that is refused stays charged, so that guesses of keys and tokens are not free.
        let may_be_refunded = read.refused.is_none()
            && (self.deadline.is_some() || route.bulkhead.is_some() || upstream.resilience.can_reject());
        let received = if snapshot.policy.matcher.has_body_users() {
            let body = (&mut request.body, &mut request.upload);
            // Boxed because its state would otherwise be part of every request.
            Box::pin(self.receive_user_body(read.facts(), route, body)).await?
        } else {
            None
        };
        let body = received.as_deref().map_or(BodyFacts::Unknown, ReceivedBody::facts);
        let facts = Facts { body, ..read.facts() };
        let limited = self.limit(&facts, (route, upstream), may_be_refunded).await?;
        drop(received);
        let mut admitted = match limited {
            LimitOutcome::Admitted(admitted) => admitted,
            LimitOutcome::Stored(response) => return Ok(*response),
        };
        if let Some(refused) = read.refused.take() {
            if let Some(charge) = &mut admitted.charge {
                charge.serve();
            }
            return Err(RequestError::Headers(*refused).into());
        }
        let AdmittedRequest { sticky_key, permits, mut charge, at, degradation } = admitted;
        let is_trusted = read.is_trusted;
        let upstream = match degradation {
            Some(degradation) => {
                self.degradation = Some(degradation);
                degradation.upstream(snapshot, upstream)?
            }
            None => upstream,
        };
        let permits = self.admit((route, upstream), permits, (read.headers, is_trusted), at).await?;
        let addresses = snapshot.plan().identities.addresses();
        let address = if is_trusted { addresses.client(read.headers, read.peer) } else { read.peer };
        let client = ClientId::new(addresses, address);
        let meter = charge.as_mut().and_then(Charge::meter);
        let rewritten = read.rewritten_uri()?;
        // Otherwise it would be part of the state while the request is sent.
        drop(read);
        if let Some(uri) = rewritten {
            parts.uri = uri;
        }
        let mut outbound = self.prepare(request, (route, is_trusted), client, meter);
        let may_have_waited = route.bulkhead.is_some() || upstream.resilience.bulkhead.is_some();
        let caller = Caller { key: sticky_key, client, at };
        let attempts = AttemptContext { upstream, caller, permits, may_have_waited };
        let change = self.take_change();
        let response = self.send(&mut outbound, attempts, charge.as_mut()).await;
        if let Some(mut change) = change {
            change.end(&response);
        }
        // Without an attempt the charge is unserved, and is refunded here.
        if let Some(charge) = charge.filter(Charge::is_open) {
            Box::pin(self.settle(charge, &response)).await;
        }
        response
    }

    /// Reads how long the client waits. A request that is too late is not served.
    fn read_deadline(&mut self, headers: &mut HeaderMap) -> Result<(), ServeError> {
        if self.flags.contains(HeaderFlags::DEADLINE) {
            let now = self.worker.limiter.clock().now();
            self.deadline = Deadline::from_headers(headers, now);
            if self.deadline.is_none() {
                Deadline::remove_headers(headers);
            }
            if self.deadline.is_some_and(|deadline| deadline.has_passed(now)) {
                return Err(ServeError::DeadlineExceeded);
            }
        }
        Ok(())
    }

    /// The one meaning of the request: its normalized host and path are matched, and the path is forwarded.
    fn read<'r>(&self, parts: &'r mut Parts) -> Result<NormalRequest<'e, 'r>, ServeError> {
        validate::check_framing(&mut parts.headers, self.flags, &self.worker.limits)?;
        let snapshot = self.snapshot;
        let (policy, clock) = (&snapshot.policy, self.worker.limiter.clock());
        let head = RequestHead {
            method: parts.method.as_str(),
            uri: &parts.uri,
            version: Some(parts.version),
            headers: &mut parts.headers,
            traits: self.flags.traits(),
            peer: self.conn_info.peer,
        };
        let options =
            ReadOptions { directory: policy.directory.as_deref(), needs_route: true, removes_headers: true };
        Ok(policy.matcher.read(head, options, || clock.now())?)
    }

    /// The request as it is sent to a server.
    fn prepare(
        &mut self,
        ReceivedRequest { parts, body, upload }: &mut ReceivedRequest,
        (route, is_trusted): (&Route, bool),
        client: ClientId,
        meter: Option<ChargeMeter>,
    ) -> OutboundRequest {
        let (snapshot, conn_info, flags) = (self.snapshot, self.conn_info, self.flags);
        let upgrade = PendingUpgrade::take_from(parts, flags, conn_info);
        let addresses = snapshot.plan().identities.addresses();
        let PreparedRequest { id, ignores_forwarding } = hop_headers::prepare_request(
            &mut parts.headers,
            flags,
            (conn_info, is_trusted),
            addresses,
            upgrade.is_some(),
        );
        if ignores_forwarding && snapshot.is_first_ignored_forwarding() {
            warn_of_ignored_forwarding(&self.worker.log, conn_info.peer);
        }
        // After those that `Connection` names were removed.
        if self.degradation.is_some() {
            parts.headers.insert(DEGRADE, HeaderValue::from_static("1"));
        }
        trace_context::propagate(&self.record, &mut parts.headers);
        self.record.set_id(|| parts.headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()));
        self.request_id = Some(id);
        // The response to a failed gRPC call needs the content type of the request, whose headers are moved out below.
        // Every gRPC call has `te: trailers`.
        let may_be_grpc = flags.contains(HeaderFlags::TE) && parts.version == Version::HTTP_2;
        let grpc = if may_be_grpc { grpc_content_type(parts.version, &parts.headers).cloned() } else { None };
        let upload = if let Some(body) = body.take() {
            self.upload(body, route, meter)
        } else {
            // It was received early.
            if let Some(meter) = meter {
                upload.measure(meter);
            }
            std::mem::take(upload)
        };
        let mut request = ForwardedRequest::new(parts, upload, flags, upgrade.is_some());
        request.set_client(client);
        if let Some(grpc) = grpc {
            parts.headers.insert(CONTENT_TYPE, grpc);
        }
        OutboundRequest { request, upgrade }
    }

    /// The body of a request to be sent. `meter` counts its bytes.
    pub(crate) fn upload(&self, body: Incoming, route: &Route, meter: Option<ChargeMeter>) -> UploadHandle {
        let limits = (self.worker.limits.body_bytes, self.worker.limits.request_min_rate);
        let trailers = (self.snapshot, route.http.underscore_headers);
        UploadHandle::new(body, limits, &self.conn_info.activity, trailers, meter)
    }

    /// The response with its rate-limit headers. Errors become responses here.
    fn respond(
        &mut self,
        served: Result<Response<ResponseBody>, ServeError>,
        parts: &mut Parts,
    ) -> Response<ResponseBody> {
        let (mut response, status) = match served {
            Ok(response) => {
                let status = response.status();
                if is_rejected_by_upstream(status, response.headers()) {
                    self.headers.clear();
                }
                (response, status)
            }
            Err(cause) => {
                self.record.set_error(|| cause.code_and_retry_after());
                if cause.refunds_unsent() {
                    self.record.set_unserved();
                }
                let id = self
                    .request_id
                    .take()
                    .unwrap_or_else(|| RequestId::of_request(&parts.headers, self.flags, self.is_trusted));
                let id = id.to_value();
                self.record.set_id(|| id.to_str().ok());
                let (status, headers) = (cause.status(), std::mem::take(&mut parts.headers));
                (rescue(cause, self.snapshot, (parts.version, headers), id), status)
            }
        };
        self.headers.insert_into(response.headers_mut());
        // A rejected gRPC call gets 200 but is recorded with the status of the error.
        self.record.set_response(status.as_u16(), response.body().size_hint().exact());
        response
    }
}

/// Warns that the gateway may count the address of a proxy instead of those of its clients.
fn warn_of_ignored_forwarding(log: &Log, peer: IpAddr) {
    let message = "ignored X-Forwarded-For and Forwarded because `clients.ip.trusted_proxies` is empty; clients behind one \
                   proxy share one limit; if this peer is your proxy, add its address to `clients.ip.trusted_proxies`";
    log.event("forwarding_headers_ignored", message, &[("peer", &peer.to_string())]);
}
