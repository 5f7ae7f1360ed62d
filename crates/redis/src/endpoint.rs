//! Where Redis is: the parsed URL.

use std::fmt;

use thiserror::Error;

/// Where Redis or Valkey is. `Display` and `Debug` redact the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub(crate) deployment: Deployment,
    pub(crate) tls: bool,
    /// The ACL user.
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    /// The number of the database; 0 in a cluster.
    pub(crate) database: i64,
}

/// How the servers are arranged. Addresses are host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deployment {
    /// One server, which has all hash slots.
    Single(ServerAddress),
    /// Sentinels that know the primary of `service`.
    Sentinel {
        /// The Sentinels.
        sentinels: Vec<ServerAddress>,
        /// The name of the monitored service.
        service: String,
    },
    /// Some nodes of a cluster.
    Cluster(Vec<ServerAddress>),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ServerAddress {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Why a URL is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "invalid store URL: {reason}; for example `redis://127.0.0.1:6379/0`, `redis-sentinel://host1,host2/service` or `redis-cluster://host1,host2`"
)]
pub struct EndpointError {
    reason: String,
}

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26_379;

impl Endpoint {
    /// Parses `scheme://[[user][:password]@]host[:port][,…][/path]`.
    ///
    /// The schemes are `redis`, `valkey` and the same with `-sentinel` or `-cluster`; `rediss` and `valkeys` use TLS. The
    /// path is the number of the database, and for Sentinel the name of the service, then the database.
    pub fn parse(url: &str) -> Result<Self, EndpointError> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| error("there is no `://`"))?;
        let (base, kind) = scheme.split_once('-').unwrap_or((scheme, ""));
        let tls = match base {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return Err(error(&format!("unknown scheme `{scheme}`"))),
        };
        let (login, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) => (Some(login), rest),
            None => (None, rest),
        };
        let (user, password) = login.map_or(Ok((None, None)), parse_login)?;
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let mut path = path.split('/').filter(|part| !part.is_empty());
        let default_port = if kind == "sentinel" { SENTINEL_PORT } else { PORT };
        let addresses =
            hosts.split(',').map(|host| parse_address(host, default_port)).collect::<Result<Vec<_>, _>>()?;
        let deployment = match kind {
            "" => match <[ServerAddress; 1]>::try_from(addresses) {
                Ok([address]) => Deployment::Single(address),
                Err(_) => {
                    return Err(error("several servers need `redis-sentinel://` or `redis-cluster://`"));
                }
            },
            "sentinel" => {
                let service =
                    path.next().ok_or_else(|| error("the name of the service is missing after `/`"))?;
                Deployment::Sentinel { sentinels: addresses, service: decode(service)? }
            }
            "cluster" => Deployment::Cluster(addresses),
            _ => return Err(error(&format!("unknown scheme `{scheme}`"))),
        };
        let database = match path.next() {
            None => 0,
            Some(number) => number
                .parse()
                .ok()
                .filter(|number| *number >= 0)
                .ok_or_else(|| error(&format!("`{number}` is not the number of a database")))?,
        };
        if path.next().is_some() {
            return Err(error("the path is too long"));
        }
        if database != 0 && matches!(deployment, Deployment::Cluster(_)) {
            return Err(error("a cluster has only database 0"));
        }
        Ok(Self { deployment, tls, user, password, database })
    }

    /// Whether the URL contains a password.
    pub fn has_password(&self) -> bool {
        self.password.is_some()
    }

    /// Whether hash slots are distributed over several servers.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.deployment, Deployment::Cluster(_))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, addresses, path) = match &self.deployment {
            Deployment::Single(address) => ("", std::slice::from_ref(address), None),
            Deployment::Sentinel { sentinels, service } => ("-sentinel", sentinels.as_slice(), Some(service)),
            Deployment::Cluster(nodes) => ("-cluster", nodes.as_slice(), None),
        };
        write!(f, "redis{}{kind}://", if self.tls { "s" } else { "" })?;
        if self.user.is_some() || self.password.is_some() {
            f.write_str("…@")?;
        }
        for (index, address) in addresses.iter().enumerate() {
            write!(f, "{}{address}", if index == 0 { "" } else { "," })?;
        }
        if let Some(service) = path {
            write!(f, "/{service}")?;
        }
        if self.database == 0 { Ok(()) } else { write!(f, "/{}", self.database) }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({self})")
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

fn error(reason: &str) -> EndpointError {
    EndpointError { reason: reason.to_owned() }
}

fn parse_login(login: &str) -> Result<(Option<String>, Option<String>), EndpointError> {
    let (user, password) = match login.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (login, None),
    };
    let user = if user.is_empty() { None } else { Some(decode(user)?) };
    Ok((user, password.map(decode).transpose()?))
}

fn parse_address(text: &str, default_port: u16) -> Result<ServerAddress, EndpointError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) =
                rest.split_once(']').ok_or_else(|| error("`]` is missing after an IPv6 address"))?;
            (host, after.strip_prefix(':').or(if after.is_empty() { None } else { Some("") }))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err(error("a host is missing"));
    }
    let port = match port {
        None => default_port,
        Some(port) => port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| error(&format!("invalid port `{port}`")))?,
    };
    Ok(ServerAddress { host: host.to_owned(), port })
}

/// Decodes percent-encoding.
fn decode(text: &str) -> Result<String, EndpointError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or_else(|| error("`%` needs two hexadecimal digits"))?);
        rest = rest.get(2..).unwrap_or_default();
    }
    String::from_utf8(bytes).map_err(|_| error("percent-encoded text is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_of_every_scheme_is_parsed_and_shown_without_its_password() {
        for (url, shown) in [
            ("redis://localhost", "redis://localhost:6379"),
            ("rediss://me:hunter%402@cache:6380/3", "rediss://…@cache:6380/3"),
            ("valkey://[::1]:7000", "redis://[::1]:7000"),
            ("valkeys://cache", "rediss://cache:6379"),
            ("redis-sentinel://a,b:5000/main/2", "redis-sentinel://a:26379,b:5000/main/2"),
            ("rediss-cluster://:pw@a,b:7001", "rediss-cluster://…@a:6379,b:7001"),
        ] {
            assert_eq!(Endpoint::parse(url).unwrap().to_string(), shown, "{url}");
        }
        let endpoint = Endpoint::parse("rediss://me:hunter%402@cache").unwrap();
        assert_eq!((endpoint.user.as_deref(), endpoint.password.as_deref()), (Some("me"), Some("hunter@2")));
    }

    #[test]
    fn invalid_endpoint_is_rejected_and_says_why() {
        for (url, reason) in [
            ("localhost:6379", "there is no `://`"),
            ("http://localhost", "unknown scheme `http`"),
            ("redis-ring://localhost", "unknown scheme `redis-ring`"),
            ("redis://", "a host is missing"),
            ("redis://a:0", "invalid port `0`"),
            ("redis://a,b", "several servers"),
            ("redis://a/x", "not the number of a database"),
            ("redis-sentinel://a", "name of the service is missing"),
            ("redis-cluster://a/1", "only database 0"),
            ("redis://a/1/2", "too long"),
            ("redis://u%zz@a", "two hexadecimal digits"),
        ] {
            let error = Endpoint::parse(url).unwrap_err().to_string();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }
}
