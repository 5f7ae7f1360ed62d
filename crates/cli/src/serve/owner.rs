//! Which users are trusted: the user of this process, and root.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;

/// Who reads the token of the admin API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenReader {
    /// A gateway: the user who wrote the token controls it.
    Gateway,
    /// A command that sends the token to a gateway. Root may read the token of a gateway that runs as another user.
    Command,
}

/// Why a token file is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenFileError {
    /// Another user could choose the token, or have another file read.
    #[error("it belongs to another user; run `chown` to give it to the user of the gateway or to root")]
    OtherOwner,
    /// Another user could read or change the token.
    #[error("other users can read or change it; run `chmod 600`")]
    Accessible,
}

/// The owner and the permissions of a token file, and the owner of the name that leads to it, which may be a symbolic link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenFileAccess {
    link_owner: u32,
    owner: u32,
    mode: u32,
}

impl TokenFileAccess {
    pub(crate) fn new(link: &Metadata, file: &Metadata) -> Self {
        Self { link_owner: link.uid(), owner: file.uid(), mode: file.mode() }
    }

    /// Checks that no other user can choose, read or change the token.
    pub(crate) fn check(self, reader: TokenReader) -> Result<(), TokenFileError> {
        self.check_as(own_user(), reader)
    }

    fn check_as(self, own: u32, reader: TokenReader) -> Result<(), TokenFileError> {
        let Self { link_owner, owner, mode } = self;
        let is_ours = [link_owner, owner].iter().all(|owner| is_trusted(*owner, own));
        // A user could make root read the file of somebody else only by a link to it.
        let is_of_one_user = own == 0 && reader == TokenReader::Command && link_owner == owner;
        if !is_ours && !is_of_one_user {
            return Err(TokenFileError::OtherOwner);
        }
        // Root may let a group read its file: so do secrets that Kubernetes mounts for a group.
        let others = if owner == 0 { 0o037 } else { 0o077 };
        if mode & others != 0 { Err(TokenFileError::Accessible) } else { Ok(()) }
    }
}

/// Whether the process at the other end of `stream` runs as a trusted user.
#[cfg(target_os = "linux")]
pub(crate) fn is_trusted_peer(stream: &UnixStream) -> std::io::Result<bool> {
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    Ok(is_trusted(peer.uid.as_raw(), own_user()))
}

/// Elsewhere only the permissions of the socket protect it.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_trusted_peer(_: &UnixStream) -> std::io::Result<bool> {
    Ok(true)
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn is_trusted(user: u32, own: u32) -> bool {
    user == own || user == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(own: u32, (link_owner, owner, mode): (u32, u32, u32), reader: TokenReader) -> bool {
        TokenFileAccess { link_owner, owner, mode: 0o100_000 | mode }.check_as(own, reader).is_ok()
    }

    #[test]
    fn token_file_of_another_user_is_not_used() {
        for reader in [TokenReader::Gateway, TokenReader::Command] {
            assert!(check(1_000, (1_000, 1_000, 0o600), reader));
            assert!(check(1_000, (0, 0, 0o400), reader));
            assert!(!check(1_000, (1_001, 1_001, 0o600), reader));
            assert!(!check(1_000, (1_001, 1_000, 0o600), reader), "a link of another user to our file");
            assert!(!check(1_000, (1_000, 1_001, 0o600), reader), "our link to a file of another user");
            assert!(!check(0, (1_001, 0, 0o600), reader), "a user's link to a file of root");
        }
        assert!(check(0, (1_001, 1_001, 0o600), TokenReader::Command));
        assert!(!check(0, (1_001, 1_001, 0o600), TokenReader::Gateway));
    }

    #[test]
    fn token_file_that_others_can_access_is_not_used() {
        for mode in [0o604, 0o640, 0o620, 0o660, 0o601] {
            assert!(!check(1_000, (1_000, 1_000, mode), TokenReader::Gateway), "{mode:o}");
        }
        assert!(check(1_000, (0, 0, 0o440), TokenReader::Gateway), "root lets our group read it");
        assert!(!check(1_000, (0, 0, 0o444), TokenReader::Gateway));
        assert!(!check(1_000, (0, 0, 0o460), TokenReader::Gateway));
    }
}
