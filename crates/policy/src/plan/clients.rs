//! Who a request comes from.

use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;

use crate::identity::{ClientKind, Verifier};

/// How clients are told apart. Header names are lower case.
#[derive(Clone, Debug)]
pub struct Clients {
    /// What names a client: the first of these that a request has.
    pub identify_by: Vec<ClientKind>,
    /// The header that carries the API key.
    pub api_key_header: String,
    /// Whether a key counts that no keys file knows (`verify: none`). Then every invented key is a new client.
    pub accepts_unverified_keys: bool,
    /// Where the user stands.
    pub user: Option<NameSource>,
    /// Where the tenant stands.
    pub tenant: Option<NameSource>,
    /// Proxies whose forwarding headers are believed.
    pub trusted_proxies: Vec<IpNet>,
    /// How many bits of an IPv6 address are one client: 1 to 128.
    pub ipv6_prefix: u8,
    /// The headers a fingerprint is made of.
    pub fingerprint_headers: Vec<String>,
    /// The cookie that names a client.
    pub cookie: Option<String>,
    /// Which client has which tier.
    pub tiers: TierSource,
    /// Who is never limited.
    pub exempt: ExemptClients,
}

/// Where a name stands in a request.
#[derive(Clone, Debug)]
pub enum NameSource {
    /// In a header. It counts if the peer is a trusted proxy.
    Header(String),
    /// In a verified token.
    Token(TokenPlan),
}

/// A JSON Web Token to verify.
#[derive(Clone, Debug)]
pub struct TokenPlan {
    /// The header that carries it.
    pub header: String,
    /// The claim that is the name.
    pub claim: ClaimName,
    /// What verifies it, as it was read.
    pub key: TokenKey,
    /// What verifies it, ready for use.
    pub verifier: Arc<Verifier>,
}

/// The name of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimName(pub String);

/// What verifies a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenKey {
    /// A shared secret (HS256).
    Secret {
        /// The file it came from.
        file: String,
        /// The secret.
        secret: Secret,
    },
    /// Public keys as a JSON Web Key Set (RS256, ES256).
    KeySet {
        /// The file it came from.
        file: String,
        /// The set, as JSON.
        json: String,
    },
}

/// Bytes that are shown to nobody.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Secret(Vec<u8>);

impl Secret {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// The bytes themselves.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

/// Which client has which tier. The file is read and watched by whoever runs the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierSource {
    /// A CSV file: API key, tier, tenant.
    pub file: Option<String>,
    /// The tier of everybody else, as an index into the plan's tiers.
    pub default: Option<usize>,
}

/// Who is never limited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExemptClients {
    /// Addresses.
    pub networks: Vec<IpNet>,
    /// API keys, sorted.
    pub api_keys: Vec<Secret>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::IDENTITIES;

    #[test]
    fn the_language_names_every_identity() {
        assert_eq!(ClientKind::NAMED.map(ClientKind::name), *IDENTITIES);
    }

    #[test]
    fn a_secret_is_never_shown() {
        assert!(!format!("{:?}", Secret::new(b"hunter2")).contains("hunter2"));
    }
}
