//! Which gateway an admin API belongs to: the paths of its policy and its state.
//!
//! Gateways on one machine have the same default address of the admin API, and only the first of them gets it. So every
//! response to an operator has these paths in headers, and a request with the same headers is meant only for the gateway
//! that has them.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

const POLICY: HeaderName = HeaderName::from_static("tidegate-policy");
const STATE: HeaderName = HeaderName::from_static("tidegate-state");

/// The absolute paths of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayPaths {
    /// The policy file; `None` if the policy is built in or comes from the command line.
    pub policy: Option<PathBuf>,
    /// The folder of bans, overrides and penalties; `None` if they are kept in memory.
    pub state: Option<PathBuf>,
}

impl GatewayPaths {
    /// Reads them from the headers of a message.
    pub fn read(headers: &HeaderMap) -> Self {
        let path = |name| headers.get(name).map(|value| PathBuf::from(OsStr::from_bytes(value.as_bytes())));
        Self { policy: path(POLICY), state: path(STATE) }
    }

    /// Writes them into the headers of a message. A path with a control character is left out.
    pub fn write(&self, headers: &mut HeaderMap) {
        for (name, path) in [(POLICY, &self.policy), (STATE, &self.state)] {
            let value =
                path.as_ref().and_then(|path| HeaderValue::from_bytes(path.as_os_str().as_bytes()).ok());
            if let Some(value) = value {
                headers.insert(name, value);
            }
        }
    }

    /// Whether a request for the gateway with the paths `expected` is for this one. A path that either of them lacks is not
    /// compared, except that a gateway without a policy file is none with one.
    pub(crate) fn are(&self, expected: &Self) -> bool {
        let policy = match (&self.policy, &expected.policy) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(policy), Some(expected)) => is_same(policy, expected),
        };
        policy && self.state.iter().zip(&expected.state).all(|(state, expected)| is_same(state, expected))
    }
}

impl fmt::Display for GatewayPaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.policy {
            Some(policy) => write!(f, "the policy {}", policy.display())?,
            None => f.write_str("no policy file")?,
        }
        match &self.state {
            Some(state) => write!(f, " and its state in {}", state.display()),
            None => Ok(()),
        }
    }
}

/// Whether two paths lead to the same file. Links are resolved now: they may change while the gateway runs.
fn is_same(one: &Path, other: &Path) -> bool {
    one == other || one.canonicalize().is_ok_and(|one| other.canonicalize().is_ok_and(|other| one == other))
}
