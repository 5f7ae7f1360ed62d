//! Reads policies and the files they refer to.

use std::borrow::Cow;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use tidegate_policy::{FileError, Files, MAX_FILE_SIZE};

/// Referenced files may be larger than a policy: a million API keys take about 50 MB.
const MAX_REFERENCED_BYTES: u64 = 256 << 20;

/// Reads a policy, but at most one byte more than the allowed size.
pub(crate) fn read_policy(path: &Path) -> std::io::Result<Vec<u8>> {
    // One byte more is enough for the compiler to report that the policy is too large.
    read(path, u64::try_from(MAX_FILE_SIZE).unwrap_or(u64::MAX).saturating_add(1))
}

/// The folder of a policy. File names in the policy are relative to it.
pub(crate) struct PolicyFolder(PathBuf);

impl PolicyFolder {
    /// The folder of the policy at `path`.
    pub(crate) fn of(path: &Path) -> Self {
        Self(path.parent().unwrap_or(Path::new("")).to_owned())
    }
}

impl Files for PolicyFolder {
    fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, FileError> {
        match read(&self.0.join(name), MAX_REFERENCED_BYTES.saturating_add(1)) {
            Ok(bytes) if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_REFERENCED_BYTES => {
                Err(FileError::Unreadable { reason: "the file is larger than 256 MiB".to_owned() })
            }
            Ok(bytes) => Ok(Cow::Owned(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(FileError::Missing),
            Err(error) => Err(FileError::Unreadable { reason: describe_io_error(&error) }),
        }
    }
}

/// Reads at most `max_bytes` of a file.
fn read(path: &Path, max_bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Describes why a file cannot be created or written.
pub(crate) fn describe_write_error(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "its folder does not exist".to_owned(),
        _ => describe_io_error(error),
    }
}

/// Describes why a file cannot be read, without the error number.
pub(crate) fn describe_io_error(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "no such file".to_owned(),
        ErrorKind::PermissionDenied => "permission denied".to_owned(),
        ErrorKind::IsADirectory => "it is a directory".to_owned(),
        _ => error.to_string(),
    }
}
