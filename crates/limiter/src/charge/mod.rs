//! What a request was charged, until its final cost is known.
//!
//! A charge is *unserved* at first: dropped in this state, it refunds everything, because the request was delayed in vain or
//! was refused for a reason that is not the client's. Once it is *served*, everything stays charged when it is dropped: if the
//! client disconnects before the response, or the upstream fails or times out, the work may have been done. Open parts are
//! those whose final cost is still to be set: by the response ([`Charge::settle`]), by the bytes of a body
//! ([`Charge::meter`]) or by a caller ([`Charge::commit`]).
//!
//! Most requests need none of this, and get no charge: see [`ChargeUse`].

mod meter;
mod part;
mod refund;
mod settlement;

use std::fmt;
use std::sync::Arc;

use http::HeaderMap;
use tidegate_core::{Cost, Limit, RuleId};
use tidegate_policy::{ActivePolicy, Scratch};
use tidegate_store::{Store, StoreError};

pub use self::meter::ChargeMeter;
use self::part::ChargedPart;
use self::settlement::ChargedStore;
use crate::limiter::SharedStore;
use crate::report::RulingReport;

/// How a charge is used. It says what has to be kept of it, so that nothing is copied for the usual request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeUse {
    /// The request may be refused later. The charge is unserved: without [`Charge::serve`], all of it is refunded on drop.
    Refundable,
    /// Nothing can refuse the request any more. Only the parts whose final cost is set later are kept.
    Served,
    /// The caller sets the final costs later: [`Charge::commit`]. Without that it stays charged.
    Committed,
}

/// What a request was charged: counters, costs, times.
#[must_use = "an unserved charge is refunded when it is dropped"]
pub struct Charge {
    store: Arc<dyn ChargedStore>,
    /// In the order of the checks. Those of a later decision come first: a leaky bucket gives back only its last departure.
    parts: Vec<ChargedPart>,
    is_served: bool,
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge")
            .field("parts", &self.parts)
            .field("is_served", &self.is_served)
            .finish_non_exhaustive()
    }
}

impl Charge {
    /// The charge of the decision of `report`; `None` if it has no part that this use needs.
    pub(crate) fn new<S: Store + 'static>(
        shared: &Arc<SharedStore<S>>,
        report: &RulingReport<'_>,
        usage: ChargeUse,
    ) -> Option<Self> {
        let parts = ChargedPart::of_report(report, usage);
        if parts.is_empty() {
            return None;
        }
        let store = Arc::clone(shared) as Arc<dyn ChargedStore>;
        Some(Self { store, parts, is_served: usage != ChargeUse::Refundable })
    }

    /// Keeps the charge: a server or a handler gets the request.
    pub fn serve(&mut self) {
        self.is_served = true;
    }

    /// Whether the request was served and the response sets the final cost of any part.
    pub fn is_open(&self) -> bool {
        self.is_served && self.parts.iter().any(ChargedPart::is_open)
    }

    /// Adds the charge of a later decision. It is refunded first.
    pub fn join(&mut self, mut later: Self) {
        later.parts.append(&mut self.parts);
        std::mem::swap(&mut self.parts, &mut later.parts);
    }

    /// Refunds everything, at once if the store is in this process: the request was not served after all.
    pub fn refund(mut self) {
        self.is_served = false;
    }

    /// Sets the final costs that the response determines, even if the returned future is dropped.
    pub async fn settle(self, status: u16, headers: &HeaderMap) {
        self.settle_parts(|part| part.cost_by_response(status, headers)).await;
    }

    /// Refunds the open parts of a request that no server got. The others stay charged.
    pub async fn release(self) {
        self.settle_parts(|part| part.is_open().then_some(Cost::ZERO)).await;
    }

    async fn settle_parts(mut self, cost: impl Fn(&ChargedPart) -> Option<Cost>) {
        let parts = std::mem::take(&mut self.parts).into_iter();
        let costs: Vec<_> = parts.filter_map(|part| Some((cost(&part)?, part))).collect();
        if !costs.is_empty() {
            // In a separate task: a client that disconnects now does not cancel it. Awaited, so that the next request of the
            // client sees the settled counters.
            let _ = tokio::spawn(Arc::clone(&self.store).settle(costs)).await;
        }
    }

    /// The rules that were charged, in the order of the checks.
    pub fn rules(&self) -> impl Iterator<Item = RuleId> {
        self.parts.iter().map(|part| part.counter.key().rule)
    }

    /// Sets the final costs of the rules with these names, even if the returned future is dropped: less refunds the rest, more
    /// charges the difference, even into debt. Other rules stay charged. If the store fails, so does the rest. Returns false if
    /// the rest of any should be refunded and its counter contains nothing of it any more: it has drained or its window has
    /// ended, the limit has changed since or is overridden, the counter was reset, or it is a leaky bucket in which a later
    /// request waits.
    pub async fn commit(mut self, policy: &ActivePolicy, costs: &[(&str, Cost)]) -> Result<bool, StoreError> {
        let mut settled = Vec::new();
        for part in std::mem::take(&mut self.parts) {
            let rule = part.counter.key().rule;
            if let Some((name, cost)) = costs.iter().find(|(name, _)| RuleId::named(name) == rule) {
                let current = current_limit(policy, name, &part);
                settled.push((part, *cost, current));
            }
        }
        let store = Arc::clone(&self.store);
        let settling = tokio::spawn(async move {
            let mut is_refunded = true;
            for (part, cost, current) in settled {
                is_refunded &= Arc::clone(&store).commit(part, cost, current).await?;
            }
            Ok(is_refunded)
        });
        // A task that was not run to its end has not settled anything.
        settling.await.unwrap_or_else(|aborted| Err(StoreError::Unavailable(Box::new(aborted))))
    }

    /// Takes the parts whose final cost the bytes of a body set; `None` if there are none. They are charged as the bytes arrive.
    pub fn meter(&mut self) -> Option<ChargeMeter> {
        let metered: Vec<_> = self.parts.iter_mut().filter_map(ChargedPart::take_metered).collect();
        (!metered.is_empty()).then(|| ChargeMeter::new(Arc::clone(&self.store), metered))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if !self.is_served && !self.parts.is_empty() {
            Arc::clone(&self.store).refund(std::mem::take(&mut self.parts));
        }
    }
}

/// The limit of the rule now, if there still is one for the client of this part.
fn current_limit(policy: &ActivePolicy, rule: &str, part: &ChargedPart) -> Option<Limit> {
    let (mut scratch, key) = (Scratch::default(), part.counter.key());
    let matched = policy.matcher.match_rule(rule, key.client, part.cost, &mut scratch)?;
    matched.checks().iter().find(|check| check.key == key).map(|check| *check.limit)
}
