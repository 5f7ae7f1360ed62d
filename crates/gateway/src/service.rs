//! The journey of a request, top to bottom.

use std::borrow::Cow;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode, Uri, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use tidegate_core::{Role, Timestamp, Verdict};
use tidegate_policy::{
    Admission, Facts, Judged, Known, Matched, RequestError, Target, check_method, host_header, requested_host,
};
use tidegate_store::Store;
use tidegate_telemetry::{Decided, Log, Story, Try};

use crate::delay;
use crate::error::{Cause, rescue};
use crate::exclusion::{self, Held, LockOuts, Rejection};
use crate::http::access_log::seen;
use crate::http::grpc;
use crate::http::header_flags::Marks;
use crate::http::hop_headers::{self, Hop};
use crate::http::request_body::{RequestBody, UploadFailure};
use crate::http::response_body::{ResponseBody, UpstreamBody};
use crate::http::trace_context;
use crate::refusal::Refusal;
use crate::settle::{self, Passed};
use crate::snapshot::Live;
use crate::told::{PolicyReport, Told, is_limited_by_upstream, tell, tell_when};
use crate::upstream::{SendError, Stand, Upstream};
use crate::worker::{Core, InForce};

/// A request, lent: what is large is not handed from one to the other.
pub(crate) type Asked<'a> = (&'a mut Parts, &'a mut Option<Incoming>);

/// Serves one request. Whatever happens, there is a response.
pub(crate) async fn serve<S: Store + 'static>(
    core: &Rc<Core<S>>,
    hop: &Rc<Hop>,
    (parts, body): Asked<'_>,
) -> Response<ResponseBody> {
    let marks = Marks::of_request(parts.version, &mut parts.headers);
    let live = core.live();
    // Told when it is dropped, whatever happens until then.
    let mut story = core.teller.begin();
    trace_context::join(&mut story, &parts.headers);
    story.see(|| seen(parts, hop.peer, &live.plan().identities));
    let mut told = Told::new();
    let asked = (&mut *parts, body);
    let journey = journey(core, &live, hop, (asked, marks), (&mut told, &mut story)).await;
    let (mut response, status) = match journey {
        Ok(response) => {
            let status = response.status();
            if is_limited_by_upstream(status, response.headers()) {
                told.clear();
            }
            (response, status)
        }
        // Every failure ends here, and only here becomes a status code.
        Err(cause) => {
            story.failed(|| cause.told());
            let (status, headers) = (cause.status(), std::mem::take(&mut parts.headers));
            (rescue(cause, live.error_body(), parts.version, headers), status)
        }
    };
    response.headers_mut().reserve(told.len());
    for (name, value) in told {
        response.headers_mut().insert(name, value);
    }
    // A gRPC call that is rejected counts as such, though it gets 200.
    story.answered(status.as_u16(), response.body().size_hint().exact());
    response
}

