//! `/v1/check`, one or several, and `/v1/peek`.

use std::borrow::Cow;

use serde_json::value::RawValue;
use tidegate_core::{ActionKind, ActionSet, Cost, Timestamp};
use tidegate_headers::BodyStyle;
use tidegate_limiter::{CheckContext, Limiter, RuleCheck, Ruling, UnknownRule};
use tidegate_policy::{ActivePolicy, RuleClient, Scratch};
use tidegate_store::{Clock, Store};
use tidegate_telemetry::{DecisionSink, Protocol};

use super::client::rule_client;
use super::decision::{put, write_decision};
use super::dispatch::{EndpointCall, MAX_BODY, parse};
use super::error::{HttpError, invalid};
use super::facts::OwnedRequest;
use super::message::{CheckMessage, SingleCheckMessage};
use super::response::{HttpAnswer, HttpResponse, PendingAnswer};
use crate::worker::ServedPolicy;

/// Other requests of the worker are served after this many checks of a batch.
const CHECKS_PER_TURN: usize = 32;
/// The largest cost: JSON numbers are exact up to it.
const MAX_COST: u64 = (1 << 53) - 1;
/// The capacity that fits most decisions.
const USUAL_LENGTH: usize = 192;

/// The actions that a caller can perform: it is told their parameters. Those that charge nothing and need state, such as
/// waiting in a queue, are named in the rejection.
const PERFORMED: ActionSet = ActionSet::of(&[ActionKind::Degrade, ActionKind::Slow]);

/// What is checked.
pub(super) enum CheckSubject<'b> {
    Rule { rule: Cow<'b, str>, client: RuleClient, cost: Cost },
    Request(Box<OwnedRequest>),
}

impl<'b> CheckSubject<'b> {
    pub(super) fn new(
        policy: &ActivePolicy,
        clock: &dyn Clock,
        message: SingleCheckMessage<'b>,
    ) -> Result<Self, HttpError> {
        match message {
            SingleCheckMessage { rule: Some(rule), client, cost, request: None } => {
                let (rule, cost) = (rule.0, checked_cost(cost)?);
                let client = rule_client(policy, &rule, client.as_ref())?;
                Ok(Self::Rule { rule, client, cost })
            }
            SingleCheckMessage { rule: None, client: None, cost: None, request: Some(request) } => {
                Ok(Self::Request(Box::new(OwnedRequest::from_message(policy, clock, request)?)))
            }
            SingleCheckMessage { request: Some(_), .. } => Err(invalid(
                "with `request`, the policy decides about rule, client and cost; remove these fields",
            )),
            SingleCheckMessage { .. } => Err(invalid("missing field `rule` or `request`")),
        }
    }

    /// Decides, if the store need not be awaited.
    fn try_decide<'a, S: Store + 'static>(
        &self,
        limiter: &Limiter<S>,
        policy: &'a ActivePolicy,
        scratch: &'a mut Scratch,
        now: Timestamp,
    ) -> Result<Option<Ruling<'a>>, HttpError> {
        let context = CheckContext { now, performs: PERFORMED };
        match self {
            Self::Rule { rule, client, cost } => {
                let check = RuleCheck { rule, client, cost: *cost };
                let ruling = limiter.try_check_rule(policy, check, scratch, context);
                ruling.map_err(|UnknownRule| HttpError::NoRule { rule: rule.to_string() })
            }
            Self::Request(request) => Ok(limiter.try_check(policy, &request.facts(), scratch, context)),
        }
    }

    /// Decides, or with `charges` false, peeks.
    pub(super) async fn decide<'a, S: Store + 'static>(
        &self,
        call: &EndpointCall<'_, S>,
        policy: &'a ActivePolicy,
        scratch: &'a mut Scratch,
        now: Timestamp,
        charges: bool,
    ) -> Result<Ruling<'a>, HttpError> {
        let limiter = &call.worker.limiter;
        let context = CheckContext { now, performs: PERFORMED };
        match self {
            Self::Rule { rule, client, cost } => {
                let check = RuleCheck { rule, client, cost: *cost };
                let ruling = if charges {
                    limiter.check_rule(policy, check, scratch, context).await
                } else {
                    limiter.preview_rule(policy, check, scratch, context).await
                };
                ruling.map_err(|UnknownRule| HttpError::NoRule { rule: rule.to_string() })
            }
            Self::Request(request) if charges => {
                Ok(limiter.check(policy, &request.facts(), scratch, context).await)
            }
            Self::Request(request) => Ok(limiter.preview(policy, &request.facts(), scratch, context).await),
        }
    }
}

impl CheckSubject<'_> {
    /// Decides without actions: the final cost would be that of another way to serve the request.
    pub(super) async fn reserve<'a, S: Store + 'static>(
        &self,
        limiter: &Limiter<S>,
        policy: &'a ActivePolicy,
        scratch: &'a mut Scratch,
        now: Timestamp,
    ) -> Result<Ruling<'a>, HttpError> {
        match self {
            Self::Rule { rule, client, cost } => {
                let check = RuleCheck { rule, client, cost: *cost };
                let ruling = limiter.check_rule(policy, check, scratch, now).await;
                ruling.map_err(|UnknownRule| HttpError::NoRule { rule: rule.to_string() })
            }
            Self::Request(request) => Ok(limiter.check(policy, &request.facts(), scratch, now).await),
        }
    }
}

