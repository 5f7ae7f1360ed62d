//! The files that a policy refers to. The caller reads them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use thiserror::Error;

/// Reads the files that a policy refers to. This crate does no I/O itself.
pub trait Files {
    /// Returns the contents of the file that the policy calls `name`.
    fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, FileError>;
}

/// Why a referenced file could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FileError {
    /// The file does not exist.
    #[error("no such file")]
    Missing,
    /// The file exists but cannot be read.
    #[error("{reason}")]
    Unreadable {
        /// The error of the operating system.
        reason: String,
    },
}

impl Files for BTreeMap<String, Vec<u8>> {
    fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, FileError> {
        self.get(name).map(|bytes| Cow::Borrowed(bytes.as_slice())).ok_or(FileError::Missing)
    }
}

/// Provides no files: every reference to a file is a problem.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFiles;

impl Files for NoFiles {
    fn read(&self, _name: &str) -> Result<Cow<'_, [u8]>, FileError> {
        Err(FileError::Missing)
    }
}
