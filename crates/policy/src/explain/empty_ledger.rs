//! A ledger of unused counters.

use tidegate_core::{Check, Cost, CounterState, Decision, Ledger, Outcome, Timestamp};

/// Decides `checks` with unused counters.
pub(super) fn decide(checks: &[Check<'_>], now: Timestamp) -> Decision {
    let mut ledger = EmptyLedger { checks, now, states: vec![CounterState::default(); checks.len()] };
    tidegate_core::decide(checks, now, &mut ledger)
}

struct EmptyLedger<'a> {
    checks: &'a [Check<'a>],
    now: Timestamp,
    states: Vec<CounterState>,
}

impl Ledger for EmptyLedger<'_> {
    fn evaluate(&self, check: usize, cost: Cost) -> Outcome {
        self.checks[check].limit.evaluate(&self.states[check], self.now, cost)
    }

    fn charge(&mut self, check: usize, cost: Cost) {
        self.checks[check].limit.charge(&mut self.states[check], self.now, cost);
    }
}
