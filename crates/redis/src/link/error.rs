//! Why a call has no reply, and what an error reply means.

use redis::{RedisError, ServerError};
use thiserror::Error;
use tidegate_store::StoreError;

use crate::endpoint::ServerAddress;

/// Why a call was not answered. Whether it was executed is known only where the variant says so.
#[derive(Debug, Error)]
pub(crate) enum LinkError {
    /// It was not sent.
    #[error("too many calls wait for Redis")]
    QueueFull,
    /// It was not sent.
    #[error("the circuit breaker of {address} is open")]
    BreakerOpen { address: ServerAddress },
    /// It was not sent.
    #[error("no server is known for hash slot {slot}")]
    NoServer { slot: u16 },
    #[error("no reply within the timeout")]
    Timeout,
    #[error("the connection to {address} was lost")]
    ConnectionLost { address: ServerAddress, source: RedisError },
    #[error("the thread of the Redis connection has ended")]
    Stopped,
}

/// Whether a call that failed was certainly not sent.
pub(crate) fn is_unsent(error: &StoreError) -> bool {
    let StoreError::Unavailable(source) = error else { return false };
    matches!(
        source.downcast_ref(),
        Some(LinkError::QueueFull | LinkError::BreakerOpen { .. } | LinkError::NoServer { .. })
    )
}

impl From<LinkError> for StoreError {
    fn from(error: LinkError) -> Self {
        Self::Unavailable(Box::new(error))
    }
}

/// Why no connection could be made.
#[derive(Debug, Error)]
pub(crate) enum ConnectError {
    #[error("cannot connect to {address}: {source}")]
    Network { address: ServerAddress, source: std::io::Error },
    #[error("TLS with {address} failed: {source}")]
    Tls { address: ServerAddress, source: std::io::Error },
    #[error("invalid certificates for TLS: {reason}")]
    Certificates { reason: String },
    #[error("{address} rejected the login: {source}; check the user and the password of the store")]
    Login { address: ServerAddress, source: RedisError },
    #[error("the user of the store lacks a permission on {address}: {reason}")]
    Permission { address: ServerAddress, reason: String },
    #[error("{address} failed: {source}")]
    Server { address: ServerAddress, source: RedisError },
    #[error("{address} runs no scripts: {reason}")]
    Probe { address: ServerAddress, reason: String },
    #[error("{address} did not respond in time")]
    Timeout { address: ServerAddress },
    #[error("no Sentinel knows the primary of `{service}`")]
    NoPrimary { service: String },
    #[error("{address} gave no valid list of hash slots; is it a node of a cluster?")]
    NoSlots { address: ServerAddress },
}

/// What the operator has to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum FailureKind {
    Server,
    Login,
    Permission,
}

impl ConnectError {
    /// Whether an operator must change the configuration.
    pub(crate) fn is_permanent(&self) -> bool {
        matches!(self, Self::Login { .. } | Self::Permission { .. } | Self::Certificates { .. })
    }

    pub(super) fn from_redis(address: &ServerAddress, source: RedisError) -> Self {
        let address = address.clone();
        match source.code().unwrap_or_default() {
            "NOPERM" => {
                Self::Permission { address, reason: missing_permission(source.detail().unwrap_or_default()) }
            }
            "NOAUTH" | "WRONGPASS" => Self::Login { address, source },
            _ if source.kind() == redis::ErrorKind::AuthenticationFailed => Self::Login { address, source },
            _ => Self::Server { address, source },
        }
    }

    /// The server that failed; `None` if no server could be asked.
    pub(super) fn address(&self) -> Option<&ServerAddress> {
        match self {
            Self::Network { address, .. }
            | Self::Tls { address, .. }
            | Self::Login { address, .. }
            | Self::Permission { address, .. }
            | Self::Server { address, .. }
            | Self::Probe { address, .. }
            | Self::Timeout { address }
            | Self::NoSlots { address } => Some(address),
            Self::Certificates { .. } | Self::NoPrimary { .. } => None,
        }
    }

    /// Whether the server replied, and with an error.
    pub(super) fn is_reply(&self) -> bool {
        match self {
            Self::Server { source, .. } => source.code().is_some(),
            Self::Login { .. } | Self::Permission { .. } | Self::Probe { .. } | Self::NoSlots { .. } => true,
            Self::Network { .. }
            | Self::Tls { .. }
            | Self::Certificates { .. }
            | Self::Timeout { .. }
            | Self::NoPrimary { .. } => false,
        }
    }

