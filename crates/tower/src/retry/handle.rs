//! The retry budget of one service, and the permits of its retries.

use std::sync::Arc;

use tidegate_core::{RetryBudget, RetryGrant};
use tidegate_store::Clock;

use crate::clock::system_clock;

/// The retry budget of one service. Clones share it.
#[derive(Clone, Debug)]
pub struct SharedRetryBudget {
    shared: Arc<BudgetWithClock>,
}

#[derive(Debug)]
struct BudgetWithClock {
    budget: RetryBudget,
    clock: Arc<dyn Clock>,
}

impl SharedRetryBudget {
    /// A budget that uses the [system clock](system_clock).
    pub fn new(budget: RetryBudget) -> Self {
        Self::with_clock(budget, system_clock())
    }

    /// A budget that uses `clock`.
    pub fn with_clock(budget: RetryBudget, clock: Arc<dyn Clock>) -> Self {
        Self { shared: Arc::new(BudgetWithClock { budget, clock }) }
    }

    /// Counts a request: once, whatever the number of its attempts.
    pub fn record_request(&self) {
        self.shared.budget.record_request(self.shared.clock.now());
    }

    /// Allows one retry, if the budget has one left.
    pub fn try_withdraw(&self) -> Option<RetryPermit> {
        let grant = self.shared.budget.try_withdraw(self.shared.clock.now())?;
        Some(RetryPermit { shared: Arc::clone(&self.shared), grant: Some(grant) })
    }

    /// The retries that are allowed now.
    pub fn remaining(&self) -> u64 {
        self.shared.budget.remaining(self.shared.clock.now())
    }

    /// The share and the minimum of the budget.
    pub fn budget(&self) -> &RetryBudget {
        &self.shared.budget
    }

    pub(super) fn clock(&self) -> &dyn Clock {
        &*self.shared.clock
    }
}

impl Default for SharedRetryBudget {
    fn default() -> Self {
        Self::new(RetryBudget::default())
    }
}

/// A retry that the budget allows. Dropping it before the retry is sent returns it to the budget.
#[derive(Debug)]
#[must_use = "a dropped permit is returned to the budget"]
pub struct RetryPermit {
    shared: Arc<BudgetWithClock>,
    /// `None` once the retry is sent.
    grant: Option<RetryGrant>,
}

impl RetryPermit {
    /// The retry is sent now: it stays withdrawn.
    pub fn spend(mut self) {
        self.grant = None;
    }
}

impl Drop for RetryPermit {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            self.shared.budget.refund(grant);
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Ratio, Timestamp};
    use tidegate_store::ManualClock;

    use super::*;

    fn budget(min_per_second: u32) -> SharedRetryBudget {
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
        SharedRetryBudget::with_clock(RetryBudget::new(Ratio::from_percent(10), min_per_second), clock)
    }

    #[test]
    fn retry_budget_permit_that_is_spent_stays_withdrawn() {
        let budget = budget(2);
        budget.try_withdraw().unwrap().spend();
        budget.try_withdraw().unwrap().spend();
        assert!(budget.try_withdraw().is_none());
        for _ in 0..10 {
            budget.record_request();
        }
        assert_eq!(budget.remaining(), 1);
    }

    #[test]
    fn retry_budget_permit_that_is_dropped_is_returned() {
        let budget = budget(1);
        for _ in 0..10 {
            drop(budget.try_withdraw().unwrap());
        }
        let held = budget.try_withdraw().unwrap();
        assert!(budget.try_withdraw().is_none());
        drop(held);
        assert_eq!(budget.remaining(), 1);
    }
}
