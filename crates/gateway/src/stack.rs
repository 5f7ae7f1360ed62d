//! The journey of a request, top to bottom.

use std::borrow::Cow;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use http::header::{CONTENT_LENGTH, HOST, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use tidegate_core::{Decision, Timestamp, Verdict};
use tidegate_policy::{Admission, Facts, Judged, Known, Matched, normalize};
use tidegate_store::Store;
use tidegate_telemetry::{Decided, Log, Story, Try};

use crate::body::{BodyError, RequestBody, ResponseBody, UpstreamBody};
use crate::core::{Core, InForce};
use crate::exclusion::{Exclusion, Held};
use crate::forward::{self, Hop};
use crate::hold;
use crate::live::Live;
use crate::marks::Marks;
use crate::refusal::Refusal;
use crate::rescue::{Cause, rescue};
use crate::seen::seen;
use crate::settle::{self, Passed};
use crate::told::{Told, tell, tell_when};
use crate::traced;
use crate::upstream::{SendError, Stand, Upstream};

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
    traced::join(&mut story, &parts.headers);
    story.see(|| seen(parts, hop.peer, &live.plan().identities));
    let mut told = Told::new();
    let asked = (&mut *parts, body);
    let mut response = match journey(core, &live, hop, (asked, marks), (&mut told, &mut story)).await {
        Ok(response) => response,
        // Every failure ends here, and only here becomes a status code.
        Err(cause) => {
            story.failed(|| cause.told());
            rescue(cause, live.error_body(), std::mem::take(&mut parts.headers))
        }
    };
    response.headers_mut().reserve(told.len());
    for (name, value) in told {
        response.headers_mut().insert(name, value);
    }
    story.answered(response.status().as_u16(), response.body().size_hint().exact());
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
    // One spelling of the path, for matching and for forwarding.
    let path = normalize(parts.uri.path()).map_err(Cause::Path)?;
    // Shared, not copied: the headers change while it is used.
    let host = parts.headers.get(HOST).cloned();
    let host = host_without_port(host.as_ref());
    // Where to, before anything is charged for a request that nobody takes.
    let (route, upstream) = live.route(host, &path).ok_or(Cause::NoRoute)?;
    let addresses = live.plan().identities.addresses();
    let is_trusted = addresses.trusts(hop.peer);
    let rules = (live.active.matcher.header_rules(), route.http.underscore_headers);
    forward::from_client(&mut parts.headers, marks, is_trusted, rules).map_err(Cause::Headers)?;
    let facts =
        Facts { method: parts.method.as_str(), host, path: &path, headers: &parts.headers, peer: hop.peer };
    let (stand, passed) = admit(core, live, &facts, upstream, (told, story)).await?;
    if let Cow::Owned(path) = path {
        parts.uri = with_path(&parts.uri, &path)?;
    }
    let upgrade = Upgrade::wanted(parts, marks, hop);
    let ignores_forwarding =
        forward::for_upstream(&mut parts.headers, marks, (hop, is_trusted), addresses, upgrade.is_some());
    if ignores_forwarding && live.is_first_ignored_forwarding() {
        warn_of_forwarding(&core.log, hop.peer);
    }
    traced::pass_on(story, &mut parts.headers);
    story.id(|| parts.headers.get(forward::REQUEST_ID).and_then(|id| id.to_str().ok()));
    let Passed { held, mut reserved } = passed;
    let meter = settle::meter(core, &mut reserved);
    let mut request = body.take().map(|body| {
        let trailers = (Rc::clone(live), route.http.underscore_headers);
        let (most, pace) = (core.bounds.body_bytes, core.bounds.request_pace);
        let body = RequestBody::new(body, most, pace, &hop.activity, trailers);
        let mut request = Request::new(body.counted_by(meter));
        std::mem::swap(request.method_mut(), &mut parts.method);
        std::mem::swap(request.uri_mut(), &mut parts.uri);
        std::mem::swap(request.headers_mut(), &mut parts.headers);
        request
    });
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
    facts: &Facts<'_>,
    upstream: &Upstream,
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
    if has_penalties && let Some(locked_out) = Exclusion::of_locked_out(&core.penalties, matched, now) {
        story.decided(Decided::Refused);
        return Err(excluded(live, matched, locked_out, (told, story)));
    }
    // Before anything is charged: a place that is not needed after all is given back at once, and leaves no trace.
    let watched = |rule| story.would_refuse(&live.counted, rule);
    let passed = match Exclusion::of_crowd(&core.permits, matched, watched) {
        Ok(held) => Passed::holding(held),
        Err(crowded) => {
            story.decided(Decided::Refused);
            return Err(excluded(live, matched, crowded, (told, story)));
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
    if let Some(tightest) = matched.tightest(&decision) {
        if let (Some(rule), Some(outcome)) = (matched.rule(tightest), decision.outcomes.get(tightest)) {
            story.judged(rule, outcome);
        }
        tell((told, &mut core.said.borrow_mut()), live.styles(), &decision, tightest, matched);
    }
    let Verdict::Pass { wait } = decision.verdict else {
        let record = || Exclusion::of_violation(&core.penalties, matched, &decision, now);
        return Err(match has_penalties.then(record).flatten() {
            Some(locked_out) => excluded(live, matched, locked_out, (told, story)),
            None => refused(live, matched, &decision, (told, story)),
        });
    };
    if !wait.is_zero() {
        Box::pin(hold::until_its_turn(core, matched, &decision, wait)).await?;
    }
    let has_reservations = live.active.matcher.has_reservations();
    Ok(if has_reservations { passed.reserving(matched, &decision) } else { passed })
}

fn excluded(
    live: &Live,
    matched: &Matched<'_>,
    exclusion: Exclusion,
    (told, story): (&mut Told, &mut Story<'_>),
) -> Cause {
    story.refused(&live.counted, exclusion.rule, matched.client());
    tell_when(told, live.styles(), exclusion.retry_after);
    Cause::Excluded(Box::new(exclusion))
}

fn refused(
    live: &Live,
    matched: &Matched<'_>,
    decision: &Decision,
    (told, story): (&mut Told, &mut Story<'_>),
) -> Cause {
    let refused =
        decision.refused_by.and_then(|index| Some((matched.rule(index)?, decision.outcomes.get(index)?)));
    let Some(refused) = refused else { return Cause::Undecided };
    story.refused(&live.counted, refused.0.id, matched.client());
    let violated = matched.judged(decision).filter(Judged::refuses).map(|judged| judged.rule.name.as_str());
    let refusal = Refusal::new(live.error_body(), decision, refused, violated, matched.client());
    if let Some(seconds) = refusal.retry_after {
        tell_when(told, live.styles(), seconds);
    }
    Cause::Refused(refusal)
}

/// What hyper lets through and has more than one reading. Says what stands in the headers.
fn check_framing(parts: &mut Parts, mut marks: Marks, most: u64) -> Result<Marks, Cause> {
    let headers = &mut parts.headers;
    // Rules name methods exactly; services that take `post` for `POST` would be asked past them.
    if parts.method.as_str().bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err(Cause::Framing("its method is not in capitals"));
    }
    if parts.method == Method::CONNECT {
        return Err(Cause::Framing("it asks for a tunnel"));
    }
    if parts.uri.path() == "*" && parts.method != Method::OPTIONS {
        return Err(Cause::Framing("only OPTIONS may ask for `*`"));
    }
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
        // HTTP/2, or a whole URL in the request line: that names the host, whatever a header says.
        let host = HeaderValue::from_str(authority.as_str())
            .map_err(|_| Cause::Framing("its host is not a host"))?;
        headers.insert(HOST, host);
        marks = marks.and(Marks::HOST);
    }
    let mut hosts = headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) if is_host(host) => Ok(marks),
        (Some(_), None) => Err(Cause::Framing("its Host is not a host")),
        (None, _) if parts.version == Version::HTTP_10 => Ok(marks),
        (None, _) => Err(Cause::Framing("it has no Host")),
        _ => Err(Cause::Framing("it has more than one Host")),
    }
}

