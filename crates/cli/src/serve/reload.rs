//! What happens while the gateway runs: its policy changes, or it is told to stop.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use notify::{RecursiveMode, Watcher};
use tidegate_gateway::Gateway;
use tidegate_policy::diff;
use tidegate_store::MemoryStore;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::source::{Loaded, Source};

/// Editors write a file in several steps: what follows so soon belongs together.
const SETTLE: Duration = Duration::from_millis(100);

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
    pub(crate) fn new(files: &[PathBuf]) -> anyhow::Result<Self> {
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
            if let Some(files) = reload(gateway, source) {
                self.watched.watch(&files)?;
            }
        }
    }
}

/// Reads the policy again; the files it was read from, if it was good. A bad one changes nothing.
fn reload(gateway: &Gateway<MemoryStore>, source: &Source) -> Option<Vec<PathBuf>> {
    let Loaded { active, warnings, files } = match source.load() {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!(
                "tidegate: the policy has changed and is not good; the old one stays in force\n{error}"
            );
            return None;
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
        return None;
    }
    let count = changes.len();
    eprintln!("tidegate: policy reloaded, {count} change{}", if count == 1 { "" } else { "s" });
    for change in changes {
        eprintln!("  {change}");
    }
    if old.listen != new.listen || old.store != new.store {
        eprintln!("  where to listen and the store stay as they are until the next start");
    }
    Some(files)
}

/// Files that are watched by way of their folders: editors put new files in the place of old ones, and a mounted
/// configuration turns a link beside them.
struct Watched {
    watcher: notify::RecommendedWatcher,
    events: mpsc::UnboundedReceiver<()>,
    files: BTreeSet<PathBuf>,
    folders: BTreeSet<PathBuf>,
    /// The files as they were when last looked at.
    seen: Vec<Stamp>,
}

/// Which file it is and when it was written; `None` if there is none.
type Stamp = Option<(u64, u64, i64, i64, u64)>;

impl Watched {
    fn new(files: &[PathBuf]) -> anyhow::Result<Self> {
        let (send, events) = mpsc::unbounded_channel();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| !event.kind.is_access()) {
                // Nobody listens any more only when the process ends.
                let _ = send.send(());
            }
        })
        .context("cannot watch files")?;
        let (none, folders, seen) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        let mut all = Self { watcher, events, files: none, folders, seen };
        all.watch(files)?;
        Ok(all)
    }

    fn watch(&mut self, files: &[PathBuf]) -> anyhow::Result<()> {
        let files: BTreeSet<_> = files.iter().map(|file| absolute(file)).collect();
        for file in &files {
            let Some(folder) = file.parent().map(Path::to_owned) else { continue };
            if self.folders.insert(folder.clone()) {
                let watching = self.watcher.watch(&folder, RecursiveMode::NonRecursive);
                watching.with_context(|| format!("cannot watch {}", folder.display()))?;
            }
        }
        if files != self.files {
            self.files = files;
            self.seen = self.look();
        }
        Ok(())
    }

    fn look(&self) -> Vec<Stamp> {
        let stamp = |file: &PathBuf| {
            let file = std::fs::metadata(file).ok()?;
            Some((file.dev(), file.ino(), file.mtime(), file.mtime_nsec(), file.size()))
        };
        self.files.iter().map(stamp).collect()
    }

    /// Ready when one of the files has changed and come to rest, whatever else happens in its folder.
    async fn changed(&mut self) {
        loop {
            if self.events.recv().await.is_none() {
                return std::future::pending().await;
            }
            let mut now = self.look();
            if now == self.seen {
                continue;
            }
            loop {
                tokio::time::sleep(SETTLE).await;
                let later = self.look();
                if later == now {
                    break;
                }
                now = later;
            }
            self.seen = now;
            return;
        }
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