/// The cost of a message; 1 if it has none.
pub(super) fn checked_cost(cost: Option<u64>) -> Result<Cost, HttpError> {
    match cost.unwrap_or(1) {
        cost if cost <= MAX_COST => Ok(Cost::new(cost)),
        _ => Err(invalid(format!("`cost` is larger than {MAX_COST}"))),
    }
}

/// `POST /v1/check`.
pub(super) fn check<'f, S: Store + 'static>(
    call: &'f mut EndpointCall<'_, S>,
    body: &'f [u8],
) -> Result<PendingAnswer<'f>, HttpError> {
    let CheckMessage { rule, client, cost, request, checks } = parse(body)?;
    let Some(checks) = checks else {
        if body.len() > MAX_BODY {
            return Err(HttpError::TooLarge { max: MAX_BODY });
        }
        return check_one(call, SingleCheckMessage { rule, client, cost, request });
    };
    if rule.is_some() || client.is_some() || cost.is_some() || request.is_some() {
        return Err(invalid("`checks` excludes other fields; move them into its entries"));
    }
    let answering = async move { check_batch(call, checks.0).await.map(HttpAnswer::from) };
    Ok(PendingAnswer::Waiting(Box::pin(answering)))
}

/// `POST /v1/peek`.
pub(super) async fn peek<S: Store + 'static>(
    call: &mut EndpointCall<'_, S>,
    body: &[u8],
) -> Result<HttpResponse, HttpError> {
    let (policy, worker) = (&call.policy, call.worker);
    let subject = CheckSubject::new(&policy.active, &**worker.limiter.clock(), parse(body)?)?;
    let (mut scratch, now) = (worker.http.scratch(), worker.now());
    let ruling = subject.decide(call, &policy.active, &mut scratch, now, false).await?;
    encode(&ruling, policy, DecisionSink::Off)
}

fn check_one<'f, S: Store + 'static>(
    call: &'f mut EndpointCall<'_, S>,
    message: SingleCheckMessage<'f>,
) -> Result<PendingAnswer<'f>, HttpError> {
    let (policy, worker) = (&call.policy, call.worker);
    let subject = CheckSubject::new(&policy.active, &**worker.limiter.clock(), message)?;
    let (mut scratch, now) = (worker.http.scratch(), call.record.start_decision());
    if let Some(ruling) = subject.try_decide(&worker.limiter, &policy.active, &mut scratch, now)? {
        let sink = DecisionSink::Request(&mut call.record);
        return encode(&ruling, policy, sink).map(PendingAnswer::from);
    }
    Ok(PendingAnswer::Waiting(Box::pin(check_later(call, subject, now))))
}

/// Answers after the store has decided.
async fn check_later<S: Store + 'static>(
    call: &mut EndpointCall<'_, S>,
    subject: CheckSubject<'_>,
    now: Timestamp,
) -> Result<HttpAnswer, HttpError> {
    let (policy, worker) = (&call.policy, call.worker);
    let mut scratch = worker.http.scratch();
    let ruling = subject.decide(call, &policy.active, &mut scratch, now, true).await?;
    encode(&ruling, policy, DecisionSink::Request(&mut call.record)).map(HttpAnswer::from)
}

/// A ruling as a response.
fn encode(
    ruling: &Ruling<'_>,
    policy: &ServedPolicy,
    mut sink: DecisionSink<'_, '_>,
) -> Result<HttpResponse, HttpError> {
    let mut json = Vec::with_capacity(USUAL_LENGTH);
    write_decision(ruling, policy, &mut sink, &mut json)?;
    put(&mut json, "}\n");
    Ok(HttpResponse::json(json))
}

/// Each check is a decision of its own, in order, at the same time.
async fn check_batch<S: Store + 'static>(
    call: &mut EndpointCall<'_, S>,
    checks: Vec<&RawValue>,
) -> Result<HttpResponse, HttpError> {
    let (policy, worker) = (&call.policy, call.worker);
    let metrics = worker.recorder(Protocol::Http).counters();
    let clock = &**worker.limiter.clock();
    let mut scratch = worker.http.scratch();
    let now = worker.now();
    let mut json = Vec::with_capacity(USUAL_LENGTH * (checks.len() + 1));
    put(&mut json, r#"{"results":["#);
    for (index, message) in checks.into_iter().enumerate() {
        if index > 0 {
            put(&mut json, ",");
        }
        if index % CHECKS_PER_TURN == CHECKS_PER_TURN - 1 {
            tokio::task::yield_now().await;
        }
        let subject = parse(message.get().as_bytes());
        let clock_of_tokens = &**call.worker.limiter.clock();
        let subject = subject.and_then(|message| CheckSubject::new(&policy.active, clock_of_tokens, message));
        let written = match subject {
            Ok(subject) => {
                let mut sink = DecisionSink::Metrics { metrics, clock, start: clock.read() };
                let ruling = subject.decide(call, &policy.active, &mut scratch, now, true).await;
                ruling.and_then(|ruling| write_decision(&ruling, policy, &mut sink, &mut json))
            }
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            put(&mut json, r#"{"error":"#);
            let error = error.with_rule_names(&policy.active);
            json.extend_from_slice(error.encode(BodyStyle::Problem).trim_ascii_end());
        }
        put(&mut json, "}");
    }
    put(&mut json, "]}\n");
    Ok(HttpResponse::json(json))
}
