//! What the client knows about each host.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use http::Uri;
use tidegate_core::{BreakerConfig, TimeSpan};
use tidegate_store::Clock;
use tidegate_tower::breaker::CircuitBreaker;
use tidegate_tower::bulkhead::{Bulkhead, BulkheadConfig};

use crate::error::ClientError;
use crate::pace::Pacer;

/// When more hosts are known, the least recently used ones are forgotten.
const MAX_HOSTS: usize = 1_024;
/// When more partitions of a host are known, those without requests are forgotten.
const MAX_PARTITIONS: usize = 1_024;

/// The protection of one host.
#[derive(Debug)]
pub(crate) struct HostState {
    /// The scheme, the name and the port.
    pub(crate) name: Arc<str>,
    pub(crate) breaker: Option<CircuitBreaker>,
    pub(crate) bulkhead: Option<Bulkhead>,
    pacers: Mutex<HashMap<Box<str>, Arc<Pacer>>>,
    settings: HostSettings,
}

/// The settings of every host.
#[derive(Clone, Debug)]
pub(crate) struct HostSettings {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) breaker: Option<BreakerConfig>,
    pub(crate) bulkhead: Option<BulkheadConfig>,
    pub(crate) max_wait: TimeSpan,
}

impl HostState {
    fn new(name: Arc<str>, settings: HostSettings) -> Self {
        // The builder has validated the configuration.
        let breaker = |config| CircuitBreaker::with_clock(config, Arc::clone(&settings.clock)).ok();
        Self {
            name,
            breaker: settings.breaker.and_then(breaker),
            bulkhead: settings.bulkhead.map(Bulkhead::new),
            pacers: Mutex::default(),
            settings,
        }
    }

    /// The pace of a partition of the host.
    pub(crate) fn pacer(&self, partition: &str) -> Arc<Pacer> {
        let mut pacers = self.pacers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pacer) = pacers.get(partition) {
            return Arc::clone(pacer);
        }
        if pacers.len() >= MAX_PARTITIONS {
            pacers.retain(|_, pacer| Arc::strong_count(pacer) > 1);
        }
        let pacer = Arc::new(Pacer::new(Arc::clone(&self.settings.clock), self.settings.max_wait));
        pacers.insert(partition.into(), Arc::clone(&pacer));
        pacer
    }
}

/// All hosts that were requested recently.
#[derive(Debug)]
pub(crate) struct HostTable {
    settings: HostSettings,
    hosts: Mutex<HostMap>,
}

#[derive(Debug, Default)]
struct HostMap {
    /// The hosts, and when each was last used.
    entries: HashMap<Arc<str>, (Arc<HostState>, u64)>,
    uses: u64,
}

impl HostTable {
    pub(crate) fn new(settings: HostSettings) -> Self {
        Self { settings, hosts: Mutex::default() }
    }

    /// The host with this name.
    pub(crate) fn get(&self, name: &str) -> Arc<HostState> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        hosts.uses += 1;
        let now = hosts.uses;
        if let Some((host, last_use)) = hosts.entries.get_mut(name) {
            *last_use = now;
            return Arc::clone(host);
        }
        if hosts.entries.len() >= MAX_HOSTS {
            hosts.forget_oldest();
        }
        let name: Arc<str> = name.into();
        let host = Arc::new(HostState::new(Arc::clone(&name), self.settings.clone()));
        hosts.entries.insert(name, (Arc::clone(&host), now));
        host
    }
}

impl HostMap {
    /// Forgets half of the hosts that no request uses.
    fn forget_oldest(&mut self) {
        let is_idle = |host: &Arc<HostState>| Arc::strong_count(host) == 1;
        let idle = self.entries.values().filter(|(host, _)| is_idle(host));
        let mut uses: Vec<_> = idle.map(|(_, last_use)| *last_use).collect();
        uses.sort_unstable();
        let Some(median) = uses.get(uses.len() / 2).copied() else { return };
        self.entries.retain(|_, (host, last_use)| !is_idle(host) || *last_use > median);
    }
}

/// The name of the host of a URL: scheme, host and port.
pub(crate) fn host_name(url: &Uri) -> Result<String, ClientError> {
    let invalid = |reason| ClientError::InvalidUrl { url: without_query(&url.to_string()), reason };
    let default_port = match url.scheme_str() {
        Some("http") => 80,
        Some("https") => 443,
        Some(_) => return Err(invalid("expected http:// or https://")),
        None => return Err(invalid("expected an absolute URL with http:// or https://")),
    };
    let authority = url.authority().ok_or_else(|| invalid("the host is missing"))?;
    if authority.as_str().contains('@') {
        let reason = "credentials are not allowed; send an Authorization header instead";
        return Err(ClientError::InvalidUrl { url: authority.host().to_owned(), reason });
    }
    if authority.host().is_empty() {
        return Err(invalid("the host is missing"));
    }
    let (scheme, host) = (url.scheme_str().unwrap_or_default(), authority.host().to_ascii_lowercase());
    Ok(format!("{scheme}://{host}:{}", authority.port_u16().unwrap_or(default_port)))
}

/// Queries may hold secrets.
pub(crate) fn without_query(url: &str) -> String {
    url.split(['?', '#']).next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_store::SystemClock;

    use super::*;

    fn table() -> HostTable {
        HostTable::new(HostSettings {
            clock: Arc::new(SystemClock::new()),
            breaker: Some(BreakerConfig::default()),
            bulkhead: None,
            max_wait: TimeSpan::from_secs(60),
        })
    }

    #[test]
    fn host_name_of_equal_origins_is_equal() {
        let name = |url: &'static str| host_name(&Uri::from_static(url)).unwrap();
        assert_eq!(name("http://API.example/a?b"), "http://api.example:80");
        assert_eq!(name("http://api.example:80"), "http://api.example:80");
        assert_eq!(name("https://api.example/"), "https://api.example:443");
        assert_ne!(name("https://api.example:8443/"), name("https://api.example/"));
    }

    #[test]
    fn host_name_of_url_without_host_or_with_credentials_is_an_error() {
        for url in ["/path", "ftp://a.example/", "a.example:80"] {
            assert!(
                matches!(host_name(&Uri::from_static(url)), Err(ClientError::InvalidUrl { .. })),
                "{url}"
            );
        }
        let error = host_name(&Uri::from_static("http://user:secret@a.example/")).unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn host_table_that_is_full_forgets_the_oldest_idle_hosts() {
        let table = table();
        let used = table.get("http://used:80");
        for number in 0..MAX_HOSTS {
            table.get(&format!("http://{number}:80"));
        }
        assert!(Arc::ptr_eq(&used, &table.get("http://used:80")), "a host with requests is kept");
        assert!(table.hosts.lock().unwrap().entries.len() < MAX_HOSTS);
    }
}
