//! The scripts, their arguments and their replies.

mod sync;

use std::sync::OnceLock;

use redis::{Script, Value};
use tidegate_core::{AlgorithmKind, Cost, Limit, Outcome, Role, TimeSpan, Timestamp, Verdict};
use tidegate_store::{Override, StoreError};

use crate::key::KeyName;
use crate::operation::{CounterCheck, Operation, OperationReply, ScriptName};

/// Scripts compute in doubles: larger costs exceed every limit and need not be distinguished.
const MAX_COST: u64 = 1 << 53;
/// The shortest TTL of a key: short enough to cost little, long enough for every round trip.
const MIN_TTL_MILLIS: u64 = 1_000;
/// With time from the caller, keys must outlive a trace that is replayed faster than real time.
const CALLER_TTL_MILLIS: u64 = 3_600_000;

/// The source of a script.
pub(crate) fn source(name: ScriptName) -> &'static Script {
    static CENTRAL: OnceLock<Script> = OnceLock::new();
    static SYNC: OnceLock<Script> = OnceLock::new();
    match name {
        ScriptName::Central => CENTRAL.get_or_init(|| {
            Script::new(concat!(
                "#!lua\n",
                include_str!("../../lua/exact.lua"),
                include_str!("../../lua/token_bucket.lua"),
                include_str!("../../lua/central.lua"),
            ))
        }),
        ScriptName::Sync => SYNC.get_or_init(|| {
            Script::new(concat!(
                "#!lua\n",
                include_str!("../../lua/exact.lua"),
                include_str!("../../lua/token_bucket.lua"),
                include_str!("../../lua/fixed_window.lua"),
                include_str!("../../lua/sliding_counter.lua"),
                include_str!("../../lua/sync.lua"),
            ))
        }),
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
        Some(ScriptName::Sync) => sync::encode(operations, now),
        _ => encode_central(operations, now),
    }
}

fn encode_central(operations: &[&Operation], now: Option<Timestamp>) -> Result<ScriptCall, StoreError> {
    let [operation] = operations else { return Err(protocol_error("several operations in a call")) };
    let mut call = ScriptCall::default();
    let name = match operation {
        Operation::Decide(_) => "decide",
        Operation::Peek(_) => "peek",
        Operation::Refund(_) => "refund",
        Operation::Cancel { .. } => return Err(protocol_error("cancel is not supported")),
        Operation::Reset(_) => "reset",
        Operation::Override(..) => "override",
        Operation::Exchange(_) | Operation::ResetCopies(_) => {
            return Err(protocol_error("an operation of another script"));
        }
    };
    call.arguments.push(name.as_bytes().to_vec());
    call.arguments.push(now.map_or(Vec::new(), |now| now.as_micros().to_string().into_bytes()));
    call.push(if now.is_some() { CALLER_TTL_MILLIS } else { MIN_TTL_MILLIS });
    match operation {
        Operation::Decide(checks) | Operation::Peek(checks) | Operation::Cancel { checks, .. } => {
            call.push(1);
            call.push(checks.len() as u64);
            for check in checks {
                call.push_check(check)?;
            }
        }
        Operation::Refund(refunds) => {
            call.push(refunds.len() as u64);
            for refund in refunds {
                call.push_key(&refund.key);
                call.push_limit(&refund.limit)?;
                call.push_cost(refund.cost);
                call.push(refund.charged.as_micros());
            }
        }
        Operation::Exchange(_) | Operation::ResetCopies(_) => {}
        Operation::Reset(key) => call.push_key(key),
        Operation::Override(key, replacement) => {
            call.push_key(key);
            match replacement {
                None => call.push(0),
                Some(Override { limit, until }) => {
                    call.push(until.as_micros());
                    call.push_limit(limit)?;
                }
            }
        }
    }
    Ok(call)
}

impl ScriptCall {
    fn push(&mut self, number: u64) {
        self.arguments.push(number.to_string().into_bytes());
    }

    fn push_check(&mut self, check: &CounterCheck) -> Result<(), StoreError> {
        self.push_key(&check.key);
        self.push_limit(&check.limit)?;
        self.push_cost(check.cost);
        self.push(match check.role {
            Role::Binding => 1,
            Role::Advisory => 2,
            Role::Overage => 3,
        });
        Ok(())
    }

    fn push_cost(&mut self, cost: Cost) {
        self.push(cost.get().min(MAX_COST));
    }

    fn push_key(&mut self, key: &KeyName) {
        let position = self.keys.iter().position(|known| *known == key.as_bytes()).unwrap_or_else(|| {
            self.keys.push(key.as_bytes().to_vec());
            self.keys.len() - 1
        });
        self.push(position as u64 + 1);
    }

    fn push_limit(&mut self, limit: &Limit) -> Result<(), StoreError> {
        let AlgorithmKind::TokenBucket(bucket) = limit.kind() else {
            return Err(StoreError::Unsupported { algorithm: limit.algorithm() });
        };
        let rate = bucket.rate();
        for number in [limit.capacity(), rate.tick().micros(), rate.unit().get(), rate.drain().get()] {
            self.push(number);
        }
        Ok(())
    }
}

/// Decodes the reply to the call that [`encode`] made of the same operations.
pub(crate) fn decode(operations: &[&Operation], reply: &Value) -> Result<Vec<OperationReply>, StoreError> {
    match operations.first().map(|operation| operation.script()) {
        Some(ScriptName::Sync) => sync::decode(operations, reply),
        _ => decode_central(operations, reply),
    }
}

fn decode_central(operations: &[&Operation], reply: &Value) -> Result<Vec<OperationReply>, StoreError> {
    let numbers: Vec<u64> = redis::from_redis_value_ref(reply)
        .map_err(|_| protocol_error("the reply is not a list of numbers"))?;
    let mut numbers = numbers.into_iter();
    let mut next = || numbers.next().ok_or_else(|| protocol_error("the reply is too short"));
    let at = Timestamp::from_micros(next()?);
    let replies = operations
        .iter()
        .map(|operation| match operation {
            Operation::Decide(checks) | Operation::Peek(checks) | Operation::Cancel { checks, .. } => {
                let outcomes = checks.iter().map(|_| outcome(&mut next)).collect::<Result<_, _>>()?;
                Ok(OperationReply::Outcomes(at, outcomes))
            }
            Operation::Refund(_) | Operation::Reset(_) | Operation::Override(..) => {
                Ok(OperationReply::Done(at))
            }
            Operation::Exchange(_) | Operation::ResetCopies(_) => {
                Err(protocol_error("an operation of another script"))
            }
        })
        .collect::<Result<_, StoreError>>()?;
    if next().is_ok() { Err(protocol_error("the reply is too long")) } else { Ok(replies) }
}

fn outcome(next: &mut impl FnMut() -> Result<u64, StoreError>) -> Result<Outcome, StoreError> {
    let (verdict, span) = (next()?, TimeSpan::from_micros(next()?));
    let verdict = match verdict {
        0 => Verdict::Pass { wait: span },
        1 => Verdict::NotUntil { retry_after: span },
        2 => Verdict::Never,
        _ => return Err(protocol_error("unknown verdict")),
    };
    Ok(Outcome { verdict, limit: next()?, remaining: next()?, reset_after: TimeSpan::from_micros(next()?) })
}

fn protocol_error(reason: &str) -> StoreError {
    StoreError::Protocol { reason: reason.to_owned() }
}
