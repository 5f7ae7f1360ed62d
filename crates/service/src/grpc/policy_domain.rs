//! Decides descriptors that name rules and requests of the policy.
//!
//! A descriptor with the entry `rule` is one rule for the client of the entries `client`. Any other descriptor is a request that
//! is checked like one of the gateway (see `request_facts`). Each descriptor is a decision of its own, in order. If one is
//! rejected, the charges of those before it are refunded and those after it are not decided. What a client may have chosen, the
//! values of entries and which of them there are, never fails the call (see `bad_descriptor`).

use std::net::IpAddr;

use smallvec::SmallVec;
use tidegate_core::{ActionKind, ActionSet, Cost, RecordedDecision, Timestamp};
use tidegate_limiter::{
    Charge, ChargeUse, CheckContext, RefuseReason, RefuseRuling, ReportedLimits, RuleCheck, Ruling,
    UnknownRule,
};
use tidegate_policy::{ExceedAction, RateUnit, Scratch};
use tidegate_store::Store;
use tidegate_telemetry::{DecisionKind, DecisionSink, RequestRecord};

use super::bad_descriptor::{BadDescriptor, RlsError};
use super::descriptors::response_unit;
use super::message::{
    CurrentLimit, DescriptorStatus, RateLimitDescriptor, RateLimitRequest, RateLimitResponse, ResponseUnit,
};
use super::request_facts::read_request;
use super::response::ResponseBuilder;
use super::status::{GrpcCode, GrpcError, shown};
use crate::client::{self, RuleClientError, StatedIdentity};
use crate::worker::{ServedPolicy, ServiceWorker};

/// The actions that Envoy performs: it adds a header to the request.
const PERFORMED: ActionSet = ActionSet::of(&[ActionKind::Degrade]);

/// Decides a call in the policy's own domain.
pub(super) async fn decide<S: Store + 'static>(
    worker: &ServiceWorker<S>,
    request: &RateLimitRequest,
    peer: IpAddr,
    now: Timestamp,
    record: &mut RequestRecord<'_>,
) -> Result<RateLimitResponse, RlsError> {
    let policy = worker.policy();
    let count = request.descriptors.len();
    let mut scratches: Vec<Scratch> = request.descriptors.iter().map(|_| Scratch::default()).collect();
    let mut response = ResponseBuilder::new(now, count);
    let mut decided = PolicyDecision { kind: DecisionKind::Exempt, charge: None };
    for (position, (descriptor, scratch)) in request.descriptors.iter().zip(&mut scratches).enumerate() {
        if matches!(decided.kind, DecisionKind::Rejected | DecisionKind::Banned) {
            response.add(DescriptorStatus::default(), None, false);
            continue;
        }
        let hits = descriptor.hits_addend.or((request.hits_addend > 0).then_some(request.hits_addend.into()));
        let ruling = rule(worker, &policy, descriptor, hits, peer, now, scratch).await;
        // If this is an error, the charges so far are refunded when they are dropped.
        let ruling = ruling.map_err(|error| match error {
            RlsError::Descriptor(bad) => bad.at(position, count).into(),
            error @ RlsError::Call(_) => error,
        })?;
        decided.add(worker, ruling, &policy, record, &mut response)?;
    }
    let PolicyDecision { kind, charge } = decided;
    if kind == DecisionKind::Exempt {
        DecisionSink::Request(record).record(&policy.counted, RecordedDecision::new(kind));
    }
    if let Some(mut charge) = charge
        && !matches!(kind, DecisionKind::Rejected | DecisionKind::Banned)
    {
        charge.serve();
    }
    Ok(response.finish(worker, record))
}

/// Checks one descriptor.
async fn rule<'s, S: Store + 'static>(
    worker: &ServiceWorker<S>,
    policy: &'s ServedPolicy,
    descriptor: &RateLimitDescriptor,
    hits: Option<u64>,
    peer: IpAddr,
    now: Timestamp,
    scratch: &'s mut Scratch,
) -> Result<Ruling<'s>, RlsError> {
    if descriptor.limit.is_some() {
        let message = "the domain `tidegate` does not support limits of descriptors";
        return Err(GrpcError::invalid(message).into());
    }
    let active = &*policy.active;
    let context = CheckContext { now, performs: PERFORMED };
    let Some(named) = NamedRule::read(descriptor)? else {
        if hits.is_some_and(|hits| hits != 1) {
            let message = "`hits_addend` needs the entry `rule`; the policy sets the cost of a request";
            return Err(BadDescriptor::new(message).into());
        }
        let described = read_request(active, descriptor, peer, &**worker.limiter.clock())?;
        return Ok(worker.limiter.check(active, &described.facts(), scratch, context).await);
    };
    let NamedRule { rule, client } = named;
    let no_rule = || {
        let message = format!("the policy has no rule `{}`", shown(rule));
        RlsError::from(GrpcError::new(GrpcCode::NotFound, message))
    };
    let key = client::rule_client(active, rule, &client).map_err(|error| match error {
        RuleClientError::NoRule => no_rule(),
        error @ RuleClientError::Concurrency => GrpcError::invalid(error.to_string()).into(),
        error => bad_client(error).into(),
    })?;
    let check = RuleCheck { rule, client: &key, cost: Cost::new(hits.unwrap_or(1)) };
    // A misspelt rule must not admit everything.
    worker.limiter.check_rule(active, check, scratch, context).await.map_err(|UnknownRule| no_rule())
}

