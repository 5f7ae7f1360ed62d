//! The file: one redb database with its own format.
//!
//! Tables: `meta` (name → number; `format`), `bans` (subject → since, until, reason), `overrides` (rule and client →
//! algorithm, requests, window, burst, since, until, reason), `penalties` (rule's number and client → violations, level,
//! since, locked until, locked for, expires at). Times are microseconds since 1970. A new kind of record is a new table,
//! which an older format lacks; a change to the rows of a table is a new format.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::backends::InMemoryBackend;
use redb::{
    Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageBackend, StorageError,
    TableDefinition, TableError, WriteTransaction,
};
use tidegate_core::{CounterKey, Limit, OwnedKey, PenaltyState, RuleId, Spec, TimeSpan, Timestamp};

use super::error::{BackupError, OpenError};
use super::record::{BanRecord, Contents, DurableChange, OverrideKey, OverrideRecord};
use crate::penalties::PenaltyEntry;

/// The format that this version writes, and the newest that it reads.
pub(super) const FORMAT: u64 = 1;
/// The cache is small because the contents are kept elsewhere after they are read.
const CACHE: usize = 4 << 20;

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const BANS: TableDefinition<'_, &str, (u64, Option<u64>, &str)> = TableDefinition::new("bans");
const OVERRIDES: TableDefinition<'_, (&str, &[u8]), OverrideRow<'_>> = TableDefinition::new("overrides");
type OverrideRow<'a> = (&'a str, u64, u64, Option<u64>, u64, Option<u64>, &'a str);

const PENALTIES: TableDefinition<'_, (u64, &[u8]), PenaltyRow> = TableDefinition::new("penalties");
type PenaltyRow = (u32, u32, u64, u64, u64, u64);

/// An open file. All methods block.
#[derive(Debug)]
pub(super) struct DurableFile {
    database: Database,
    /// `None` for a database in memory.
    identity: Option<FileIdentity>,
}

/// Device and inode: they stay the same when a file is renamed, and differ from those of a file that replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIdentity(u64, u64);

impl FileIdentity {
    fn of(file: &Metadata) -> Self {
        Self(file.dev(), file.ino())
    }

