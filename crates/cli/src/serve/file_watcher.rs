//! Files that a policy was read from, and whether they have changed since.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use notify::{RecursiveMode, Watcher};
use tokio::sync::mpsc;

/// Editors write a file in several steps: what follows so soon belongs together.
const SETTLE: Duration = Duration::from_millis(100);

/// LogSampling file it is and when it was written; `None` if there is none.
type Stamp = Option<(u64, u64, i64, i64, u64)>;

/// A file as it was just before it was read.
#[derive(Clone, Debug)]
pub(crate) struct FileStamp {
    file: PathBuf,
    stamp: Stamp,
}

impl FileStamp {
    pub(crate) fn now(file: &Path) -> Self {
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        Self { stamp: stamp(&file), file }
    }
}

fn stamp(file: &Path) -> Stamp {
    let file = std::fs::metadata(file).ok()?;
    Some((file.dev(), file.ino(), file.mtime(), file.mtime_nsec(), file.size()))
}

/// Files that are watched by way of their folders: editors put new files in the place of old ones, and a mounted
/// configuration turns a link beside them. Of a folder that is not there, the nearest above it is watched.
pub(crate) struct FileWatcher {
    watcher: notify::RecommendedWatcher,
    events: mpsc::UnboundedReceiver<()>,
    /// The files as they were when last looked at.
    files: BTreeMap<PathBuf, Stamp>,
    folders: BTreeSet<PathBuf>,
}

impl FileWatcher {
    pub(crate) fn new(files: Vec<FileStamp>) -> anyhow::Result<Self> {
        let (send, events) = mpsc::unbounded_channel();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| !event.kind.is_access()) {
                // Nobody listens any more only when the process ends.
                let _ = send.send(());
            }
        })
        .context("cannot watch files")?;
        let mut all = Self { watcher, events, files: BTreeMap::new(), folders: BTreeSet::new() };
        all.files = files.into_iter().map(|FileStamp { file, stamp }| (file, stamp)).collect();
        all.follow()?;
        Ok(all)
    }

    /// Watches these files and no others.
    pub(crate) fn watch(&mut self, files: Vec<FileStamp>) {
        self.files.clear();
        self.watch_also(files);
    }

    /// Watches these files as well.
    pub(crate) fn watch_also(&mut self, files: Vec<FileStamp>) {
        self.files.extend(files.into_iter().map(|FileStamp { file, stamp }| (file, stamp)));
        self.follow_or_say();
    }

    /// Ready when one of the files has changed and come to rest, whatever else happens in its folder.
    pub(crate) async fn changed(&mut self) {
        loop {
            let mut now = self.look();
            if now == self.files {
                if self.events.recv().await.is_none() {
                    return std::future::pending().await;
                }
                self.follow_or_say();
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
            self.files = now;
            return;
        }
    }

    fn look(&self) -> BTreeMap<PathBuf, Stamp> {
        self.files.keys().map(|file| (file.clone(), stamp(file))).collect()
    }

    fn follow_or_say(&mut self) {
        if let Err(error) = self.follow() {
            tracing::warn!(event = "watch_failed", "{error:#}; at SIGHUP the policy is read again");
        }
    }

    /// Watches the folders that the files are in, or will be.
    fn follow(&mut self) -> anyhow::Result<()> {
        // One that has gone is no longer watched, even if it comes back.
        self.folders.retain(|folder| folder.is_dir());
        for file in self.files.keys() {
            let Some(folder) = file.ancestors().skip(1).find(|folder| folder.is_dir()) else { continue };
            if self.folders.insert(folder.to_owned()) {
                let watching = self.watcher.watch(folder, RecursiveMode::NonRecursive);
                watching.with_context(|| format!("cannot watch {}", folder.display()))?;
            }
        }
        Ok(())
    }
}
