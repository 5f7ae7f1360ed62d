//! The check of one request.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;

use http::request::Parts as RequestParts;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use tidegate_core::{ActionKind, ActionSet, Timestamp};
use tidegate_headers::{DEGRADE, HeaderValueCache, RateLimitHeaders, RefusalEntry};
use tidegate_limiter::{
    ActRuling, Charge, ChargeUse, CheckContext, Limiter, Ruling, Turn, WaitPlace, WaitTerms,
};
use tidegate_policy::{
    ActivePolicy, ExceedAction, Facts, HeaderTraits, ReadOptions, RequestError, RequestHead, Scratch,
};
use tidegate_store::{Permit, Store};

use crate::deadline::Deadline;
use crate::response::{request_error_response, respond};

/// A request that may be served, or the response to it.
pub(super) type PolicyVerdict<B, T> = Result<(Request<B>, AdmittedCall), Response<T>>;

/// What an admitted request holds until it has ended.
pub(super) struct AdmittedCall {
    /// The rate-limit headers of the response.
    pub(super) headers: RateLimitHeaders,
    /// Unserved until the service has the request. A client that disconnects later is not refunded.
    pub(super) charge: Option<Charge>,
    _permits: Vec<Permit>,
}

/// The actions that the layer performs.
const PERFORMED: ActionSet = ActionSet::of(&[ActionKind::Wait, ActionKind::Degrade, ActionKind::Slow]);

thread_local! {
    static CACHE: RefCell<HeaderValueCache> = RefCell::default();
}

/// Checks a request, and delays it if its limit requires that. Dropping the future during the delay refunds the charge.
pub(super) async fn check<B, T, D>(
    limiter: Arc<Limiter<D>>,
    request: Request<B>,
    peer: IpAddr,
) -> PolicyVerdict<B, T>
where
    B: Body,
    T: From<Vec<u8>>,
    D: Store + 'static,
{
    let policy = limiter.policy();
    let (mut parts, body) = request.into_parts();
    let has_body = !body.is_end_stream();
    let admitted = decide(&limiter, &policy, (&mut parts, has_body), peer).await;
    match admitted {
        Ok((admitted, delayed)) => {
            if let Some(mut place) = delayed
                && place.turn(&**limiter.clock()).await == Turn::Over
            {
                return Err(too_many_waiting(&policy).map(T::from));
            }
            Ok((Request::from_parts(parts, body), admitted))
        }
        Err(response) => Err(response.map(T::from)),
    }
}

/// Decides about a request, and removes from it what its peer may not send.
async fn decide<D: Store + 'static>(
    limiter: &Limiter<D>,
    policy: &ActivePolicy,
    (parts, has_body): (&mut RequestParts, bool),
    peer: IpAddr,
) -> Result<(AdmittedCall, Option<WaitPlace>), Response<Vec<u8>>> {
    let deadlines = parts.extensions.get::<Deadline>().copied().into_iter().chain(Deadline::current());
    let deadline = deadlines.map(Deadline::instant).min();
    let traits = HeaderTraits::trim_and_scan(&mut parts.headers);
    let head = RequestHead {
        method: parts.method.as_str(),
        uri: &parts.uri,
        version: Some(parts.version),
        headers: &mut parts.headers,
        traits,
        peer,
    };
    // The service has its own routes.
    let options =
        ReadOptions { directory: policy.directory.as_deref(), needs_route: false, removes_headers: true };
    let plan = policy.matcher.plan();
    let invalid = |error: RequestError| request_error_response(&error, plan.error_body);
    let read = policy.matcher.read(head, options, || limiter.clock().now()).map_err(invalid)?;
    let rewritten = read.rewritten_uri().map_err(invalid)?;
    let (mut admitted, delayed, is_degraded) = admit(limiter, policy, &read.facts(), deadline).await?;
    if let Some(error) = read.refused {
        // What was charged stays: a guess is counted as a request without a token or a key.
        admitted.charge.iter_mut().for_each(Charge::serve);
        return Err(invalid(RequestError::Headers(*error)));
    }
    if let Some(uri) = rewritten {
        parts.uri = uri;
    }
    if is_degraded {
        parts.headers.insert(DEGRADE, HeaderValue::from_static("1"));
    }
    // A meter is open exactly if the cost depends on a length that the request does not state.
    let meter = admitted.charge.as_mut().and_then(Charge::meter);
    if meter.is_some() && has_body {
        return Err(respond(&RefusalEntry::LENGTH_REQUIRED.body(None, None), &plan.error_body.into(), &[]));
    }
    Ok((admitted, delayed))
}