    /// The identity of the file at `path`; `None` if there is no file.
    pub(super) fn at(path: &Path) -> io::Result<Option<Self>> {
        match std::fs::metadata(path) {
            Ok(file) => Ok(Some(Self::of(&file))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl DurableFile {
    /// Opens the file, or creates it if it does not exist, and reads all of it.
    pub(super) fn open(path: &Path) -> Result<(Self, Contents), OpenError> {
        let fails = |source: io::Error| OpenError::Io { path: path.to_owned(), source };
        match std::fs::metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => create(path, &Contents::default()),
            Err(error) => return Err(fails(error)),
            // redb would treat an empty file as a new database.
            Ok(found) if found.len() == 0 => return Err(damaged(path, "the file is empty")),
            Ok(_) => Ok(()),
        }
        .or_else(|error| match error {
            // Another process created it first.
            Failure::Io(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            error => Err(error.into_open_error(path)),
        })?;
        // redb may panic on a file that was modified from outside.
        let opened = catch_unwind(AssertUnwindSafe(|| Self::open_existing(path)));
        opened.unwrap_or_else(|_| Err(damaged(path, "the database cannot read it")))
    }

    fn open_existing(path: &Path) -> Result<(Self, Contents), OpenError> {
        let into_open_error = |error: Failure| error.into_open_error(path);
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|error| into_open_error(error.into()))?;
        let identity = file.metadata().map_err(|error| into_open_error(error.into()))?;
        let identity = Some(FileIdentity::of(&identity));
        if !is_intact(&file).map_err(into_open_error)? {
            return Err(damaged(path, "checksum mismatch"));
        }
        let database = builder().create_file(file).map_err(|error| into_open_error(error.into()))?;
        let file = Self { database, identity };
        let contents = file.read(path)?;
        Ok((file, contents))
    }

    /// A database that is lost when the process ends.
    pub(super) fn in_memory() -> Result<Self, OpenError> {
        let nowhere = Path::new("memory");
        let made = builder().create_with_backend(InMemoryBackend::new());
        let database = made.map_err(|error| Failure::from(error).into_open_error(nowhere))?;
        let file = Self { database, identity: None };
        file.fill(&Contents::default()).map_err(|error| error.into_open_error(nowhere))?;
        Ok(file)
    }

    pub(super) fn identity(&self) -> Option<FileIdentity> {
        self.identity
    }

    /// Writes all contents to a new file at `path`, from which this one was deleted, and opens it.
    pub(super) fn recreate(&self, path: &Path) -> Result<Self, OpenError> {
        create(path, &self.read(path)?).map_err(|error| error.into_open_error(path))?;
        Self::open(path).map(|(file, _)| file)
    }

    /// Writes all of `changes` or none. On return they are on disk.
    pub(super) fn apply(&self, changes: &[DurableChange]) -> Result<(), String> {
        // A panic of the database must not end the writer thread.
        match catch_unwind(AssertUnwindSafe(|| self.try_apply(changes))) {
            Ok(applied) => applied.map_err(|error| error.to_string()),
            Err(_) => Err("the database failed".to_owned()),
        }
    }

    fn try_apply(&self, changes: &[DurableChange]) -> Result<(), Failure> {
        let transaction = self.begin()?;
        for change in changes {
            write(&transaction, change)?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// Writes a consistent copy to `path`, which must not exist.
    pub(super) fn back_up(&self, path: &Path) -> Result<(), BackupError> {
        let failed = |reason: String| BackupError::Write { path: path.to_owned(), reason };
        let contents = self.read(path).map_err(|error| failed(error.to_string()))?;
        create(path, &contents).map_err(|error| match error {
            Failure::Io(error) if error.kind() == ErrorKind::AlreadyExists => {
                BackupError::Exists { path: path.to_owned() }
            }
            error => failed(error.to_string()),
        })
    }

    fn read(&self, path: &Path) -> Result<Contents, OpenError> {
        let into_open_error = |error: Failure| error.into_open_error(path);
        let transaction = self.database.begin_read().map_err(|error| into_open_error(error.into()))?;
        let meta = transaction.open_table(META).map_err(|error| into_open_error(error.into()))?;
        let format = meta.get("format").map_err(|error| into_open_error(error.into()))?;
        match format.map(|format| format.value()) {
            None => return Err(damaged(path, "the format number is missing")),
            Some(found) if found > FORMAT => {
                return Err(OpenError::Newer { path: path.to_owned(), found, known: FORMAT });
            }
            Some(_) => {}
        }
        let read = || -> Result<Contents, Failure> {
            let mut contents = Contents::default();
            for row in transaction.open_table(BANS)?.iter()? {
                let (subject, ban) = row?;
                contents.bans.insert(subject.value().to_owned(), ban_of(ban.value()));
            }
            for row in transaction.open_table(OVERRIDES)?.iter()? {
                let (key, replacement) = row?;
                let (rule, client) = key.value();
                let key = OverrideKey { rule: rule.to_owned(), client: client.to_vec() };
                contents.overrides.insert(key, override_of(replacement.value())?);
            }
            for row in transaction.open_table(PENALTIES)?.iter()? {
                let (key, row) = row?;
                let (rule, client) = key.value();
                let key = OwnedKey::from(CounterKey::new(RuleId::from_u64(rule), client));
                contents.penalties.insert(key.clone(), penalty_of(key, row.value()));
            }
            Ok(contents)
        };
        read().map_err(into_open_error)
    }

    fn fill(&self, contents: &Contents) -> Result<(), Failure> {
        let transaction = self.begin()?;
        transaction.open_table(META)?.insert("format", FORMAT)?;
        // Opening a table creates it, even if it stays empty.
        transaction.open_table(BANS)?;
        transaction.open_table(OVERRIDES)?;
        transaction.open_table(PENALTIES)?;
        for (subject, ban) in &contents.bans {
            write(&transaction, &DurableChange::Ban(subject.clone(), ban.clone()))?;
        }
        for (key, replacement) in &contents.overrides {
            write(&transaction, &DurableChange::Override(key.clone(), replacement.clone()))?;
        }
        for entry in contents.penalties.values() {
            write(&transaction, &DurableChange::SetPenalty(entry.clone()))?;
        }
        transaction.commit()?;
        Ok(())
    }

    fn begin(&self) -> Result<WriteTransaction, Failure> {
        let mut transaction = self.database.begin_write()?;
        // Clients control part of the data: two-phase commit prevents a torn commit from looking complete.
        transaction.set_two_phase_commit(true);
        Ok(transaction)
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE);
    builder
}

/// Verifies the whole file. redb repairs what it finds, even by going back to an older state. The check therefore runs on
/// a copy in memory, so that a damaged file stays unchanged for inspection.
fn is_intact(mut file: &File) -> Result<bool, Failure> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => Failure::Database(redb::Error::DatabaseAlreadyOpen),
        TryLockError::Error(error) => Failure::Io(error),
    })?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let copy = InMemoryBackend::new();
    copy.set_len(u64::try_from(bytes.len()).unwrap_or(u64::MAX))?;
    copy.write(0, &bytes)?;
    drop(bytes);
    Ok(builder().create_with_backend(copy)?.check_integrity()?)
}

/// Creates a complete file next to `path`, then links it to `path` in one step, so that `path` is never incomplete. Only
/// its owner can read it.
fn create(path: &Path, contents: &Contents) -> Result<(), Failure> {
    let unfinished = temporary_path(path);
    let made = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&unfinished)
        .map_err(Failure::Io)
        .and_then(|file| {
            let file = DurableFile { database: builder().create_file(file)?, identity: None };
            file.fill(contents)?;
            drop(file);
            // Unlike a rename, a hard link never replaces a file.
            std::fs::hard_link(&unfinished, path)?;
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
            Ok(())
        });
    // Removes the temporary file, also after a failure.
    let _ = std::fs::remove_file(&unfinished);
    made
}

fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    name.into()
}

