//! What outlives the process: where it is kept, and the token of the admin API.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tidegate_admin::AdminToken;
use tidegate_policy::Plan;
use tidegate_store::durable::{Contents, Durable};

/// The durable file, in the folder for what outlives the process.
const FILE: &str = "tidegate.redb";
/// The token's, unless the policy names another.
const TOKEN: &str = "admin.token";

/// The durable store, and what it holds.
pub(crate) struct State {
    pub(crate) durable: Durable,
    /// `None`: everything is forgotten when the process ends.
    pub(crate) path: Option<PathBuf>,
    pub(crate) contents: Contents,
}

impl State {
    /// What the policy at `policy` left behind when it last ran; without a file, nothing outlives the process.
    pub(crate) fn open(policy: Option<&Path>, plan: &Plan) -> anyhow::Result<Self> {
        let Some(folder) = policy.map(|policy| folder(policy, plan)) else { return Self::forgetful() };
        if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(&folder) {
            let named = plan.store.directory.is_some();
            if named || !matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) {
                return Err(error).with_context(|| format!("cannot make {}", folder.display()));
            }
            tracing::warn!(
                event = "not_durable",
                "cannot make {} ({error}): bans and overrides will be forgotten at the next start; name a folder \
                 in `store.directory`",
                folder.display()
            );
            return Self::forgetful();
        }
        let path = folder.join(FILE);
        let (durable, contents) = Durable::open(&path)?;
        Ok(Self { durable, path: Some(path), contents })
    }

    fn forgetful() -> anyhow::Result<Self> {
        Ok(Self { durable: Durable::in_memory()?, path: None, contents: Contents::default() })
    }
}

/// The folder for what outlives a process that serves this policy.
fn folder(policy: &Path, plan: &Plan) -> PathBuf {
    let beside = policy.parent().unwrap_or(Path::new(""));
    match &plan.store.directory {
        Some(directory) => beside.join(directory),
        None => policy.with_extension("state"),
    }
}

/// Where the token of this policy's admin API is kept.
pub(crate) fn token_file(policy: &Path, plan: &Plan) -> PathBuf {
    match plan.admin.as_ref().and_then(|admin| admin.token_file.as_ref()) {
        Some(named) => policy.parent().unwrap_or(Path::new("")).join(named),
        None => folder(policy, plan).join(TOKEN),
    }
}

/// Where the token of an admin API without a policy is kept: with the user.
pub(crate) fn own_token_file() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").filter(|state| !state.is_empty()).map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    Some(state.or_else(home)?.join("tidegate").join(TOKEN))
}

/// The token of the admin API.
pub(crate) enum Kept {
    /// In a file.
    In(PathBuf),
    /// In a file, and made just now.
    New(PathBuf),
    /// Nowhere: it is another one at each start.
    Nowhere,
}

/// Reads the token, or makes one if there is none and only this machine can ask.
pub(crate) fn token(path: Option<&Path>, is_loopback: bool) -> anyhow::Result<(AdminToken, Kept)> {
    let Some(path) = path else { return Ok((AdminToken::generate()?, Kept::Nowhere)) };
    let shown = path.display();
    match read_token(path) {
        Ok(token) => {
            let mode = std::fs::metadata(path).map(|found| found.permissions().mode()).unwrap_or_default();
            if mode & 0o077 != 0 {
                tracing::warn!(
                    event = "token_readable",
                    "others can read the token in {shown}; chmod 600 {shown}"
                );
            }
            return Ok((token, Kept::In(path.to_owned())));
        }
        Err(error) if is_missing(&error) => {}
        Err(error) => return Err(error),
    }
    if !is_loopback {
        bail!(
            "others can reach the admin API, and there is no token in {shown}; make one with \
             `(umask 077; openssl rand -hex 32 > {shown})`"
        );
    }
    let token = AdminToken::generate()?;
    match write_token(path, &token) {
        Ok(()) => Ok((token, Kept::New(path.to_owned()))),
        // Two that start at once agree on the first one's.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            Ok((read_token(path)?, Kept::In(path.to_owned())))
        }
        Err(error) => {
            tracing::warn!(
                event = "token_not_kept",
                "cannot keep the token of the admin API in {shown} ({error})"
            );
            Ok((token, Kept::Nowhere))
        }
    }
}

pub(crate) fn read_token(path: &Path) -> anyhow::Result<AdminToken> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the token in {shown}"))?;
    AdminToken::parse(&text).with_context(|| format!("{shown} holds no token"))
}

pub(crate) fn is_missing(error: &anyhow::Error) -> bool {
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
