//! The arguments and replies of `lua/lease.lua`, packed in little-endian order.

use redis::Value;
use smallvec::SmallVec;
use tidegate_core::{Limit, TimeSpan, Timestamp};
use tidegate_store::StoreError;

use super::{
    CALLER_TTL_MILLIS, KeyList, MIN_TTL_MILLIS, ScriptCall, double, foreign_operation, limit_numbers,
    packed_reply, position, protocol_error,
};
use crate::lease::{LeaseAction, LeaseReply, LeaseRequest, LeaseStatus};
use crate::operation::{Operation, OperationReply};

/// The fast path is in `lease.lua`. The functions of the other files are created only when they are needed.
pub(super) const SOURCE: &str = concat!(
    "#!lua\n",
    include_str!("../../lua/lease_format.lua"),
    include_str!("../../lua/formulas.lua"),
    "\nlocal function general(now, least_ttl, limits, values, left, entries)\n",
    include_str!("../../lua/exact.lua"),
    include_str!("../../lua/token_bucket.lua"),
    include_str!("../../lua/fixed_window.lua"),
    include_str!("../../lua/sliding_counter.lua"),
    include_str!("../../lua/lease_general.lua"),
    "end\n\n",
    include_str!("../../lua/lease.lua"),
);

/// The numbers of a reply; anything else comes from a malformed entry.
const VALID_NUMBERS: std::ops::RangeInclusive<f64> = 0.0..=1_152_921_504_606_846_976.0;
/// Instead of a state: another limit than that of the request applies.
const NO_STATE: u64 = 1 << 60;
/// The bytes of a reply: a status and its numbers.
const REPLY_BYTES: usize = 1 + REPLY_NUMBERS * 8;
const REPLY_NUMBERS: usize = 12;

/// Encodes lease operations for one call.
pub(super) fn encode(operations: &[&Operation], now: Option<Timestamp>) -> Result<ScriptCall, StoreError> {
    let mut call = LeaseCall::default();
    for operation in operations {
        let Operation::Lease(requests) = operation else {
            return Err(foreign_operation());
        };
        for request in requests {
            call.push(request)?;
        }
    }
    call.finish(now)
}

/// Decodes the reply to the call that [`encode`] made of the same operations.
pub(super) fn decode(operations: &[&Operation], reply: &Value) -> Result<Vec<OperationReply>, StoreError> {
    let mut replies = packed_reply(reply)?.chunks(REPLY_BYTES);
    let decoded = operations
        .iter()
        .map(|operation| {
            let Operation::Lease(requests) = operation else {
                return Err(foreign_operation());
            };
            let one = |_| decode_one(replies.next().unwrap_or_default());
            Ok(OperationReply::Leases(requests.iter().map(one).collect::<Result<_, _>>()?))
        })
        .collect::<Result<_, StoreError>>()?;
    if replies.next().is_some() { Err(protocol_error("the reply is too long")) } else { Ok(decoded) }
}

fn decode_one(packed: &[u8]) -> Result<LeaseReply, StoreError> {
    let too_short = || protocol_error("the reply is too short");
    let (status, numbers) = packed.split_first().ok_or_else(too_short)?;
    let without_lease = |status| LeaseReply { status, ..LeaseReply::default() };
    match status {
        0 => {}
        1 => return Ok(without_lease(LeaseStatus::Ignored)),
        2 => return Ok(without_lease(LeaseStatus::NewerFormat)),
        3 => return Ok(without_lease(LeaseStatus::Malformed)),
        _ => return Err(protocol_error("unknown status of a lease")),
    }
    let numbers = numbers.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
    let numbers: SmallVec<[f64; REPLY_NUMBERS]> = numbers.collect();
    if numbers.iter().any(|number| !VALID_NUMBERS.contains(number)) {
        return Ok(without_lease(LeaseStatus::Malformed));
    }
    let mut numbers = numbers.into_iter().map(whole);
    let mut next = || numbers.next().ok_or_else(too_short);
    let reply = LeaseReply {
        status: LeaseStatus::Done,
        now: Timestamp::from_micros(next()?),
        epoch: next()?,
        granted: next()?,
        life: TimeSpan::from_micros(next()?),
        available: next()?,
        capacity: next()?,
        retry_after: TimeSpan::from_micros(next()?),
        reset_after: TimeSpan::from_micros(next()?),
        held_elsewhere: next()?,
        occupied: Some([next()?, next()?, next()?]).filter(|[first, ..]| *first != NO_STATE),
    };
    // A node never spends what no limit grants.
    Ok(if reply.granted > reply.capacity { without_lease(LeaseStatus::Malformed) } else { reply })
}

