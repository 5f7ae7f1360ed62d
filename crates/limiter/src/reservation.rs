//! Reservations: charges that are settled later, by the response or by the body of the request.
//!
//! An unsettled reservation stays charged: if the client disconnects before the response, or the upstream fails or times out,
//! the work may have been done. Only requests that were sent to no server are refunded.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use http::HeaderMap;
use http::header::HeaderName;
use smallvec::{SmallVec, smallvec};
use tidegate_core::{
    AlgorithmKind, Check, Cost, CounterKey, Decision, Limit, Refund, Role, RuleId, TimeSpan, Timestamp,
};
use tidegate_policy::{ActivePolicy, MatchedRequest, Reservation, Scratch, Settlement, StatusSet};
use tidegate_store::{Store, StoreError};

use crate::limiter::{Limiter, SharedStore};
use crate::report::RulingReport;

/// A body of unknown length is charged in steps of this many units: few enough that a client cannot exceed a limit by much
/// with an endless body, enough that not every frame needs a store call.
const UNITS_PER_CHARGE: u64 = 64;

/// The reservations of a request.
#[must_use]
#[derive(Debug, Default)]
pub struct Reservations(Vec<OwnedReservation>);

impl Reservations {
    pub(crate) fn new(matched: &MatchedRequest<'_>, decision: &Decision) -> Self {
        Self(matched.reservations(decision).map(|reservation| OwnedReservation::new(&reservation)).collect())
    }

    /// Whether nothing is left to settle.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// An owned reservation that outlives the match.
#[derive(Debug)]
struct OwnedReservation {
    charge: RuleReservation,
    settled_by: SettlementBasis,
}

/// The charge of one rule, whose final cost is set later by [`Limiter::commit_rule`]. Without that the charge stays.
#[must_use]
pub struct RuleReservation {
    rule: RuleId,
    client: Box<[u8]>,
    limit: Limit,
    cost: Cost,
    charged: Timestamp,
}

impl fmt::Debug for RuleReservation {
    /// Without the client, which may be an API key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleReservation")
            .field("rule", &self.rule)
            .field("cost", &self.cost)
            .field("charged", &self.charged)
            .finish_non_exhaustive()
    }
}

/// What settles a reservation.
#[derive(Debug)]
enum SettlementBasis {
    Status(Box<StatusSet>),
    Header(HeaderName),
    Body(u64),
}

impl SettlementBasis {
    fn as_settlement(&self) -> Settlement<'_> {
        match self {
            Self::Status(statuses) => Settlement::Status(statuses),
            Self::Header(name) => Settlement::Header(name),
            Self::Body(unit) => Settlement::Body(*unit),
        }
    }
}

impl OwnedReservation {
    fn new(reservation: &Reservation<'_>) -> Self {
        let Reservation { check, charged, settlement } = reservation;
        let settled_by = match settlement {
            Settlement::Status(statuses) => SettlementBasis::Status(Box::new(**statuses)),
            Settlement::Header(name) => SettlementBasis::Header((*name).clone()),
            Settlement::Body(unit) => SettlementBasis::Body(*unit),
        };
        let charge = RuleReservation {
            rule: check.key.rule,
            client: check.key.client.into(),
            limit: *check.limit,
            cost: check.cost,
            charged: *charged,
        };
        Self { charge, settled_by }
    }

    fn is_settled_by_body(&self) -> bool {
        matches!(self.settled_by, SettlementBasis::Body(_))
    }
}

