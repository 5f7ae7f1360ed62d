//! The part of a decision that a response needs.

use smallvec::smallvec;
use tidegate_core::{Decision, Outcome, Timestamp, Verdict};

/// What is kept of a decision. The decision itself has room for four outcomes, and every move of a future copies all of it.
pub(super) enum KeptDecision {
    /// The outcome of the only limit.
    One { at: Timestamp, outcome: Outcome },
    /// The decision about more than one limit.
    Several(Box<Decision>),
}

impl KeptDecision {
    #[expect(clippy::inline_always, reason = "the decision is not built if only its outcome is read")]
    #[inline(always)]
    pub(super) fn new(decision: Decision) -> Self {
        match &*decision.outcomes {
            [outcome] => Self::One { at: decision.at, outcome: *outcome },
            _ => Self::Several(Box::new(decision)),
        }
    }

    pub(super) fn at(&self) -> Timestamp {
        match self {
            Self::One { at, .. } => *at,
            Self::Several(decision) => decision.at,
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
            Self::One { at, outcome } => function(&Decision {
                at: *at,
                verdict: outcome.verdict,
                rejected_by: (!outcome.verdict.is_pass()).then_some(0),
                outcomes: smallvec![*outcome],
            }),
            Self::Several(decision) => function(decision),
        }
    }
}