/// Whether every reader finds the same host in it: no user, no path, no second host.
fn is_host(host: &HeaderValue) -> bool {
    host.as_bytes().iter().all(|byte| OF_A_HOST[usize::from(*byte)])
}

/// Bytes that a host may have.
static OF_A_HOST: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        let is_mark = matches!(byte, b'.' | b'-' | b'_' | b'~' | b'%' | b':' | b'[' | b']');
        table[byte as usize] = byte.is_ascii_alphanumeric() || is_mark;
        byte += 1;
    }
    table
};

fn host_without_port(host: Option<&HeaderValue>) -> &str {
    let host = host.and_then(|host| host.to_str().ok()).unwrap_or_default();
    // The last colon of an address in brackets may be part of it.
    match host.bytes().rposition(|byte| matches!(byte, b':' | b']')) {
        Some(colon) if host.as_bytes()[colon] == b':' => &host[..colon],
        _ => host,
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
        let is_wanted = forward::wants_upgrade(parts.version, &parts.headers, marks);
        let client = is_wanted.then(|| parts.extensions.remove::<OnUpgrade>()).flatten()?;
        Some(Self { client, hop: Rc::clone(hop) })
    }
}

/// The upstream's answer. A server that cannot be reached is passed over: nothing was sent to it.
async fn send<S: Store>(
    core: &Rc<Core<S>>,
    (upstream, stand): (&Upstream, Stand),
    (request, is_plain): (&mut Option<Request<RequestBody>>, bool),
    (upgrade, held): (Option<Upgrade>, Held),
    story: &mut Story<'_>,
) -> Result<Response<ResponseBody>, Cause> {
    let mut server = upstream.choose(stand, &[]).cloned().ok_or(Cause::NoServer)?;
    let mut tried = Vec::new();
    let progress = request.as_ref().map(|request| request.body().progress()).unwrap_or_default();
    let (mut response, lease) = loop {
        let trial = story.trying(&upstream.counts);
        let sent = {
            let sending = pin!(core.pools.send(&server, request, is_plain, server.begin()));
            core.patience.wait(sending, || progress.has_moved()).await
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
            Err(SendError::Broken(error)) => {
                let cause = broken(&error);
                // What a client sends wrongly is not the server's failure.
                let result = if matches!(cause, Cause::BadAnswer) { Try::Broken } else { Try::Abandoned };
                story.tried(trial, &server.place, result);
                return Err(cause);
            }
            Err(SendError::Unanswered) => {
                story.tried(trial, &server.place, Try::Broken);
                return Err(Cause::BadAnswer);
            }
        }
    };
    let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if switches {
        let Some(Upgrade { client, hop }) = upgrade else { return Err(Cause::BadAnswer) };
        let server = hyper::upgrade::on(&mut response);
        let passing =
            crate::tunnel::between((client, server), lease, (hop, held), core.bounds.tunnel, core.stop());
        tokio::task::spawn_local(passing);
        let mut response = response.map(|_| ResponseBody::empty());
        forward::for_client(response.headers_mut(), true);
        return Ok(response);
    }
    let pace = core.bounds.response_pace;
    let body = |source| ResponseBody::Upstream(Box::new(UpstreamBody::new(source, lease, pace, held)));
    let mut response = response.map(body);
    forward::for_client(response.headers_mut(), false);
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

/// Whose fault it is that nothing came back.
fn broken(error: &hyper::Error) -> Cause {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        match error.downcast_ref::<BodyError>() {
            Some(BodyError::TooLarge(_)) => return Cause::TooLarge,
            Some(BodyError::TooSlow(_)) => return Cause::SlowBody,
            _ => source = error.source(),
        }
    }
    Cause::BadAnswer
}
