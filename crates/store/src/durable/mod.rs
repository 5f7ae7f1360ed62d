//! The embedded durable store: bans, overrides and penalties survive a crash.
//!
//! The records are few, important and rarely changed. They live in one file that one process has open at a time. A separate
//! thread writes, so that request threads never wait for a disk. A change is acknowledged only when it is on disk. An
//! acknowledged change survives a kill, a crash and a power cut; any other is present completely or not at all. There are
//! no queries: opening the file returns its contents, and the caller keeps them. If the file is deleted while it is open, the
//! next change writes a new one with all contents; if another file replaces it, changes fail.

mod error;
mod file;
mod record;

use std::path::{Path, PathBuf};

use tokio::sync::{mpsc, oneshot};

pub use error::{BackupError, DurableError, OpenError};
use file::{DurableFile, FileIdentity};
pub use record::{BanRecord, Contents, DurableChange, OverrideKey, OverrideRecord};

/// The number of queued jobs; further callers wait.
const QUEUE: usize = 256;

/// The durable store: a handle to the writer thread.
#[derive(Clone, Debug)]
pub struct Durable {
    jobs: mpsc::Sender<Job>,
}

type JobReply<T> = oneshot::Sender<T>;

#[derive(Debug)]
enum Job {
    Apply(Vec<DurableChange>, JobReply<Result<(), DurableError>>),
    BackUp(PathBuf, JobReply<Result<(), BackupError>>),
    Release(JobReply<()>),
    Resume(JobReply<Result<Contents, OpenError>>),
}

impl Durable {
    /// Opens the file at `path`, or creates it if it does not exist, verifies it, and returns its contents. Blocks.
    pub fn open(path: &Path) -> Result<(Self, Contents), OpenError> {
        let (file, contents) = DurableFile::open(path)?;
        let identity = file.identity();
        let writer = Writer { path: Some(path.to_owned()), identity, file: FileState::Open(file) };
        Ok((Self::start(writer)?, contents))
    }

    /// A store that is lost when the process ends.
    pub fn in_memory() -> Result<Self, OpenError> {
        Self::start(Writer { path: None, identity: None, file: FileState::Open(DurableFile::in_memory()?) })
    }

    fn start(mut writer: Writer) -> Result<Self, OpenError> {
        let (jobs, mut waiting) = mpsc::channel(QUEUE);
        let path = writer.path.clone().unwrap_or_default();
        let thread = std::thread::Builder::new().name("durable".to_owned());
        let started = thread.spawn(move || {
            while let Some(job) = waiting.blocking_recv() {
                writer.work(job);
            }
        });
        started.map_err(|source| OpenError::Io { path, source })?;
        Ok(Self { jobs })
    }

    /// Writes `changes`, all or none. After `Ok` they survive a crash.
    pub async fn apply(&self, changes: Vec<DurableChange>) -> Result<(), DurableError> {
        self.send(|reply| Job::Apply(changes, reply)).await?
    }

    /// Writes a consistent copy to `path`, which must not exist. The copy has the contents of one moment and can be opened
    /// like the original.
    pub async fn back_up(&self, path: &Path) -> Result<(), BackupError> {
        self.send(|reply| Job::BackUp(path.to_owned(), reply)).await?
    }

    /// Closes the file, so that another process can open it. Until [`resume`](Self::resume) nothing is written or
    /// acknowledged.
    pub async fn release(&self) -> Result<(), DurableError> {
        self.send(Job::Release).await
    }

    /// Opens the file again and returns its contents.
    pub async fn resume(&self) -> Result<Result<Contents, OpenError>, DurableError> {
        self.send(Job::Resume).await
    }

    async fn send<T>(&self, job: impl FnOnce(JobReply<T>) -> Job) -> Result<T, DurableError> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(job(reply)).await.map_err(|_| DurableError::Ended)?;
        answer.await.map_err(|_| DurableError::Ended)
    }
}

/// The state of the writer thread.
#[derive(Debug)]
struct Writer {
    /// `None` for a store in memory.
    path: Option<PathBuf>,
    /// Which file has the contents; `None` for a store in memory.
    identity: Option<FileIdentity>,
    file: FileState,
}

#[derive(Debug)]
enum FileState {
    Open(DurableFile),
    /// A write failed; the file is opened again before the next attempt.
    Failed,
    /// Another process has the file.
    Released,
}

impl Writer {
    /// Runs a job. A failure to send the reply is ignored: the caller no longer waits.
    fn work(&mut self, job: Job) {
        match job {
            Job::Apply(changes, reply) => {
                let _ = reply.send(self.apply(&changes));
            }
            Job::BackUp(path, reply) => {
                let backed_up = self.file().map_err(BackupError::from).and_then(|file| file.back_up(&path));
                let _ = reply.send(backed_up);
            }
            Job::Release(reply) => {
                // A database in memory cannot be handed over.
                if self.path.is_some() {
                    // The other process gets all contents, also if the file was deleted. If that fails, it says so.
                    let _ = self.recreate_if_deleted();
                    self.file = FileState::Released;
                }
                let _ = reply.send(());
            }
            Job::Resume(reply) => {
                let _ = reply.send(self.resume());
            }
        }
    }

    fn apply(&mut self, changes: &[DurableChange]) -> Result<(), DurableError> {
        self.recreate_if_deleted()?;
        let applied = self.file()?.apply(changes);
        if applied.is_err() && self.path.is_some() {
            self.file = FileState::Failed;
        }
        applied.map_err(|reason| DurableError::Write { reason })?;
        // What was written to a file that is gone is lost at the end of the process.
        self.require_identity().map_err(|error| DurableError::Write { reason: error.to_string() })
    }

    /// Writes a new file if the open one was deleted.
    fn recreate_if_deleted(&mut self) -> Result<(), DurableError> {
        let (Some(path), FileState::Open(file)) = (&self.path, &self.file) else { return Ok(()) };
        let failed = |error: OpenError| DurableError::Write { reason: error.to_string() };
        let found = FileIdentity::at(path);
        if matches!(found, Ok(None)) {
            let file = file.recreate(path).map_err(failed)?;
            self.identity = file.identity();
            self.file = FileState::Open(file);
        }
        self.require_identity().map_err(failed)
    }

    /// Checks that the file at the path is the one with the contents.
    fn require_identity(&self) -> Result<(), OpenError> {
        let Some(path) = &self.path else { return Ok(()) };
        let found = FileIdentity::at(path);
        let found = found.map_err(|source| OpenError::Io { path: path.clone(), source })?;
        if found == self.identity { Ok(()) } else { Err(OpenError::Replaced { path: path.clone() }) }
    }

    fn file(&mut self) -> Result<&DurableFile, DurableError> {
        if let (FileState::Failed, Some(path)) = (&self.file, &self.path) {
            let reopened = self.require_identity().and_then(|()| DurableFile::open(path));
            let (file, _) = reopened.map_err(|error| DurableError::Write { reason: error.to_string() })?;
            self.file = FileState::Open(file);
        }
        match &self.file {
            FileState::Open(file) => Ok(file),
            FileState::Failed | FileState::Released => Err(DurableError::HandedOver),
        }
    }

    fn resume(&mut self) -> Result<Contents, OpenError> {
        let Some(path) = &self.path else { return Ok(Contents::default()) };
        // The file is locked while it is open, so close it first.
        self.file = FileState::Failed;
        self.require_identity()?;
        let (file, contents) = DurableFile::open(path)?;
        self.file = FileState::Open(file);
        Ok(contents)
    }
}
