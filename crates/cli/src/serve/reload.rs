//! Handles the events of a running gateway: reloads and stops.

use std::sync::Arc;
use std::time::Duration;

use tidegate_admin::{ReloadError, ReloadReport};
use tidegate_core::Timestamp;
use tidegate_gateway::Gateway;
use tidegate_policy::{EnvoyLimits, Plan, Problems, diff};
use tidegate_service::Service;
use tidegate_store::Clock;
use tidegate_telemetry::details;
use tokio::sync::{mpsc, oneshot};

use super::admin::ReloadRequest;
use super::certificates::Certificates;
use super::envoy_config::{EnvoyConfig, relevant_warnings};
use super::file_watcher::{FileStamp, FileWatcher};
use super::listeners::ListenerConfigError;
use super::logging::{Logging, log_warnings};
use super::reload_results::ReloadResults;
use super::restart_notes::restart_notes;
use super::signals::{SignalEvent, Signals};
use super::source::{LoadError, LoadedPolicy, PolicySource};
use super::store::SelectedStore;

/// How often expiring certificates are logged.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_hours(24);

/// What a reload changes.
#[derive(Clone, Copy)]
pub(crate) struct ReloadTargets<'a> {
    pub(crate) gateway: &'a Gateway<SelectedStore>,
    pub(crate) certificates: &'a Certificates,
    /// The decision service with its Envoy configuration, if there is one.
    pub(crate) envoy: Option<(&'a Arc<EnvoyConfig>, &'a Service<SelectedStore>)>,
}

/// Signals, file changes and reload requests. None is missed after this value is created.
pub(crate) struct ServeEvents {
    pub(crate) signals: Signals,
    pub(crate) file_watcher: FileWatcher,
    pub(crate) logging: Logging,
    pub(crate) clock: Arc<dyn Clock>,
    /// Reload requests of the admin API.
    pub(crate) reloads: mpsc::Receiver<ReloadRequest>,
    pub(crate) results: Arc<ReloadResults>,
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

/// How long a file of `plan` must be quiet before it is read.
pub(crate) fn quiet_time(plan: &Plan) -> Duration {
    Duration::from_micros(plan.reload.quiet.as_micros())
}

/// The files that a reload has read. Nothing is activated yet.
struct LoadedFiles {
    policy: Result<LoadedPolicy, LoadError>,
    /// The Envoy configuration, if there is one, or its problems.
    limits: Option<Result<EnvoyLimits, String>>,
    stamps: Vec<FileStamp>,
}

impl LoadedFiles {
    /// Loads all files in a thread of its own: a large policy, or a slow disk, delays no signal. If this process ends first, the
    /// thread ends with it.
    fn start(
        source: &Arc<PolicySource>,
        envoy: Option<&Arc<EnvoyConfig>>,
    ) -> std::io::Result<oneshot::Receiver<Self>> {
        let (source, envoy) = (Arc::clone(source), envoy.map(Arc::clone));
        let (send, loaded) = oneshot::channel();
        std::thread::Builder::new().name("reload".to_owned()).spawn(move || {
            // The receiver is gone if the process is stopping.
            let _ = send.send(Self::load(&source, envoy.as_deref()));
        })?;
        Ok(loaded)
    }

    fn load(source: &PolicySource, envoy: Option<&EnvoyConfig>) -> Self {
        let (policy, mut stamps) = source.load();
        let policy = policy.map(|policy| LoadedPolicy {
            warnings: relevant_warnings(envoy.is_some(), policy.warnings),
            ..policy
        });
        let limits = envoy.map(|config| {
            let (limits, more) = config.load();
            stamps.extend(more);
            limits
        });
        Self { policy, limits, stamps }
    }
}

impl ServeEvents {
    /// Reloads the policy and certificates when they change, until the gateway must stop.
    pub(crate) async fn run_until_stopped(
        mut self,
        source: &Arc<PolicySource>,
        targets: ReloadTargets<'_>,
    ) -> StopReason {
        // The first tick is immediate.
        let mut expiry_check = tokio::time::interval(EXPIRY_CHECK_INTERVAL);
        loop {
            let request = tokio::select! {
                signal = self.signals.next() => match signal {
                    SignalEvent::Stop => return StopReason::Signal,
                    SignalEvent::Reload => ReloadRequest::default(),
                },
                () = taken_over(&mut self.successor) => return StopReason::TakenOver,
                () = self.file_watcher.changed() => ReloadRequest::default(),
                Some(request) = self.reloads.recv() => request,
                _ = expiry_check.tick() => {
                    targets.certificates.warn(self.clock.now());
                    continue;
                }
            };
            let loaded = async {
                let started = LoadedFiles::start(source, targets.envoy.map(|(config, _)| config));
                // An error means that the thread has panicked.
                started.ok()?.await.ok()
            };
            let loaded = tokio::select! {
                () = self.signals.stopped() => return StopReason::Signal,
                () = taken_over(&mut self.successor) => return StopReason::TakenOver,
                loaded = loaded => loaded,
            };
            let outcome = match loaded {
                Some(loaded) => self.apply(loaded, request.is_forced, targets),
                None => reject(
                    "the policy could not be loaded; the running policy stays active",
                    &["internal error while loading the policy".to_owned()],
                ),
            };
            self.results.record(outcome.as_ref().err(), self.clock.now());
            if let Some(reply_to) = request.reply_to {
                // The sender of the request may have disconnected.
                let _ = reply_to.send(outcome);
            }
        }
    }

