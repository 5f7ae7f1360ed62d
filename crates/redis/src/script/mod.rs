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

use std::collections::HashMap;
use std::sync::OnceLock;

use foldhash::fast::RandomState;
use redis::{Script, Value};
use tidegate_core::{AlgorithmKind, Limit, Timestamp};
use tidegate_store::StoreError;

use crate::key::KeyName;
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

/// The keys of a call, each once. Operations name them by their position, from 1.
#[derive(Debug, Default)]
struct KeyList<'a> {
    keys: Vec<Vec<u8>>,
    positions: HashMap<&'a [u8], u16, RandomState>,
}

impl<'a> KeyList<'a> {
    fn position(&mut self, key: &'a KeyName) -> Result<u16, StoreError> {
        if let Some(known) = self.positions.get(key.as_bytes()) {
            return Ok(*known);
        }
        self.keys.push(key.as_bytes().to_vec());
        let position = position(self.keys.len())?;
        self.positions.insert(key.as_bytes(), position);
        Ok(position)
    }
}

/// A position or a count in a call: scripts read two bytes, and Lua passes at most a few thousand values to a function.
fn position(place: usize) -> Result<u16, StoreError> {
    const MAX: u16 = 4_000;
    let place = u16::try_from(place).ok().filter(|place| *place <= MAX);
    place.ok_or_else(|| protocol_error("more than 4000 keys, limits or checks in one call"))
}

/// The number of an algorithm and the parameters of a limit, for the scripts of `lease` and `sync`: the capacity first.
fn limit_numbers(limit: &Limit) -> Result<(u8, [u64; 4]), StoreError> {
    let capacity = limit.capacity();
    match limit.kind() {
        AlgorithmKind::TokenBucket(bucket) => {
            let rate = bucket.rate();
            Ok((1, [capacity, rate.tick().micros(), rate.unit().get(), rate.drain().get()]))
        }
        AlgorithmKind::FixedWindow(window) => Ok((2, [capacity, window.window().as_micros(), 0, 0])),
        AlgorithmKind::SlidingCounter(window) => {
            let tick = limit.tick().micros();
            Ok((3, [capacity, tick, window.window().as_micros() / tick, 0]))
        }
        AlgorithmKind::LeakyBucket(_) | AlgorithmKind::SlidingLog(_) => {
            Err(StoreError::Unsupported { algorithm: limit.algorithm() })
        }
    }
}

/// A number as the scripts unpack it; a double is exact up to this.
#[expect(clippy::cast_precision_loss, reason = "at most 2^53, which a double represents exactly")]
fn double(number: u64) -> [u8; 8] {
    (number.min(1 << 53) as f64).to_le_bytes()
}

/// The bytes of a packed reply.
fn packed_reply(reply: &Value) -> Result<&[u8], StoreError> {
    match reply {
        Value::BulkString(bytes) => Ok(bytes),
        _ => Err(protocol_error("the reply is not a string")),
    }
}

fn foreign_operation() -> StoreError {
    protocol_error("an operation of another script")
}

fn protocol_error(reason: &str) -> StoreError {
    StoreError::Protocol { reason: reason.to_owned() }
}
