//! The suite that every store must pass.
//!
//! It replays random traces (several limits and clients, costs, roles, batches, refunds, resets, overrides, changed limits,
//! time that jumps and goes back) on the store and on an oracle, which is the core over a plain map, and requires equal
//! decisions, field by field. Half of the operations are tried without a wait first. A failure prints the seed, the step and both
//! decisions; the same seed replays the same trace.
//!
//! ```
//! use tidegate_core::Algorithm;
//! use tidegate_store::{MemoryStore, conformance::Suite};
//!
//! let suite = Suite { algorithms: Algorithm::ALL, seed: 1, traces: 2, steps: 100 };
//! pollster::block_on(suite.run(&MemoryStore::with_cap(1 << 20)));
//! ```

mod contention;
pub(crate) mod oracle;
mod oracle_entry;
mod trace;
mod try_first;

use std::fmt;

use tidegate_core::{Algorithm, Decision, Verdict};

use crate::store::{Store, StoreError};
pub use contention::assert_two_threads_admit_exactly_the_limit;
use oracle::Oracle;
use trace::{Op, Trace};
use try_first::TryFirst;

/// The traces to replay.
#[derive(Clone, Copy, Debug)]
pub struct Suite {
    /// The algorithms that the store supports.
    pub algorithms: &'static [Algorithm],
    /// The random seed; the same seed replays the same traces.
    pub seed: u64,
    /// The number of traces, each with its own clients.
    pub traces: u64,
    /// The number of operations per trace.
    pub steps: usize,
}

/// What the traces covered, to detect a suite that tests nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Decisions compared.
    pub decisions: u64,
    /// Decisions that admitted.
    pub passed: u64,
    /// Decisions that rejected with a retry time.
    pub not_until: u64,
    /// Decisions that rejected for ever.
    pub never: u64,
    /// Peeks compared.
    pub peeks: u64,
    /// Decisions refunded.
    pub refunds: u64,
    /// Keys reset.
    pub resets: u64,
    /// Overrides started or ended.
    pub overrides: u64,
    /// Limits changed.
    pub changed_limits: u64,
    /// Operations tried without a wait.
    pub tried: u64,
    /// Those of them that had to be awaited.
    pub awaited: u64,
}

impl Suite {
    /// Replays every trace.
    ///
    /// # Panics
    /// If the store differs from the oracle in any field, if it fails, or if an operation was never covered.
    pub async fn run(&self, store: &impl Store) -> Coverage {
        let (mut coverage, mut store) = (Coverage::default(), TryFirst::new(store));
        for number in 0..self.traces {
            let seed = self.seed.wrapping_add(number);
            let mut trace = Trace::new(self.algorithms, seed);
            let mut oracle = Oracle::default();
            for step in 0..self.steps {
                let op = trace.next_op();
                let step = TraceStep { seed, step, op: &op };
                compare(&step, &mut store, &mut oracle, &mut trace, &mut coverage).await;
            }
        }
        (coverage.tried, coverage.awaited) = (store.tried, store.awaited);
        let Coverage {
            decisions: _,
            passed,
            not_until,
            never,
            peeks,
            refunds,
            resets,
            overrides,
            changed_limits,
            tried,
            awaited: _,
        } = coverage;
        let everything = [passed, not_until, never, peeks, refunds, resets, overrides, changed_limits, tried];
        assert!(!everything.contains(&0), "too few steps to cover every operation: {coverage:?}");
        coverage
    }
}

struct TraceStep<'a> {
    seed: u64,
    step: usize,
    op: &'a Op,
}

impl fmt::Display for TraceStep<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, step {}: {:?}", self.seed, self.step, self.op)
    }
}

impl TraceStep<'_> {
    fn unwrap<T>(&self, answer: Result<T, StoreError>) -> T {
        answer.unwrap_or_else(|error| panic!("{self}\nthe store failed: {error:?}"))
    }

    fn assert_equal(&self, expected: &Decision, got: &Decision) {
        assert_eq!(got, expected, "{self}\nleft: the store; right: the oracle");
    }
}

async fn compare(
    step: &TraceStep<'_>,
    store: &mut TryFirst<'_, impl Store>,
    oracle: &mut Oracle,
    trace: &mut Trace,
    coverage: &mut Coverage,
) {
    let now = trace.now();
    match step.op {
        Op::Decide(specs) => {
            let checks = trace.checks(specs);
            let expected = oracle.decide(&checks, now);
            let got = step.unwrap(store.decide(&checks, now).await);
            step.assert_equal(&expected, &got);
            coverage.count(&expected);
            trace.remember(specs.clone(), expected);
        }
        Op::Batch(specs) => {
            let checks: Vec<_> = specs.iter().map(|specs| trace.checks(specs)).collect();
            let batch: Vec<_> = checks.iter().map(Vec::as_slice).collect();
            let decisions = step.unwrap(store.decide_batch(&batch, now).await);
            assert_eq!(decisions.len(), batch.len(), "{step}\none decision per request");
            for (checks, decision) in batch.iter().zip(&decisions) {
                let expected = oracle.decide(checks, now);
                step.assert_equal(&expected, decision);
                coverage.count(&expected);
            }
        }
        Op::Peek(specs) => {
            let checks = trace.checks(specs);
            let expected = oracle.peek(&checks, now);
            step.assert_equal(&expected, &step.unwrap(store.peek(&checks, now).await));
            coverage.peeks += 1;
        }
        Op::Refund(charged) => {
            let checks = trace.checks_under(&charged.specs, &charged.limits);
            let refunds = charged.decision.refunds(&checks);
            let expected = oracle.refund(&refunds, now);
            let got = step.unwrap(store.refund(&refunds, now).await);
            assert_eq!(got, expected, "{step}\nwhether the counters contained any of the refund");
            coverage.refunds += 1;
        }
        Op::Reset(key) => {
            let key = trace.key(*key);
            oracle.reset(key);
            step.unwrap(store.store.reset(key).await);
            coverage.resets += 1;
        }
        Op::Override(key, replacement) => {
            let key = trace.key(*key);
            oracle.override_limit(key, *replacement, now);
            step.unwrap(store.store.override_limit(key, *replacement, now).await);
            coverage.overrides += 1;
        }
        Op::ChangeLimit(rule, limit) => {
            trace.change(*rule, *limit);
            coverage.changed_limits += 1;
        }
    }
}

impl Coverage {
    fn count(&mut self, decision: &Decision) {
        self.decisions += 1;
        match decision.verdict {
            Verdict::Pass { .. } => self.passed += 1,
            Verdict::NotUntil { .. } => self.not_until += 1,
            Verdict::Never => self.never += 1,
        }
    }
}