impl RuleReservation {
    /// The charge of an admitted request that one rule has checked; `None` if it charged nothing, as a rule in shadow mode
    /// does above its limit.
    pub fn new(report: &RulingReport<'_>) -> Option<Self> {
        let checks: SmallVec<[Check<'_>; 1]> = report.rules.checks().collect();
        let (decision, check) = (report.decision.as_ref()?, checks.first()?);
        let charged = match decision.refunds(&checks).first() {
            Some(refund) => refund.charged,
            // Nothing is charged yet; the commit charges everything.
            None if check.cost == Cost::ZERO => report.at(),
            None => return None,
        };
        let (rule, client) = (check.key.rule, check.key.client.into());
        Some(Self { rule, client, limit: *check.limit, cost: check.cost, charged })
    }

    /// The limit of the rule now, if there still is one for this client.
    fn current_limit(&self, policy: &ActivePolicy, rule: &str) -> Option<Limit> {
        let mut scratch = Scratch::default();
        let matched = policy.matcher.match_rule(rule, &self.client, self.cost, &mut scratch)?;
        matched.checks().iter().find(|check| check.key == self.key()).map(|check| *check.limit)
    }

    fn key(&self) -> CounterKey<'_> {
        CounterKey::new(self.rule, &self.client)
    }

    /// Sets the final cost of the request. If the store fails, the charge stays.
    async fn commit<S: Store>(&self, shared: &SharedStore<S>, cost: Cost) -> Result<(), StoreError> {
        match cost.cmp(&self.cost) {
            Ordering::Less => shared.refund_charge(&self.refunds(cost), shared.clock.now()).await.map(drop),
            Ordering::Equal => Ok(()),
            Ordering::Greater => self.charge(shared, cost.get() - self.cost.get()).await,
        }
    }

    /// What to refund so that only `kept` stays charged.
    ///
    /// A leaky bucket gives back only its last departure. So the units to refund are described as a departure of their own,
    /// when those that are kept have drained. If that takes a fraction of a tick, it is one of two ticks. The first is tried
    /// first: after its refund the second cannot be the last departure. If units are at least two ticks apart, neither can be
    /// that of another request.
    fn refunds(&self, kept: Cost) -> SmallVec<[Refund<'_>; 2]> {
        let cost = Cost::new(self.cost.get().saturating_sub(kept.get()));
        let refund = |charged| Refund { key: self.key(), limit: &self.limit, cost, charged };
        let AlgorithmKind::LeakyBucket(bucket) = self.limit.kind() else {
            return smallvec![refund(self.charged)];
        };
        let rate = bucket.rate();
        let (unit, drain) = (rate.unit().get(), rate.drain().get());
        let subunits = kept.get().saturating_mul(unit);
        let departure = |ticks: u64| {
            refund(self.charged + TimeSpan::from_micros(ticks.saturating_mul(rate.tick().micros())))
        };
        let mut refunds = smallvec![departure(subunits / drain)];
        if !subunits.is_multiple_of(drain) && unit >= drain.saturating_mul(2) {
            refunds.push(departure(subunits / drain + 1));
        }
        refunds
    }

    /// Charges `units` more, even into debt.
    async fn charge<S: Store>(&self, shared: &SharedStore<S>, units: u64) -> Result<(), StoreError> {
        let check = Check::new(self.key(), &self.limit).cost(Cost::new(units)).role(Role::Overage);
        shared.store.decide(&[check], shared.clock.now()).await.map(drop)
    }
}

