//! The subject of a ban, as operators write it.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::compile::network::{NetworkProblem, banned_network};
use crate::identity::{ClientKind, ClientName, ClientNameError};

/// The maximum length of a name in bytes.
const MAX_NAME_LENGTH: usize = 4_096;

/// A network, or a client with one identity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// Every address of a network.
    Network(IpNet),
    /// A client; secrets are represented by their hash.
    Client(ClientName),
}

/// Why a subject is invalid. Messages never contain a value that may be a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// The client name is invalid.
    #[error(transparent)]
    Name(#[from] ClientNameError),
    /// The network is invalid.
    #[error("{what}; {hint}")]
    Network {
        /// What is wrong.
        what: String,
        /// How to fix it.
        hint: String,
    },
    /// It names several identities, or no particular client.
    #[error("a ban needs one network or one client, for example 203.0.113.0/24 or user:bob")]
    NotOne,
    /// The name is too long.
    #[error("the name is too long: at most {MAX_NAME_LENGTH} bytes are allowed")]
    TooLong,
}

impl Subject {
    /// Parses `203.0.113.0/24`, `ip:203.0.113.7`, `user:bob`, `api_key:KEY` or the output of [`Display`](fmt::Display).
    ///
    /// An IPv6 address without a prefix length means its network of `ipv6_prefix` bits, because one client usually has
    /// the whole network. Write a single address with `/128`.
    pub fn parse(text: &str, ipv6_prefix: u8) -> Result<Self, SubjectError> {
        if text.len() > MAX_NAME_LENGTH {
            return Err(SubjectError::TooLong);
        }
        let name = text.parse::<ClientName>();
        if name.as_ref().is_ok_and(|name| name.kind().is_none()) {
            return Err(SubjectError::NotOne);
        }
        let address = text.strip_prefix("ip:").unwrap_or(text);
        if address.len() < text.len() || looks_like_network(text) {
            return banned_network(address, ipv6_prefix)
                .map(Self::Network)
                .map_err(|NetworkProblem { what, hint }| SubjectError::Network { what, hint });
        }
        match name? {
            name if name.kind() == Some(ClientKind::Anonymous) => Err(SubjectError::NotOne),
            name => Ok(Self::Client(name.shown())),
        }
    }
}

impl Subject {
    /// Whether the counter key `key` belongs to this subject.
    pub fn names(&self, key: &[u8]) -> bool {
        match self {
            Self::Network(net) => {
                ClientName::from_key(key).address().is_some_and(|address| net.contains(&address))
            }
            Self::Client(name) => name.names(key),
        }
    }
}

/// Whether a text without the prefix `ip:` is meant as a network.
fn looks_like_network(text: &str) -> bool {
    let address = text.split('/').next().unwrap_or_default();
    address.parse::<IpAddr>().is_ok()
        || address.starts_with(|c: char| c.is_ascii_digit()) && !address.contains(|c: char| c.is_alphabetic())
}

impl fmt::Display for Subject {
    /// Writes a form that [`parse`](Self::parse) accepts with any `ipv6_prefix`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(IpNet::V4(net)) if net.prefix_len() == 32 => write!(f, "ip:{}", net.addr()),
            Self::Network(net) => write!(f, "ip:{net}"),
            Self::Client(name) => name.fmt(f),
        }
    }
}
