//! What the client knows about each host.

use std::net::Ipv6Addr;
use std::sync::Arc;

use http::Uri;
use http::uri::PathAndQuery;
use tidegate_core::{BreakerConfig, BreakerState, Ratio, RetryBudget, TimeSpan, Timestamp};
use tidegate_store::Clock;
use tidegate_tower::breaker::{BreakerOpen, CircuitBreaker};
use tidegate_tower::bulkhead::{Bulkhead, BulkheadConfig};
use tidegate_tower::retry::SharedRetryBudget;

use crate::error::ClientError;
use crate::pace::Pacer;
use crate::table::{Forgettable, RecentTable};

const MAX_HOSTS: usize = 1_024;
/// The partitions of all hosts together. Each may hold the limits of some hundred paths.
const MAX_PARTITIONS: usize = 4_096;

/// The protection of one host.
#[derive(Debug)]
pub(crate) struct HostState {
    /// The scheme, the name and the port.
    pub(crate) name: Arc<str>,
    pub(crate) breaker: Option<CircuitBreaker>,
    pub(crate) bulkhead: Option<Bulkhead>,
    /// The retries of requests to the host.
    pub(crate) budget: SharedRetryBudget,
    /// The pace of requests without a partition.
    pacer: Arc<Pacer>,
}

/// The settings of every host.
#[derive(Clone, Debug)]
pub(crate) struct HostSettings {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) breaker: Option<BreakerConfig>,
    pub(crate) bulkhead: Option<BulkheadConfig>,
    /// The share of requests and the retries per second of each retry budget.
    pub(crate) retries: (Ratio, u32),
    pub(crate) max_wait: TimeSpan,
}

impl HostSettings {
    fn host(&self, name: &str) -> HostState {
        // The builder has validated the configuration.
        let breaker = |config| CircuitBreaker::with_clock(config, Arc::clone(&self.clock)).ok();
        let (share, min_per_second) = self.retries;
        let budget = RetryBudget::new(share, min_per_second);
        HostState {
            name: name.into(),
            budget: SharedRetryBudget::with_clock(budget, Arc::clone(&self.clock)),
            breaker: self.breaker.and_then(breaker),
            bulkhead: self.bulkhead.map(Bulkhead::new),
            pacer: Arc::new(self.pacer()),
        }
    }

    fn pacer(&self) -> Pacer {
        Pacer::new(Arc::clone(&self.clock), self.max_wait)
    }
}

impl HostState {
    /// Whether the breaker certainly rejects a request now.
    pub(crate) fn breaker_open(&self) -> Option<BreakerOpen> {
        let status = self.breaker.as_ref()?.status();
        let is_open = status.state == BreakerState::Open && !status.open_for.is_zero();
        let is_rejecting = is_open || status.state == BreakerState::ForcedOpen;
        is_rejecting.then(|| BreakerOpen { retry_after: is_open.then_some(status.open_for) })
    }
}

impl Forgettable for HostState {
    fn is_blocked(&self, now: Timestamp) -> bool {
        self.breaker_open().is_some() || self.pacer.is_blocked(now)
    }
}

/// All hosts that were requested recently, and their partitions.
#[derive(Debug)]
pub(crate) struct HostTable {
    settings: HostSettings,
    hosts: RecentTable<HostState>,
    partitions: RecentTable<Pacer>,
}

impl HostTable {
    pub(crate) fn new(settings: HostSettings) -> Self {
        let (hosts, partitions) = (RecentTable::new(MAX_HOSTS), RecentTable::new(MAX_PARTITIONS));
        Self { settings, hosts, partitions }
    }

    /// The host with this name.
    pub(crate) fn get(&self, name: &str) -> Arc<HostState> {
        self.hosts.get(name, || self.settings.clock.now(), || self.settings.host(name))
    }

    /// The pace of a partition of a host.
    pub(crate) fn pacer(&self, host: &HostState, partition: &str) -> Arc<Pacer> {
        if partition.is_empty() {
            return Arc::clone(&host.pacer);
        }
        // The name of a host has no spaces.
        let name = format!("{} {partition}", host.name);
        self.partitions.get(&name, || self.settings.clock.now(), || self.settings.pacer())
    }
}

/// Puts the host of a URL into its normal form, in lower case and without the default port. Returns the name of the host:
/// scheme, host and port.
pub(crate) fn normalize_host(url: &mut Uri) -> Result<String, ClientError> {
    let invalid = |reason| ClientError::InvalidUrl { url: without_secrets(&url.to_string()), reason };
    let (scheme, default_port) = match url.scheme_str() {
        Some("http") => ("http", 80),
        Some("https") => ("https", 443),
        Some(_) => return Err(invalid("expected http:// or https://")),
        None => return Err(invalid("expected an absolute URL with http:// or https://")),
    };
    let authority = url.authority().ok_or_else(|| invalid("the host is missing"))?;
    if authority.as_str().contains('@') {
        return Err(invalid("credentials are not allowed; send an Authorization header instead"));
    }
    if authority.host().is_empty() {
        return Err(invalid("the host is missing"));
    }
    let (host, port) = authority.as_str().split_at(authority.host().len());
    // Other parsers must not find another host or port in the same URL.
    if host.starts_with('[') && !is_ipv6_literal(host) {
        return Err(invalid("the host is invalid"));
    }
    let port = match port.strip_prefix(':') {
        Some("") => None,
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(digits.parse::<u16>().map_err(|_| invalid("the port is invalid"))?)
        }
        Some(_) => return Err(invalid("the port is invalid")),
        None if port.is_empty() => None,
        None => return Err(invalid("the host is invalid")),
    };
    let host = host.to_ascii_lowercase();
    let name = format!("{scheme}://{host}:{}", port.unwrap_or(default_port));
    let normal = match port {
        Some(port) if port != default_port => format!("{host}:{port}"),
        _ => host,
    };
    if authority.as_str() != normal {
        let path = url.path_and_query().map_or("/", PathAndQuery::as_str);
        let uri = Uri::builder().scheme(scheme).authority(normal).path_and_query(path).build();
        *url = uri.map_err(|_| invalid("the host is invalid"))?;
    }
    Ok(name)
}

