//! One counter of a charge.

use std::fmt;

use http::HeaderMap;
use smallvec::{SmallVec, smallvec};
use tidegate_core::{AlgorithmKind, Cost, CounterKey, Limit, OwnedKey, Refund, TimeSpan, Timestamp};
use tidegate_policy::{ChargedCheck, Settlement};

use super::ChargeUse;
use crate::report::RulingReport;

/// A counter that was charged.
pub(crate) struct ChargedPart {
    pub(super) counter: ChargedCounter,
    pub(super) cost: Cost,
    /// When the charged request was scheduled.
    pub(super) charged: Timestamp,
    /// What sets the final cost; `None` if nothing does, or if a meter has taken it.
    settlement: Option<Settlement>,
}

/// Where a counter is kept. The refund of a part asks only its own keeper.
#[derive(Clone)]
pub(crate) enum ChargedCounter {
    /// In the store.
    Store { key: OwnedKey, limit: Limit },
}

impl ChargedCounter {
    pub(super) fn key(&self) -> CounterKey<'_> {
        let Self::Store { key, .. } = self;
        key.as_key()
    }

    pub(super) fn limit(&self) -> &Limit {
        let Self::Store { limit, .. } = self;
        limit
    }
}

impl fmt::Debug for ChargedPart {
    /// Without the client, which may be an API key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChargedPart")
            .field("counter", &self.counter.key())
            .field("cost", &self.cost)
            .field("charged", &self.charged)
            .finish_non_exhaustive()
    }
}

impl ChargedPart {
    fn new(ChargedCheck { check, charged, settlement }: ChargedCheck<'_>) -> Self {
        let counter = ChargedCounter::Store { key: check.key.into(), limit: *check.limit };
        Self { counter, cost: check.cost, charged, settlement }
    }

    /// The parts that this use needs. Several checks of one counter are one part.
    pub(super) fn of_report(report: &RulingReport<'_>, usage: ChargeUse) -> Vec<Self> {
        let mut parts: Vec<Self> = Vec::new();
        let Some(decision) = &report.decision else { return parts };
        for charged in report.rules.charged(decision) {
            let is_kept = match usage {
                ChargeUse::Refundable => charged.check.cost != Cost::ZERO,
                ChargeUse::Served => false,
                ChargeUse::Committed => true,
            };
            if !is_kept && charged.settlement.is_none() {
                continue;
            }
            match parts.iter_mut().find(|part| part.counter.key() == charged.check.key) {
                Some(part) => part.cost = part.cost.plus(charged.check.cost),
                None => parts.push(Self::new(charged)),
            }
        }
        // Of a rule in shadow mode too: nothing is charged yet, and the commit charges everything.
        if usage == ChargeUse::Committed {
            for check in report.rules.checks().filter(|check| check.cost == Cost::ZERO) {
                if parts.iter().all(|part| part.counter.key() != check.key) {
                    parts.push(Self::new(ChargedCheck { check, charged: decision.at, settlement: None }));
                }
            }
        }
        parts
    }

    /// Whether a response sets the final cost.
    pub(super) fn is_open(&self) -> bool {
        self.settlement.is_some()
    }

    /// The final cost after a response; `None` if it stays as it is.
    pub(super) fn cost_by_response(&self, status: u16, headers: &HeaderMap) -> Option<Cost> {
        self.settlement.as_ref()?.by_response(self.cost, status, headers)
    }

    /// A copy of the part for a meter, if the bytes of a body set its final cost, with the bytes of a unit.
    pub(super) fn take_metered(&mut self) -> Option<Self> {
        let settlement = self.settlement.take_if(|settlement| matches!(settlement, Settlement::Body(_)));
        let counter = settlement.is_some().then(|| self.counter.clone())?;
        Some(Self { counter, settlement, ..*self })
    }

    /// The cost of a body of `bytes` bytes.
    pub(super) fn cost_by_body(&self, bytes: u64) -> Cost {
        let settled = self.settlement.as_ref().and_then(|settlement| settlement.by_body(bytes));
        settled.unwrap_or(self.cost)
    }

    /// How much `cost` is more than what was charged.
    pub(super) fn missing(&self, cost: Cost) -> Cost {
        Cost::new(cost.get().saturating_sub(self.cost.get()))
    }

    /// The refund of the whole part.
    pub(super) fn refund(&self) -> Refund<'_> {
        self.refund_at(self.cost, self.charged)
    }

    fn refund_at(&self, cost: Cost, charged: Timestamp) -> Refund<'_> {
        Refund { key: self.counter.key(), limit: self.counter.limit(), cost, charged }
    }

    /// What to refund so that only `kept` stays charged.
    ///
    /// A leaky bucket gives back only its last departure. So the units to refund are described as a departure of their own,
    /// when those that are kept have drained. If that takes a fraction of a tick, it is one of two ticks. The first is tried
    /// first: after its refund the second cannot be the last departure. If units are at least two ticks apart, neither can be
    /// that of another request.
    pub(super) fn refunds(&self, kept: Cost) -> SmallVec<[Refund<'_>; 2]> {
        let cost = Cost::new(self.cost.get().saturating_sub(kept.get()));
        let AlgorithmKind::LeakyBucket(bucket) = self.counter.limit().kind() else {
            return smallvec![self.refund_at(cost, self.charged)];
        };
        let rate = bucket.rate();
        let (unit, drain) = (rate.unit().get(), rate.drain().get());
        let subunits = kept.get().saturating_mul(unit);
        let departure = |ticks: u64| {
            let drained = TimeSpan::from_micros(ticks.saturating_mul(rate.tick().micros()));
            self.refund_at(cost, self.charged + drained)
        };
        let mut refunds = smallvec![departure(subunits / drain)];
        if !subunits.is_multiple_of(drain) && unit >= drain.saturating_mul(2) {
            refunds.push(departure(subunits / drain + 1));
        }
        refunds
    }
}
