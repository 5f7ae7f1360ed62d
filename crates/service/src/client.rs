//! The clients that requests name.

use tidegate_policy::{ClientName, ClientNameError, Identities};

/// The counter key of the client `text` with one identity: `user:bob`, `ip:203.0.113.7`, `api_key:KEY`.
pub(crate) fn counter_key(identities: &Identities, text: &str) -> Result<Vec<u8>, ClientNameError> {
    // Only a name with a hash instead of the identity has no key; such a name cannot be made here.
    ClientName::of_identity(text)?.key(identities).ok_or(ClientNameError::NoKind)
}