fn write(transaction: &WriteTransaction, change: &DurableChange) -> Result<(), Failure> {
    let micros = |at: &Option<Timestamp>| at.map(Timestamp::as_micros);
    match change {
        DurableChange::Ban(subject, BanRecord { reason, since, until }) => {
            let row = (since.as_micros(), micros(until), reason.as_str());
            transaction.open_table(BANS)?.insert(subject.as_str(), row)?;
        }
        DurableChange::Unban(subject) => {
            transaction.open_table(BANS)?.remove(subject.as_str())?;
        }
        DurableChange::Override(OverrideKey { rule, client }, replacement) => {
            let OverrideRecord { algorithm, spec, reason, since, until } = replacement;
            // An override always uses the default longest wait and lends nothing, so neither is stored.
            let Spec { requests, window, burst, max_wait: _, borrow: _ } = spec;
            let (since, until) = (since.as_micros(), micros(until));
            let row =
                (algorithm.name(), *requests, window.as_micros(), *burst, since, until, reason.as_str());
            transaction.open_table(OVERRIDES)?.insert((rule.as_str(), client.as_slice()), row)?;
        }
        DurableChange::RemoveOverride(OverrideKey { rule, client }) => {
            transaction.open_table(OVERRIDES)?.remove((rule.as_str(), client.as_slice()))?;
        }
        DurableChange::SetPenalty(PenaltyEntry { key, record, expires_at }) => {
            let row = (
                record.violations,
                record.level,
                record.since.as_micros(),
                record.locked_until.as_micros(),
                record.locked_for.as_micros(),
                expires_at.as_micros(),
            );
            transaction.open_table(PENALTIES)?.insert((key.rule.as_u64(), &*key.client), row)?;
        }
        DurableChange::RemovePenalty(key) => {
            transaction.open_table(PENALTIES)?.remove((key.rule.as_u64(), &*key.client))?;
        }
        DurableChange::ClearPenalties => transaction.open_table(PENALTIES)?.retain(|_, _| false)?,
    }
    Ok(())
}

fn ban_of((since, until, reason): (u64, Option<u64>, &str)) -> BanRecord {
    BanRecord {
        reason: reason.to_owned(),
        since: Timestamp::from_micros(since),
        until: until.map(Timestamp::from_micros),
    }
}

fn penalty_of(key: OwnedKey, row: PenaltyRow) -> PenaltyEntry {
    let (violations, level, since, locked_until, locked_for, expires_at) = row;
    let record = PenaltyState {
        violations,
        level,
        since: Timestamp::from_micros(since),
        locked_until: Timestamp::from_micros(locked_until),
        locked_for: TimeSpan::from_micros(locked_for),
    };
    PenaltyEntry { key, record, expires_at: Timestamp::from_micros(expires_at) }
}

fn override_of(row: OverrideRow<'_>) -> Result<OverrideRecord, Failure> {
    let (algorithm, requests, window, burst, since, until, reason) = row;
    let algorithm = algorithm.parse().map_err(|_| Failure::Record("an override has an unknown algorithm"))?;
    let spec = Spec { burst, ..Spec::new(requests, TimeSpan::from_micros(window)) };
    Limit::new(algorithm, spec).map_err(|_| Failure::Record("an override has an invalid limit"))?;
    Ok(OverrideRecord {
        algorithm,
        spec,
        reason: reason.to_owned(),
        since: Timestamp::from_micros(since),
        until: until.map(Timestamp::from_micros),
    })
}

/// An internal error of this module.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Database(redb::Error),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Record(&'static str),
}

impl Failure {
    fn into_open_error(self, path: &Path) -> OpenError {
        let path = path.to_owned();
        match self {
            Self::Database(redb::Error::DatabaseAlreadyOpen) => OpenError::InUse { path },
            // redb reports unreadable data with these kinds.
            Self::Database(redb::Error::Io(source)) | Self::Io(source) => match source.kind() {
                ErrorKind::InvalidData | ErrorKind::UnexpectedEof => damaged(&path, &source.to_string()),
                _ => OpenError::Io { path, source },
            },
            Self::Database(error) => damaged(&path, &error.to_string()),
            Self::Record(what) => damaged(&path, what),
        }
    }
}

fn damaged(path: &Path, what: &str) -> OpenError {
    OpenError::Damaged { path: path.to_owned(), what: what.to_owned() }
}

macro_rules! failures {
    ($($error:ty),+) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::Database(error.into())
            }
        })+
    };
}
failures!(DatabaseError, StorageError, TableError, redb::TransactionError, redb::CommitError);
