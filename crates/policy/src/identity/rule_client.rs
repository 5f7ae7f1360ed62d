//! A client that the caller of a check has identified.

use std::fmt;
use std::net::IpAddr;

use smallvec::SmallVec;

use super::{ClientKind, ClientName, Identities, parts};

/// The client of a check that names a rule. The default is no particular client.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RuleClient {
    key: Vec<u8>,
    /// Its full addresses. The key has only a prefix of an IPv6 address, but a ban may apply to a part of that network.
    addresses: SmallVec<[IpAddr; 1]>,
}

impl RuleClient {
    /// The client called `name`; `None` if the name has only a hash.
    pub fn new(name: &ClientName, identities: &Identities) -> Option<Self> {
        Some(Self { key: name.key(identities)?, addresses: name.addresses().collect() })
    }

    /// The client with this counter key, such as [`MatchedRequest::client`](crate::MatchedRequest::client).
    pub fn from_key(key: &[u8]) -> Self {
        Self { key: key.to_vec(), addresses: ClientName::from_key(key).addresses().collect() }
    }

    /// The key of its counters. It may contain an API key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Its addresses.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().copied()
    }

    /// The kinds and values of its identities.
    pub(crate) fn identities(&self) -> impl Iterator<Item = (ClientKind, &[u8])> {
        parts(&self.key)
    }
}

impl fmt::Debug for RuleClient {
    /// Hides secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RuleClient({})", ClientName::from_key(&self.key))
    }
}
