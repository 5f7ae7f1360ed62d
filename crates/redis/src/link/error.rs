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

impl ConnectError {
    /// Whether an operator must change the configuration.
    pub(crate) fn is_permanent(&self) -> bool {
        matches!(self, Self::Login { .. } | Self::Certificates { .. })
    }

    pub(super) fn from_redis(address: &ServerAddress, source: RedisError) -> Self {
        let address = address.clone();
        let code = source.code().unwrap_or_default();
        let is_login = source.kind() == redis::ErrorKind::AuthenticationFailed
            || matches!(code, "NOAUTH" | "WRONGPASS" | "NOPERM");
        if is_login { Self::Login { address, source } } else { Self::Server { address, source } }
    }
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
    NotReady,
    /// Any other error. It is never repeated.
    Rejected { reason: String },
}

impl ErrorReply {
    /// `from` is the server that sent the reply: an address without a host means its host.
    pub(super) fn parse(error: &ServerError, from: &ServerAddress) -> Self {
        let details = error.details().unwrap_or_default();
        let rejected = || Self::Rejected { reason: format!("{}: {details}", error.code()) };
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
            "LOADING" | "READONLY" | "CLUSTERDOWN" | "MASTERDOWN" | "BUSY" => Self::NotReady,
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
    fn redirection_is_parsed_with_ipv6_and_with_an_empty_host() {
        let from = address("a", 1);
        assert_eq!(redirection("3999 127.0.0.1:6381", &from), Some((3999, address("127.0.0.1", 6381))));
        assert_eq!(redirection("3999 ::1:6381", &from), Some((3999, address("::1", 6381))));
        assert_eq!(redirection("3999 :6381", &from), Some((3999, address("a", 6381))));
        assert_eq!(redirection("3999 nowhere", &from), None);
        assert_eq!(redirection("", &from), None);
    }
}
