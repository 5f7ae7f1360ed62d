//! The arguments and replies of `lua/sync.lua`.

use redis::Value;
use tidegate_core::Timestamp;
use tidegate_store::StoreError;

use super::{
    CALLER_TTL_MILLIS, KeyList, MIN_TTL_MILLIS, ScriptCall, double, foreign_operation, limit_numbers,
    packed_reply, protocol_error,
};
use crate::operation::{Operation, OperationReply};
use crate::sync::{CounterExchange, ExchangeReply, ExchangedCounter};

pub(super) const SOURCE: &str = concat!(
    "#!lua\n",
    include_str!("../../lua/exact.lua"),
    include_str!("../../lua/formulas.lua"),
    include_str!("../../lua/token_bucket.lua"),
    include_str!("../../lua/fixed_window.lua"),
    include_str!("../../lua/sliding_counter.lua"),
    include_str!("../../lua/sync.lua"),
);

const EXCHANGE: u8 = 1;
const RESET: u8 = 2;

/// Encodes exchanges and resets for one call.
pub(super) fn encode(operations: &[&Operation], now: Option<Timestamp>) -> Result<ScriptCall, StoreError> {
    let (mut keys, mut packed) = (KeyList::default(), Vec::new());
    for operation in operations {
        match operation {
            Operation::Exchange(counters) => {
                for counter in counters {
                    packed.push(EXCHANGE);
                    packed.extend(keys.position(&counter.key)?.to_le_bytes());
                    push_exchange(&mut packed, counter)?;
                }
            }
            Operation::ResetCopies(key) => {
                packed.push(RESET);
                packed.extend(keys.position(key)?.to_le_bytes());
            }
            _ => return Err(foreign_operation()),
        }
    }
    let ttl = if now.is_some() { CALLER_TTL_MILLIS } else { MIN_TTL_MILLIS };
    let now = now.map_or(Vec::new(), |now| now.as_micros().to_string().into_bytes());
    Ok(ScriptCall { keys: keys.keys, arguments: vec![now, ttl.to_string().into_bytes(), packed] })
}

fn push_exchange(packed: &mut Vec<u8>, counter: &CounterExchange) -> Result<(), StoreError> {
    let (algorithm, limit) = limit_numbers(&counter.limit)?;
    packed.push(algorithm);
    let stamps = [counter.node.0, counter.number, counter.epoch];
    packed.extend(limit.into_iter().chain(stamps).flat_map(double));
    let delta = counter.limit.delta_numbers(&counter.delta).map(signed);
    packed.extend(delta.into_iter().flat_map(f64::to_le_bytes));
    Ok(())
}

/// Decodes the reply to the call that [`encode`] made of the same operations.
pub(super) fn decode(operations: &[&Operation], reply: &Value) -> Result<Vec<OperationReply>, StoreError> {
    let (numbers, rest) = packed_reply(reply)?.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(protocol_error("the reply is not a list of numbers"));
    }
    let mut numbers = numbers.iter().map(|bytes| f64::from_le_bytes(*bytes));
    let mut next = || {
        let number = numbers.next().ok_or_else(|| protocol_error("the reply is too short"))?;
        integer(number).ok_or_else(|| protocol_error("the reply contains an invalid number"))
    };
    let at = Timestamp::from_micros(next()?);
    let replies = operations
        .iter()
        .map(|operation| match operation {
            Operation::Exchange(counters) => {
                let replies = counters
                    .iter()
                    .map(|counter| exchange_reply(&mut next, counter))
                    .collect::<Result<_, _>>()?;
                Ok(OperationReply::Exchanged(at, replies))
            }
            _ => match (next()?, next()?) {
                // The epoch is the time of the reset.
                (0, epoch) => Ok(OperationReply::Done(Timestamp::from_micros(epoch))),
                _ => Ok(OperationReply::NewerFormat),
            },
        })
        .collect::<Result<_, StoreError>>()?;
    if next().is_ok() { Err(protocol_error("the reply is too long")) } else { Ok(replies) }
}

fn exchange_reply(
    next: &mut impl FnMut() -> Result<u64, StoreError>,
    counter: &CounterExchange,
) -> Result<ExchangeReply, StoreError> {
    let (status, epoch) = (next()?, next()?);
    let before = [next()?, next()?, next()?];
    let after = [next()?, next()?, next()?];
    if status != 0 {
        return Ok(ExchangeReply::NewerFormat);
    }
    let [before, after] = [before, after].map(|numbers| counter.limit.state_from_numbers(numbers));
    Ok(ExchangeReply::Counter(ExchangedCounter { epoch, before, after }))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the magnitude is at most 2^53, which a double represents exactly"
)]
fn signed(number: i64) -> f64 {
    number as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "checked to be a whole number in range"
)]
fn integer(number: f64) -> Option<u64> {
    let is_exact = (0.0..=(1_u64 << 53) as f64).contains(&number) && number.fract() == 0.0;
    is_exact.then_some(number as u64)
}
