//! Where counters are stored, and how several nodes share them.

use std::fmt;
use std::num::NonZeroU32;

use tidegate_core::{Coordination, Limit, Ratio, StoreFailureMode, TimeSpan};

use crate::plan::Secret;
use crate::units::{percent_text, size_text, span_text};

/// Where counters are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StorePlan {
    /// The URL of a shared store; `None` keeps counters in this process.
    pub url: Option<StoreUrl>,
    /// How nodes share limits; a rule can differ.
    pub coordination: Coordination,
    /// How long a decision may wait for the shared store.
    pub timeout: TimeSpan,
    /// How often nodes exchange counts under [`Coordination::Sync`].
    pub sync_interval: TimeSpan,
    /// What happens while the shared store fails; a rule can differ.
    pub on_store_failure: StoreFailureMode,
    /// The part of a limit that all nodes together admit while the shared store fails.
    pub fallback_share: Ratio,
    /// The number of nodes.
    pub nodes: NonZeroU32,
    /// The secret that hides clients in the shared store.
    pub secret: Option<SecretFile>,
    /// The password, if a file contains it.
    pub password: Option<SecretFile>,
    /// The start of all names in the shared store.
    pub prefix: String,
    /// Certificates for the connection to the shared store.
    pub tls: StoreTlsPlan,
    /// The maximum memory of the counters of this process, in bytes.
    pub max_memory: u64,
    /// The directory for persistent state, if the policy sets one.
    pub directory: Option<String>,
}

impl StorePlan {
    /// The default of `max_memory`.
    pub(crate) const MAX_MEMORY: u64 = 64 << 20;
    /// The default of `prefix`.
    pub(crate) const PREFIX: &str = "tg:";

    /// The part of `limit` that this process enforces, for a rule with this sharing. Without a shared store the process
    /// divides a static limit itself; otherwise the store does.
    pub fn part_of(&self, limit: Limit, sharing: Option<RuleSharing>) -> Limit {
        if self.url.is_none() && sharing.is_some() {
            limit.share(1, u64::from(self.nodes.get()))
        } else {
            limit
        }
    }

    /// The settings by key, without secrets. Those of a shared store are left out if there is none.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = vec![
            ("url", self.url.as_ref().map_or("memory".to_owned(), ToString::to_string)),
            ("max_memory", size_text(self.max_memory)),
        ];
        settings.extend(self.directory.clone().map(|directory| ("directory", directory)));
        if self.url.is_none() && self.coordination != Coordination::Static {
            return settings;
        }
        settings.push(("coordination", self.coordination.name().to_owned()));
        settings.push(("nodes", self.nodes.to_string()));
        if self.url.is_none() {
            return settings;
        }
        let file = |secret: &Option<SecretFile>| secret.as_ref().map(|secret| secret.file.clone());
        settings.push(("timeout", span_text(self.timeout)));
        settings.push(("sync_interval", span_text(self.sync_interval)));
        settings.push(("on_store_failure", self.on_store_failure.name().to_owned()));
        settings.push(("fallback_share", percent_text(self.fallback_share.as_millionths())));
        settings.push(("prefix", self.prefix.clone()));
        settings.extend(file(&self.secret).map(|file| ("secret_file", file)));
        settings.extend(file(&self.password).map(|file| ("password_file", file)));
        settings.extend(self.tls.ca.is_some().then(|| ("tls.ca", "set".to_owned())));
        settings.extend(self.tls.client.is_some().then(|| ("tls.cert", "set".to_owned())));
        settings
    }
}

impl Default for StorePlan {
    fn default() -> Self {
        Self {
            url: None,
            coordination: Coordination::default(),
            timeout: TimeSpan::from_millis(20),
            sync_interval: TimeSpan::from_secs(1),
            on_store_failure: StoreFailureMode::default(),
            fallback_share: Ratio::from_percent(50),
            nodes: NonZeroU32::MIN,
            secret: None,
            password: None,
            prefix: Self::PREFIX.to_owned(),
            tls: StoreTlsPlan::default(),
            max_memory: Self::MAX_MEMORY,
            directory: None,
        }
    }
}

/// A secret and the file it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretFile {
    /// The file.
    pub file: String,
    /// The secret.
    pub secret: Secret,
}

/// Certificates for the connection to the shared store, PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreTlsPlan {
    /// The certificate authorities to trust instead of those of the system.
    pub ca: Option<Vec<u8>>,
    /// The client's certificate chain and private key.
    pub client: Option<(Vec<u8>, Secret)>,
}

/// How nodes share the counters of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RuleSharing {
    /// How nodes share the limit.
    pub coordination: Coordination,
    /// What happens while the shared store fails.
    pub on_store_failure: StoreFailureMode,
}

impl fmt::Display for RuleSharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failure = match self.on_store_failure {
            _ if self.coordination == Coordination::Static => {
                return f.write_str("static: each node enforces its part of the limit");
            }
            StoreFailureMode::Local => "each node enforces a part of the limit",
            StoreFailureMode::Allow => "requests pass",
            StoreFailureMode::Deny => "requests get 503",
        };
        write!(f, "{}; while the store fails, {failure}", self.coordination.name())
    }
}

/// The URL of a store. `Display` and `Debug` redact the password.
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

    /// Whether it means counters in this process.
    pub(crate) fn is_memory(&self) -> bool {
        self.0 == "memory"
    }

    /// Whether the connection is encrypted.
    pub fn is_tls(&self) -> bool {
        self.0.starts_with("rediss") || self.0.starts_with("valkeys")
    }

    /// Whether the URL contains a password.
    pub fn has_password(&self) -> bool {
        let rest = self.0.split_once("://").map_or("", |(_, rest)| rest);
        rest.rsplit_once('@').is_some_and(|(login, _)| login.contains(':'))
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

    #[test]
    fn store_url_display_hides_the_password() {
        let url = StoreUrl::new("redis://user:hunter2@cache:6379/0");
        assert_eq!(url.to_string(), "redis://…@cache:6379/0");
        assert!(!format!("{url:?}").contains("hunter2"));
        assert!(url.has_password() && !url.is_tls());
    }
}