impl<S: Store + 'static> Limiter<S> {
    /// Settles reservations by the response to their request, even if the returned future is dropped.
    pub async fn settle(&self, reservations: Reservations, status: u16, headers: &HeaderMap) {
        let cost = |reservation: &OwnedReservation| {
            reservation.settled_by.as_settlement().by_response(reservation.charge.cost, status, headers)
        };
        let settled = reservations.0.into_iter();
        self.commit(settled.filter_map(|reservation| Some((cost(&reservation)?, reservation))).collect())
            .await;
    }

    /// Refunds the reservations of a request that was sent to no server.
    pub async fn release(&self, reservations: Reservations) {
        self.commit(reservations.0.into_iter().map(|reservation| (Cost::ZERO, reservation)).collect()).await;
    }

    async fn commit(&self, commits: Vec<(Cost, OwnedReservation)>) {
        if commits.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        // In a separate task: a client that disconnects now does not cancel it.
        let settling = tokio::spawn(async move {
            for (cost, reservation) in &commits {
                // If the store fails, the charge stays.
                let _ = reservation.charge.commit(&shared, *cost).await;
            }
        });
        // Await it, so that the next request of the client sees the settled counters.
        let _ = settling.await;
    }

    /// Sets the final cost of a reservation of the rule called `rule`, even if the returned future is dropped: less refunds the
    /// rest, more charges the difference, even into debt. If the store fails, the charge stays. Returns false if the rest should be
    /// refunded and the counter contains nothing of it any more: it has drained or its window has ended, the limit has changed
    /// since or is overridden, the counter was reset, or it is a leaky bucket in which a later request waits.
    pub async fn commit_rule(
        &self,
        policy: &ActivePolicy,
        rule: &str,
        reservation: RuleReservation,
        cost: Cost,
    ) -> Result<bool, StoreError> {
        let shared = Arc::clone(&self.shared);
        let current = reservation.current_limit(policy, rule);
        let settling = tokio::spawn(async move {
            match cost.cmp(&reservation.cost) {
                Ordering::Less => shared.refund_charge(&reservation.refunds(cost), shared.clock.now()).await,
                Ordering::Equal => Ok(true),
                Ordering::Greater => {
                    // Under the old limit, the counter would be moved back to it.
                    let limit = current.unwrap_or(reservation.limit);
                    let more = cost.get() - reservation.cost.get();
                    RuleReservation { limit, ..reservation }.charge(&shared, more).await.map(|()| true)
                }
            }
        });
        // A task that was not run to its end has not settled anything.
        settling.await.unwrap_or_else(|aborted| Err(StoreError::Unavailable(Box::new(aborted))))
    }

    /// Takes the reservations that the body of the request settles; `None` if there are none.
    pub fn body_meter(&self, reservations: &mut Reservations) -> Option<BodyMeter<S>> {
        if !reservations.0.iter().any(OwnedReservation::is_settled_by_body) {
            return None;
        }
        let all = std::mem::take(&mut reservations.0);
        let (by_body, rest): (Vec<_>, Vec<_>) =
            all.into_iter().partition(OwnedReservation::is_settled_by_body);
        reservations.0 = rest;
        let open = by_body
            .into_iter()
            .map(|reservation| (reservation.charge.cost.get(), Arc::new(reservation)))
            .collect();
        Some(BodyMeter { shared: Arc::clone(&self.shared), open, bytes: 0 })
    }
}

/// Charges the body of a request as it arrives. Dropping it charges the rest.
pub struct BodyMeter<S: Store + 'static> {
    shared: Arc<SharedStore<S>>,
    /// How many units have been charged to each reservation.
    open: Vec<(u64, Arc<OwnedReservation>)>,
    bytes: u64,
}

impl<S: Store + 'static> fmt::Debug for BodyMeter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyMeter").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl<S: Store + 'static> BodyMeter<S> {
    /// Adds received bytes.
    pub fn add(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        self.charge(UNITS_PER_CHARGE);
    }

    /// Charges the units since the last charge, if there are at least `at_least`.
    fn charge(&mut self, at_least: u64) {
        for (charged, reservation) in &mut self.open {
            let units = reservation.settled_by.as_settlement().by_body(self.bytes).map_or(0, Cost::get);
            let more = units.saturating_sub(*charged);
            if more >= at_least {
                *charged = units;
                let (shared, reservation) = (Arc::clone(&self.shared), Arc::clone(reservation));
                // Without a runtime the process is ending.
                let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
                runtime.spawn(async move { reservation.charge.charge(&shared, more).await });
            }
        }
    }
}

impl<S: Store + 'static> Drop for BodyMeter<S> {
    fn drop(&mut self) {
        self.charge(1);
    }
}
