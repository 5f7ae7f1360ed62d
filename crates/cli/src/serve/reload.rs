//! What happens while the gateway runs: its policy changes, or it is told to stop.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tidegate_admin::{ReloadError, ReloadReport};
use tidegate_core::Timestamp;
use tidegate_gateway::Gateway;
use tidegate_policy::diff;
use tidegate_store::Clock;
use tidegate_telemetry::details;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::admin::ReloadRequest;
use super::certificates::Certificates;
use super::file_watcher::{FileStamp, FileWatcher};
use super::logging::{Logging, log_warnings};
use super::source::{LoadError, Loaded, Source};
use super::store::SelectedStore;

/// How often the log warns of certificates that expire.
const EXPIRY_CHECK: Duration = Duration::from_hours(24);

/// Signals and changes of files, none missed from here on.
pub(crate) struct Events {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    watched: FileWatcher,
    logging: Logging,
    clock: Arc<dyn Clock>,
    /// Who wants the policy read again.
    reloads: mpsc::Receiver<ReloadRequest>,
    /// Says that another process has taken over.
    pub(crate) successor: Option<mpsc::UnboundedReceiver<()>>,
}

/// Why the gateway stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// A signal said so.
    Told,
    /// Another process serves in its place.
    TakenOver,
}

impl Events {
    /// Needs a runtime.
    pub(crate) fn new(
        files: Vec<FileStamp>,
        logging: Logging,
        reloads: mpsc::Receiver<ReloadRequest>,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
            hangup: signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?,
            watched: FileWatcher::new(files)?,
            logging,
            clock,
            reloads,
            successor: None,
        })
    }

    /// Reloads the policy and certificates whenever they change, until a signal or a successor says to stop.
    pub(crate) async fn until_stopped(
        mut self,
        gateway: &Gateway<SelectedStore>,
        source: &Source,
        certificates: &Certificates,
    ) -> anyhow::Result<End> {
        // The first check is now.
        let mut expiry_check = tokio::time::interval(EXPIRY_CHECK);
        loop {
            let taken_over = async {
                match &mut self.successor {
                    Some(successor) => successor.recv().await,
                    None => std::future::pending().await,
                }
            };
            let asked = tokio::select! {
                _ = self.terminate.recv() => return Ok(End::Told),
                _ = self.interrupt.recv() => return Ok(End::Told),
                _ = taken_over => return Ok(End::TakenOver),
                _ = self.hangup.recv() => None,
                () = self.watched.changed() => None,
                Some(asked) = self.reloads.recv() => Some(asked),
                _ = expiry_check.tick() => {
                    certificates.warn(self.clock.now());
                    continue;
                }
            };
            let (outcome, files) = source.load();
            let outcome = put_in_force(gateway, certificates, outcome, &self.logging, self.clock.now());
            // What a bad policy names is watched too: it may be all that is missing.
            if outcome.is_ok() {
                self.watched.watch(files);
            } else {
                self.watched.watch_also(files);
            }
            if let Some(asked) = asked {
                // Whoever asked may have left.
                let _ = asked.send(outcome);
            }
        }
    }
}

/// Puts a policy in force if it is good, and says what is different. A bad one changes nothing.
fn put_in_force(
    gateway: &Gateway<SelectedStore>,
    certificates: &Certificates,
    outcome: Result<Loaded, LoadError>,
    logging: &Logging,
    now: Timestamp,
) -> Result<ReloadReport, ReloadError> {
    let refuse = |message: &str, reason: String| {
        let details = details(std::slice::from_ref(&reason));
        tracing::error!(event = "reload_failed", details, "{message}");
        Err(ReloadError { reason })
    };
    let Loaded { active, warnings } = match outcome {
        Ok(loaded) => loaded,
        Err(error) => {
            let message = "the policy has changed and is not good; the old one stays in force";
            return refuse(message, error.to_string());
        }
    };
    let listeners = match certificates.prepare(active.matcher.plan()) {
        Ok(listeners) => listeners,
        Err(error) => {
            let message = "the certificates cannot be used; the old ones and the old policy stay in force";
            return refuse(message, error.to_string());
        }
    };
    log_warnings(&warnings);
    let before = gateway.limiter().policy();
    let (old, new) = (before.matcher.plan(), Arc::clone(active.matcher.plan()));
    let mut changes: Vec<_> = diff(old, &new).iter().map(ToString::to_string).collect();
    if let Err(error) = gateway.replace(active) {
        let message = "the policy has changed and cannot be served; the old one stays in force";
        return refuse(message, error.to_string());
    }
    logging.follow(&new);
    changes.extend(certificates.replace(listeners));
    let count = changes.len();
    if certificates.needs_restart(&new) {
        changes.push("the addresses of `listen` stay as they are until the next start".to_owned());
    }
    if old.store != new.store || old.admin != new.admin {
        changes.push("`store` and `admin` stay as they are until the next start".to_owned());
    }
    let plural = if count == 1 { "" } else { "s" };
    tracing::info!(
        event = "reloaded",
        details = details(&changes),
        "policy reloaded, {count} change{plural}"
    );
    let mut warnings = warnings.to_string();
    for message in certificates.warn(now) {
        warnings.push_str(&message);
        warnings.push('\n');
    }
    Ok(ReloadReport { changes, warnings })
}
