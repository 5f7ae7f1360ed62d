//! The part of a decision that a response needs.

use tidegate_core::{Decision, Outcome, Role, Timestamp, Verdict};

/// What is kept of a decision. The decision itself has room for four outcomes, and every move of a future copies all of it.
pub(super) enum KeptDecision {
    /// The outcome of the only limit.
    One { at: Timestamp, outcome: Outcome },
    /// The decision about more than one limit.
    Several(Box<Decision>),
}

impl KeptDecision {
    pub(super) fn new(decision: Decision) -> Self {
        match &*decision.outcomes {
            [outcome] => Self::One { at: decision.at, outcome: *outcome },
            _ => Self::Several(Box::new(decision)),
        }
    }

    #[inline]
    pub(super) fn verdict(&self) -> Verdict {
        match self {
            Self::One { outcome, .. } => outcome.verdict,
            Self::Several(decision) => decision.verdict,
        }
    }

    /// Calls `function` with the decision.
    pub(super) fn with<T>(&self, function: impl FnOnce(&Decision) -> T) -> T {
        match self {
            Self::One { at, outcome } => function(&Decision::of_one(*at, Role::Binding, *outcome)),
            Self::Several(decision) => function(decision),
        }
    }
}
