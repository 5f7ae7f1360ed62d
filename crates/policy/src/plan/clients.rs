//! How clients are identified.

use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;

use crate::identity::{ClientKind, NotLockedOut, Verifier, parts};

/// How clients are identified. Header names are lower case.
#[derive(Clone, Debug)]
pub struct Clients {
    /// A client is identified by the first of these that the request has.
    pub identify_by: Vec<ClientKind>,
    /// The header that carries the API key.
    pub api_key_header: String,
    /// Whether API keys are accepted without a keys file (`verify: none`). Then every made-up key is a new client.
    pub accepts_unverified_keys: bool,
    /// Where to find the user.
    pub user: Option<NameSource>,
    /// Where to find the tenant.
    pub tenant: Option<NameSource>,
    /// Proxies whose forwarding headers are trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// The prefix length, 1 to 128, by which IPv6 clients are counted.
    pub ipv6_prefix: u8,
    /// The headers that are hashed to a fingerprint.
    pub fingerprint_headers: Vec<String>,
    /// The cookie that identifies a client.
    pub cookie: Option<String>,
    /// What happens to tokens and API keys that are not valid.
    pub on_invalid: OnInvalid,
    /// The tiers of clients.
    pub tiers: TierSource,
    /// Clients that are exempt from limits.
    pub exempt: ExemptClients,
}

impl Clients {
    /// The token that may name a tier: that of the user, or else that of the tenant.
    pub(crate) fn tier_token(&self) -> Option<&TokenPlan> {
        [&self.user, &self.tenant].into_iter().find_map(|source| match source {
            Some(NameSource::Token(token)) => Some(token),
            Some(NameSource::Header(_)) | None => None,
        })
    }

    /// Whether a penalty may lock out this identity. Other clients must not have it, and a client must not be able to use
    /// that of another.
    pub(crate) fn may_lock_out(&self, kind: ClientKind) -> bool {
        // A header of a proxy may be what the client has typed, for example the name in a login form. Without a source, only
        // a caller of the decision service names users and tenants.
        let is_verified = |source: &Option<NameSource>| !matches!(source, Some(NameSource::Header(_)));
        match kind {
            // Nobody else knows an API key, verified or not.
            ClientKind::Ip | ClientKind::ApiKey => true,
            ClientKind::User => is_verified(&self.user),
            ClientKind::Tenant => is_verified(&self.tenant),
            ClientKind::Cookie | ClientKind::Fingerprint | ClientKind::Anonymous => false,
        }
    }

    /// Whether a penalty may lock out the counter `key`. In a combination, one such identity is enough: the lock-out
    /// applies to no other client. Identities that are `excluded` do not count.
    pub(crate) fn may_lock_out_counter(&self, key: &[u8], excluded: NotLockedOut) -> bool {
        parts(key).any(|(kind, _)| self.may_lock_out(kind) && !excluded.contains(kind))
    }

    /// Whether a client can have a new identity of this kind with each request. `verify: none` for API keys has a warning of
    /// its own.
    pub(crate) fn is_chosen_by_client(&self, kind: ClientKind) -> bool {
        match kind {
            ClientKind::Fingerprint => true,
            // Without a name it has been reported.
            ClientKind::Cookie => self.cookie.is_some(),
            ClientKind::ApiKey
            | ClientKind::User
            | ClientKind::Tenant
            | ClientKind::Ip
            | ClientKind::Anonymous => false,
        }
    }
}

tidegate_core::named_enum! {
    /// What happens to a header with a token or an API key that is not valid.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum OnInvalid {
        /// It is forwarded, and does not count.
        #[default]
        Forward = "forward",
        /// It is removed before anything reads it.
        Remove = "remove",
        /// The request is rejected with 401.
        Reject = "reject",
    }
}

/// Where to find a user or tenant in a request.
#[derive(Clone, Debug)]
pub enum NameSource {
    /// In a header, which is only used if the peer is a trusted proxy.
    Header(String),
    /// In a verified token.
    Token(TokenPlan),
}

/// A JSON Web Token to verify.
#[derive(Clone, Debug)]
pub struct TokenPlan {
    /// The header that carries it.
    pub header: String,
    /// The claim that holds the name.
    pub claim: ClaimName,
    /// The verification key, as read.
    pub key: TokenKey,
    /// The verifier built from `key`.
    pub verifier: Arc<Verifier>,
}

/// The name of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimName(pub String);

/// The key that verifies a token.
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

/// Secret bytes. `Debug` shows only their length.
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

/// Assigns tiers to clients. The server reads and watches the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierSource {
    /// A CSV file: API key, tier, tenant. It takes precedence over the request.
    pub file: Option<String>,
    /// Where requests name the tier of their client.
    pub sent: Option<SentTier>,
    /// The tier of all other clients, as an index into the plan's tiers.
    pub default: Option<usize>,
}

impl TierSource {
    /// Whether any client can have a tier.
    pub(crate) fn assigns_tiers(&self) -> bool {
        self.file.is_some() || self.sent.is_some() || self.default.is_some()
    }
}

/// Where a request names the tier of its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SentTier {
    /// In a header, which is only used if the peer is a trusted proxy.
    Header(String),
    /// In this claim of the token that names the user, or else the tenant. Only a token that is valid now counts.
    Claim(ClaimName),
}

/// Clients that are exempt from limits.
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
    fn language_lists_every_client_kind() {
        assert_eq!(ClientKind::NAMED.map(ClientKind::name), *IDENTITIES);
    }

    #[test]
    fn secret_debug_hides_the_bytes() {
        assert!(!format!("{:?}", Secret::new(b"hunter2")).contains("hunter2"));
    }
}
