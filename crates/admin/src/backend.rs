//! The interface between the admin API and the gateway.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidegate_core::Timestamp;
use tidegate_limiter::Limiter;
use tidegate_store::{HeavyKey, Store};

/// The running gateway that the admin API controls.
pub trait Backend: Send + Sync + 'static {
    /// The store of its counters.
    type Store: Store + 'static;

    /// The limiter: the active policy, bans, lock-outs and counters.
    fn limiter(&self) -> &Limiter<Self::Store>;

    /// Where the policy comes from, as text.
    fn source(&self) -> String;

    /// The absolute path of the policy file, if there is one.
    fn policy_file(&self) -> Option<PathBuf>;

    /// The heaviest clients of each rule, heaviest first.
    fn heaviest(&self) -> Vec<HeavyKey>;

    /// The number of open client connections.
    fn connections(&self) -> usize;

    /// The state of the store that nodes share; null if there is none.
    fn shared_store(&self) -> Value;

    /// The domains of the Envoy configuration, each with its limits.
    fn envoy_domains(&self) -> Vec<Value>;

    /// The state of each upstream: its servers, breakers, bulkhead and retries.
    fn upstreams(&self) -> Vec<Value>;

    /// The state of each route with a bulkhead.
    fn routes(&self) -> Vec<Value>;

    /// Changes the breaker of a server, or without one all breakers of the upstream.
    fn change_breaker(
        &self,
        upstream: &str,
        server: Option<&str>,
        action: BreakerAction,
    ) -> Result<(), BreakerError>;

    /// Whether the gateway accepts requests and is not shutting down.
    fn is_ready(&self) -> bool;

    /// The metrics and their media type. `is_scraper` is whether the reader compares them with those it read before.
    fn metrics(&self, is_scraper: bool) -> (String, &'static str);

    /// Logs a change by an operator and its subject.
    fn log_event(&self, event: &str, message: &str, subject: &str);

    /// When the running policy was loaded, and whether the last reload failed.
    fn reload_state(&self) -> ReloadState;

    /// Reads the policy again and activates it if it is valid. Only a forced reload removes more bans or keys than the running
    /// policy allows.
    fn reload(&self, is_forced: bool) -> impl Future<Output = Result<ReloadReport, ReloadError>> + Send;
}

/// What an operator does to a circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BreakerAction {
    /// Rejects all requests until it is reset.
    Open,
    /// Admits all requests until it is reset.
    Close,
    /// Closes it and lets the results of requests decide again.
    Reset,
}

/// A circuit breaker cannot be changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BreakerError {
    /// There is no such upstream or server.
    #[error("{reason}")]
    Unknown {
        /// What is unknown.
        reason: String,
    },
    /// The upstream, or the server by itself, has no breaker.
    #[error("{reason}")]
    NoBreaker {
        /// What has none.
        reason: String,
    },
}

/// The result of a successful reload.
#[derive(Clone, Debug, Default)]
pub struct ReloadReport {
    /// The changes, one line each.
    pub changes: Vec<String>,
    /// The warnings about the new policy.
    pub warnings: String,
}

/// The state of the policy after the last reload.
#[derive(Clone, Debug)]
pub struct ReloadState {
    /// When the running policy was loaded, by the start or by a reload.
    pub applied_at: Timestamp,
    /// Why and when the last reload failed; `None` if the files are active.
    pub failure: Option<(ReloadError, Timestamp)>,
}

/// The reload failed; the old policy stays active.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReloadError {
    /// The new policy is invalid, or cannot be activated.
    #[error("{reason}")]
    Invalid {
        /// Every problem, as `tidegate check` reports it.
        reason: String,
    },
    /// The new policy lacks too many bans or keys.
    #[error("{reason}")]
    Refused {
        /// Which, and how many.
        reason: String,
    },
}
