//! The scripts, their arguments and their replies.

#[cfg(test)]
mod attempt_tests;
mod central;
mod lease;
#[cfg(test)]
mod lease_tests;
mod limit;
mod permits;
mod sync;

use std::sync::OnceLock;

use redis::{Script, Value};
use tidegate_core::Timestamp;
use tidegate_store::StoreError;

use crate::operation::{Operation, OperationReply, ScriptName};

/// Scripts compute in doubles: larger costs exceed every limit and need not be distinguished.
const MAX_COST: u64 = 1 << 53;
/// The shortest TTL of a key: short enough to cost little, long enough for every round trip.
const MIN_TTL_MILLIS: u64 = 1_000;
/// With time from the caller, keys must outlive a trace that is replayed faster than real time.
const CALLER_TTL_MILLIS: u64 = 3_600_000;

/// A script and its hash.
pub(crate) fn source(name: ScriptName) -> &'static Script {
    static CENTRAL: OnceLock<Script> = OnceLock::new();
    static LEASE: OnceLock<Script> = OnceLock::new();
    static SYNC: OnceLock<Script> = OnceLock::new();
    static PERMITS: OnceLock<Script> = OnceLock::new();
    let script = match name {
        ScriptName::Central => &CENTRAL,
        ScriptName::Lease => &LEASE,
        ScriptName::Sync => &SYNC,
        ScriptName::Permits => &PERMITS,
    };
    script.get_or_init(|| Script::new(code(name)))
}

/// The code of a script.
pub(crate) fn code(name: ScriptName) -> &'static str {
    match name {
        ScriptName::Central => central::SOURCE,
        ScriptName::Lease => lease::SOURCE,
        ScriptName::Sync => sync::SOURCE,
        ScriptName::Permits => permits::SOURCE,
    }
}

/// One call of a script.
#[derive(Debug, Default)]
pub(crate) struct ScriptCall {
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) arguments: Vec<Vec<u8>>,
}

/// Encodes operations of one script for one call. `now` is the caller's time, or `None` for the server's.
pub(crate) fn encode(operations: &[&Operation], now: Option<Timestamp>) -> Result<ScriptCall, StoreError> {
    match operations.first().map(|operation| operation.script()) {
        Some(ScriptName::Lease) => lease::encode(operations, now),
        Some(ScriptName::Sync) => sync::encode(operations, now),
        Some(ScriptName::Permits) => permits::encode(operations, now),
        Some(ScriptName::Central) | None => central::encode(operations, now),
    }
}

/// Decodes the reply to the call that [`encode`] made of the same operations.
pub(crate) fn decode(operations: &[&Operation], reply: &Value) -> Result<Vec<OperationReply>, StoreError> {
    match operations.first().map(|operation| operation.script()) {
        Some(ScriptName::Lease) => lease::decode(operations, reply),
        Some(ScriptName::Sync) => sync::decode(operations, reply),
        Some(ScriptName::Permits) => permits::decode(operations, reply),
        Some(ScriptName::Central) | None => central::decode(operations, reply),
    }
}

fn protocol_error(reason: &str) -> StoreError {
    StoreError::Protocol { reason: reason.to_owned() }
}
