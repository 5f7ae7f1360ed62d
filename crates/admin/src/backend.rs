//! What is administered.

use tidegate_limiter::Limiter;
use tidegate_store::{HeavyKey, Store};

/// A gateway that runs, as its operators see it.
pub trait Backend: Send + Sync + 'static {
    /// Where it counts.
    type Store: Store + 'static;

    /// What decides: the policy in force, bans, lock-outs, counters.
    fn limiter(&self) -> &Limiter<Self::Store>;

    /// Where the policy comes from, in words.
    fn source(&self) -> String;

    /// The heaviest clients of each rule, heaviest first.
    fn heaviest(&self) -> Vec<HeavyKey>;

    /// How many clients are connected.
    fn connections(&self) -> usize;

    /// Whether it takes requests, and is not about to end.
    fn is_ready(&self) -> bool;

    /// What Prometheus reads, and its media type. `remembers` is whether the reader compares it with what it read before.
    fn metrics(&self, remembers: bool) -> (String, &'static str);

    /// Writes down what an operator did, and to whom.
    fn tell(&self, event: &str, message: &str, subject: &str);

    /// Reads the policy again and puts it in force if it is good.
    fn reload(&self) -> impl Future<Output = Result<Reloaded, ReloadError>> + Send;
}

/// A policy that was read again and is in force.
#[derive(Clone, Debug, Default)]
pub struct Reloaded {
    /// What is different, one line each.
    pub changes: Vec<String>,
    /// What is doubtful about it.
    pub warnings: String,
}

/// Why the old policy stays in force.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct ReloadError {
    /// Every problem, as `tidegate check` tells it.
    pub reason: String,
}