/// Callers leave out entries of headers that a request does not have, so also a missing identity may be the client's choice.
fn bad_client(what: impl std::fmt::Display) -> BadDescriptor {
    BadDescriptor::new(format_args!("invalid `client`: {what}"))
}

/// A descriptor that names a rule.
struct NamedRule<'d> {
    rule: &'d str,
    /// The identities of the client, one for each entry `client`.
    client: SmallVec<[StatedIdentity<'d>; 2]>,
}

impl<'d> NamedRule<'d> {
    /// Reads a descriptor; `None` if it does not name a rule.
    fn read(descriptor: &'d RateLimitDescriptor) -> Result<Option<Self>, RlsError> {
        if !descriptor.entries.iter().any(|entry| entry.key == "rule") {
            return Ok(None);
        }
        let (mut rule, mut client) = (None, SmallVec::new());
        for entry in &descriptor.entries {
            let text = std::str::from_utf8(&entry.value);
            match entry.key.as_str() {
                "rule" if rule.is_none() => rule = Some(text.unwrap_or_default()),
                "rule" => return Err(GrpcError::invalid("the descriptor has two entries `rule`").into()),
                "client" => {
                    let text = text.map_err(|_| bad_client("the name is not UTF-8"))?;
                    client.push(client::split_identity(text).map_err(bad_client)?);
                }
                key => {
                    let key = shown(key);
                    let message = format!("a descriptor with the entry `rule` cannot have the entry `{key}`");
                    return Err(GrpcError::invalid(message).into());
                }
            }
        }
        Ok(rule.map(|rule| Self { rule, client }))
    }
}

/// The decisions so far.
struct PolicyDecision {
    kind: DecisionKind,
    /// What was charged, refunded as a whole on drop.
    charge: Option<Charge>,
}

impl PolicyDecision {
    fn add<'n, S: Store + 'static>(
        &mut self,
        worker: &ServiceWorker<S>,
        mut ruling: Ruling<'n>,
        policy: &ServedPolicy,
        record: &mut RequestRecord<'_>,
        response: &mut ResponseBuilder<'n>,
    ) -> Result<(), GrpcError> {
        if let Ruling::Act(act) = ruling {
            ruling = match act.action() {
                ExceedAction::Degrade { upstream: None } => Ruling::Act(act),
                // Envoy would forward it to the usual upstream.
                _ => Ruling::Refuse(act.refuse(&worker.limiter)),
            };
        }
        let limits = ruling.report().limits();
        let recorded = ruling.recorded(&limits);
        // Another descriptor of the call says more.
        if recorded.kind != DecisionKind::Exempt {
            self.kind = recorded.kind;
            DecisionSink::Request(record).record(&policy.counted, recorded);
        }
        if !limits.is_empty() {
            response.set_time(ruling.report().at());
        }
        let is_over = match &ruling {
            // Its concurrency permits are released at once: the end of the request is not known here. The delay of a leaky
            // bucket is not reported: Envoy has no field for it.
            Ruling::Serve(serve) => {
                self.join(serve.charge(&worker.limiter, ChargeUse::Refundable));
                false
            }
            Ruling::Refuse(RefuseRuling { reason: RefuseReason::StoreUnavailable, .. }) => {
                return Err(GrpcError::store_unavailable());
            }
            Ruling::Act(act) => {
                self.join(act.charge(&worker.limiter, ChargeUse::Refundable));
                response.set_action(act.action().kind(), act.rule_name());
                response.mark_degraded();
                false
            }
            Ruling::Refuse(refuse) => {
                response.set_retry_after(refuse.retry_after);
                if let Some((action, rule)) = refuse.unperformed() {
                    response.set_action(action.kind(), rule);
                }
                true
            }
        };
        add_limits(response, &limits, is_over);
        Ok(())
    }

    /// Adds the charge of a descriptor.
    fn join(&mut self, later: Option<Charge>) {
        match (&mut self.charge, later) {
            (Some(charge), Some(later)) => charge.join(later),
            (charge, later) => *charge = charge.take().or(later),
        }
    }
}

/// Adds the status of a descriptor, which reports the primary one of its limits: Envoy passes it on to the client.
fn add_limits<'n>(response: &mut ResponseBuilder<'n>, limits: &ReportedLimits<'n>, is_over: bool) {
    let Some(limit) = limits.announced() else {
        return response.add(DescriptorStatus::default(), None, is_over);
    };
    let unit = RateUnit::ALL.into_iter().find(|unit| Some(unit.span()) == limit.window);
    let current_limit = CurrentLimit {
        requests_per_unit: u32::try_from(limit.quota).unwrap_or(u32::MAX),
        unit: unit.map_or(ResponseUnit::Unknown, response_unit).into(),
        name: limit.name.to_owned(),
    };
    let status = DescriptorStatus {
        current_limit: Some(current_limit),
        limit_remaining: u32::try_from(limit.remaining).unwrap_or(u32::MAX),
        ..DescriptorStatus::default()
    };
    response.add(status, Some(*limit), is_over);
}
