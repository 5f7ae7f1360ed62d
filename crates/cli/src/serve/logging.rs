//! The log and the traces that the policy asks for.
//!
//! Events of the process are emitted with the macros of `tracing`, with a field `event` for the name; the log that is opened
//! here writes them.

use std::io::{IsTerminal, stderr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use tidegate_core::Timestamp;
use tidegate_policy::{LogTarget, Plan, Problems};
use tidegate_store::Clock;
use tidegate_telemetry::{Destination, Log, LogFormat, LogSampling, Metrics, Telemetry, Tracer, details};

use super::source::Source;

/// The log, the traces, and where the files it may go to are looked for.
#[derive(Clone, Debug)]
pub(crate) struct Logging {
    log: Log,
    tracer: Tracer,
    folder: PathBuf,
}

impl Logging {
    /// Opens the log that `plan` asks for, once in a process. Somebody who sits at a terminal reads sentences, everybody
    /// else JSON.
    pub(crate) fn open(source: &Source, plan: &Plan, clock: Arc<dyn Clock>) -> anyhow::Result<Self> {
        let folder = match source {
            Source::File(path) => path.parent().unwrap_or(Path::new("")).to_owned(),
            Source::Line(_) | Source::Demo(_) => PathBuf::new(),
        };
        let is_read_live = plan.log.to == LogTarget::Stderr && stderr().is_terminal();
        let form = if is_read_live { LogFormat::Text } else { LogFormat::Json };
        let to = destination(&folder, &plan.log.to);
        let log = Log::open(&to, form, clock).with_context(|| {
            format!("cannot write the log to {} (see `log.to` in the policy)", plan.log.to)
        })?;
        log.install().context("cannot install the log")?;
        let logging = Self { log, tracer: Tracer::off(), folder };
        logging.choose(plan);
        Ok(logging)
    }

    /// Tells of what so many cores do from `now` on.
    pub(crate) fn telemetry(&self, cores: usize, now: Timestamp) -> Telemetry {
        Telemetry::new(Metrics::new(cores, now), self.log.clone()).with_tracer(self.tracer.clone())
    }

    /// Follows another plan. The file is opened anew even if it is the same: the old one may have been moved away.
    pub(crate) fn follow(&self, plan: &Plan) {
        if let Err(error) = self.log.reopen(&destination(&self.folder, &plan.log.to)) {
            let to = &plan.log.to;
            tracing::error!(
                event = "log_failed",
                "cannot write the log to {to}, the old place is kept: {error}"
            );
        }
        self.choose(plan);
    }

    /// Waits until everything is written, but not for ever.
    pub(crate) fn flush(&self) {
        self.log.flush();
    }

    fn choose(&self, plan: &Plan) {
        self.log.set_sampling(LogSampling { access: plan.log.access, rejected: plan.log.rejected });
        if let Err(error) = self.tracer.configure(plan.traces.as_ref(), &self.log) {
            tracing::error!(event = "traces_failed", "cannot start to trace: {error}");
        }
    }
}

/// Logs what is doubtful about a good policy.
pub(crate) fn log_warnings(warnings: &Problems) {
    let list: Vec<_> = warnings.into_iter().map(ToString::to_string).collect();
    if !list.is_empty() {
        tracing::warn!(
            event = "policy_doubtful",
            details = details(&list),
            "the policy is good, but hardly meant so"
        );
    }
}

fn destination(folder: &Path, to: &LogTarget) -> Destination {
    match to {
        LogTarget::Stderr => Destination::Stderr,
        LogTarget::Stdout => Destination::Stdout,
        LogTarget::File(name) => Destination::File(folder.join(name)),
    }
}
