//! What happens while the gateway runs: its policy changes, or it is told to stop.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use notify::{RecursiveMode, Watcher};
use tidegate_gateway::Gateway;
use tidegate_policy::diff;
use tidegate_store::MemoryStore;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::source::{Loaded, Source};

/// Editors write a file in several steps: what follows so soon belongs together.
const SETTLE: Duration = Duration::from_millis(100);

/// Reloads the policy whenever it changes, until a signal says to stop.
pub(crate) async fn until_stopped(
    gateway: &Gateway<MemoryStore>,
    source: &Source,
    files: Vec<PathBuf>,
) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut hangup = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    let mut watched = Watched::new(&files)?;
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hangup.recv() => {}
            () = watched.changed() => {}
        }
        if let Some(files) = reload(gateway, source) {
            watched.watch(&files)?;
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
    let changes = diff(before.matcher.plan(), active.matcher.plan());
    if let Err(error) = gateway.replace(active) {
        eprintln!(
            "tidegate: the policy has changed and cannot be served; the old one stays in force: {error}"
        );
        return None;
    }
    eprintln!("tidegate: policy reloaded, {} changes", changes.len());
    for change in changes {
        eprintln!("  {change}");
    }
    Some(files)
}

/// Files that are watched by way of their folders: editors put new files in the place of old ones.
struct Watched {
    watcher: notify::RecommendedWatcher,
    events: mpsc::UnboundedReceiver<Vec<PathBuf>>,
    files: BTreeSet<PathBuf>,
    folders: BTreeSet<PathBuf>,
}

impl Watched {
    fn new(files: &[PathBuf]) -> anyhow::Result<Self> {
        let (send, events) = mpsc::unbounded_channel();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if let Ok(event) = event
                && !event.kind.is_access()
            {
                // Nobody listens any more only when the process ends.
                let _ = send.send(event.paths);
            }
        })
        .context("cannot watch files")?;
        let mut all = Self { watcher, events, files: BTreeSet::new(), folders: BTreeSet::new() };
        all.watch(files)?;
        Ok(all)
    }

    fn watch(&mut self, files: &[PathBuf]) -> anyhow::Result<()> {
        self.files = files.iter().map(|file| absolute(file)).collect();
        for file in &self.files {
            let Some(folder) = file.parent().map(Path::to_owned) else { continue };
            if self.folders.insert(folder.clone()) {
                let watching = self.watcher.watch(&folder, RecursiveMode::NonRecursive);
                watching.with_context(|| format!("cannot watch {}", folder.display()))?;
            }
        }
        Ok(())
    }

    /// Ready when one of the files has changed and come to rest.
    async fn changed(&mut self) {
        loop {
            let Some(paths) = self.events.recv().await else { return std::future::pending().await };
            if paths.iter().any(|path| self.files.contains(&absolute(path))) {
                break;
            }
        }
        while tokio::time::timeout(SETTLE, self.events.recv()).await.is_ok_and(|event| event.is_some()) {}
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
