//! Watches the files of a policy for changes.
//!
//! A file that is renamed into place is complete. A file that is written in place may be incomplete while its writer pauses,
//! so it counts as changed only when it has been quiet for some time.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use notify::event::{EventKind, ModifyKind, RenameMode};
use notify::{RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio::time::sleep;

/// Several files are often renamed together. Renames within this time are treated as one.
const SETTLE_TIME: Duration = Duration::from_millis(100);
/// A file that other programs append to all the time is never quiet. It is applied after this many quiet times.
const MAX_QUIET_TIMES: u32 = 10;
/// The most renames that are remembered. Files of further ones must be quiet.
const MAX_RENAMES: usize = 1_000;

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
    /// The new names of renamed files and folders since the last look.
    renames: Arc<Mutex<Vec<PathBuf>>>,
    /// The files and the stamps with which they were read.
    files: BTreeMap<PathBuf, Stamp>,
    /// Files that were renamed into place, with their stamps after it. Another stamp means that the file was written since.
    replaced: BTreeMap<PathBuf, Stamp>,
    folders: BTreeSet<PathBuf>,
    quiet: Duration,
}

impl FileWatcher {
    pub(crate) fn new(files: Vec<FileStamp>, quiet: Duration) -> anyhow::Result<Self> {
        let (send, events) = mpsc::channel(1);
        let renames = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&renames);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let Ok(event) = event else { return };
            if event.kind == EventKind::Modify(ModifyKind::Name(RenameMode::To)) {
                let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
                if noted.len() < MAX_RENAMES {
                    noted.extend(event.paths.iter().cloned());
                }
            }
            if !event.kind.is_access() {
                // If the channel is full, the check of the files is still to come.
                let _ = send.try_send(());
            }
        })
        .context("cannot watch files")?;
        let (replaced, folders) = (BTreeMap::new(), BTreeSet::new());
        let files = files.into_iter().map(|FileStamp { file, stamp }| (file, stamp)).collect();
        let mut all = Self { watcher, events, renames, files, replaced, folders, quiet };
        all.watch_folders()?;
        Ok(all)
    }

    /// Watches these files and no others. From now on files must be quiet for `quiet`.
    pub(crate) fn watch(&mut self, files: Vec<FileStamp>, quiet: Duration) {
        self.quiet = quiet;
        self.files.clear();
        self.watch_also(files);
    }

    /// Watches these files as well.
    pub(crate) fn watch_also(&mut self, files: Vec<FileStamp>) {
        self.files.extend(files.into_iter().map(|FileStamp { file, stamp }| (file, stamp)));
        self.rewatch();
    }

    /// Returns when a watched file has changed and every changed file is complete: renamed into place, or quiet.
    pub(crate) async fn changed(&mut self) {
        loop {
            let now = self.current_stamps();
            if now != self.files
                && let Some(stamps) = self.settled(now).await
            {
                self.files = stamps;
                return;
            }
            if self.events.recv().await.is_none() {
                return std::future::pending().await;
            }
            self.rewatch();
            // A pause, so that a busy folder does not keep this process busy.
            sleep(SETTLE_TIME).await;
        }
    }

    /// Waits until all changed files are complete. Returns their stamps, or `None` if they are as before.
    async fn settled(&mut self, mut seen: BTreeMap<PathBuf, Stamp>) -> Option<BTreeMap<PathBuf, Stamp>> {
        let mut pause = self.pause(&seen);
        let mut wait = std::pin::pin!(sleep(pause));
        let mut longest = std::pin::pin!(sleep(self.quiet.saturating_mul(MAX_QUIET_TIMES)));
        loop {
            let is_over = tokio::select! {
                biased;
                () = wait.as_mut() => true,
                () = longest.as_mut() => {
                    let now = self.current_stamps();
                    if self.has_only_grown(&now) {
                        return Some(now);
                    }
                    longest.set(sleep(self.quiet));
                    false
                }
                Some(()) = self.events.recv() => {
                    self.rewatch();
                    sleep(SETTLE_TIME).await;
                    false
                }
            };
            let now = self.current_stamps();
            if now == self.files {
                return None;
            }
            let next = self.pause(&now);
            if now != seen || next < pause {
                wait.set(sleep(next));
            } else if is_over {
                return Some(now);
            }
            (seen, pause) = (now, next);
        }
    }

    /// Whether no file is smaller than when it was read. A list that is written anew is smaller until its writer is done.
    fn has_only_grown(&self, now: &BTreeMap<PathBuf, Stamp>) -> bool {
        let size = |stamp: &Stamp| stamp.map(|(.., size)| size);
        self.files.iter().all(|(file, before)| now.get(file).and_then(size) >= size(before))
    }

    /// How long the changed files among `now` must stay as they are.
    fn pause(&mut self, now: &BTreeMap<PathBuf, Stamp>) -> Duration {
        self.note_renames();
        let mut changed = now.iter().filter(|(file, stamp)| self.files.get(*file) != Some(stamp));
        let is_complete = changed.all(|(file, stamp)| self.replaced.get(file) == Some(stamp));
        if is_complete { SETTLE_TIME } else { self.quiet.max(SETTLE_TIME) }
    }

    /// Notes which files were renamed into place: by their own name, or by that of a folder or link on their path.
    fn note_renames(&mut self) {
        let renames = std::mem::take(&mut *self.renames.lock().unwrap_or_else(PoisonError::into_inner));
        let targets: Vec<_> = renames.iter().filter_map(|name| name.canonicalize().ok()).collect();
        if targets.is_empty() {
            return;
        }
        for file in self.files.keys() {
            let Ok(path) = file.canonicalize() else { continue };
            if targets.iter().any(|target| path.starts_with(target)) {
                self.replaced.insert(file.clone(), read_stamp(file));
            }
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
