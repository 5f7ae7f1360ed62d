//! Errors of the durable store.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a file cannot be opened. A damaged file is never treated as empty.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error(
        "{} is in use by another process; stop that process first, take over from it (--takeover), or give each \
         process its own `store.directory`",
        .path.display()
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file is damaged.
    #[error(
        "{} is damaged: {what}. The file was not changed. Put a backup in its place; without a backup, move the \
         file away to start with no bans and no overrides",
        .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The file was written by a newer version.
    #[error(
        "{} has format {found}, written by a newer tidegate; this version reads formats up to {known}. Use the \
         newer version, or replace the file with a backup from this version",
        .path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The file's format.
        found: u64,
        /// The newest supported format.
        known: u64,
    },
    /// The file was deleted or replaced while this process used it.
    #[error(
        "{} is no longer the file that this process has opened: it was deleted or replaced. Put the file back, or restart \
         the process to use the new one",
        .path.display()
    )]
    Replaced {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read or written.
    #[error("cannot open {}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Why a change was not stored.
#[derive(Clone, Debug, Error)]
pub enum DurableError {
    /// The write failed. After a restart the changes are present completely or not at all.
    #[error("cannot write to the store file: {reason}")]
    Write {
        /// The error of the file system or the database.
        reason: String,
    },
    /// Another process is taking over the file.
    #[error("another process is taking over; retry in a moment")]
    HandedOver,
    /// The writer thread has stopped because the process is shutting down.
    #[error("the process is shutting down")]
    Ended,
}

/// Why a backup failed.
#[derive(Debug, Error)]
pub enum BackupError {
    /// The destination exists; backups never overwrite a file.
    #[error("{} already exists", .path.display())]
    Exists {
        /// The destination.
        path: PathBuf,
    },
    /// The backup cannot be written.
    #[error("cannot write {}: {reason}", .path.display())]
    Write {
        /// The destination.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// Another process is taking over, or this one is shutting down.
    #[error(transparent)]
    Durable(#[from] DurableError),
}