/// The script sends whole numbers from 0 to 2^53, or the sum of a few of them.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in `VALID_NUMBERS`")]
fn whole(number: f64) -> u64 {
    number as u64
}

/// A call in the making: limits and keys that several requests use are sent once.
#[derive(Default)]
struct LeaseCall<'a> {
    keys: KeyList<'a>,
    limits: Vec<Limit>,
    packed_limits: Vec<u8>,
    packed_requests: Vec<u8>,
    count: usize,
}

impl<'a> LeaseCall<'a> {
    fn push(&mut self, request: &'a LeaseRequest) -> Result<(), StoreError> {
        let key = self.keys.position(&request.key)?;
        let limit = match &request.limit {
            Some(limit) => self.limit_index(limit)?,
            None => 0,
        };
        let (kind, numbers) = match request.action {
            LeaseAction::Acquire { node, sequence, epoch, spent, granted, want, least, nodes, debt } => {
                (1, [node.0, sequence, epoch, spent, granted, want, least, u64::from(nodes.get()), debt])
            }
            LeaseAction::Peek { cost } => (2, [0, 0, 0, 0, 0, 0, cost, 0, 0]),
            LeaseAction::Reset => (3, [0; 9]),
            LeaseAction::Override { until } => (4, [0, 0, 0, 0, 0, until.as_micros(), 0, 0, 0]),
            LeaseAction::RestoreOverride { until } => (4, [0, 0, 0, 0, 0, until.as_micros(), 0, 0, 1]),
            LeaseAction::Refund { node, units, charged } => {
                (5, [node.0, 0, 0, 0, 0, charged.as_micros(), 0, 0, units])
            }
        };
        self.packed_requests.push(kind);
        self.packed_requests.extend(key.to_le_bytes());
        self.packed_requests.extend(position(limit)?.to_le_bytes());
        for number in numbers {
            self.packed_requests.extend(double(number));
        }
        self.count += 1;
        Ok(())
    }

    /// The position of a limit in the call, from 1.
    fn limit_index(&mut self, limit: &Limit) -> Result<usize, StoreError> {
        if let Some(position) = self.limits.iter().position(|known| known == limit) {
            return Ok(position + 1);
        }
        let (kind, numbers) = limit_numbers(limit)?;
        self.packed_limits.push(kind);
        self.packed_limits.extend(numbers.into_iter().flat_map(double));
        self.limits.push(*limit);
        Ok(self.limits.len())
    }

    fn finish(mut self, now: Option<Timestamp>) -> Result<ScriptCall, StoreError> {
        let mut packed = Vec::with_capacity(20 + self.packed_limits.len() + self.packed_requests.len());
        packed.extend(match now {
            Some(now) => double(now.as_micros()),
            None => (-1.0_f64).to_le_bytes(),
        });
        packed.extend(double(if now.is_some() { CALLER_TTL_MILLIS } else { MIN_TTL_MILLIS }));
        packed.extend(position(self.limits.len())?.to_le_bytes());
        packed.extend(position(self.count)?.to_le_bytes());
        packed.append(&mut self.packed_limits);
        packed.append(&mut self.packed_requests);
        Ok(ScriptCall { keys: self.keys.keys, arguments: vec![packed] })
    }
}
