//! The laws of the algorithms and of the decision, stated as properties over random limits and traces.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests speak through their names and fail by panicking")]

mod bounds;
mod decisions;
mod deltas;
mod examples;
mod generate;
mod model;
mod penalties;
mod refunds;
mod resilience;
mod shares;
mod verdicts;
