//! Handles the events of a running gateway: reloads and stops.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tidegate_admin::{ReloadError, ReloadReport};
use tidegate_core::Timestamp;
use tidegate_gateway::Gateway;
use tidegate_policy::{Problems, diff};
use tidegate_service::Service;
use tidegate_store::Clock;
use tidegate_telemetry::details;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::admin::ReloadRequest;
use super::certificates::Certificates;
use super::envoy_config::{EnvoyConfig, relevant_warnings};
use super::file_watcher::{FileStamp, FileWatcher};
use super::listeners::ListenerConfigError;
use super::logging::{Logging, log_warnings};
use super::restart_notes::restart_notes;
use super::source::{LoadError, LoadedPolicy, PolicySource};
use super::store::SelectedStore;

/// How often expiring certificates are logged.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_hours(24);

/// Signals, file changes and reload requests. None is missed after this value is created.
pub(crate) struct ServeEvents {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    file_watcher: FileWatcher,
    logging: Logging,
    clock: Arc<dyn Clock>,
    /// Reload requests of the admin API.
    reloads: mpsc::Receiver<ReloadRequest>,
    /// Receives a message when another process has taken over.
    pub(crate) successor: Option<mpsc::UnboundedReceiver<()>>,
}

/// Why the gateway stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// SIGTERM or SIGINT.
    Signal,
    /// Another process has taken over.
    TakenOver,
}

impl ServeEvents {
    /// Starts to listen for events. Must be called in a Tokio runtime.
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
            file_watcher: FileWatcher::new(files)?,
            logging,
            clock,
            reloads,
            successor: None,
        })
    }

    /// Reloads the policy and certificates when they change, until the gateway must stop.
    pub(crate) async fn run_until_stopped(
        mut self,
        gateway: &Gateway<SelectedStore>,
        source: &PolicySource,
        certificates: &Certificates,
        envoy: Option<(&EnvoyConfig, &Service<SelectedStore>)>,
    ) -> anyhow::Result<StopReason> {
        // The first tick is immediate.
        let mut expiry_check = tokio::time::interval(EXPIRY_CHECK_INTERVAL);
        loop {
            let taken_over = async {
                match &mut self.successor {
                    Some(successor) => successor.recv().await,
                    None => std::future::pending().await,
                }
            };
            let reply_to = tokio::select! {
                _ = self.terminate.recv() => return Ok(StopReason::Signal),
                _ = self.interrupt.recv() => return Ok(StopReason::Signal),
                _ = taken_over => return Ok(StopReason::TakenOver),
                _ = self.hangup.recv() => None,
                () = self.file_watcher.changed() => None,
                Some(reply_to) = self.reloads.recv() => Some(reply_to),
                _ = expiry_check.tick() => {
                    certificates.warn(self.clock.now());
                    continue;
                }
            };
            let (loaded, mut files) = source.load();
            let loaded = loaded.map(|policy| LoadedPolicy {
                warnings: relevant_warnings(envoy.is_some(), policy.warnings),
                ..policy
            });
            let limits = envoy.map(|(config, service)| {
                let (limits, more) = config.load();
                files.extend(more);
                limits.map(|limits| (config, service, limits))
            });
            // Both are valid, or nothing changes.
            let outcome = match limits.transpose() {
                Err(reason) => Err(ReloadError { reason }),
                Ok(limits) => activate(gateway, certificates, loaded, &self.logging, self.clock.now())
                    .and_then(|report| {
                        limits
                            .map_or(Ok(()), |(config, service, limits)| config.activate(service, limits))
                            .map_err(|reason| ReloadError { reason })?;
                        Ok(report)
                    }),
            };
            // The files of an invalid policy are watched too: a missing one may be the only problem.
            if outcome.is_ok() {
                self.file_watcher.watch(files);
            } else {
                self.file_watcher.watch_also(files);
            }
            if let Some(reply_to) = reply_to {
                // The sender of the request may have disconnected.
                let _ = reply_to.send(outcome);
            }
        }
    }
}

/// Logs that a reload failed, with all its problems.
fn reject<T>(message: &str, problems: &[String]) -> Result<T, ReloadError> {
    tracing::error!(event = "reload_failed", details = details(problems), "reload failed: {message}");
    Err(ReloadError { reason: problems.join("\n\n") })
}

pub(crate) fn problem_texts(problems: &Problems) -> Vec<String> {
    problems.iter().map(|problem| problem.to_string().trim_end().to_owned()).collect()
}

/// Activates a policy and logs what has changed. An invalid policy changes nothing.
fn activate(
    gateway: &Gateway<SelectedStore>,
    certificates: &Certificates,
    outcome: Result<LoadedPolicy, LoadError>,
    logging: &Logging,
    now: Timestamp,
) -> Result<ReloadReport, ReloadError> {
    let LoadedPolicy { active, warnings } = match outcome {
        Ok(loaded) => loaded,
        Err(LoadError::Problems(problems)) => {
            return reject("invalid policy; the running policy stays active", &problem_texts(&problems));
        }
        Err(error) => {
            return reject("cannot load the policy; the running policy stays active", &[error.to_string()]);
        }
    };
    let listeners = match certificates.prepare(active.matcher.plan()) {
        Ok(listeners) => listeners,
        Err(error) => {
            let texts = match &error {
                ListenerConfigError::InvalidCertificates(problems) => problem_texts(problems),
                ListenerConfigError::SeveralCertificates { .. } => vec![error.to_string()],
            };
            return reject("invalid certificates; the running policy and certificates stay active", &texts);
        }
    };
    log_warnings(&warnings);
    let before = gateway.limiter().policy();
    let (old, new) = (before.matcher.plan(), Arc::clone(active.matcher.plan()));
    let mut changes: Vec<_> = diff(old, &new).iter().map(ToString::to_string).collect();
    if let Err(error) = gateway.replace(active) {
        let message = "the policy cannot be activated; the running policy stays active";
        return reject(message, &[error.to_string()]);
    }
    logging.apply(&new);
    changes.extend(certificates.replace(listeners));
    let count = changes.len();
    let started = (certificates.service_at_start(), certificates.needs_restart(&new));
    changes.extend(restart_notes(started, old, &new));
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
