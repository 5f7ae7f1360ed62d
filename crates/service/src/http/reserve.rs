//! `/v1/reserve` and `/v1/commit`: charges whose final cost is known later.
//!
//! A reservation is of one rule, of several, or of the rules that a request matches. Either all of them are charged or none is.

use tidegate_core::{Cost, TimeSpan, Timestamp};
use tidegate_limiter::{Charge, ChargeUse, Limiter, RuleCheck, Ruling};
use tidegate_policy::{ActivePolicy, Plan, RuleClient, Scratch};
use tidegate_store::Store;
use tidegate_telemetry::DecisionSink;

use super::charges::failed;
use super::check::{CheckSubject, checked_cost};
use super::decision::{put, put_text, write_decision};
use super::dispatch::{EndpointCall, parse};
use super::error::{HttpError, invalid};
use super::message::{CommitMessage, ReserveMessage, SingleCheckMessage, WholeNumber};
use super::response::HttpResponse;
use crate::reservations::{OpenReservation, ReservationId};

/// How long a reservation is open, unless the client says so, and at most: a minute and an hour.
const DEFAULT_TTL: u64 = 60;
const MAX_TTL: u64 = 3_600;
/// The most rules of a reservation.
const MAX_RULES: usize = 16;

/// What is reserved.
enum ReserveSubject<'b> {
    /// Rules, each with its client and cost.
    Rules(Vec<(String, RuleClient, Cost)>),
    /// All rules of a request.
    Request(Box<CheckSubject<'b>>),
}

impl<'b> ReserveSubject<'b> {
    fn new<S: Store + 'static>(
        call: &EndpointCall<'_, S>,
        message: ReserveMessage<'b>,
    ) -> Result<Self, HttpError> {
        let ReserveMessage { rule, client, cost, checks, request, .. } = message;
        let (policy, clock) = (&call.policy.active, &**call.worker.limiter.clock());
        let one = SingleCheckMessage { rule, client, cost, request };
        let Some(checks) = checks else {
            return Ok(match CheckSubject::new(policy, clock, one)? {
                CheckSubject::Rule { rule, client, cost } => {
                    Self::Rules(vec![(rule.into_owned(), client, cost)])
                }
                request @ CheckSubject::Request(_) => Self::Request(Box::new(request)),
            });
        };
        if one.rule.is_some() || one.client.is_some() || one.cost.is_some() || one.request.is_some() {
            return Err(invalid("`checks` excludes other fields except `ttl`; move them into its entries"));
        }
        if !(1..=MAX_RULES).contains(&checks.0.len()) {
            return Err(invalid(format!("`checks` must have 1 to {MAX_RULES} entries")));
        }
        let mut rules: Vec<(String, RuleClient, Cost)> = Vec::with_capacity(checks.0.len());
        for check in checks.0 {
            let CheckSubject::Rule { rule, client, cost } =
                CheckSubject::new(policy, clock, parse(check.get().as_bytes())?)?
            else {
                return Err(invalid("an entry of `checks` has a `request`; reserve it by itself"));
            };
            // A commit states one cost for each rule.
            if rules.iter().any(|(other, ..)| *other == *rule) {
                return Err(invalid(
                    "two entries of `checks` have the same `rule`; add their costs, or reserve for each client by itself",
                ));
            }
            rules.push((rule.into_owned(), client, cost));
        }
        Ok(Self::Rules(rules))
    }

    /// The memory for the names of its rules and clients.
    fn names(&self, body: &[u8]) -> usize {
        match self {
            Self::Rules(rules) => rules.iter().map(|(rule, client, _)| rule.len() + client.key().len()).sum(),
            // Each counter has some of the identities of the request.
            Self::Request(_) => body.len() * MAX_RULES,
        }
    }

    async fn decide<'a, S: Store + 'static>(
        &self,
        limiter: &Limiter<S>,
        policy: &'a ActivePolicy,
        (scratch, now): (&'a mut Scratch, Timestamp),
    ) -> Result<Ruling<'a>, HttpError> {
        match self {
            Self::Rules(rules) => {
                let checks = rules.iter().map(|(rule, client, cost)| RuleCheck { rule, client, cost: *cost });
                let checks: Vec<_> = checks.collect();
                let ruling = limiter.check_rules(policy, &checks, scratch, now).await;
                let name = checks.first().map_or("", |check| check.rule);
                ruling.map_err(|unknown| failed(&unknown.into(), name))
            }
            Self::Request(request) => request.reserve(limiter, policy, scratch, now).await,
        }
    }
}

