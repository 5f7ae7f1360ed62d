//! What operators see: metrics, logs, traces.
//!
//! Whoever serves requests fills a story while it does, and tells it once. No trait of observers stands between: there
//! is one of each.

#![forbid(unsafe_code)]

mod log;
mod metrics;
mod story;
mod trace;

pub use log::{Destination, Form, Lines, Log, Seen, Which, details};
pub use metrics::{Decided, Family, Kind, Meter, Metrics, Page, Reader, RuleSlots, Try, UpstreamCounts};
pub use story::{Story, Telemetry, Teller, Trial};
pub use trace::{Context, Tracer};
