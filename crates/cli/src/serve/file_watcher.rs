//! Watches the files of a policy for changes.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use notify::{RecursiveMode, Watcher};
use tokio::sync::mpsc;

/// Editors write a file in several steps. Changes within this time are treated as one.
const SETTLE_TIME: Duration = Duration::from_millis(100);

/// Device, inode, modification time and size of a file; `None` if the file does not exist.
type Stamp = Option<(u64, u64, i64, i64, u64)>;

/// The stamp of a file, taken just before the file was read.
#[derive(Clone, Debug)]
pub(crate) struct FileStamp {
    file: PathBuf,
    stamp: Stamp,
}

impl FileStamp {
    pub(crate) fn now(file: &Path) -> Self {
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        Self { stamp: read_stamp(&file), file }
    }
}

fn read_stamp(file: &Path) -> Stamp {
    let file = std::fs::metadata(file).ok()?;
    Some((file.dev(), file.ino(), file.mtime(), file.mtime_nsec(), file.size()))
}

/// Watches files through their folders, because editors replace files and Kubernetes replaces a symbolic link beside them. If a
/// folder does not exist, its nearest existing parent is watched.
pub(crate) struct FileWatcher {
    watcher: notify::RecommendedWatcher,
    /// Something has changed in a folder. A log in the same folder changes all the time, so more than one event says no more.
    events: mpsc::Receiver<()>,
    /// The files and their last known stamps.
    files: BTreeMap<PathBuf, Stamp>,
    folders: BTreeSet<PathBuf>,
}

impl FileWatcher {
    pub(crate) fn new(files: Vec<FileStamp>) -> anyhow::Result<Self> {
        let (send, events) = mpsc::channel(1);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| !event.kind.is_access()) {
                // If the channel is full, the check of the files is still to come.
                let _ = send.try_send(());
            }
        })
        .context("cannot watch files")?;
        let mut all = Self { watcher, events, files: BTreeMap::new(), folders: BTreeSet::new() };
        all.files = files.into_iter().map(|FileStamp { file, stamp }| (file, stamp)).collect();
        all.watch_folders()?;
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
        self.rewatch();
    }

    /// Returns when a watched file has changed and no further change follows within [`SETTLE_TIME`].
    pub(crate) async fn changed(&mut self) {
        loop {
            let mut now = self.current_stamps();
            if now == self.files {
                if self.events.recv().await.is_none() {
                    return std::future::pending().await;
                }
                self.rewatch();
                // A pause, so that a busy folder does not keep this process busy.
                tokio::time::sleep(SETTLE_TIME).await;
                continue;
            }
            loop {
                tokio::time::sleep(SETTLE_TIME).await;
                let later = self.current_stamps();
                if later == now {
                    break;
                }
                now = later;
            }
            self.files = now;
            return;
        }
    }

    fn current_stamps(&self) -> BTreeMap<PathBuf, Stamp> {
        self.files.keys().map(|file| (file.clone(), read_stamp(file))).collect()
    }

    fn rewatch(&mut self) {
        if let Err(error) = self.watch_folders() {
            tracing::warn!(event = "watch_failed", "{error:#}; send SIGHUP to reload the policy");
        }
    }

    /// Watches the folders of all files.
    fn watch_folders(&mut self) -> anyhow::Result<()> {
        // The watch of a deleted folder is gone, even if the folder is created again.
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
