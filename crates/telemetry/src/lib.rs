//! What operators see: metrics, logs, traces.
//!
//! Whoever serves requests fills a record while it does, and tells it once. No trait of observers stands between: there
//! is one of each.

#![forbid(unsafe_code)]

mod log;
mod metrics;
mod record;
mod trace;

pub use log::{Destination, Lines, Log, LogFormat, LogSampling, RequestSummary, details};
pub use metrics::{
    AttemptResult, DecisionKind, Exposition, Family, MetricKind, Metrics, MetricsHandle, MetricsReader,
    RuleSlots, UpstreamCounts,
};
pub use record::{Attempt, Recorder, RequestRecord, Telemetry};
pub use trace::{TraceContext, Tracer};
