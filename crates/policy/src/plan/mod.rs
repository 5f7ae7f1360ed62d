//! The compiled policy: valid by construction, without YAML or source positions.
//!
//! Only [`compile()`](crate::compile()) creates a plan. Everything in a plan is validated: limits can be counted exactly,
//! names are unique, networks are valid, and the upstream of every route exists.

mod action;
mod clients;
mod cost;
mod http;
mod limits;
mod mode;
mod rejection;
mod reload;
mod resilience;
mod service;
mod store;
mod telemetry_config;

use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;
use tidegate_core::TimeSpan;
use tidegate_headers::{BodyFormat, BodyStyle, HeaderStyle};

use crate::directory::Directory;
use crate::endpoints::EndpointPattern;
use crate::identity::Identities;

pub use action::{DeferAction, DegradedUpstream, ExceedAction};
pub use clients::{
    ClaimName, Clients, ExemptClients, NameSource, OnInvalid, Secret, SentTier, TierSource, TokenKey,
    TokenPlan,
};
pub use cost::{ChargeBasis, RuleCost, StatusSet};
pub use http::{EncodedSlash, HttpOptions, PathCase, UnderscoreHeaders};
pub(crate) use limits::describe_penalty;
pub use limits::{
    ConcurrencyRule, CounterScope, CustomRule, EndpointRule, HeaderMatch, RateLimits, Rule, RuleCondition,
    RuleMatch, Tier,
};
pub use mode::{CanaryShare, Mode};
pub use rejection::RejectionPlan;
pub(crate) use rejection::body_text;
pub(crate) use reload::AddressRanges;
pub use reload::{ExcessiveLoss, ReloadPlan};
pub use resilience::{
    BreakerPlan, BreakerScope, BulkheadPlan, EjectPlan, FallbackBody, FallbackPlan, ResiliencePlan,
    RetryBudgetPlan, RetryCauses, RetryPlan, TimeoutsPlan,
};
pub use service::{ClientCaPlan, ServiceListenerPlan, ServicePlan};
pub use store::{RuleSharing, SecretFile, StorePlan, StoreTlsPlan, StoreUrl};
pub use telemetry_config::{LogPlan, LogTarget, SampleRate, TracesPlan};
pub use tidegate_headers::Quota;

/// A validated policy.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The listeners of the gateway; none if the policy serves decisions only.
    pub listen: Vec<ListenerPlan>,
    /// The decision service.
    pub service: ServicePlan,
    /// The admin API; `None` if it is off.
    pub admin: Option<AdminPlan>,
    /// The upstreams.
    pub upstreams: Vec<UpstreamPlan>,
    /// The routes; the first that matches wins.
    pub routes: Vec<Route>,
    /// The default HTTP options; a route can override them.
    pub http: HttpOptions,
    /// How clients are identified.
    pub clients: Clients,
    /// Networks that are rejected with 403.
    pub bans: Vec<IpNet>,
    /// Those of them that the ban file lists.
    pub file_bans: Vec<IpNet>,
    /// The only networks whose requests are served, in ascending order; `None` for all.
    pub allow: Option<Vec<IpNet>>,
    /// The limits.
    pub rate_limits: RateLimits,
    /// The memory for responses in place of rejections, in bytes.
    pub cache_memory: u64,
    /// The rate-limit header styles of responses.
    pub headers: Vec<HeaderStyle>,
    /// The format of the bodies of requests that limits reject.
    pub rejection_body: BodyFormat,
    /// The style of all other error bodies.
    pub error_body: BodyStyle,
    /// Where counters are stored.
    pub store: StorePlan,
    /// The request log.
    pub log: LogPlan,
    /// Trace export, if it is on.
    pub traces: Option<TracesPlan>,
    /// [`Plan::clients`], compiled for identifying requests.
    pub identities: Identities,
    /// The directory of API keys, as read when the policy was compiled.
    pub directory: Option<Arc<Directory>>,
    /// When changed files are applied.
    pub reload: ReloadPlan,
}

impl Plan {
    /// Whether any route uses this path case, or the policy if it has no routes.
    pub(crate) fn has_path_case(&self, case: PathCase) -> bool {
        has_path_case(case, self.http, &self.routes)
    }
}

/// Whether any of `routes` uses this path case, or `http` if there are no routes.
pub(crate) fn has_path_case(case: PathCase, http: HttpOptions, routes: &[Route]) -> bool {
    match routes {
        [] => http.path_case == case,
        routes => routes.iter().any(|route| route.http.path_case == case),
    }
}

/// The path case for comparing limits with each other: insensitive if any route is.
pub(crate) fn loosest_path_case(http: HttpOptions, routes: &[Route]) -> PathCase {
    let is_loose = has_path_case(PathCase::Insensitive, http, routes);
    if is_loose { PathCase::Insensitive } else { PathCase::Sensitive }
}

/// A listener for client requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerPlan {
    /// `host:port`.
    pub address: String,
    /// The certificate, if the listener uses TLS.
    pub tls: Option<CertificatePlan>,
}

/// The listener of the admin API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminPlan {
    /// `host:port`, if the policy sets it.
    pub listen: Option<String>,
    /// The file with the token, if the policy sets it. The server reads it, not this crate.
    pub token_file: Option<String>,
}

impl AdminPlan {
    /// The default address.
    pub const LISTEN: &str = "127.0.0.1:9900";

    /// The address to listen on.
    pub fn address(&self) -> &str {
        self.listen.as_deref().unwrap_or(Self::LISTEN)
    }
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificatePlan {
    /// The certificate chain, PEM.
    pub chain: Vec<u8>,
    /// The private key, PEM.
    pub key: Secret,
    /// The file name of the chain, as in the policy.
    pub chain_file: String,
    /// The file name of the key, as in the policy.
    pub key_file: String,
}

/// An upstream: a group of servers that requests are forwarded to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamPlan {
    /// Its name.
    pub name: String,
    /// The server URLs: `http://`, `https://` or `h2c://`, a host and an optional port.
    pub servers: Vec<String>,
    /// The load-balancing strategy.
    pub balance: Balance,
    /// The health check, if it is on.
    pub health: Option<HealthCheckPlan>,
    /// What happens when it fails or is slow.
    pub resilience: ResiliencePlan,
}

tidegate_core::named_enum! {
    /// The load-balancing strategy.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum Balance {
        /// Round robin.
        #[default]
        RoundRobin = "round_robin",
        /// The less loaded of two random servers.
        LeastLoaded = "least_loaded",
        /// The same server for the same client, while it is available.
        Sticky = "sticky",
    }
}

/// The health check of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheckPlan {
    /// The path to request.
    pub path: String,
    /// The interval, which is also the timeout.
    pub every: TimeSpan,
}

/// A route to an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The hosts that it matches.
    pub host: HostPattern,
    /// The paths that it matches.
    pub path: EndpointPattern,
    /// The index of the upstream in [`Plan::upstreams`].
    pub upstream: usize,
    /// Its HTTP options, with the policy's values for options it does not set.
    pub http: HttpOptions,
    /// A bound on its requests in flight.
    pub bulkhead: Option<BulkheadPlan>,
}

/// The hosts that a route matches. Names are lower case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostPattern {
    /// Any host.
    Any,
    /// This host.
    Exact(String),
    /// Every subdomain of this name, which begins with a dot.
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
