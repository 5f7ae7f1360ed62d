//! What survives a crash: the embedded durable store.
//!
//! Bans and overrides are few, precious and rarely changed. They live in one file that one process has open at a time.
//! A thread of its own writes, so that nobody who serves requests ever waits for a disk; who asked for a change hears
//! of its success only when it is on the disk. Whatever was acknowledged is there after a kill, a crash or a power
//! cut; whatever was not is there whole or not at all. Reading is not done here: the contents come out once, when
//! the file is opened, and whoever needs them keeps them.

mod error;
mod file;
mod record;

use std::path::{Path, PathBuf};

use tokio::sync::{mpsc, oneshot};

pub use error::{BackupError, DurableError, OpenError};
use file::DurableFile;
pub use record::{BanRecord, Contents, DurableChange, OverrideKey, OverrideRecord};

/// More than so many who wait for the disk wait to be let in.
const QUEUE: usize = 256;

/// The durable store: a handle to the thread that writes.
#[derive(Clone, Debug)]
pub struct Durable {
    jobs: mpsc::Sender<Job>,
}

type Reply<T> = oneshot::Sender<T>;

#[derive(Debug)]
enum Job {
    Apply(Vec<DurableChange>, Reply<Result<(), DurableError>>),
    BackUp(PathBuf, Reply<Result<(), BackupError>>),
    Release(Reply<()>),
    Resume(Reply<Result<Contents, OpenError>>),
}

impl Durable {
    /// Opens the file at `path`, or makes it if there is none, checks all of it, and says what it holds. Blocks.
    pub fn open(path: &Path) -> Result<(Self, Contents), OpenError> {
        let (file, contents) = DurableFile::open(path)?;
        Ok((Self::start(Writer { path: Some(path.to_owned()), file: FileState::Open(file) })?, contents))
    }

    /// One that forgets everything when the process ends.
    pub fn in_memory() -> Result<Self, OpenError> {
        Self::start(Writer { path: None, file: FileState::Open(DurableFile::in_memory()?) })
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

    /// Writes `changes`, all or none. When this says that it went well, they survive whatever comes.
    pub async fn apply(&self, changes: Vec<DurableChange>) -> Result<(), DurableError> {
        self.send(|reply| Job::Apply(changes, reply)).await?
    }

    /// Writes a consistent copy to `path`, where nothing may be yet. Opened like the original, it holds what that
    /// held at one moment.
    pub async fn back_up(&self, path: &Path) -> Result<(), BackupError> {
        self.send(|reply| Job::BackUp(path.to_owned(), reply)).await?
    }

    /// Lets go of the file, so that another process can open it. Until [`resume`](Self::resume) nothing is written:
    /// what was acknowledged before is in the file, and nothing is acknowledged after.
    pub async fn release(&self) -> Result<(), DurableError> {
        self.send(Job::Release).await
    }

    /// Opens the file again and says what it holds now.
    pub async fn resume(&self) -> Result<Result<Contents, OpenError>, DurableError> {
        self.send(Job::Resume).await
    }

    async fn send<T>(&self, job: impl FnOnce(Reply<T>) -> Job) -> Result<T, DurableError> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(job(reply)).await.map_err(|_| DurableError::Ended)?;
        answer.await.map_err(|_| DurableError::Ended)
    }
}

/// What the thread has in hand.
#[derive(Debug)]
struct Writer {
    /// `None`: nothing outlives the process.
    path: Option<PathBuf>,
    file: FileState,
}

#[derive(Debug)]
enum FileState {
    Open(DurableFile),
    /// Writing failed; the file is opened anew before the next attempt.
    Failed,
    /// Another process has it.
    Released,
}

impl Writer {
    /// A reply that nobody waits for any more is nobody's loss.
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
                // A database in memory is nobody else's.
                if self.path.is_some() {
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
        let applied = self.file()?.apply(changes);
        if applied.is_err() && self.path.is_some() {
            self.file = FileState::Failed;
        }
        applied.map_err(|reason| DurableError::Write { reason })
    }

    fn file(&mut self) -> Result<&DurableFile, DurableError> {
        if let (FileState::Failed, Some(path)) = (&self.file, &self.path) {
            let reopened = DurableFile::open(path);
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
        // Locked as it is, it cannot be opened a second time.
        self.file = FileState::Failed;
        let (file, contents) = DurableFile::open(path)?;
        self.file = FileState::Open(file);
        Ok(contents)
    }
}
