//! A request from top to bottom.

use std::borrow::Cow;
use std::net::IpAddr;
use std::rc::Rc;

use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, Response, Version};
use http_body::Body;
use hyper::body::Incoming;
use tidegate_headers::{RateLimitHeaders, is_rejected_by_upstream};
use tidegate_policy::{Facts, Route, Target, requested_host};
use tidegate_store::Store;
use tidegate_telemetry::{Log, Story};

use crate::error::{ServeError, rescue};
use crate::forward::{Outbound, Upgrade};
use crate::http::access_log::seen;
use crate::http::header_flags::HeaderFlags;
use crate::http::hop_headers::{self, ConnInfo};
use crate::http::request_body::{Metering, UploadHandle};
use crate::http::response_body::ResponseBody;
use crate::http::{grpc, trace_context, validate};
use crate::limit::AdmittedRequest;
use crate::upstream::ForwardedRequest;
use crate::worker::{Core, InForce};

/// One request and its response: what they are served with, and what is noted of them on the way.
pub(crate) struct Exchange<'e, S> {
    pub(crate) core: &'e Rc<Core<S>>,
    pub(crate) live: &'e Rc<InForce>,
    pub(crate) hop: &'e Rc<ConnInfo>,
    /// Which headers the request has.
    marks: HeaderFlags,
    /// Told when it is dropped, whatever happens until then.
    pub(crate) story: Story<'e>,
    /// The rate-limit headers of the response.
    pub(crate) headers: RateLimitHeaders,
}

/// A request as it arrived. What is forwarded is taken out of it.
pub(crate) struct Received {
    pub(crate) parts: Parts,
    pub(crate) body: Option<Incoming>,
}

/// Serves one request. Whatever happens, there is a response.
pub(crate) async fn serve<S: Store + 'static>(
    core: &Rc<Core<S>>,
    hop: &Rc<ConnInfo>,
    request: &mut Received,
) -> Response<ResponseBody> {
    let live = &core.live();
    let mut exchange = Exchange::begin(core, live, hop, &mut request.parts);
    let served = exchange.run(request).await;
    exchange.respond(served, &mut request.parts)
}

