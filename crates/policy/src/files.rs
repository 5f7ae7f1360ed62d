//! The files that a policy refers to, handed in by whoever may read them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use thiserror::Error;

/// Gives the contents of the files a policy names. This crate does no I/O of its own.
pub trait Files {
    /// The contents of the file that the policy calls `name`.
    fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, FileError>;
}

/// Why a referenced file has no contents.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FileError {
    /// There is no such file.
    #[error("there is no such file")]
    Missing,
    /// There is one, but it cannot be read.
    #[error("{reason}")]
    Unreadable {
        /// What the system said.
        reason: String,
    },
}

impl Files for BTreeMap<String, Vec<u8>> {
    fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, FileError> {
        self.get(name).map(|bytes| Cow::Borrowed(bytes.as_slice())).ok_or(FileError::Missing)
    }
}

/// No files at all: every reference is a problem.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFiles;

impl Files for NoFiles {
    fn read(&self, _name: &str) -> Result<Cow<'_, [u8]>, FileError> {
        Err(FileError::Missing)
    }
}
