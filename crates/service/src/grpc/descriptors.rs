//! Decides the descriptors of a domain of an Envoy configuration. All descriptors of a call are one decision: a hit that one
//! of them rejects is charged to none.
//!
//! Several descriptors in quota mode are alternatives: the call is rejected if all of them are over their limits. The store
//! decides them as advisory checks, which are charged if they fit; if none fits, what was charged is refunded.

use std::ops::Range;

use smallvec::SmallVec;
use tidegate_core::{
    ActionKind, Check, Cost, CounterKey, Decision, Limit, Outcome, RecordedDecision, Role, RuleAction,
    RuleId, Timestamp, Verdict,
};
use tidegate_headers::{Quota, RetryAfter};
use tidegate_policy::{DescriptorLimit, EnvoyDomain, EnvoyRate, RateUnit};
use tidegate_store::Store;
use tidegate_telemetry::{DecisionKind, DecisionSink, RequestRecord};

use super::envoy_limits::ServedEnvoyLimits;
use super::message::{
    CurrentLimit, DescriptorStatus, LimitOverride, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
    ResponseCode, ResponseUnit,
};
use super::response::{ResponseBuilder, StatusEffect, blocked_report};
use super::status::GrpcError;
use crate::worker::ServiceWorker;

/// The rule of limits that requests carry. No configured descriptor has this label: all of them contain a slash.
const CARRIED: RuleId = RuleId::named("envoy:override");
/// The name of such a limit in response headers and logs.
const CARRIED_NAME: &str = "override";

