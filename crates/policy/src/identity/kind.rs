//! The kinds of identities.

use std::fmt;

/// The kind of an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClientKind {
    /// An API key.
    ApiKey,
    /// A user.
    User,
    /// A tenant: a customer with many users or keys.
    Tenant,
    /// An address; IPv6 by its prefix.
    Ip,
    /// A hash of chosen headers.
    Fingerprint,
    /// A cookie.
    Cookie,
    /// None: all clients without an identity are counted together.
    Anonymous,
}

impl ClientKind {
    /// The kinds that a policy can name; `anonymous` is not one of them.
    pub const NAMED: [Self; 6] =
        [Self::ApiKey, Self::User, Self::Tenant, Self::Ip, Self::Fingerprint, Self::Cookie];

    /// The name in policies.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ApiKey => "api_key",
            Self::User => "user",
            Self::Tenant => "tenant",
            Self::Ip => "ip",
            Self::Cookie => "cookie",
            Self::Fingerprint => "fingerprint",
            Self::Anonymous => "anonymous",
        }
    }

    /// The kind with this name, of those that a policy can name.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMED.into_iter().find(|kind| kind.name() == name)
    }

    /// The first byte of such an identity in keys of counters. It must never change.
    pub(super) const fn tag(self) -> u8 {
        match self {
            Self::ApiKey => b'k',
            Self::User => b'u',
            Self::Tenant => b't',
            Self::Ip => b'a',
            Self::Cookie => b'c',
            Self::Fingerprint => b'f',
            Self::Anonymous => b'-',
        }
    }
}

impl fmt::Display for ClientKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
