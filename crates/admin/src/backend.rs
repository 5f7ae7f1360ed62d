//! The interface between the admin API and the gateway.

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

    /// The heaviest clients of each rule, heaviest first.
    fn heaviest(&self) -> Vec<HeavyKey>;

    /// The number of open client connections.
    fn connections(&self) -> usize;

    /// Whether the gateway accepts requests and is not shutting down.
    fn is_ready(&self) -> bool;

    /// The metrics and their media type. `is_scraper` is whether the reader compares them with those it read before.
    fn metrics(&self, is_scraper: bool) -> (String, &'static str);

    /// Logs a change by an operator and its subject.
    fn log_event(&self, event: &str, message: &str, subject: &str);

    /// Reads the policy again and activates it if it is valid.
    fn reload(&self) -> impl Future<Output = Result<ReloadReport, ReloadError>> + Send;
}

/// The result of a successful reload.
#[derive(Clone, Debug, Default)]
pub struct ReloadReport {
    /// The changes, one line each.
    pub changes: Vec<String>,
    /// The warnings about the new policy.
    pub warnings: String,
}

/// The reload failed; the old policy stays active.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct ReloadError {
    /// Every problem, as `tidegate check` reports it.
    pub reason: String,
}
