//! Sets up the log and the traces that the policy configures.
//!
//! Process events are emitted with the macros of `tracing`; the field `event` contains the name of the event. The log that is
//! opened here writes them.

use std::io::{IsTerminal, stderr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use tidegate_core::Timestamp;
use tidegate_policy::{LogTarget, Plan, Problems};
use tidegate_store::Clock;
use tidegate_telemetry::{Destination, Log, LogFormat, LogSampling, Metrics, Telemetry, Tracer, details};

use super::source::{PolicyOrigin, PolicySource};
use crate::file::describe_write_error;

/// The log, the traces and the folder that log file names are relative to.
#[derive(Clone, Debug)]
pub(crate) struct Logging {
    log: Log,
    tracer: Tracer,
    folder: PathBuf,
}

impl Logging {
    /// Opens the log of `plan`. Must be called once per process. The log is text on a terminal and JSON otherwise.
    pub(crate) fn open(source: &PolicySource, plan: &Plan, clock: Arc<dyn Clock>) -> anyhow::Result<Self> {
        let folder = match &source.origin {
            PolicyOrigin::File(path) => path.parent().unwrap_or(Path::new("")).to_owned(),
            PolicyOrigin::CommandLine(_) | PolicyOrigin::Demo(_) => PathBuf::new(),
        };
        let is_terminal = plan.log.to == LogTarget::Stderr && stderr().is_terminal();
        let format = if is_terminal { LogFormat::Text } else { LogFormat::Json };
        let to = destination(&folder, &plan.log.to);
        let log = Log::open(&to, format, clock).map_err(|error| {
            anyhow!(
                "cannot write the log to {}: {}; check `log.to` in the policy",
                plan.log.to,
                describe_write_error(&error)
            )
        })?;
        log.install().context("cannot install the log")?;
        let logging = Self { log, tracer: Tracer::off(), folder };
        logging.configure(plan);
        Ok(logging)
    }

    /// Creates the telemetry of `cores` workers, starting at `now`.
    pub(crate) fn telemetry(&self, cores: usize, now: Timestamp) -> Telemetry {
        Telemetry::new(Metrics::new(cores, now), self.log.clone()).with_tracer(self.tracer.clone())
    }

    /// Applies a new plan. Reopens the log file even if its name is unchanged, because it may have been rotated.
    pub(crate) fn apply(&self, plan: &Plan) {
        if let Err(error) = self.log.reopen(&destination(&self.folder, &plan.log.to)) {
            let to = &plan.log.to;
            tracing::error!(
                event = "log_failed",
                "cannot write the log to {to}: {}; still writing to the previous destination",
                describe_write_error(&error)
            );
        }
        self.configure(plan);
    }

    /// Waits until all log entries are written, up to a timeout.
    pub(crate) fn flush(&self) {
        self.log.flush();
    }

    fn configure(&self, plan: &Plan) {
        self.log.set_sampling(LogSampling { access: plan.log.access, rejected: plan.log.rejected });
        if let Err(error) = self.tracer.configure(plan.traces.as_ref(), &self.log) {
            tracing::error!(event = "traces_failed", "cannot start trace export: {error}");
        }
    }
}

/// Logs the warnings of a valid policy.
pub(crate) fn log_warnings(warnings: &Problems) {
    let list: Vec<_> = warnings.into_iter().map(ToString::to_string).collect();
    if !list.is_empty() {
        tracing::warn!(event = "policy_warnings", details = details(&list), "policy loaded with warnings");
    }
}

fn destination(folder: &Path, to: &LogTarget) -> Destination {
    match to {
        LogTarget::Stderr => Destination::Stderr,
        LogTarget::Stdout => Destination::Stdout,
        LogTarget::File(name) => Destination::File(folder.join(name)),
    }
}
