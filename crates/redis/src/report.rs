//! What the store has done, for metrics.

use tidegate_core::TimeSpan;

/// Counts and states of a [`RedisStore`](crate::RedisStore). Counts are since the start.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreReport {
    /// Whether Redis fails and the failure modes of the rules decide.
    pub is_in_fallback: bool,
    /// The time in fallback, until now.
    pub fallback_time: TimeSpan,
    /// Decisions while Redis failed.
    pub fallback_decisions: FallbackDecisions,
    /// Units admitted while Redis failed that were charged when it returned.
    pub fallback_units_charged: u64,
    /// Live nodes, as far as this node knows.
    pub nodes: u32,
    /// How often Redis was found to have lost writes.
    pub lost_writes: u64,
    /// Rejections that were repeated without asking Redis.
    pub cached_rejections_served: u64,
    /// Counters whose rejection is known.
    pub cached_rejections: u64,
}

/// Decisions while Redis failed, by failure mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FallbackDecisions {
    /// By a share of the limit.
    pub local: u64,
    /// Passed unchecked.
    pub allow: u64,
    /// Failed.
    pub deny: u64,
}