    /// What the operator has to look at.
    pub(super) fn kind(&self) -> FailureKind {
        match self {
            Self::Login { .. } => FailureKind::Login,
            Self::Permission { .. } => FailureKind::Permission,
            _ => FailureKind::Server,
        }
    }
}

/// The text of `NOPERM`, and the rule that allows what was rejected.
pub(crate) fn missing_permission(details: &str) -> String {
    let command = details.split('\'').nth(1).filter(|_| details.contains("command"));
    let rule = match command {
        Some(command) => format!("+{}", command.to_ascii_lowercase()),
        None if details.contains("channel") => "&<prefix>*".to_owned(),
        None => "~<prefix>*".to_owned(),
    };
    format!("{details}; allow it with `ACL SETUSER <user> {rule}`")
}

/// What an error reply means for the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ErrorReply {
    /// Not executed: another server has the slot.
    Moved { slot: u16, address: ServerAddress },
    /// Not executed: the slot is being moved, and this key may already be at the other server.
    Ask { address: ServerAddress },
    /// Not executed: some keys of the call have been moved and some not.
    TryAgain,
    /// Not executed: the server does not know the script.
    NoScript,
    /// Not executed: the server cannot write now (loading, a replica, without a quorum, or busy).
    NotReady { reason: String },
    /// Any other error. It is never repeated.
    Rejected { reason: String },
}

impl ErrorReply {
    /// `from` is the server that sent the reply: an address without a host means its host.
    pub(super) fn parse(error: &ServerError, from: &ServerAddress) -> Self {
        let details = error.details().unwrap_or_default();
        let reason = || format!("{}: {details}", error.code());
        let rejected = || Self::Rejected { reason: reason() };
        match error.code() {
            "MOVED" => match redirection(details, from) {
                Some((slot, address)) => Self::Moved { slot, address },
                None => rejected(),
            },
            "ASK" => match redirection(details, from) {
                Some((_, address)) => Self::Ask { address },
                None => rejected(),
            },
            "TRYAGAIN" => Self::TryAgain,
            "NOSCRIPT" => Self::NoScript,
            "LOADING" | "READONLY" | "CLUSTERDOWN" | "MASTERDOWN" | "BUSY" => {
                Self::NotReady { reason: reason() }
            }
            _ => rejected(),
        }
    }
}

/// Parses `slot host:port`.
fn redirection(details: &str, from: &ServerAddress) -> Option<(u16, ServerAddress)> {
    let mut words = details.split_ascii_whitespace();
    let slot = words.next()?.parse().ok()?;
    let (host, port) = words.next()?.rsplit_once(':')?;
    let host = if host.is_empty() || host == "?" { from.host.clone() } else { host.to_owned() };
    Some((slot, ServerAddress { host, port: port.parse().ok()? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: &str, port: u16) -> ServerAddress {
        ServerAddress { host: host.to_owned(), port }
    }

    #[test]
    fn missing_permission_names_the_rule_that_allows_it() {
        let of = |details: &str| missing_permission(details).rsplit(' ').next().unwrap().to_owned();
        assert_eq!(of("this user has no permissions to run the 'evalsha' command"), "+evalsha`");
        assert_eq!(of("this user has no permissions to run the 'script|load' command"), "+script|load`");
        assert_eq!(
            of("this user has no permissions to access one of the keys used as arguments"),
            "~<prefix>*`"
        );
        assert_eq!(
            of("this user has no permissions to access one of the channels used as arguments"),
            "&<prefix>*`"
        );
    }

    #[test]
    fn redirection_is_parsed_with_ipv6_and_with_an_empty_host() {
        let from = address("a", 1);
        assert_eq!(redirection("3999 127.0.0.1:6381", &from), Some((3999, address("127.0.0.1", 6381))));
        assert_eq!(redirection("3999 ::1:6381", &from), Some((3999, address("::1", 6381))));
        assert_eq!(redirection("3999 :6381", &from), Some((3999, address("a", 6381))));
        assert_eq!(redirection("3999 nowhere", &from), None);
        assert_eq!(redirection("", &from), None);
    }
}
