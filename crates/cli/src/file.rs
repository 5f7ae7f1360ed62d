//! A policy on disk, and the files it refers to.

use std::borrow::Cow;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use tidegate_policy::{FileError, Files, MAX_FILE_SIZE};

/// What a policy may refer to can be larger than itself: a million API keys are about 50 MB.
const LARGEST_REFERENCED: u64 = 256 << 20;

/// The bytes of a policy, or of as much of it as is needed to see that it is too large.
pub(crate) fn policy(path: &Path) -> std::io::Result<Vec<u8>> {
    // One byte more than allowed is enough.
    read(path, u64::try_from(MAX_FILE_SIZE).unwrap_or(u64::MAX).saturating_add(1))
}

/// Files in the folder of the policy.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// The folder of the policy at `path`.
    pub(crate) fn of(path: &Path) -> Self {
        Self(path.parent().unwrap_or(Path::new("")).to_owned())
    }
}

impl Files for Folder {
    fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, FileError> {
        match read(&self.0.join(name), LARGEST_REFERENCED.saturating_add(1)) {
            Ok(bytes) if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > LARGEST_REFERENCED => {
                Err(FileError::Unreadable { reason: "it is larger than 256 MiB".to_owned() })
            }
            Ok(bytes) => Ok(Cow::Owned(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(FileError::Missing),
            Err(error) => Err(FileError::Unreadable { reason: error.to_string() }),
        }
    }
}

/// At most `most` bytes of a file.
fn read(path: &Path, most: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}
