//! A policy that can be used: valid by construction, free of places and of YAML.
//!
//! Only [`compile()`](crate::compile()) makes a plan. Whatever stands in one has been checked: limits can be counted
//! exactly, names are unique, networks are networks, an upstream that a route names is there.

mod clients;
mod cost;
mod http;
mod limits;
mod mode;
mod quota;
mod telemetry_config;

use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;
use tidegate_core::TimeSpan;
use tidegate_headers::{BodyStyle, HeaderStyle};

use crate::directory::Directory;
use crate::endpoints::EndpointPattern;
use crate::identity::Identities;

pub use clients::{ClaimName, Clients, ExemptClients, NameSource, Secret, TierSource, TokenKey, TokenPlan};
pub use cost::{Charge, RuleCost, StatusSet};
pub use http::{EncodedSlash, HttpOptions, PathCase, UnderscoreHeaders};
pub(crate) use limits::describe_penalty;
pub use limits::{
    ConcurrencyRule, CounterScope, CustomRule, EndpointRule, HeaderMatch, RateLimits, Rule, RuleCondition,
    RuleMatch, Tier,
};
pub use mode::{CanaryShare, Mode};
pub use quota::Quota;
pub use telemetry_config::{LogPlan, LogTarget, SampleRate, TracesPlan};

/// What the operator wants, checked whole.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// Where to answer requests.
    pub listen: Vec<ListenerPlan>,
    /// Where operators are answered; `None` is nowhere.
    pub admin: Option<AdminPlan>,
    /// The services behind.
    pub upstreams: Vec<UpstreamPlan>,
    /// Which requests go where; the first that matches.
    pub routes: Vec<Route>,
    /// How requests are read where upstream servers disagree, unless a route says otherwise.
    pub http: HttpOptions,
    /// Who a request comes from.
    pub clients: Clients,
    /// Networks that are refused with 403.
    pub bans: Vec<IpNet>,
    /// How much may pass.
    pub rate_limits: RateLimits,
    /// Which headers tell clients about their limits.
    pub headers: Vec<HeaderStyle>,
    /// The style of error bodies.
    pub error_body: BodyStyle,
    /// Where counters are kept.
    pub store: StorePlan,
    /// What is logged.
    pub log: LogPlan,
    /// What is traced, if anything is.
    pub traces: Option<TracesPlan>,
    /// Where clients are found in requests: [`Plan::clients`], made usable.
    pub identities: Identities,
    /// Whose API key is whose, as the file said when the policy was compiled.
    pub directory: Option<Arc<Directory>>,
}

impl Plan {
    /// Whether requests are matched with this case: by a route, or by a policy without routes.
    pub(crate) fn has_path_case(&self, case: PathCase) -> bool {
        has_path_case(case, self.http, &self.routes)
    }
}

/// Whether requests are matched with this case: by one of `routes`, or by `http` if there are none.
pub(crate) fn has_path_case(case: PathCase, http: HttpOptions, routes: &[Route]) -> bool {
    match routes {
        [] => http.path_case == case,
        routes => routes.iter().any(|route| route.http.path_case == case),
    }
}

/// How limits are compared with each other: without regard to case if any request is matched so.
pub(crate) fn loosest_path_case(http: HttpOptions, routes: &[Route]) -> PathCase {
    let is_loose = has_path_case(PathCase::Insensitive, http, routes);
    if is_loose { PathCase::Insensitive } else { PathCase::Sensitive }
}

/// A place to answer requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerPlan {
    /// `host:port`.
    pub address: String,
    /// The certificate, if what is spoken there is encrypted.
    pub tls: Option<CertificatePlan>,
}

/// Where operators are answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminPlan {
    /// `host:port`, if the operator wrote it.
    pub listen: Option<String>,
    /// The file with the token, if the operator named one. It is read by whoever runs the plan.
    pub token_file: Option<String>,
}

impl AdminPlan {
    /// Where operators are answered unless they say so.
    pub const LISTEN: &str = "127.0.0.1:9900";

    /// Where to listen.
    pub fn address(&self) -> &str {
        self.listen.as_deref().unwrap_or(Self::LISTEN)
    }
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificatePlan {
    /// The certificate and those that vouch for it, PEM.
    pub chain: Vec<u8>,
    /// The private key, PEM.
    pub key: Secret,
    /// The file of the chain, as the policy names it.
    pub chain_file: String,
    /// The file of the key, as the policy names it.
    pub key_file: String,
}

/// A service behind the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamPlan {
    /// Its name.
    pub name: String,
    /// Its servers: `http://`, `https://` or `h2c://`, a host, maybe a port.
    pub servers: Vec<String>,
    /// Which of them takes a request.
    pub balance: Balance,
    /// How they are asked whether they are well.
    pub health: Option<HealthCheckPlan>,
}

/// How a server is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Balance {
    /// One after another.
    #[default]
    RoundRobin,
    /// The less busy of two.
    LeastLoaded,
    /// The same for the same client, as long as it is there.
    Sticky,
}

impl Balance {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::RoundRobin, Self::LeastLoaded, Self::Sticky];

    /// The name used in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::LeastLoaded => "least_loaded",
            Self::Sticky => "sticky",
        }
    }
}

/// How servers are asked whether they are well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheckPlan {
    /// What is asked for.
    pub path: String,
    /// How often, and how long an answer may take.
    pub every: TimeSpan,
}

/// Sends what matches to an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The host asked for.
    pub host: HostPattern,
    /// The path asked for.
    pub path: EndpointPattern,
    /// Where to, as an index into [`Plan::upstreams`].
    pub upstream: usize,
    /// How its requests are read: its own `http`, and that of the policy for the keys it does not set.
    pub http: HttpOptions,
}

/// Which hosts a route takes; names are lower case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostPattern {
    /// Any host.
    Any,
    /// This host.
    Exact(String),
    /// Every host below this one, which begins with a dot.
    Below(String),
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Exact(name) => f.write_str(name),
            Self::Below(name) => write!(f, "*{name}"),
        }
    }
}

/// Where counters are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePlan {
    /// The URL of a shared store; `None` keeps counters in this process.
    pub url: Option<StoreUrl>,
    /// How many bytes the counters of this process may take.
    pub max_memory: u64,
    /// The folder for what outlives the process, if the operator named one.
    pub directory: Option<String>,
}

/// The URL of a store. It may hold a password, so it redacts itself.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(String);

impl StoreUrl {
    pub(crate) fn new(url: &str) -> Self {
        Self(url.to_owned())
    }

    /// The URL, password included.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("", &self.0));
        match rest.rsplit_once('@') {
            Some((_, place)) => write!(f, "{scheme}://…@{place}"),
            None => f.write_str(&self.0),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::{ERROR_BODIES, HEADER_STYLES};

    #[test]
    fn the_language_names_every_style_and_form() {
        assert_eq!(HeaderStyle::ALL.map(HeaderStyle::name), *HEADER_STYLES);
        assert_eq!(BodyStyle::ALL.map(BodyStyle::name), *ERROR_BODIES);
    }

    #[test]
    fn a_password_is_never_shown() {
        let url = StoreUrl::new("redis://user:hunter2@cache:6379/0");
        assert_eq!(url.to_string(), "redis://…@cache:6379/0");
        assert!(!format!("{url:?}").contains("hunter2"));
    }
}
