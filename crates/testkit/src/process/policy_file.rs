//! Policies as files.

use crate::folder::Folder;

const NAME: &str = "policy.yaml";

/// A policy file in a folder of its own.
#[derive(Debug)]
pub struct PolicyFile {
    folder: Folder,
}

impl PolicyFile {
    /// Writes `text` to a new file.
    pub fn new(text: &str) -> Self {
        let policy = Self { folder: Folder::new() };
        policy.write(text);
        policy
    }

    /// The path of the file.
    pub fn path(&self) -> String {
        self.folder.text_path(NAME)
    }

    /// The path of another file in the same folder.
    pub fn beside(&self, name: &str) -> String {
        self.folder.text_path(name)
    }

    /// Replaces the file as a whole.
    pub fn write(&self, text: &str) {
        self.folder.write(NAME, text);
    }
}
