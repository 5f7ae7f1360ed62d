//! What happens while the gateway runs: its policy changes, or it is told to stop.

use std::sync::Arc;

use anyhow::Context;
use tidegate_gateway::Gateway;
use tidegate_policy::diff;
use tidegate_store::MemoryStore;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::source::{LoadError, Loaded, Source};
use super::watched::{Seen, Watched};

/// Signals and changes of files, none missed from here on.
pub(crate) struct Events {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    watched: Watched,
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
    pub(crate) fn new(files: Vec<Seen>) -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
            hangup: signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?,
            watched: Watched::new(files)?,
            successor: None,
        })
    }

    /// Reloads the policy whenever it changes, until a signal or a successor says to stop.
    pub(crate) async fn until_stopped(
        mut self,
        gateway: &Gateway<MemoryStore>,
        source: &Source,
    ) -> anyhow::Result<End> {
        loop {
            let taken_over = async {
                match &mut self.successor {
                    Some(successor) => successor.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = self.terminate.recv() => return Ok(End::Told),
                _ = self.interrupt.recv() => return Ok(End::Told),
                _ = taken_over => return Ok(End::TakenOver),
                _ = self.hangup.recv() => {}
                () = self.watched.changed() => {}
            }
            let (outcome, files) = source.load();
            // What a bad policy names is watched too: it may be all that is missing.
            if put_in_force(gateway, outcome) {
                self.watched.watch(files);
            } else {
                self.watched.watch_also(files);
            }
        }
    }
}

/// Puts a policy in force if it is good, and says whether it was. A bad one changes nothing.
fn put_in_force(gateway: &Gateway<MemoryStore>, outcome: Result<Loaded, LoadError>) -> bool {
    let Loaded { active, warnings } = match outcome {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!(
                "tidegate: the policy has changed and is not good; the old one stays in force\n{error}"
            );
            return false;
        }
    };
    eprint!("{warnings}");
    let before = gateway.active();
    let (old, new) = (before.matcher.plan(), Arc::clone(active.matcher.plan()));
    let changes = diff(old, &new);
    if let Err(error) = gateway.replace(active) {
        eprintln!(
            "tidegate: the policy has changed and cannot be served; the old one stays in force: {error}"
        );
        return false;
    }
    let count = changes.len();
    eprintln!("tidegate: policy reloaded, {count} change{}", if count == 1 { "" } else { "s" });
    for change in changes {
        eprintln!("  {change}");
    }
    if old.listen != new.listen || old.store != new.store {
        eprintln!("  where to listen and the store stay as they are until the next start");
    }
    true
}
