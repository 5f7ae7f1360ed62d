//! What is administered.

use std::sync::Arc;

use tidegate_policy::{Active, Bans};
use tidegate_store::{HeavyKey, Penalties, Store};

/// A gateway that runs, as its operators see it.
pub trait Running: Send + Sync + 'static {
    /// Where it counts.
    type Store: Store;

    /// Where it counts.
    fn store(&self) -> &Self::Store;

    /// The policy in force.
    fn active(&self) -> Active;

    /// Where the policy comes from, in words.
    fn source(&self) -> String;

    /// Puts these bans in force, beside those of the policy. When this returns every new request meets them.
    fn ban(&self, bans: Bans);

    /// The bans in force, those of the policy excepted.
    fn bans(&self) -> Arc<Bans>;

    /// Who is locked out, and who is about to be.
    fn penalties(&self) -> &Penalties;

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