    /// Activates what was loaded: all of it, or nothing.
    fn apply(
        &mut self,
        loaded: LoadedFiles,
        is_forced: bool,
        targets: ReloadTargets<'_>,
    ) -> Result<ReloadReport, ReloadError> {
        let LoadedFiles { policy, limits, stamps } = loaded;
        let activation = Activation { targets, logging: &self.logging, is_forced };
        let outcome = match limits.transpose() {
            Err(reason) => Err(ReloadError::Invalid { reason }),
            Ok(limits) => activation.run(policy, self.clock.now()).and_then(|report| {
                targets
                    .envoy
                    .zip(limits)
                    .map_or(Ok(()), |((config, service), limits)| config.activate(service, limits))
                    .map_err(|reason| ReloadError::Invalid { reason })?;
                Ok(report)
            }),
        };
        // The files of an invalid policy are watched too: a missing one may be the only problem.
        if outcome.is_ok() {
            let quiet = quiet_time(targets.gateway.limiter().policy().matcher.plan());
            self.file_watcher.watch(stamps, quiet);
        } else {
            self.file_watcher.watch_also(stamps);
        }
        outcome
    }
}

/// Returns when another process has taken over.
async fn taken_over(successor: &mut Option<mpsc::UnboundedReceiver<()>>) {
    match successor {
        Some(successor) => {
            // The sender is dropped only after it has sent a message.
            let _ = successor.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Logs that a reload failed, with all its problems.
fn reject<T>(message: &str, problems: &[String]) -> Result<T, ReloadError> {
    tracing::error!(event = "reload_failed", details = details(problems), "reload failed: {message}");
    Err(ReloadError::Invalid { reason: problems.join("\n\n") })
}

pub(crate) fn problem_texts(problems: &Problems) -> Vec<String> {
    problems.iter().map(|problem| problem.to_string().trim_end().to_owned()).collect()
}

/// What the activation of a policy needs.
struct Activation<'a> {
    targets: ReloadTargets<'a>,
    logging: &'a Logging,
    /// Removes any number of bans and keys.
    is_forced: bool,
}

impl Activation<'_> {
    /// Activates a policy and logs what has changed. An invalid policy changes nothing.
    fn run(
        &self,
        outcome: Result<LoadedPolicy, LoadError>,
        now: Timestamp,
    ) -> Result<ReloadReport, ReloadError> {
        let LoadedPolicy { active, warnings } = match outcome {
            Ok(loaded) => loaded,
            Err(LoadError::Problems(problems)) => {
                return reject("invalid policy; the running policy stays active", &problem_texts(&problems));
            }
            Err(error) => {
                return reject(
                    "cannot load the policy; the running policy stays active",
                    &[error.to_string()],
                );
            }
        };
        let ReloadTargets { gateway, certificates, .. } = self.targets;
        let listeners = match certificates.prepare(active.matcher.plan()) {
            Ok(listeners) => listeners,
            Err(error) => {
                let texts = match &error {
                    ListenerConfigError::InvalidCertificates(problems) => problem_texts(problems),
                    ListenerConfigError::SeveralCertificates { .. } => vec![error.to_string()],
                };
                return reject(
                    "invalid certificates; the running policy and certificates stay active",
                    &texts,
                );
            }
        };
        let before = gateway.limiter().policy();
        let (old, new) = (before.matcher.plan(), Arc::clone(active.matcher.plan()));
        self.check_loss(old, &new)?;
        log_warnings(&warnings);
        let mut changes: Vec<_> = diff(old, &new).iter().map(ToString::to_string).collect();
        if let Err(error) = gateway.replace(active) {
            let message = "the policy cannot be activated; the running policy stays active";
            return reject(message, &[error.to_string()]);
        }
        self.logging.apply(&new);
        changes.extend(certificates.replace(listeners));
        let count = changes.len();
        let (service, moves_gateway) = (certificates.service_at_start(), certificates.needs_restart(&new));
        changes.extend(restart_notes(service, moves_gateway, old, &new));
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

    /// Refuses a policy that lacks too many bans or keys.
    fn check_loss(&self, old: &Plan, new: &Plan) -> Result<(), ReloadError> {
        if self.is_forced {
            return Ok(());
        }
        old.check_loss(new).map_err(|loss| {
            let reason = loss.to_string();
            tracing::error!(
                event = "reload_refused",
                "reload refused: {reason}; the running policy stays active; if the loss is intended, run `tidegate reload \
                 --force`"
            );
            ReloadError::Refused { reason }
        })
    }
}