impl<'e, S: Store + 'static> Exchange<'e, S> {
    fn begin(core: &'e Rc<Core<S>>, live: &'e Rc<InForce>, hop: &'e Rc<ConnInfo>, parts: &mut Parts) -> Self {
        let marks = HeaderFlags::of_request(parts.version, &mut parts.headers);
        let mut story = core.teller.begin();
        trace_context::join(&mut story, &parts.headers);
        story.see(|| seen(parts, hop.peer, &live.plan().identities));
        Self { core, live, hop, marks, story, headers: RateLimitHeaders::default() }
    }

    /// Validation, route, limits, upstream.
    async fn run(&mut self, request: &mut Received) -> Result<Response<ResponseBody>, ServeError> {
        let live = self.live;
        let parts = &mut request.parts;
        self.marks = validate::framing(parts, self.marks, self.core.bounds.body_bytes)?;
        // One spelling of the host and of the path, for routing and matching; the path is forwarded so.
        let host = validate::host(parts)?;
        let host = host.as_ref().map_or(Ok(Cow::Borrowed("")), requested_host).map_err(validate::unusable)?;
        let Target { route, path } =
            live.policy.matcher.target(&host, parts.uri.path()).map_err(ServeError::Path)?;
        // Before anything is charged for a request that nobody takes.
        let (route, upstream) =
            route.and_then(|route| Some((route, live.upstream(route)?))).ok_or(ServeError::NoRoute)?;
        let is_trusted = self.check_headers(&mut parts.headers, route)?;
        let (method, headers, peer) = (parts.method.as_str(), &parts.headers, self.hop.peer);
        let facts = Facts { method, host: &host, path: &path, headers, peer };
        let admitted = self.limit(&facts, upstream).await?;
        let AdmittedRequest { stand, permits, mut reservations } = admitted;
        let meter = self.core.limiter.body_meter(&mut reservations);
        let meter = meter.map(|meter| Box::new(meter) as Box<dyn Metering>);
        let is_normalized = matches!(path, Cow::Owned(_));
        if let Some(uri) = validate::rewritten(&parts.uri, &path, is_normalized)? {
            parts.uri = uri;
        }
        let mut outbound = self.prepare(request, (route, is_trusted), meter);
        let response = self.send(&mut outbound, (upstream, stand), permits).await;
        if !reservations.is_empty() {
            Box::pin(self.settle(reservations, &response)).await;
        }
        response
    }

    /// Removes what a client may not say, and rejects what says two things. Returns whether the peer is a trusted proxy.
    fn check_headers(&self, headers: &mut HeaderMap, route: &Route) -> Result<bool, ServeError> {
        let addresses = self.live.plan().identities.addresses();
        let is_trusted = addresses.trusts(self.hop.peer);
        let rules = (self.live.policy.matcher.header_rules(), route.http.underscore_headers);
        hop_headers::from_client(headers, self.marks, is_trusted, rules).map_err(ServeError::Headers)?;
        if is_trusted {
            addresses.check(headers, self.hop.peer).map_err(ServeError::Headers)?;
        }
        Ok(is_trusted)
    }

    /// The request as it is sent to a server.
    fn prepare(
        &mut self,
        Received { parts, body }: &mut Received,
        (route, is_trusted): (&Route, bool),
        meter: Option<Box<dyn Metering>>,
    ) -> Outbound {
        let (core, live, hop, marks) = (self.core, self.live, self.hop, self.marks);
        let upgrade = Upgrade::wanted(parts, marks, hop);
        let addresses = live.plan().identities.addresses();
        let ignores_forwarding = hop_headers::prepare_request(
            &mut parts.headers,
            marks,
            (hop, is_trusted),
            addresses,
            upgrade.is_some(),
        );
        if ignores_forwarding && live.is_first_ignored_forwarding() {
            warn_of_forwarding(&core.log, hop.peer);
        }
        trace_context::pass_on(&self.story, &mut parts.headers);
        self.story.id(|| parts.headers.get(hop_headers::REQUEST_ID).and_then(|id| id.to_str().ok()));
        // Every gRPC call has `te: trailers`. If its upstream fails, the response needs its content type, and by then its
        // headers have left.
        let may_be_grpc = marks.contains(HeaderFlags::TE) && parts.version == Version::HTTP_2;
        let grpc =
            if may_be_grpc { grpc::content_type(parts.version, &parts.headers).cloned() } else { None };
        let upload = body.take().map(|body| {
            let bounds = (core.bounds.body_bytes, core.bounds.request_min_rate);
            UploadHandle::new(body, bounds, &hop.activity, (live, route.http.underscore_headers), meter)
        });
        let request = ForwardedRequest::new(parts, upload.unwrap_or_default(), marks, upgrade.is_some());
        if let Some(grpc) = grpc {
            parts.headers.insert(CONTENT_TYPE, grpc);
        }
        Outbound { request, upgrade }
    }

    /// The response with its rate-limit headers. Every failure ends here, and only here becomes a status code.
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
                self.story.failed(|| cause.code_and_retry_after());
                let (status, headers) = (cause.status(), std::mem::take(&mut parts.headers));
                (rescue(cause, self.live.error_body(), parts.version, headers), status)
            }
        };
        self.headers.insert_into(response.headers_mut());
        // A gRPC call that is rejected counts as such, though it gets 200.
        self.story.answered(status.as_u16(), response.body().size_hint().exact());
        response
    }
}

/// Tells the operator that the address of a proxy may be counted instead of its clients'.
fn warn_of_forwarding(log: &Log, peer: IpAddr) {
    let message = "X-Forwarded-For and Forwarded are ignored, because `clients.ip.trusted_proxies` is empty: all clients \
                   behind one proxy share one limit; if this peer is your proxy, list its address there";
    log.event("forwarding_headers_ignored", message, &[("peer", &peer.to_string())]);
}
