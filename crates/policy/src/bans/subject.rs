//! Whom a ban shuts out, as operators write it.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::compile::network::{NetworkProblem, network};
use crate::identity::{ClientKind, ClientName, ClientNameError};

/// A longer name is no name.
const MAX_NAME_LENGTH: usize = 4_096;

/// A network, or a client known by one thing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// Every address of a network.
    Network(IpNet),
    /// A client, as it is shown: secrets by their hash.
    Client(ClientName),
}

/// Why nobody can be banned so. Nothing is repeated that may be a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// It is no name.
    #[error(transparent)]
    Name(#[from] ClientNameError),
    /// It is no network.
    #[error("{what}; {hint}")]
    Network {
        /// What is wrong.
        what: String,
        /// What to write.
        hint: String,
    },
    /// It names several identities at once, or nobody in particular.
    #[error("a ban is of one network or of one client, for instance 203.0.113.0/24 or user:bob")]
    NotOne,
    /// It is too long.
    #[error("a name has at most {MAX_NAME_LENGTH} bytes")]
    TooLong,
}

impl Subject {
    /// Reads `203.0.113.0/24`, `ip:203.0.113.7`, `user:bob`, `api_key:KEY` or what [`Display`](fmt::Display) writes.
    ///
    /// An IPv6 address without a prefix length stands for its network of `ipv6_prefix` bits, which is one client: its
    /// neighbours are as good as itself. One address alone is written with `/128`.
    pub fn parse(text: &str, ipv6_prefix: u8) -> Result<Self, SubjectError> {
        if text.len() > MAX_NAME_LENGTH {
            return Err(SubjectError::TooLong);
        }
        let address = text.strip_prefix("ip:").unwrap_or(text);
        if address.len() < text.len() || looks_like_network(text) {
            let found = match address.parse::<IpAddr>().map(|address| address.to_canonical()) {
                Ok(IpAddr::V6(address)) => {
                    IpNet::new(address.into(), ipv6_prefix).map(|net| net.trunc()).ok()
                }
                Ok(address) => Some(IpNet::from(address)),
                Err(_) => None,
            };
            return found
                .map_or_else(|| network(address), Ok)
                .map(Self::Network)
                .map_err(|NetworkProblem { what, hint }| SubjectError::Network { what, hint });
        }
        let name: ClientName = text.parse()?;
        match name.kind() {
            None | Some(ClientKind::Anonymous) => Err(SubjectError::NotOne),
            Some(_) => Ok(Self::Client(name.shown())),
        }
    }
}

impl Subject {
    /// Whether `key` is a counter's key of whom it names.
    pub fn names(&self, key: &[u8]) -> bool {
        match self {
            Self::Network(net) => ClientName::of(key).address().is_some_and(|address| net.contains(&address)),
            Self::Client(name) => name.names(key),
        }
    }
}

/// Without `ip:` before it.
fn looks_like_network(text: &str) -> bool {
    let address = text.split('/').next().unwrap_or_default();
    address.parse::<IpAddr>().is_ok()
        || address.starts_with(|c: char| c.is_ascii_digit()) && !address.contains(|c: char| c.is_alphabetic())
}

impl fmt::Display for Subject {
    /// What [`parse`](Self::parse) reads again, whatever the prefix.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(IpNet::V4(net)) if net.prefix_len() == 32 => write!(f, "ip:{}", net.addr()),
            Self::Network(net) => write!(f, "ip:{net}"),
            Self::Client(name) => name.fmt(f),
        }
    }
}
