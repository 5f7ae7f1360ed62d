//! Reads policies and the files they refer to.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tidegate_policy::{FileError, Files, MAX_FILE_SIZE};

/// Referenced files may be larger than a policy: a million API keys take about 50 MB.
const MAX_REFERENCED_BYTES: u64 = 256 << 20;

/// One byte more is enough for the compiler to report that a policy is too large.
const MAX_POLICY_BYTES: u64 = MAX_FILE_SIZE as u64 + 1;

/// Reads a policy, but at most one byte more than the allowed size.
pub(crate) fn read_policy(path: &Path) -> std::io::Result<Vec<u8>> {
    read(open_regular(path)?, MAX_POLICY_BYTES)
}

/// Like [`read_policy`], also from a pipe, such as `/dev/stdin`: for commands in the foreground.
pub(crate) fn read_policy_or_pipe(path: &Path) -> std::io::Result<Vec<u8>> {
    read(File::open(path)?, MAX_POLICY_BYTES)
}

/// Opens a regular file. Opening or reading anything else, such as a FIFO, could wait for ever.
pub(crate) fn open_regular(path: &Path) -> std::io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()? {
        found if found.is_file() => Ok(file),
        found if found.is_dir() => Err(ErrorKind::IsADirectory.into()),
        _ => Err(Error::new(ErrorKind::InvalidInput, "it is not a regular file")),
    }
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
        let file = open_regular(&self.0.join(name));
        match file.and_then(|file| read(file, MAX_REFERENCED_BYTES.saturating_add(1))) {
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
fn read(file: File, max_bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(max_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Describes why a file cannot be created or written.
pub(crate) fn describe_write_error(error: &Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "its folder does not exist".to_owned(),
        _ => describe_io_error(error),
    }
}

/// Describes why a file cannot be read, without the error number.
pub(crate) fn describe_io_error(error: &Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "no such file".to_owned(),
        ErrorKind::PermissionDenied => "permission denied".to_owned(),
        ErrorKind::IsADirectory => "it is a directory".to_owned(),
        _ => error.to_string(),
    }
}
