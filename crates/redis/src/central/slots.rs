//! Decisions over several hash slots.

use tidegate_core::{Check, Cost, Decision, Outcome, Outcomes, Role, TimeSpan, Timestamp, Verdict};
use tidegate_store::StoreError;

use crate::operation::{AttemptId, CounterCheck, Operation};

/// A decision over several hash slots, of which some may have failed.
#[derive(Debug)]
pub(crate) struct SlotDecision {
    /// The positions of the checks that were decided.
    pub(crate) positions: Vec<usize>,
    /// The decision over these checks.
    pub(crate) decision: Decision,
    /// The checks that were not decided.
    pub(crate) failure: Option<SlotFailure>,
}

/// The checks of the slots that failed.
#[derive(Debug)]
pub(crate) struct SlotFailure {
    pub(crate) positions: Vec<usize>,
    pub(crate) error: StoreError,
}

impl SlotDecision {
    pub(super) fn new(checks: &[Check<'_>], groups: Vec<SlotGroup>, now: Timestamp) -> Self {
        let (decided, failed): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| group.outcomes().is_some());
        let mut positions: Vec<usize> = decided.iter().flat_map(|group| &group.positions).copied().collect();
        positions.sort_unstable();
        let of_decided: Vec<Check<'_>> =
            positions.iter().filter_map(|place| checks.get(*place)).copied().collect();
        let decision = merge(&of_decided, &decided, now);
        let mut failure: Option<SlotFailure> = None;
        for SlotGroup { positions, reply, .. } in failed {
            match (reply, &mut failure) {
                (_, Some(failure)) => failure.positions.extend(positions),
                (Some(Err(error)), none) => *none = Some(SlotFailure { positions, error }),
                (_, None) => {}
            }
        }
        Self { positions, decision, failure }
    }

    /// All slots failed.
    pub(super) fn failed(checks: &[Check<'_>], error: StoreError, now: Timestamp) -> Self {
        let failure = SlotFailure { positions: (0..checks.len()).collect(), error };
        Self { positions: Vec::new(), decision: Decision::of_none(now), failure: Some(failure) }
    }
}

/// The rejection by the checks at `positions`, if nothing is known about the others.
pub(super) fn rejection(checks: &[Check<'_>], positions: &[usize], decision: &Decision) -> Decision {
    let unknown = |check: &Check<'_>| {
        let limit = check.limit.capacity();
        Outcome::new(Verdict::PASS, limit, limit, TimeSpan::ZERO)
    };
    let mut outcomes: Outcomes = checks.iter().map(unknown).collect();
    for (position, outcome) in positions.iter().zip(&decision.outcomes) {
        if let Some(place) = outcomes.get_mut(*position) {
            *place = *outcome;
        }
    }
    Decision::new(decision.at, checks, outcomes)
}

/// The checks of one hash slot.
#[derive(Debug)]
pub(super) struct SlotGroup {
    /// Their positions in the decision.
    pub(super) positions: Vec<usize>,
    pub(super) checks: Vec<CounterCheck>,
    pub(super) reply: Option<Result<(Timestamp, Outcomes), StoreError>>,
}

impl SlotGroup {
    pub(super) fn all(checks: Vec<CounterCheck>) -> Self {
        Self { positions: (0..checks.len()).collect(), checks, reply: None }
    }

    pub(super) fn split(checks: Vec<CounterCheck>) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for (position, check) in checks.into_iter().enumerate() {
            let slot = check.key.slot();
            let same = |group: &&mut Self| group.checks.first().is_some_and(|first| first.key.slot() == slot);
            match groups.iter_mut().find(same) {
                Some(group) => {
                    group.positions.push(position);
                    group.checks.push(check);
                }
                None => groups.push(Self { positions: vec![position], checks: vec![check], reply: None }),
            }
        }
        groups
    }

    /// The time and the outcomes, if the slot has decided.
    fn outcomes(&self) -> Option<&(Timestamp, Outcomes)> {
        self.reply.as_ref().and_then(|reply| reply.as_ref().ok())
    }

    /// Whether a binding check does not fit.
    pub(super) fn rejects(&self) -> bool {
        self.outcomes().is_some_and(|(_, outcomes)| {
            let mut pairs = self.checks.iter().zip(outcomes);
            pairs.any(|(check, outcome)| check.role == Role::Binding && !outcome.verdict.is_pass())
        })
    }

    /// What takes back the charge of an attempt; `None` if it has charged nothing.
    pub(super) fn cancellation(&self, attempt: AttemptId) -> Option<Operation> {
        let (charged, outcomes) = self.outcomes().filter(|_| !self.rejects())?;
        let charged_cost = |(check, outcome): (&CounterCheck, &Outcome)| {
            let is_charged = outcome.verdict.is_pass() || check.role == Role::Overage;
            CounterCheck { cost: if is_charged { check.cost } else { Cost::ZERO }, ..check.clone() }
        };
        let checks = self.checks.iter().zip(outcomes).map(charged_cost).collect();
        Some(Operation::Cancel { checks, charged: *charged, attempt })
    }
}

/// Puts the outcomes of the slots that have decided in the order of their positions. Each check keeps the time of its own
/// server.
pub(super) fn merge(checks: &[Check<'_>], groups: &[SlotGroup], now: Timestamp) -> Decision {
    let mut placed: Vec<(usize, Timestamp, Outcome)> = Vec::with_capacity(checks.len());
    for group in groups {
        let Some((charged, outcomes)) = group.outcomes() else { continue };
        placed.extend(
            group.positions.iter().zip(outcomes).map(|(place, outcome)| (*place, *charged, *outcome)),
        );
    }
    placed.sort_unstable_by_key(|(position, ..)| *position);
    let at = placed.iter().map(|(_, charged, _)| *charged).max().unwrap_or(now);
    let outcomes = placed.iter().map(|(.., outcome)| *outcome).collect();
    Decision::new(at, checks, outcomes).with_charge_times(placed.iter().map(|(_, charged, _)| Some(*charged)))
}
