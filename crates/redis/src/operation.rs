//! What a node asks Redis to do with counters. Operations that wait at the same moment are sent together.

use tidegate_core::{Cost, Limit, Outcomes, Role, Timestamp};
use tidegate_store::Override;

use crate::key::KeyName;
use crate::lease::{LeaseReply, LeaseRequest};
use crate::permits::PermitRequest;
use crate::sync::{CounterExchange, ExchangeReply};

/// One operation. All its keys are in one hash slot, unless a single server has all slots.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    /// Decides checks: all are charged, or none.
    Decide(Vec<CounterCheck>),
    /// Decides checks like `Decide`. If another part of the decision rejects, [`Cancel`](Self::Cancel) undoes the charge.
    Attempt(Vec<CounterCheck>, AttemptId),
    /// Evaluates checks without charging.
    Peek(Vec<CounterCheck>),
    /// Gives back what was charged.
    Refund(Vec<CounterRefund>),
    /// Gives back what an attempt charged a moment ago, because another part of the same decision rejected; then evaluates
    /// the checks like a peek. Exact if nothing else has changed the counters since, also under an override.
    Cancel {
        /// The checks; those that were not charged with cost 0.
        checks: Vec<CounterCheck>,
        /// The time of the charge.
        charged: Timestamp,
        /// The attempt.
        attempt: AttemptId,
    },
    /// Resets a counter; its override stays.
    Reset(KeyName),
    /// Sets an override, or ends it.
    Override(KeyName, Option<Override>),
    /// Sets an override again, if its limit is not in force.
    RestoreOverride(KeyName, Override),
    /// Leases of counters, in order.
    Lease(Vec<LeaseRequest>),
    /// Pushes the changes of copies of counters and pulls the counters. Without counters it reads the server's time.
    Exchange(Vec<CounterExchange>),
    /// Resets a counter of which nodes keep copies: changes made before are dropped when they arrive.
    ResetCopies(KeyName),
    /// Acquires, renews and releases permits, in order.
    Permits(Vec<PermitRequest>),
}

/// Identifies an attempt, so that nothing but its own charge is undone. Several attempts may have the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttemptId(pub(crate) u64);

impl AttemptId {
    /// A new identifier: a random number that scripts represent exactly.
    pub(crate) fn random() -> Self {
        Self(fastrand::u64(1..1 << 53))
    }
}

/// A check with the name of its counter.
#[derive(Clone, Debug)]
pub(crate) struct CounterCheck {
    pub(crate) key: KeyName,
    pub(crate) limit: Limit,
    pub(crate) cost: Cost,
    pub(crate) role: Role,
}

/// A refund with the name of its counter.
#[derive(Clone, Debug)]
pub(crate) struct CounterRefund {
    pub(crate) key: KeyName,
    pub(crate) limit: Limit,
    pub(crate) cost: Cost,
    pub(crate) charged: Timestamp,
}

/// What is wrong with an entry that a script has left alone.
pub(crate) const FOREIGN_ENTRY: &str =
    "a newer version wrote this counter, or it is malformed; update this node, or reset the counter";

/// The reply to an operation.
#[derive(Clone, Debug)]
pub(crate) enum OperationReply {
    /// To a decision, a peek or a cancellation: the server's time and one outcome per check.
    Outcomes(Timestamp, Outcomes),
    /// To any other operation: the server's time; to a reset of copies: the epoch that starts, which is a time.
    Done(Timestamp),
    /// To refunds of which the counters contained nothing.
    Unchanged,
    /// A counter has a newer format. The operation has changed nothing.
    NewerFormat,
    /// To requests for leases: one reply each.
    Leases(Vec<LeaseReply>),
    /// To an exchange: the server's time and one reply per counter.
    Exchanged(Timestamp, Vec<ExchangeReply>),
    /// To requests about permits: whether each was done; otherwise all permits are in use.
    Permits(Vec<bool>),
}

impl OperationReply {
    /// Why the script has left the entry of a counter alone, if it has.
    pub(crate) fn entry_error(&self) -> Option<&'static str> {
        match self {
            Self::NewerFormat => Some(FOREIGN_ENTRY),
            Self::Leases(replies) => replies.iter().find_map(|reply| reply.status.entry_error()),
            Self::Exchanged(_, replies) => replies
                .iter()
                .any(|reply| matches!(reply, ExchangeReply::NewerFormat))
                .then_some(FOREIGN_ENTRY),
            Self::Outcomes(..) | Self::Done(_) | Self::Unchanged | Self::Permits(_) => None,
        }
    }
}

/// The scripts. Operations of the same script can share a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ScriptName {
    /// `lua/central.lua`
    Central,
    /// `lua/lease.lua`
    Lease,
    /// `lua/sync.lua`
    Sync,
    /// `lua/permits.lua`
    Permits,
}

impl Operation {
    /// The script that runs the operation.
    pub(crate) fn script(&self) -> ScriptName {
        match self {
            Self::Decide(_)
            | Self::Attempt(..)
            | Self::Peek(_)
            | Self::Refund(_)
            | Self::Cancel { .. }
            | Self::Reset(_)
            | Self::Override(..)
            | Self::RestoreOverride(..) => ScriptName::Central,
            Self::Lease(_) => ScriptName::Lease,
            Self::Exchange(_) | Self::ResetCopies(_) => ScriptName::Sync,
            Self::Permits(_) => ScriptName::Permits,
        }
    }

    /// How many requests the operation contains: one, except for leases.
    pub(crate) fn requests(&self) -> usize {
        match self {
            Self::Lease(requests) => requests.len(),
            _ => 1,
        }
    }

    /// The hash slot of the operation's keys; `None` if it has no keys.
    pub(crate) fn slot(&self) -> Option<u16> {
        match self {
            Self::Decide(checks)
            | Self::Attempt(checks, _)
            | Self::Peek(checks)
            | Self::Cancel { checks, .. } => checks.first().map(|check| check.key.slot()),
            Self::Refund(refunds) => refunds.first().map(|refund| refund.key.slot()),
            Self::Lease(requests) => requests.first().map(|request| request.key.slot()),
            Self::Exchange(counters) => counters.first().map(|counter| counter.key.slot()),
            Self::Permits(requests) => requests.first().map(|request| request.key.slot()),
            Self::Reset(key)
            | Self::Override(key, _)
            | Self::RestoreOverride(key, _)
            | Self::ResetCopies(key) => Some(key.slot()),
        }
    }
}
