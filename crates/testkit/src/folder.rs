//! Files of a test.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A folder of its own, removed when it is dropped.
#[derive(Debug)]
pub struct Folder {
    inner: TempDir,
}

impl Folder {
    /// A new, empty folder.
    pub fn new() -> Self {
        Self { inner: tempfile::tempdir().expect("a temporary folder") }
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        self.inner.path()
    }

    /// The path of a file in the folder, which need not exist.
    pub fn path(&self, name: &str) -> PathBuf {
        self.inner.path().join(name)
    }

    /// The same as text, for command lines and policies.
    pub fn text_path(&self, name: &str) -> String {
        self.path(name).to_str().expect("a UTF-8 path").to_owned()
    }

    /// Replaces a file atomically, so that no reader sees a part of it.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        let new = self.path(&format!("{name}.new"));
        std::fs::write(&new, contents).expect("a file");
        std::fs::rename(new, self.path(name)).expect("a rename within a folder");
    }
}

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}
