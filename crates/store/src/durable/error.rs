//! Why something is not kept, and what to do about it.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a file cannot be used. It is never taken for an empty one.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error(
        "{} is in use by another process; stop that one first, let this one take over from it (--takeover), \
         or give each its own `store.directory`",
        .path.display()
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It does not hold what was written to it.
    #[error(
        "{} is damaged: {what}. Nothing was changed. Put a backup in its place; without one, move the file \
         away to start with no bans and no overrides",
        .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// A newer tidegate has written it.
    #[error(
        "{} has format {found}, written by a newer tidegate; this one reads formats up to {known}. Start the \
         newer one, or put a backup that this one wrote in its place",
        .path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The file's format.
        found: u64,
        /// Ours.
        known: u64,
    },
    /// It cannot be read or written at all.
    #[error("cannot use {}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Why something was not kept.
#[derive(Clone, Debug, Error)]
pub enum DurableError {
    /// It may or may not have been written; after a restart it is there whole or not at all.
    #[error("writing it down failed: {reason}")]
    Write {
        /// What the file system or the database said.
        reason: String,
    },
    /// Another process is taking over the file.
    #[error("another process is taking over; ask again in a moment")]
    HandedOver,
    /// Nobody keeps anything any more: the process is ending.
    #[error("the process is ending")]
    Ended,
}

/// Why there is no backup.
#[derive(Debug, Error)]
pub enum BackupError {
    /// Backups never replace anything.
    #[error("{} exists; choose another name", .path.display())]
    Exists {
        /// Where it should have gone.
        path: PathBuf,
    },
    /// It could not be written.
    #[error("cannot write {}: {reason}", .path.display())]
    Write {
        /// Where it should have gone.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// Another process is taking over, or this one is ending.
    #[error(transparent)]
    Durable(#[from] DurableError),
}