/// `POST /v1/reserve`.
pub(super) async fn reserve<S: Store + 'static>(
    call: &mut EndpointCall<'_, S>,
    body: &[u8],
) -> Result<HttpResponse, HttpError> {
    let message: ReserveMessage<'_> = parse(body)?;
    let ttl = message.ttl.unwrap_or(DEFAULT_TTL);
    let is_single = message.rule.is_some();
    let subject = ReserveSubject::new(call, message)?;
    if !(1..=MAX_TTL).contains(&ttl) {
        return Err(invalid(format!("`ttl` must be 1 to {MAX_TTL} seconds")));
    }
    let state = &call.worker.http;
    // Before anything is charged.
    let id = ReservationId::random().ok_or(HttpError::TOO_MANY_RESERVATIONS)?;
    let slot = state.reservations.slot(subject.names(body), call.worker.now());
    let slot = slot.ok_or(HttpError::TOO_MANY_RESERVATIONS)?;
    let mut scratch = state.scratch();
    let now = call.record.start_decision();
    let policy = &call.policy;
    let limiter = &call.worker.limiter;
    let ruling = subject.decide(limiter, &policy.active, (&mut scratch, now)).await?;
    let mut json = Vec::with_capacity(256);
    write_decision(&ruling, policy, &mut DecisionSink::Request(&mut call.record), &mut json)?;
    if let Ruling::Serve(serve) = &ruling {
        // Nothing was charged if the client is exempt, or if the rule is in shadow mode and the store failed.
        let charge = serve.charge(&call.worker.limiter, ChargeUse::Committed);
        let expires = now + TimeSpan::from_secs(ttl);
        let rules: Box<[Box<str>]> = match &subject {
            ReserveSubject::Rules(rules) => rules.iter().map(|(rule, ..)| rule.as_str().into()).collect(),
            ReserveSubject::Request(_) => {
                let charged = charge.iter().flat_map(Charge::rules);
                let plan: &Plan = policy.active.matcher.plan();
                charged
                    .filter_map(|id| {
                        Some(plan.rate_limits.iter().find(|rule| rule.id == id)?.name.as_str().into())
                    })
                    .collect()
            }
        };
        if !is_single {
            put_rules(&mut json, &rules);
        }
        put(&mut json, r#","reservation":"#);
        slot.open(id, OpenReservation { rules, charge, expires });
        put_text(&mut json, &id.to_string());
    } else {
        put(&mut json, r#","reservation":null"#);
    }
    put(&mut json, "}\n");
    Ok(HttpResponse::json(json))
}

/// The rules whose costs can be committed.
fn put_rules(json: &mut Vec<u8>, rules: &[Box<str>]) {
    put(json, r#","rules":["#);
    for (index, rule) in rules.iter().enumerate() {
        if index > 0 {
            put(json, ",");
        }
        put_text(json, rule);
    }
    put(json, "]");
}

/// `POST /v1/commit`.
pub(super) async fn commit<S: Store + 'static>(
    call: &mut EndpointCall<'_, S>,
    body: &[u8],
) -> Result<HttpResponse, HttpError> {
    let CommitMessage { reservation, cost, costs } = parse(body)?;
    let costs = match (cost, costs) {
        (Some(WholeNumber(None)), _) => return Err(invalid("`cost` is null; send the final cost")),
        (Some(WholeNumber(cost)), None) => CommittedCosts::Single(checked_cost(cost)?),
        (None, Some(costs)) => {
            let by_rule = costs.into_iter().map(|(rule, cost)| match cost.0 {
                Some(cost) => Ok((rule, checked_cost(Some(cost))?)),
                None => Err(invalid(format!("the cost of `{rule}` is null; send the final cost"))),
            });
            CommittedCosts::ByRule(by_rule.collect::<Result<_, HttpError>>()?)
        }
        (None, None) => return Err(invalid("missing field `cost` or `costs`; send the final cost")),
        (Some(_), Some(_)) => return Err(invalid("`cost` and `costs` exclude each other")),
    };
    let id: ReservationId = reservation.parse().map_err(|_| HttpError::NO_RESERVATION)?;
    // Removed before the store is asked: a reservation is committed at most once, also if the store fails.
    let reservations = &call.worker.http.reservations;
    let taken = reservations.take(id, call.worker.now(), |open| costs.check(&open.rules));
    let open = taken.ok_or(HttpError::NO_RESERVATION)??;
    let is_refunded = match open.charge {
        Some(charge) => {
            let committed = charge.commit(&call.policy.active, &costs.of(&open.rules)).await;
            committed.map_err(|_| HttpError::STORE_UNAVAILABLE)?
        }
        None => true,
    };
    let mut json = br#"{"committed":true"#.to_vec();
    match &*open.rules {
        [rule] => {
            put(&mut json, r#","rule":"#);
            put_text(&mut json, rule);
        }
        rules => put_rules(&mut json, rules),
    }
    put(&mut json, if is_refunded { "}\n" } else { ",\"refunded\":false}\n" });
    Ok(HttpResponse::json(json))
}

/// The final costs that a client sends.
enum CommittedCosts {
    /// Of the only rule.
    Single(Cost),
    /// By the names of rules. Those that are left out stay charged.
    ByRule(Vec<(String, Cost)>),
}

impl CommittedCosts {
    /// Whether these costs can be those of a reservation of `rules`.
    fn check(&self, rules: &[Box<str>]) -> Result<(), HttpError> {
        let names = || rules.iter().map(|rule| format!("`{rule}`")).collect::<Vec<_>>().join(", ");
        match self {
            Self::Single(_) if rules.len() > 1 => {
                Err(invalid(format!("the reservation has several rules; send `costs` by name: {}", names())))
            }
            Self::ByRule(costs) => {
                match costs.iter().find(|(rule, _)| rules.iter().all(|one| **one != **rule)) {
                    Some((rule, _)) => {
                        Err(invalid(format!("the reservation has no rule `{rule}`; it has {}", names())))
                    }
                    None => Ok(()),
                }
            }
            Self::Single(_) => Ok(()),
        }
    }

    fn of<'c>(&'c self, rules: &'c [Box<str>]) -> Vec<(&'c str, Cost)> {
        match self {
            Self::Single(cost) => rules.iter().map(|rule| (&**rule, *cost)).collect(),
            Self::ByRule(costs) => costs.iter().map(|(rule, cost)| (rule.as_str(), *cost)).collect(),
        }
    }
}
