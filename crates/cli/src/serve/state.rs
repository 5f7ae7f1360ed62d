//! Persistent state: the durable file and the token of the admin API.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use tidegate_admin::AdminToken;
use tidegate_policy::{AdminPlan, Plan};
use tidegate_store::durable::{Contents, Durable};

use super::owner::TokenFileAccess;
pub(crate) use super::owner::TokenReader;
use crate::file::{describe_io_error, open_regular};

/// Name of the durable file in the state folder.
const DURABLE_FILE: &str = "tidegate.redb";
/// Default name of the token file in the state folder.
const TOKEN_FILE: &str = "admin.token";

/// More than a valid token can have.
const MAX_TOKEN_BYTES: u64 = 64 << 10;

/// The durable store and its contents.
pub(crate) struct DurableState {
    pub(crate) durable: Durable,
    /// `None` if the state is lost when the process ends.
    pub(crate) path: Option<PathBuf>,
    pub(crate) contents: Contents,
}

impl DurableState {
    /// Opens the state of the policy file `policy`. Without a file, the state is kept in memory only.
    pub(crate) fn open(policy: Option<&Path>, plan: &Plan) -> anyhow::Result<Self> {
        let Some(folder) = policy.map(|policy| state_folder(policy, plan.store.directory.as_deref())) else {
            return Self::in_memory();
        };
        if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(&folder) {
            let is_configured = plan.store.directory.is_some();
            if is_configured
                || !matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
            {
                bail!(
                    "cannot create the folder {}: {}; check `store.directory` and its permissions",
                    folder.display(),
                    describe_io_error(&error)
                );
            }
            tracing::warn!(
                event = "state_not_persisted",
                "cannot create the folder {}: {}; bans and overrides are not persisted; set `store.directory` to a \
                 writable folder",
                folder.display(),
                describe_io_error(&error)
            );
            return Self::in_memory();
        }
        let path = folder.join(DURABLE_FILE);
        let (durable, contents) = Durable::open(&path)?;
        Ok(Self { durable, path: Some(path), contents })
    }

    fn in_memory() -> anyhow::Result<Self> {
        Ok(Self { durable: Durable::in_memory()?, path: None, contents: Contents::default() })
    }
}

/// The folder of the persistent state of a policy.
pub(crate) fn state_folder(policy: &Path, directory: Option<&str>) -> PathBuf {
    let beside = policy.parent().unwrap_or(Path::new(""));
    match directory {
        Some(directory) => beside.join(directory),
        None => policy.with_extension("state"),
    }
}

/// The token file of a policy's admin API.
pub(crate) fn token_file(policy: &Path, admin: &AdminPlan, directory: Option<&str>) -> PathBuf {
    match &admin.token_file {
        Some(name) => policy.parent().unwrap_or(Path::new("")).join(name),
        None => state_folder(policy, directory).join(TOKEN_FILE),
    }
}

/// The token file of an admin API without a policy file, in the home folder of the user.
pub(crate) fn user_token_file() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").filter(|state| !state.is_empty()).map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    Some(state.or_else(home)?.join("tidegate").join(TOKEN_FILE))
}

/// Where the token of the admin API is stored.
pub(crate) enum TokenLocation {
    /// In an existing file.
    File(PathBuf),
    /// In a file that was created just now.
    NewFile(PathBuf),
    /// In memory only: each start generates a new token.
    Memory,
}

/// Reads the token. Creates one if there is none and the admin API is reachable only from this machine.
pub(crate) fn load_or_create_token(
    path: Option<&Path>,
    is_loopback: bool,
) -> anyhow::Result<(AdminToken, TokenLocation)> {
    let Some(path) = path else { return Ok((AdminToken::generate()?, TokenLocation::Memory)) };
    let file = path.display();
    match read_token(path, TokenReader::Gateway) {
        Ok(token) => return Ok((token, TokenLocation::File(path.to_owned()))),
        Err(error) if is_not_found(&error) => {}
        Err(error) => return Err(error),
    }
    if !is_loopback {
        bail!(
            "missing admin token {file}; it is required because other machines can reach the admin API; create it with \
             `(umask 077; openssl rand -hex 32 > {file})`"
        );
    }
    let token = AdminToken::generate()?;
    match write_token(path, &token) {
        Ok(()) => Ok((token, TokenLocation::NewFile(path.to_owned()))),
        // Another process that started at the same time has created the token.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            Ok((read_token(path, TokenReader::Gateway)?, TokenLocation::File(path.to_owned())))
        }
        Err(error) => {
            tracing::warn!(
                event = "token_not_saved",
                "cannot write the admin token to {file}: {error}; the token changes at each start"
            );
            Ok((token, TokenLocation::Memory))
        }
    }
}

/// Reads the token from a file. A file that another user could choose, read or change is rejected.
pub(crate) fn read_token(path: &Path, reader: TokenReader) -> anyhow::Result<AdminToken> {
    let file = path.display();
    let read = || -> std::io::Result<(TokenFileAccess, String)> {
        let opened = open_regular(path)?;
        let access = TokenFileAccess::new(&std::fs::symlink_metadata(path)?, &opened.metadata()?);
        let mut text = String::new();
        opened.take(MAX_TOKEN_BYTES).read_to_string(&mut text)?;
        Ok((access, text))
    };
    let (access, text) = read().map_err(|error| match error.kind() {
        ErrorKind::NotFound => anyhow::Error::new(error),
        ErrorKind::InvalidData => anyhow!("invalid admin token in {file}: the file is not text"),
        _ => anyhow!("cannot read the admin token in {file}: {}", describe_io_error(&error)),
    })?;
    access.check(reader).map_err(|error| anyhow!("cannot use the admin token in {file}: {error}"))?;
    AdminToken::parse(&text).with_context(|| format!("invalid admin token in {file}"))
}

/// Whether a file was not found.
pub(crate) fn is_not_found(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::NotFound)
}

fn write_token(path: &Path, token: &AdminToken) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{}", token.expose())?;
    file.sync_all()
}