/// Decides a call in `domain`.
pub(super) async fn decide<S: Store + 'static>(
    worker: &ServiceWorker<S>,
    request: &RateLimitRequest,
    domain: &EnvoyDomain,
    envoy: &ServedEnvoyLimits,
    now: Timestamp,
    record: &mut RequestRecord<'_>,
) -> Result<RateLimitResponse, GrpcError> {
    let mut keys = Vec::with_capacity(128);
    let mut found = SmallVec::<[FoundDescriptor<'_>; 4]>::new();
    for descriptor in &request.descriptors {
        found.push(FoundDescriptor::find(domain, request, descriptor, &mut keys)?);
    }
    drop_replaced(&mut found);
    share_carried(&mut found, &keys);
    mark_alternatives(&mut found);
    let checks: SmallVec<[Check<'_>; 4]> = found.iter().filter_map(|found| found.check(&keys)).collect();
    let is_blocked = found.iter().any(FoundDescriptor::is_blocked);
    let decision = if checks.is_empty() {
        Ok(Decision::of_none(now))
    } else if is_blocked {
        // The call is rejected in any case, so nothing may be charged.
        worker.limiter.store().peek(&checks, now).await
    } else {
        worker.limiter.check_limits(&checks, now).await
    };
    let mut decision = match decision {
        Ok(decision) => Some(decision),
        // If no counter decides about the call, the store does not matter.
        Err(_) if is_blocked || !found.iter().any(FoundDescriptor::can_reject) => None,
        Err(_) => {
            let decision = RecordedDecision::new(DecisionKind::StoreFailed);
            DecisionSink::Request(record).record(&envoy.counted, decision);
            return Err(GrpcError::store_unavailable());
        }
    };
    let is_exhausted = exceeds_alternatives(&found, decision.as_ref());
    if let Some(decision) =
        decision.as_mut().filter(|decision| is_exhausted && !is_blocked && decision.passes())
    {
        refund(worker.limiter.store(), decision, &checks, now).await;
    }
    drop(checks);
    let decided =
        DecidedDescriptors { found: &found, keys: &keys, decision: decision.as_ref(), is_exhausted };
    Ok(respond(worker, &decided, now, envoy, record))
}

/// Refunds what was charged, and reports what remains then. The verdicts stay, whatever other calls change meanwhile.
async fn refund<S: Store>(store: &S, decision: &mut Decision, checks: &[Check<'_>], now: Timestamp) {
    // If the refund fails, the counters are too high, never too low.
    let _ = store.refund(&decision.refunds(checks), now).await;
    let Ok(current) = store.peek(checks, now).await else { return };
    for (outcome, current) in decision.outcomes.iter_mut().zip(current.outcomes) {
        if outcome.verdict.is_pass() {
            *outcome = Outcome { verdict: outcome.verdict, ..current };
        }
    }
}

/// A descriptor of the call with its limit.
struct FoundDescriptor<'d> {
    limit: FoundLimit<'d>,
    /// The bytes of its client within the keys of the call.
    client: Range<usize>,
    cost: Cost,
    /// Whether it is one of several descriptors in quota mode.
    is_alternative: bool,
}

/// The descriptors of a request, and what the store has decided about them.
struct DecidedDescriptors<'f, 'd> {
    found: &'f [FoundDescriptor<'d>],
    /// The clients of all counters.
    keys: &'f [u8],
    /// `None` if the store failed, and nothing can reject.
    decision: Option<&'f Decision>,
    /// Whether all descriptors in quota mode are over their limits.
    is_exhausted: bool,
}

enum FoundLimit<'d> {
    None,
    Configured(&'d DescriptorLimit),
    /// A limit that the request carries.
    Carried {
        rate: Box<EnvoyRate>,
        /// The limit that is checked: the smallest of those that share the counter.
        applied: Option<(Limit, Quota)>,
    },
}

impl<'d> FoundDescriptor<'d> {
    fn find(
        domain: &'d EnvoyDomain,
        request: &RateLimitRequest,
        descriptor: &RateLimitDescriptor,
        keys: &mut Vec<u8>,
    ) -> Result<Self, GrpcError> {
        let start = keys.len();
        let entries = descriptor.entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_slice()));
        let limit = match descriptor.limit {
            Some(carried) => {
                append(keys, request.domain.as_bytes());
                for (key, value) in entries {
                    append(keys, key.as_bytes());
                    append(keys, value);
                }
                let rate = carried_rate(carried)?;
                // Limits over other periods have other counters: a short one would empty the counter of a long one.
                keys.extend_from_slice(&rate.window.as_micros().to_be_bytes());
                FoundLimit::Carried { applied: rate.limit, rate: Box::new(rate) }
            }
            None => match domain.find(entries, keys) {
                Some(limit) => FoundLimit::Configured(limit),
                None => FoundLimit::None,
            },
        };
        let hits = descriptor.hits_addend.unwrap_or_else(|| u64::from(request.hits_addend.max(1)));
        Ok(Self { limit, client: start..keys.len(), cost: Cost::new(hits), is_alternative: false })
    }

    fn rate(&self) -> Option<&EnvoyRate> {
        match &self.limit {
            FoundLimit::None => None,
            FoundLimit::Configured(limit) => limit.rate.as_ref(),
            FoundLimit::Carried { rate, .. } => Some(rate),
        }
    }

    /// The limit that is checked, with its quota.
    fn applied(&self) -> Option<&(Limit, Quota)> {
        match &self.limit {
            FoundLimit::None => None,
            FoundLimit::Configured(limit) => limit.rate.as_ref()?.limit.as_ref(),
            FoundLimit::Carried { applied, .. } => applied.as_ref(),
        }
    }

    fn configured(&self) -> Option<&'d DescriptorLimit> {
        match self.limit {
            FoundLimit::Configured(limit) => Some(limit),
            FoundLimit::None | FoundLimit::Carried { .. } => None,
        }
    }

    fn rule(&self) -> RuleId {
        self.configured().map_or(CARRIED, |limit| limit.rule)
    }

    fn is_shadow(&self) -> bool {
        self.configured().is_some_and(|limit| limit.is_shadow)
    }

    /// Whether it has a limit in quota mode that can be exceeded.
    fn is_quota(&self) -> bool {
        let is_quota = self.configured().is_some_and(|limit| limit.is_quota && limit.rate.is_some());
        is_quota && !self.is_shadow()
    }

    fn role(&self) -> Role {
        if self.is_shadow() || self.is_alternative { Role::Advisory } else { Role::Binding }
    }

    /// Whether its limit admits no request at all and this one is not a peek.
    fn exceeds_zero(&self) -> bool {
        self.cost != Cost::ZERO && self.rate().is_some_and(|rate| rate.limit.is_none())
    }

    /// Whether the hits of the call are more than its limit admits.
    fn exceeds(&self, outcome: Option<&Outcome>) -> bool {
        self.exceeds_zero() || outcome.is_some_and(|outcome| !outcome.verdict.is_pass())
    }

    /// Whether it rejects the call, whatever the counters are.
    fn is_blocked(&self) -> bool {
        self.exceeds_zero() && self.role() == Role::Binding
    }

    /// Whether its counter decides about the call.
    fn can_reject(&self) -> bool {
        !self.is_shadow() && self.rate().is_some_and(|rate| rate.limit.is_some())
    }

    fn check<'c>(&'c self, keys: &'c [u8]) -> Option<Check<'c>> {
        let (limit, _) = self.applied()?;
        let client = keys.get(self.client.clone()).unwrap_or_default();
        Some(Check::new(CounterKey::new(self.rule(), client), limit).cost(self.cost).role(self.role()))
    }
}

