//! What a node and the script tell each other about a lease.

use std::num::NonZeroU32;

use tidegate_core::{Limit, TimeSpan, Timestamp};

use crate::key::KeyName;
use crate::nodes::NodeId;

/// A request for one counter.
#[derive(Clone, Debug)]
pub(crate) struct LeaseRequest {
    pub(crate) key: KeyName,
    /// The rule's limit, that of the refunded charge, or the replacement of an override. A reset and the end of an override
    /// need none.
    pub(crate) limit: Option<Limit>,
    pub(crate) action: LeaseAction,
}

/// What is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseAction {
    /// Settles the node's lease and takes more units.
    Acquire {
        node: NodeId,
        /// Larger in each request of the node. The script ignores a request that is not the newest.
        sequence: u64,
        /// The newest lease that the node knows, to which `spent` and `granted` belong.
        epoch: u64,
        /// The units of the lease that the node has spent.
        spent: u64,
        /// The units of the lease that the node has spent or can still spend. All others are released.
        granted: u64,
        /// The units that the node would like to get.
        want: u64,
        /// Fewer units are of no use.
        least: u64,
        /// The live nodes.
        nodes: NonZeroU32,
        /// Units to charge in addition, even if they do not fit.
        debt: u64,
    },
    /// Evaluates a cost.
    Peek { cost: u64 },
    /// Resets the counter.
    Reset,
    /// Replaces the limit until this time; at 0 the override ends.
    Override { until: Timestamp },
    /// Sets an override again, if its limit is not in force.
    RestoreOverride { until: Timestamp },
    /// Gives back units that were reported as spent, and were spent at this store time. `held_elsewhere` of the
    /// reply are those that other nodes may have spent without a report.
    Refund { node: NodeId, units: u64, charged: Timestamp },
}

/// The reply to a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseReply {
    pub(crate) status: LeaseStatus,
    /// The server's time.
    pub(crate) now: Timestamp,
    /// The lease that the node has now; 0 for none.
    pub(crate) epoch: u64,
    /// The units that this request added.
    pub(crate) granted: u64,
    /// How long the units of the lease may be spent, from `now`.
    pub(crate) life: TimeSpan,
    /// The units that no node has leased.
    pub(crate) available: u64,
    /// The limit that applies.
    pub(crate) capacity: u64,
    /// The time until the least useful units are available, if they were not granted.
    pub(crate) retry_after: TimeSpan,
    /// The time until the counter equals an unused one, if all leased units are spent.
    pub(crate) reset_after: TimeSpan,
    /// The units that other nodes can still spend.
    pub(crate) held_elsewhere: u64,
    /// The counter's state with all leased units charged, in numbers; `None` if another limit than that of the request applies.
    pub(crate) occupied: Option<[u64; 3]>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LeaseStatus {
    /// It was executed.
    #[default]
    Done,
    /// It was not the node's newest. Nothing has happened, and the rest of the reply is unknown.
    Ignored,
    /// The entry has a newer format. Nothing has happened, and the rest of the reply is unknown.
    NewerFormat,
    /// The entry is not one that the script writes. Nothing has happened, and the rest of the reply is unknown.
    Malformed,
}

impl LeaseStatus {
    /// Why the script has left the entry alone, if it has.
    pub(crate) fn entry_error(self) -> Option<&'static str> {
        match self {
            Self::Done | Self::Ignored => None,
            Self::NewerFormat => Some("a newer version wrote this counter; update this node"),
            Self::Malformed => Some("the entry of this counter in Redis is malformed; reset the counter"),
        }
    }
}
