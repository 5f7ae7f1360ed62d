//! What operators see: metrics, logs, traces.
//!
//! Whoever serves requests fills a story while it does, and tells it once. No trait of observers stands between: there
//! is one of each.

#![forbid(unsafe_code)]

mod metrics;

pub use metrics::{Decided, Kind, Meter, Metrics, Page, Reader, RuleSlots, Try, UpstreamCounts};