async fn journey<S: Store + 'static>(
    core: &Rc<Core<S>>,
    live: &Rc<InForce>,
    hop: &Rc<Hop>,
    ((parts, body), marks): (Asked<'_>, Marks),
    (told, story): (&mut Told, &mut Story<'_>),
) -> Result<Response<ResponseBody>, Cause> {
    let marks = check_framing(parts, marks, core.bounds.body_bytes)?;
    // One spelling of the host and of the path, for routing and matching; the path is forwarded so. The host is shared,
    // not copied: the headers change while it is used.
    let host = sent_host(parts)?;
    let host = host.as_ref().map_or(Ok(Cow::Borrowed("")), requested_host).map_err(unusable)?;
    let Target { route, path } = live.active.matcher.target(&host, parts.uri.path()).map_err(Cause::Path)?;
    // Before anything is charged for a request that nobody takes.
    let (route, upstream) =
        route.and_then(|route| Some((route, live.upstream(route)?))).ok_or(Cause::NoRoute)?;
    let addresses = live.plan().identities.addresses();
    let is_trusted = addresses.trusts(hop.peer);
    let rules = (live.active.matcher.header_rules(), route.http.underscore_headers);
    hop_headers::from_client(&mut parts.headers, marks, is_trusted, rules).map_err(Cause::Headers)?;
    if is_trusted {
        addresses.check(&parts.headers, hop.peer).map_err(Cause::Headers)?;
    }
    let method = parts.method.as_str();
    let facts = Facts { method, host: &host, path: &path, headers: &parts.headers, peer: hop.peer };
    let (stand, passed) = admit(core, live, (&facts, upstream), (told, story)).await?;
    // The path of `http://a?b` is empty, which no HTTP/1.1 request may send.
    let is_sent_so = parts.uri.path_and_query().is_some_and(|sent| sent.as_str().starts_with(['/', '*']));
    if matches!(path, Cow::Owned(_)) || !is_sent_so {
        parts.uri = with_path(&parts.uri, &path)?;
    }
    let upgrade = Upgrade::wanted(parts, marks, hop);
    let ignores_forwarding =
        hop_headers::for_upstream(&mut parts.headers, marks, (hop, is_trusted), addresses, upgrade.is_some());
    if ignores_forwarding && live.is_first_ignored_forwarding() {
        warn_of_forwarding(&core.log, hop.peer);
    }
    trace_context::pass_on(story, &mut parts.headers);
    story.id(|| parts.headers.get(hop_headers::REQUEST_ID).and_then(|id| id.to_str().ok()));
    // Every gRPC call has `te: trailers`. If its upstream fails, the response needs its content type, and by then its
    // headers have left.
    let may_be_grpc = marks.has(Marks::TE) && parts.version == Version::HTTP_2;
    let grpc = if may_be_grpc { grpc::content_type(parts.version, &parts.headers).cloned() } else { None };
    let Passed { held, mut reserved } = passed;
    let meter = settle::meter(core, &mut reserved);
    let mut request = body.take().map(|body| {
        let bounds = (core.bounds.body_bytes, core.bounds.request_min_rate);
        let body = RequestBody::new(body, bounds, &hop.activity, (live, route.http.underscore_headers));
        let mut request = Request::new(body.counted_by(meter));
        std::mem::swap(request.method_mut(), &mut parts.method);
        std::mem::swap(request.uri_mut(), &mut parts.uri);
        std::mem::swap(request.headers_mut(), &mut parts.headers);
        request
    });
    if let Some(grpc) = grpc {
        parts.headers.insert(CONTENT_TYPE, grpc);
    }
    // Its length is not told, nor anything but an answer asked for.
    let is_plain =
        upgrade.is_none() && !marks.has(Marks::CONTENT_LENGTH) && !marks.has(Marks::TRANSFER_ENCODING);
    let answer = send(core, (upstream, stand), (&mut request, is_plain), (upgrade, held), story).await;
    if reserved.is_empty() {
        return answer;
    }
    let settling = async move {
        settle::settle(core, reserved, &answer).await;
        answer
    };
    Box::pin(settling).await
}

/// Tells the operator that the address of a proxy may be counted instead of its clients'.
fn warn_of_forwarding(log: &Log, peer: IpAddr) {
    let message = "X-Forwarded-For and Forwarded are ignored, because `clients.ip.trusted_proxies` is empty: all clients \
                   behind one proxy share one limit; if this peer is your proxy, list its address there";
    log.event("forwarding_headers_ignored", message, &[("peer", &peer.to_string())]);
}

/// Whether a request may pass.
async fn admit<S: Store + 'static>(
    core: &Rc<Core<S>>,
    live: &Live,
    (facts, upstream): (&Facts<'_>, &Upstream),
    (told, story): (&mut Told, &mut Story<'_>),
) -> Result<(Stand, Passed), Cause> {
    // Who is banned, who is exempt, and what the rest is held against.
    let mut lent = core.with_scratch();
    let now = story.deciding();
    let bans = core.bans.any();
    let known =
        Known { directory: live.active.directory.as_deref(), bans: bans.as_deref().map(|bans| &**bans) };
    match live.active.matcher.admit(facts, known, now, &mut lent.scratch) {
        Admission::Banned { .. } => {
            story.decided(Decided::Banned);
            Err(Cause::Banned)
        }
        Admission::Exempt { .. } => {
            story.decided(Decided::Exempt);
            let addresses = live.plan().identities.addresses();
            let stand = upstream.stand(|| addresses.client(facts.headers, facts.peer));
            Ok((stand, Passed::default()))
        }
        // Where it is: a match is large.
        Admission::Checked(ref matched) => {
            story.client(matched.client());
            let passed = limit(core, live, matched, now, (told, story)).await?;
            Ok((upstream.stand(|| matched.client()), passed))
        }
    }
}

/// One decision over all limits that apply. What must wait for its turn is held here. What the request takes along
/// comes back.
async fn limit<S: Store + 'static>(
    core: &Rc<Core<S>>,
    live: &Live,
    matched: &Matched<'_>,
    now: Timestamp,
    (told, story): (&mut Told, &mut Story<'_>),
) -> Result<Passed, Cause> {
    let has_penalties = live.active.matcher.has_penalties();
    // Who is locked out is charged nothing: otherwise it would find its limits used up at the end of it.
    if has_penalties {
        let lock_outs = exclusion::lock_outs(&core.penalties, matched, now);
        if !lock_outs.is_empty() {
            let rejection = Rejection { at: now, matched, decision: None, lock_outs, full: None };
            return Err(Box::pin(excluded(core, live, rejection, (told, story))).await);
        }
    }
    // Before anything is charged: a place that is not needed after all is given back at once, and leaves no trace.
    let watched = |rule| story.would_refuse(&live.counted, rule);
    let passed = match exclusion::take_places(&core.permits, matched, watched) {
        Ok(held) => Passed::holding(held),
        Err(full) => {
            let lock_outs = LockOuts::new();
            let rejection = Rejection { at: now, matched, decision: None, lock_outs, full: Some(full) };
            return Err(Box::pin(excluded(core, live, rejection, (told, story))).await);
        }
    };
    if matched.checks().is_empty() {
        story.decided(Decided::Passed);
        return Ok(passed);
    }
    let Ok(decision) = core.store.decide(matched.checks(), now).await else {
        story.decided(Decided::Undecided);
        // Nobody is refused for what only watches.
        return if matched.binds() { Err(Cause::Undecided) } else { Ok(passed) };
    };
    story.decided(if decision.passes() { Decided::Passed } else { Decided::Refused });
    for judged in matched.judged(&decision).filter(Judged::would_refuse) {
        story.would_refuse(&live.counted, judged.rule.id);
    }
    let Verdict::Pass { wait } = decision.verdict else {
        let record = || exclusion::record_violations(&core.penalties, matched, &decision, now);
        let lock_outs = if has_penalties { record() } else { LockOuts::new() };
        let rejection =
            Rejection { at: decision.at, matched, decision: Some(&decision), lock_outs, full: None };
        return Err(rejected(core, live, &rejection, (told, story)));
    };
    if let Some(tightest) = matched.tightest(&decision)
        && let Some(judged) = matched.judged(&decision).nth(tightest)
    {
        let single = PolicyReport::from(judged);
        story.judged(single.name, single.status.limit, single.status.remaining);
        // Limits that only watch are not reported to the client.
        let binding = || matched.judged(&decision).filter(|judged| judged.check.role == Role::Binding);
        let all = || binding().map(PolicyReport::from);
        tell((told, &mut core.said.borrow_mut()), live.styles(), decision.at, &single, all);
    }
    if !wait.is_zero() {
        Box::pin(delay::until_its_turn(core, matched, &decision, wait)).await?;
    }
    let has_reservations = live.active.matcher.has_reservations();
    Ok(if has_reservations { passed.reserving(matched, &decision) } else { passed })
}

/// Rejects a request that no limit was asked for. What its limits would say is asked now, charging nothing: a client that
/// came back before they admit the request would be rejected again.
async fn excluded<S: Store + 'static>(
    core: &Rc<Core<S>>,
    live: &Live,
    rejection: Rejection<'_, '_>,
    (told, story): (&mut Told, &mut Story<'_>),
) -> Cause {
    let peeked = core.store.peek(rejection.matched.checks(), rejection.at).await.ok();
    story.decided(Decided::Refused);
    let at = peeked.as_ref().map_or(rejection.at, |peeked| peeked.at);
    let rejection = Rejection { at, decision: peeked.as_ref(), ..rejection };
    rejected(core, live, &rejection, (told, story))
}

/// The response to a rejected request, with everything that is reported of its limits.
fn rejected<S: Store>(
    core: &Rc<Core<S>>,
    live: &Live,
    rejection: &Rejection<'_, '_>,
    (told, story): (&mut Told, &mut Story<'_>),
) -> Cause {
    let Some(report) = rejection.reported() else { return Cause::Undecided };
    story.refused(&live.counted, report.rule, rejection.matched.client());
    story.judged(report.name, report.status.limit, report.status.remaining);
    let said = &mut core.said.borrow_mut();
    let reports = rejection.reports();
    tell((told, said), live.styles(), rejection.at, &report, || reports.iter().copied());
    let retry_after = rejection.retry_after();
    if let Some(seconds) = retry_after {
        tell_when(told, live.styles(), seconds);
    }
    let why = (rejection.reason(), retry_after);
    Cause::Refused(Refusal::new(live.error_body(), why, (rejection.at, &report), rejection.violated()))
}

/// What hyper lets through and has more than one reading. Says what stands in the headers.
fn check_framing(parts: &mut Parts, mut marks: Marks, most: u64) -> Result<Marks, Cause> {
    let headers = &mut parts.headers;
    check_method(parts.method.as_str(), parts.uri.path()).map_err(unusable)?;
    // hyper takes any list that ends in `chunked`, and undoes only that.
    if marks.has(Marks::TRANSFER_ENCODING) {
        let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
        if let Some(coding) = codings.next()
            && (codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
        {
            return Err(Cause::Framing("its Transfer-Encoding is not `chunked`"));
        }
    }
    if marks.has(Marks::CONTENT_LENGTH)
        && let Some(length) = headers.get(CONTENT_LENGTH)
    {
        let length = length.to_str().ok().and_then(|length| length.parse::<u64>().ok());
        if length.ok_or(Cause::Framing("its Content-Length is not a number"))? > most {
            return Err(Cause::TooLarge);
        }
    }
    if let Some(authority) = parts.uri.authority() {
        // RFC 9112, section 3.2: HTTP/1.1 has a Host, whatever form the target has.
        if parts.version == Version::HTTP_11 && !headers.contains_key(HOST) {
            return Err(unusable(RequestError::NoHost));
        }
        // HTTP/2, or a whole URL in the request line: that names the host, whatever a header says.
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| unusable(RequestError::Host))?;
        headers.insert(HOST, host);
        marks = marks.and(Marks::HOST);
    }
    Ok(marks)
}

fn unusable(error: RequestError) -> Cause {
    Cause::Framing(error.reason())
}

/// The `Host` of a request. HTTP/1.0 need not have one.
fn sent_host(parts: &Parts) -> Result<Option<HeaderValue>, Cause> {
    match host_header(&parts.headers) {
        Err(RequestError::NoHost) if parts.version == Version::HTTP_10 => Ok(None),
        host => host.map(|host| Some(host.clone())).map_err(unusable),
    }
}

fn with_path(uri: &Uri, path: &str) -> Result<Uri, Cause> {
    let bad = || Cause::Framing("its path cannot be written");
    let path = match uri.query() {
        Some(query) => PathAndQuery::try_from(format!("{path}?{query}")),
        None => PathAndQuery::try_from(path),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path.map_err(|_| bad())?);
    Uri::from_parts(parts).map_err(|_| bad())
}

/// What a client's connection becomes if the upstream agrees.
struct Upgrade {
    client: OnUpgrade,
    hop: Rc<Hop>,
}

impl Upgrade {
    fn wanted(parts: &mut Parts, marks: Marks, hop: &Rc<Hop>) -> Option<Self> {
        let is_wanted = hop_headers::wants_upgrade(parts.version, &parts.headers, marks);
        let client = is_wanted.then(|| parts.extensions.remove::<OnUpgrade>()).flatten()?;
        Some(Self { client, hop: Rc::clone(hop) })
    }
}

/// The upstream's answer. A server that cannot be reached is passed over: nothing was sent to it.
async fn send<S: Store>(
    core: &Rc<Core<S>>,
    (upstream, stand): (&Upstream, Stand),
    (request, is_plain): (&mut Option<Request<RequestBody>>, bool),
    (upgrade, mut permits): (Option<Upgrade>, Held),
    story: &mut Story<'_>,
) -> Result<Response<ResponseBody>, Cause> {
    let mut server = upstream.choose(stand, &[]).cloned().ok_or(Cause::NoServer)?;
    let mut tried = Vec::new();
    let upload = request.as_ref().map(|request| request.body().handle()).unwrap_or_default();
    let (mut response, lease) = loop {
        let trial = story.trying(&upstream.counts);
        let sent = {
            let sending = pin!(core.pools.send(&server, request, is_plain, &mut permits));
            core.patience.wait(sending, || upload.has_moved()).await
        };
        let Some(sent) = sent else {
            story.tried(trial, &server.place, Try::TooSlow);
            return Err(Cause::TooSlow);
        };
        match sent {
            Ok(answer) => {
                story.tried(trial, &server.place, Try::Answered(answer.0.status().as_u16()));
                break answer;
            }
            Err(SendError::Connect(error)) => {
                story.tried(trial, &server.place, Try::Unreachable);
                tried.push(Arc::as_ptr(&server));
                server = upstream.choose(stand, &tried).cloned().ok_or_else(|| unreachable(&error))?;
            }
            Err(error) => {
                let cause = broken(&error, upload.failure());
                // What a client sends wrongly is not the server's failure.
                let result = if matches!(cause, Cause::BadAnswer) { Try::Broken } else { Try::Abandoned };
                story.tried(trial, &server.place, result);
                return Err(cause);
            }
        }
    };
    let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if switches {
        let Some(Upgrade { client, hop }) = upgrade else { return Err(Cause::BadAnswer) };
        let server = hyper::upgrade::on(&mut response);
        let passing =
            crate::http::upgrade::between((client, server), lease, hop, core.bounds.tunnel, core.stop());
        tokio::task::spawn_local(passing);
        let mut response = response.map(|_| ResponseBody::empty());
        hop_headers::for_client(response.headers_mut(), true);
        return Ok(response);
    }
    let pace = core.bounds.response_min_rate;
    let body = |source| ResponseBody::Upstream(Box::new(UpstreamBody::new(source, lease, pace)));
    let mut response = response.map(body);
    hop_headers::for_client(response.headers_mut(), false);
    *response.version_mut() = Version::HTTP_11;
    Ok(response)
}

/// Why there is no connection.
fn unreachable(error: &std::io::Error) -> Cause {
    use rustls::CertificateError as Bad;
    let tls = error.get_ref().and_then(|error| error.downcast_ref());
    let Some(rustls::Error::InvalidCertificate(bad)) = tls else { return Cause::Unreachable };
    Cause::Untrusted(match bad {
        Bad::UnknownIssuer => "nobody whom this machine trusts has issued it",
        Bad::NotValidForName | Bad::NotValidForNameContext { .. } => "it is for another name",
        Bad::Expired | Bad::ExpiredContext { .. } => "it has expired",
        Bad::NotValidYet | Bad::NotValidYetContext { .. } => "it is not valid yet",
        _ => "it cannot be verified",
    })
}

/// Whose fault it is that nothing came back. A body that its client sent wrongly ends the exchange, however the server
/// and hyper call that.
fn broken(error: &SendError, upload: Option<UploadFailure>) -> Cause {
    match (upload, error) {
        (Some(UploadFailure::Malformed), _) => Cause::BadBody,
        (Some(UploadFailure::TooLarge), _) => Cause::TooLarge,
        (Some(UploadFailure::TooSlow), _) => Cause::SlowBody,
        (None, SendError::Host) => Cause::Framing("its Host is not a host"),
        (None, _) => Cause::BadAnswer,
    }
}
