//! What the store has done, for metrics.

use tidegate_core::TimeSpan;

use crate::fallback::FallbackReport;
use crate::lease::LeaseReport;
use crate::link::LinkReport;
use crate::sync::SyncReport;

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
    /// Units admitted while Redis failed whose charge had no reply, so that it is unknown whether they were charged.
    pub fallback_units_uncharged: u64,
    /// Live nodes, as far as this node knows.
    pub nodes: u32,
    /// Live nodes whose secret differs from this node's. They count separately, so that limits are not shared with them.
    pub nodes_with_other_secret: u32,
    /// How often Redis was found to have lost writes.
    pub lost_writes: u64,
    /// Rejections that were repeated without asking Redis.
    pub cached_rejections_served: u64,
    /// Counters whose rejection is known.
    pub cached_rejections: u64,
    /// The connection: errors, latency, batch sizes.
    pub link: LinkReport,
    /// The leases of this node.
    pub lease: LeaseReport,
    /// The exchanges of counts, with the computed and the measured overshoot.
    pub sync: SyncReport,
    /// The shares of limits while Redis fails.
    pub fallback: FallbackReport,
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
