//! Pure rate-limiting decisions.
//!
//! This crate contains only arithmetic: no I/O, no clock, no async, no randomness. Time is an argument ([`Timestamp`]),
//! and every algorithm is data plus pure functions over integers. The same inputs therefore give the same result on
//! every machine and in the Lua version of each formula.
//!
//! ```
//! use tidegate_core::{Algorithm, Cost, Limit, TimeSpan, Spec, CounterState, Timestamp, Verdict};
//!
//! let spec = Spec { burst: Some(10), ..Spec::new(2, TimeSpan::from_secs(1)) };
//! let limit = Limit::new(Algorithm::TokenBucket, spec)?;
//! let mut state = CounterState::default();
//! let start = Timestamp::from_secs(1_700_000_000);
//!
//! let outcome = limit.step(&mut state, start, Cost::new(5));
//! assert_eq!(outcome.remaining, 5);
//!
//! // Half a second later one token has been refilled.
//! let later = start + TimeSpan::from_millis(500);
//! assert_eq!(limit.evaluate(&state, later, Cost::ZERO).remaining, 6);
//!
//! // A rejection is a value: "not until" differs from "never".
//! let rejected = limit.evaluate(&state, later, Cost::new(7));
//! assert_eq!(rejected.verdict, Verdict::NotUntil { retry_after: TimeSpan::from_millis(500) });
//! assert_eq!(limit.evaluate(&state, later, Cost::new(11)).verdict, Verdict::Never);
//! # Ok::<(), tidegate_core::LimitError>(())
//! ```
//!
//! Terms: a [`Limit`] is an algorithm with its parameters. A [`Check`] tests one [`CounterKey`] against a limit and gives
//! an [`Outcome`]. A [`Decision`] covers all checks of a request.

#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used,
    )
)]

extern crate alloc;
#[cfg(loom)]
extern crate std;

#[macro_use]
mod named_enum;

mod action;
mod bucket;
mod coordination;
mod decision;
mod delta;
mod fixed_window;
mod key;
mod leaky_bucket;
mod lending;
mod limit;
mod limit_share;
mod penalty;
mod release;
mod report;
mod resilience;
mod sliding_counter;
mod sliding_log;
mod time;
mod token_bucket;
mod units;
mod visible;
mod word;

pub use action::{ActionKind, ActionSet, Slowdown, SlowdownError};
pub use bucket::{Level, Rate};
pub use coordination::{Coordination, StoreFailureMode};
pub use decision::{
    ChargeOffset, Check, Decision, Ledger, Outcome, Outcomes, Refund, Refunds, Role, Verdict, decide, peek,
};
pub use delta::CounterDelta;
pub use fixed_window::{FixedWindow, WindowCount};
pub use key::{AsKey, CounterKey, OwnedKey, RuleId};
pub use leaky_bucket::LeakyBucket;
pub use lending::Borrow;
pub use limit::{
    Algorithm, AlgorithmKind, AlgorithmVisitor, Cost, CounterState, Limit, LimitError, RateAlgorithm, Spec,
    StepResult, UnknownAlgorithm, WORD_MAX,
};
pub use penalty::{Penalty, PenaltyError, PenaltyState};
pub use report::{DecisionKind, LimitReport, LimitUnit, RecordedDecision, RuleAction};
pub use resilience::adaptive_limit::{AdaptiveConfig, AdaptiveConfigError, AdaptiveLimit, Criticality};
pub use resilience::backoff::{Backoff, BackoffDelays, BackoffError, Jitter};
pub use resilience::breaker::{
    Breaker, BreakerConfig, BreakerConfigError, BreakerOpen, BreakerState, BreakerStatus, CallTicket,
    CallTiming, SlowCalls,
};
pub use resilience::call_outcome::{CallEnd, CallOutcome};
pub use resilience::call_window::{WindowLength, WindowProgress};
pub use resilience::ratio::Ratio;
pub use resilience::retry_budget::{RetryBudget, RetryGrant};
pub use sliding_counter::{SlidingCounter, TwoWindows};
pub use sliding_log::{AdmissionLog, SlidingLog};
pub use time::{Tick, TimeSpan, Timestamp};
pub use token_bucket::{TokenBucket, UnitCharge};
pub use units::{ByteSize, SIZE_UNITS, TIME_UNITS};
pub use visible::is_visible;

/// The examples of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
