//! Metrics, logs and traces.
//!
//! The gateway fills a [`RequestRecord`] while it serves a request. Dropping the record writes the metrics, the log line
//! and the trace. A [`DecisionSink`] records the decision of any interface. Commands of the Redis protocol are counted in batches; a [`CommandLog`] writes their lines and traces. There is only one implementation of each, so there is no observer trait.

#![forbid(unsafe_code)]

mod command;
mod decision;
mod log;
mod metrics;
mod record;
mod trace;

pub use command::{CommandClient, CommandFailure, CommandLog, CommandRecord};
pub use decision::DecisionSink;
pub use log::{Destination, Log, LogFormat, LogReceiver, LogSampling, RequestSummary, details};
pub use metrics::{
    AttemptResult, Exposition, Family, Metrics, MetricsHandle, MetricsReader, Protocol, RuleSlots,
    UpstreamCounts,
};
pub use record::{Attempt, Recorder, RequestRecord, Telemetry};
pub use tidegate_core::DecisionKind;
pub use trace::{TraceContext, Tracer};
