//! Refunds and settles charges in the store in which they were made.

use std::cmp::Ordering;
use std::pin::Pin;
use std::sync::Arc;

use tidegate_core::{Check, Cost, Limit, Refund, Role};
use tidegate_store::{Store, StoreError};

use super::part::ChargedPart;
use crate::limiter::SharedStore;

/// What a task runs after the request.
type SettlementTask<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The store of a charge, whatever its type: charges are kept in places that do not know it.
pub(super) trait ChargedStore: Send + Sync {
    /// Refunds all parts of a request or none of them: at once if the store is in this process, otherwise in a task of its own.
    fn refund(self: Arc<Self>, parts: Vec<ChargedPart>);

    /// Sets the final costs of parts. If the store fails, the charge stays.
    fn settle(self: Arc<Self>, costs: Vec<(Cost, ChargedPart)>) -> SettlementTask<()>;

    /// Sets the final cost of a part whose rule has the limit `current` now. Returns whether the rest was refunded.
    fn commit(
        self: Arc<Self>,
        part: ChargedPart,
        cost: Cost,
        current: Option<Limit>,
    ) -> SettlementTask<Result<bool, StoreError>>;

    /// Charges more to the counter of a part, even into debt.
    fn add(self: Arc<Self>, part: Arc<ChargedPart>, more: Cost) -> SettlementTask<()>;
}

impl<S: Store + 'static> ChargedStore for SharedStore<S> {
    fn refund(self: Arc<Self>, parts: Vec<ChargedPart>) {
        // If the store fails, the charge stays: it rejects too much, never too little. Tried before this thread charges the next
        // request: behind that one, a leaky bucket would give nothing back.
        if self.try_refund_request(&refunds(&parts), self.clock.now()).is_some() {
            return;
        }
        // Without a runtime the process is ending; the charge stays.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move { self.refund_request(&refunds(&parts), self.clock.now()).await });
    }

    fn settle(self: Arc<Self>, costs: Vec<(Cost, ChargedPart)>) -> SettlementTask<()> {
        Box::pin(async move {
            for (cost, part) in costs {
                let _ = match cost.cmp(&part.cost) {
                    Ordering::Less => {
                        self.refund_charge(&part.refunds(cost), self.clock.now()).await.map(drop)
                    }
                    Ordering::Equal => Ok(()),
                    Ordering::Greater => self.charge(&part, part.counter.limit(), part.missing(cost)).await,
                };
            }
        })
    }

    fn commit(
        self: Arc<Self>,
        part: ChargedPart,
        cost: Cost,
        current: Option<Limit>,
    ) -> SettlementTask<Result<bool, StoreError>> {
        Box::pin(async move {
            let limit = part.counter.limit();
            match cost.cmp(&part.cost) {
                Ordering::Less => self.refund_charge(&part.refunds(cost), self.clock.now()).await,
                Ordering::Equal => Ok(true),
                // Under the old limit, the counter would be moved back to it.
                Ordering::Greater => {
                    let limit = current.as_ref().unwrap_or(limit);
                    self.charge(&part, limit, part.missing(cost)).await.map(|()| true)
                }
            }
        })
    }

    fn add(self: Arc<Self>, part: Arc<ChargedPart>, more: Cost) -> SettlementTask<()> {
        Box::pin(async move {
            let _ = self.charge(&part, part.counter.limit(), more).await;
        })
    }
}

impl<S: Store> SharedStore<S> {
    /// Charges `more`, even into debt.
    async fn charge(&self, part: &ChargedPart, limit: &Limit, more: Cost) -> Result<(), StoreError> {
        let check = Check::new(part.counter.key(), limit).cost(more).role(Role::Overage);
        self.store.decide(&[check], self.clock.now()).await.map(drop)
    }
}

/// The refunds of everything that was charged.
fn refunds(parts: &[ChargedPart]) -> Vec<Refund<'_>> {
    parts.iter().filter(|part| part.cost != Cost::ZERO).map(ChargedPart::refund).collect()
}