fn is_ipv6_literal(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
}

/// A URL for an error message. Queries may hold secrets, and what is before an `@` may be a password; in a URL that is not
/// valid, neither has a certain end.
pub(crate) fn without_secrets(url: &str) -> String {
    if !url.contains('@') {
        return url.split(['?', '#']).next().unwrap_or_default().to_owned();
    }
    let host = url.parse::<Uri>().ok().and_then(|url| url.host().map(str::to_owned));
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    let scheme = if scheme.contains('@') { "" } else { scheme };
    format!("{scheme}://…@{}", host.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use tidegate_core::CallOutcome;
    use tidegate_headers::{AdvertisedLimits, RejectionBody};
    use tidegate_store::SystemClock;

    use super::*;

    fn table() -> HostTable {
        HostTable::new(HostSettings {
            clock: Arc::new(SystemClock::new()),
            breaker: Some(BreakerConfig::default()),
            bulkhead: None,
            retries: (RetryBudget::SHARE, RetryBudget::MIN_PER_SECOND),
            max_wait: TimeSpan::from_secs(60),
        })
    }

    #[test]
    fn host_of_equal_origins_has_one_name_and_form() {
        let name = |url: &'static str| normalize_host(&mut Uri::from_static(url)).unwrap();
        assert_eq!(name("http://API.example/a?b"), "http://api.example:80");
        assert_eq!(name("http://api.example:80"), "http://api.example:80");
        assert_eq!(name("https://api.example/"), "https://api.example:443");
        assert_ne!(name("https://api.example:8443/"), name("https://api.example/"));
        for url in ["HTTP://API.example:80/a?b", "http://api.EXAMPLE:/a?b", "http://api.example/a?b"] {
            let mut url = Uri::from_static(url);
            normalize_host(&mut url).unwrap();
            assert_eq!(url.to_string(), "http://api.example/a?b");
        }
        for (url, normal) in [
            ("http://A?b", "http://a/?b"),
            ("http://A", "http://a/"),
            ("https://[::1]:443/", "https://[::1]/"),
            ("https://[FE80::1]:80/", "https://[fe80::1]:80/"),
        ] {
            let mut url = Uri::from_static(url);
            normalize_host(&mut url).unwrap();
            assert_eq!(url.to_string(), normal);
        }
    }

    #[test]
    fn host_name_of_url_without_host_or_with_credentials_is_an_error() {
        for url in [
            "/path",
            "ftp://a.example/",
            "a.example:80",
            "http://a:99999/",
            "http://a:b/",
            "http://a:+80/",
            "http://[::1]a.example:80/",
            "http://[192.0.2.1]/",
            "http://[a.example]:80/",
        ] {
            assert!(
                matches!(normalize_host(&mut Uri::from_static(url)), Err(ClientError::InvalidUrl { .. })),
                "{url}"
            );
        }
        let error = normalize_host(&mut Uri::from_static("http://user:secret@a.example/")).unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
        assert!(error.to_string().contains("a.example"), "{error}");
    }

    #[test]
    fn host_table_that_is_full_keeps_hosts_in_use_and_with_an_open_breaker() {
        let table = table();
        let used = table.get("http://used:80");
        let failing = Arc::downgrade(&table.get("http://failing:80"));
        for _ in 0..5 {
            let call = failing.upgrade().unwrap().breaker.as_ref().unwrap().try_acquire().unwrap();
            call.record(CallOutcome::Failure);
        }
        for number in 0..MAX_HOSTS {
            table.get(&format!("http://{number}:80"));
        }
        assert!(Arc::ptr_eq(&used, &table.get("http://used:80")));
        assert!(failing.upgrade().is_some_and(|host| host.breaker_open().is_some()));
        assert!(table.hosts.len() < MAX_HOSTS);
    }

    #[tokio::test]
    async fn partitions_of_all_hosts_are_bounded_and_those_that_are_blocked_are_kept() {
        let table = table();
        let host = table.get("http://a:80");
        let blocked = table.pacer(&host, "blocked");
        let limits = AdvertisedLimits { retry_after: Some(TimeSpan::from_secs(30)), ..Default::default() };
        let permit = blocked.acquire("/", None, &mut TimeSpan::from_secs(60)).await.unwrap();
        permit.observe(&limits, Some(&RejectionBody::default()));
        let blocked = Arc::downgrade(&blocked);
        for number in 0..2 * MAX_PARTITIONS {
            let host = table.get(&format!("http://{}:80", number % 10));
            table.pacer(&host, &number.to_string());
        }
        assert!(table.partitions.len() <= MAX_PARTITIONS);
        let now = table.settings.clock.now();
        assert!(blocked.upgrade().is_some_and(|pacer| pacer.is_blocked(now)));
    }
}