/// Drops the limits that other limits of the call replace. Like in the reference server, a descriptor that is unlimited stays so.
fn drop_replaced(found: &mut [FoundDescriptor<'_>]) {
    let replacing: SmallVec<[&str; 4]> = found
        .iter()
        .filter_map(FoundDescriptor::configured)
        .flat_map(|limit| limit.replaces.iter().map(String::as_str))
        .collect();
    if replacing.is_empty() {
        return;
    }
    for found in found {
        let limited = found.configured().filter(|limit| limit.rate.is_some());
        let name = limited.and_then(|limit| limit.name.as_deref());
        if name.is_some_and(|name| replacing.contains(&name)) {
            found.limit = FoundLimit::None;
        }
    }
}

/// Marks descriptors in quota mode. A single one rejects like any other.
fn mark_alternatives(found: &mut [FoundDescriptor<'_>]) {
    if found.iter().filter(|found| found.is_quota()).count() > 1 {
        for found in found {
            found.is_alternative = found.is_quota();
        }
    }
}

/// All descriptors with their outcomes; those without a counter have none.
fn with_outcomes<'f, 'd>(
    found: &'f [FoundDescriptor<'d>],
    decision: Option<&'f Decision>,
) -> impl Iterator<Item = (&'f FoundDescriptor<'d>, Option<&'f Outcome>)> {
    let mut outcomes = decision.map_or(&[][..], |decision| &decision.outcomes).iter();
    found.iter().map(move |found| (found, if found.applied().is_some() { outcomes.next() } else { None }))
}

/// Whether there are alternatives and all of them are over their limits.
fn exceeds_alternatives(found: &[FoundDescriptor<'_>], decision: Option<&Decision>) -> bool {
    let mut alternatives =
        with_outcomes(found, decision).filter(|(found, _)| found.is_alternative).peekable();
    alternatives.peek().is_some() && alternatives.all(|(found, outcome)| found.exceeds(outcome))
}

/// When the call would be admitted: with `is_exhausted`, not before the first of the alternatives has room.
fn verdict(found: &[FoundDescriptor<'_>], decision: &Decision, is_exhausted: bool) -> Verdict {
    if !is_exhausted {
        return decision.verdict;
    }
    let alternatives = with_outcomes(found, Some(decision)).filter(|(found, _)| found.is_alternative);
    let soonest = alternatives.filter_map(|(_, outcome)| outcome?.verdict.retry_after());
    match (decision.verdict, soonest.min()) {
        (Verdict::Never, _) | (_, None) => Verdict::Never,
        (Verdict::Pass { .. }, Some(soonest)) => Verdict::NotUntil { retry_after: soonest },
        (Verdict::NotUntil { retry_after }, Some(soonest)) => {
            Verdict::NotUntil { retry_after: retry_after.max(soonest) }
        }
    }
}

/// Lets equal descriptors that carry different limits over one period share the counter of that period, under the smallest of
/// the limits: a decision has one limit for each counter, and a counter that depended on the other descriptors of a call would
/// let a client choose a fresh one.
fn share_carried(found: &mut [FoundDescriptor<'_>], keys: &[u8]) {
    let carried = |found: &FoundDescriptor<'_>| match &found.limit {
        FoundLimit::Carried { applied, .. } => *applied,
        FoundLimit::None | FoundLimit::Configured(_) => None,
    };
    let count = found.iter().filter(|found| carried(found).is_some()).count();
    if count < 2 {
        return;
    }
    for position in 0..found.len() {
        let Some(current) = found.get(position).filter(|found| carried(found).is_some()) else { continue };
        let client = keys.get(current.client.clone());
        let sharing = found.iter().filter(|other| keys.get(other.client.clone()) == client);
        let smallest = sharing.filter_map(carried).min_by_key(|(limit, _)| limit.capacity());
        if let Some(FoundDescriptor { limit: FoundLimit::Carried { applied, .. }, .. }) =
            found.get_mut(position)
        {
            *applied = smallest;
        }
    }
}

/// Appends a text with its length, so that no two lists of texts have the same bytes.
fn append(keys: &mut Vec<u8>, text: &[u8]) {
    keys.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
    keys.extend_from_slice(text);
}

fn carried_rate(LimitOverride { requests_per_unit, unit }: LimitOverride) -> Result<EnvoyRate, GrpcError> {
    let known = ResponseUnit::try_from(unit).ok().and_then(rate_unit);
    let unit = known.ok_or_else(|| {
        GrpcError::invalid(format!("the limit of a descriptor has the unknown unit {unit}"))
    })?;
    EnvoyRate::fixed_window(requests_per_unit, unit)
        .map_err(|error| GrpcError::invalid(format!("invalid limit of a descriptor: {error}")))
}

fn rate_unit(unit: ResponseUnit) -> Option<RateUnit> {
    Some(match unit {
        ResponseUnit::Unknown => return None,
        ResponseUnit::Second => RateUnit::Second,
        ResponseUnit::Minute => RateUnit::Minute,
        ResponseUnit::Hour => RateUnit::Hour,
        ResponseUnit::Day => RateUnit::Day,
        ResponseUnit::Week => RateUnit::Week,
        ResponseUnit::Month => RateUnit::Month,
        ResponseUnit::Year => RateUnit::Year,
    })
}

pub(super) fn response_unit(unit: RateUnit) -> ResponseUnit {
    match unit {
        RateUnit::Second => ResponseUnit::Second,
        RateUnit::Minute => ResponseUnit::Minute,
        RateUnit::Hour => ResponseUnit::Hour,
        RateUnit::Day => ResponseUnit::Day,
        RateUnit::Week => ResponseUnit::Week,
        RateUnit::Month => ResponseUnit::Month,
        RateUnit::Year => ResponseUnit::Year,
    }
}

/// Writes the response and records the decision, which is `None` if the store failed. With `is_exhausted`, all alternatives
/// are over their limits.
fn respond<S: Store + 'static>(
    worker: &ServiceWorker<S>,
    &DecidedDescriptors { found, keys, decision, is_exhausted }: &DecidedDescriptors<'_, '_>,
    now: Timestamp,
    envoy: &ServedEnvoyLimits,
    record: &mut RequestRecord<'_>,
) -> RateLimitResponse {
    let mut response = ResponseBuilder::new(decision.map_or(now, |decision| decision.at), found.len());
    let (mut rejecting, mut shadow_actions) = (None, SmallVec::<[RuleAction; 4]>::new());
    for (found, outcome) in with_outcomes(found, decision) {
        let exceeds = found.exceeds(outcome);
        let is_binding = found.role() == Role::Binding;
        let rejects = exceeds && (is_binding || is_exhausted && found.is_alternative);
        if rejects && rejecting.is_none() {
            rejecting = Some(found);
        }
        if exceeds && found.is_shadow() {
            shadow_actions.push(RuleAction { rule: found.rule(), kind: ActionKind::Reject });
        }
        let effect = StatusEffect {
            is_over: exceeds && !found.is_shadow(),
            rejects,
            // Headers report neither limits in shadow mode nor alternatives that do not matter.
            is_announced: is_binding || found.is_alternative && exceeds == is_exhausted,
        };
        add_status(&mut response, found, outcome, effect);
    }
    let store_failed = decision.is_none();
    let kind = match rejecting {
        Some(_) => DecisionKind::Rejected,
        None if store_failed => DecisionKind::StoreFailed,
        None => DecisionKind::Admitted,
    };
    // Values of descriptors are not shown in metrics: all clients of a descriptor are counted together.
    let decision_record = RecordedDecision {
        kind,
        client: None,
        rejected_by: rejecting.map(FoundDescriptor::rule),
        limit: None,
        action: None,
        shadow_actions: shadow_actions.into_iter(),
    };
    DecisionSink::Request(record).record(&envoy.counted, decision_record);
    if let Some(rejecting) = rejecting {
        let client = keys.get(rejecting.client.clone()).unwrap_or_default();
        // A limit of zero never admits, so that no time to retry is true.
        let is_never = found.iter().any(FoundDescriptor::is_blocked);
        let decision = decision.filter(|_| !is_never);
        let wait = decision.and_then(|decision| verdict(found, decision, is_exhausted).retry_after());
        response.set_retry_after(wait.map(|wait| RetryAfter::new(wait, client)));
    }
    response.finish(worker, record)
}

fn add_status<'d>(
    response: &mut ResponseBuilder<'d>,
    found: &FoundDescriptor<'d>,
    outcome: Option<&Outcome>,
    effect: StatusEffect,
) {
    let Some(rate) = found.rate() else {
        // A descriptor that is unlimited by configuration differs from one without a limit.
        let limit_remaining = if found.configured().is_some() { u32::MAX } else { 0 };
        return response.add(
            DescriptorStatus { limit_remaining, ..DescriptorStatus::default() },
            None,
            false,
        );
    };
    let configured = found.configured();
    let announced = configured.map_or(CARRIED_NAME, |limit| limit.announced.as_str());
    let report = match (found.applied(), outcome) {
        (Some((_, quota)), Some(outcome)) => Some(quota.report(announced, outcome)),
        (Some(_), None) => None,
        (None, _) => Some(blocked_report(announced, rate.window, response.time())),
    };
    // Another limit than the configured one is an override of the operator.
    let own = found.applied().map(|(limit, _)| limit.capacity());
    let replaced = outcome.map(|outcome| outcome.limit).filter(|applied| Some(*applied) != own);
    let requests_per_unit = match replaced {
        Some(applied) => u32::try_from(applied).unwrap_or(u32::MAX),
        None => rate.requests_per_unit,
    };
    let current_limit = CurrentLimit {
        requests_per_unit,
        unit: response_unit(rate.unit).into(),
        name: configured.and_then(|limit| limit.name.clone()).unwrap_or_default(),
    };
    let status = DescriptorStatus {
        code: ResponseCode::Unknown.into(),
        current_limit: Some(current_limit),
        limit_remaining: outcome.map_or(0, |outcome| u32::try_from(outcome.remaining).unwrap_or(u32::MAX)),
        duration_until_reset: None,
    };
    response.add_limit(status, report, effect);
}

#[cfg(test)]
mod tests {
    use tidegate_policy::{EnvoyFile, EnvoyLimits};

    use super::super::message::DescriptorEntry;
    use super::*;

    #[test]
    fn descriptor_without_a_counter_or_in_shadow_mode_cannot_reject() {
        let config = b"
domain: d
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: shadow, shadow_mode: true, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: free, rate_limit: { unlimited: true } }
";
        let file = EnvoyFile { name: "d.yaml".to_owned(), bytes: config.to_vec() };
        let limits = EnvoyLimits::compile(&[file]).unwrap_or_else(|problems| panic!("{problems}"));
        let domain = limits.domain("d").unwrap();
        for (key, expected) in [("user", true), ("shadow", false), ("free", false), ("other", false)] {
            let entries = vec![DescriptorEntry { key: key.to_owned(), value: b"a".to_vec() }];
            let descriptor = RateLimitDescriptor { entries, limit: None, hits_addend: None };
            let request = RateLimitRequest { domain: "d".to_owned(), ..RateLimitRequest::default() };
            let found = FoundDescriptor::find(domain, &request, &descriptor, &mut Vec::new()).unwrap();
            assert_eq!(found.can_reject(), expected, "{key}");
        }
    }
}