/// An admitted request: the place of one that is delayed, and whether it is served in a cheaper way.
type AdmittedRequest = (AdmittedCall, Option<WaitPlace>, bool);

/// Checks a request, and lets it wait for its turn.
async fn admit<D: Store + 'static>(
    limiter: &Limiter<D>,
    policy: &ActivePolicy,
    facts: &Facts<'_>,
    deadline: Option<Timestamp>,
) -> Result<AdmittedRequest, Response<Vec<u8>>> {
    let now = limiter.clock().now();
    let mut place = {
        let mut scratch = Scratch::default();
        let context = CheckContext { now, performs: PERFORMED };
        match limiter.check(policy, facts, &mut scratch, context).await {
            Ruling::Act(act) if act.is_wait() => {
                let terms = WaitTerms { arrived: now, deadline, performs: PERFORMED };
                match Box::pin(limiter.join(act, terms)).await {
                    Ok(place) => place,
                    Err(refuse) => {
                        return conclude(limiter, policy, Ruling::Refuse(*refuse))
                            .map_err(|refused| *refused);
                    }
                }
            }
            ruling => return conclude(limiter, policy, ruling).map_err(|refused| *refused),
        }
    };
    loop {
        place.turn(&**limiter.clock()).await;
        let (now, mut scratch) = (limiter.clock().now(), Scratch::default());
        let checked = Box::pin(limiter.check_at_turn(policy, facts, &mut scratch, (&mut place, now))).await;
        if let Some(ruling) = checked {
            return conclude(limiter, policy, ruling).map_err(|refused| *refused);
        }
    }
}

/// What a ruling means for a request.
fn conclude<D: Store + 'static>(
    limiter: &Limiter<D>,
    policy: &ActivePolicy,
    mut ruling: Ruling<'_>,
) -> Result<AdmittedRequest, Box<Response<Vec<u8>>>> {
    if let Ruling::Act(act) = ruling {
        ruling = perform(act, limiter);
    }
    let plan = policy.matcher.plan();
    let mut is_degraded = false;
    let limits = ruling.report().limits();
    let mut headers = RateLimitHeaders::default();
    CACHE.with_borrow_mut(|cache| limits.write_headers(&plan.headers, cache, &mut headers));
    let (charge, delay, permits) = match &mut ruling {
        Ruling::Serve(serve) => {
            let charge = serve.charge(limiter, ChargeUse::Refundable);
            (charge, serve.delay, std::mem::take(&mut serve.permits))
        }
        Ruling::Act(act) => {
            is_degraded = true;
            let charge = act.charge(limiter, ChargeUse::Refundable);
            (charge, act.delay, std::mem::take(&mut act.permits))
        }
        Ruling::Refuse(refuse) => {
            let mut response =
                refuse.describe(&limits, plan, |body, format| respond(body, format, &plan.headers));
            headers.insert_into(response.headers_mut());
            return Err(Box::new(response));
        }
    };
    let admitted = AdmittedCall { headers, charge, _permits: permits };
    if delay.is_zero() {
        return Ok((admitted, None, is_degraded));
    }
    let place = limiter.waits().delay(ruling.report().client(), limiter.clock().now() + delay);
    match place {
        Some(place) => Ok((admitted, Some(place), is_degraded)),
        None => Err(Box::new(too_many_waiting(policy))),
    }
}

/// The response if too many requests wait.
fn too_many_waiting(policy: &ActivePolicy) -> Response<Vec<u8>> {
    let format = policy.matcher.plan().error_body.into();
    respond(&RefusalEntry::TOO_MANY_WAITING.body(None, None), &format, &[])
}

/// An action that the layer performs, or the refusal.
fn perform<'a, D: Store + 'static>(act: Box<ActRuling<'a>>, limiter: &Limiter<D>) -> Ruling<'a> {
    match act.action() {
        ExceedAction::Degrade { upstream: None } => Ruling::Act(act),
        // A service has no other upstream.
        _ => Ruling::Refuse(act.refuse(limiter)),
    }
}
