//! The arguments and replies of `lua/permits.lua`.

use redis::Value;
use tidegate_core::Timestamp;
use tidegate_store::StoreError;

use super::{CALLER_TTL_MILLIS, KeyList, ScriptCall, foreign_operation, packed_reply, protocol_error};
use crate::operation::{Operation, OperationReply};
use crate::permits::{PERMIT_LIFE, PermitAction, PermitRequest};

/// The source of the script.
pub(super) const SOURCE: &str = concat!("#!lua\n", include_str!("../../lua/permits.lua"));

/// Encodes requests for permits for one call.
pub(super) fn encode(operations: &[&Operation], now: Option<Timestamp>) -> Result<ScriptCall, StoreError> {
    let (mut keys, mut packed) = (KeyList::default(), Vec::new());
    for operation in operations {
        for PermitRequest { action, key, permit } in requests(operation)? {
            let position = keys.position(key)?;
            let (kind, max) = match action {
                PermitAction::Acquire { max } => (1_u8, *max),
                PermitAction::Renew => (2, 0),
                PermitAction::Release => (3, 0),
                PermitAction::Withdraw => (4, 0),
            };
            packed.push(kind);
            packed.extend_from_slice(&position.to_le_bytes());
            packed.extend_from_slice(&max.to_le_bytes());
            packed.extend_from_slice(&permit.0);
        }
    }
    // Twice the life of a permit, so that a key is never gone before its permits have expired.
    let ttl = if now.is_some() { CALLER_TTL_MILLIS } else { 2 * PERMIT_LIFE.as_micros() / 1_000 };
    let now = now.map_or(Vec::new(), |now| now.as_micros().to_string().into_bytes());
    let life = PERMIT_LIFE.as_micros().to_string().into_bytes();
    Ok(ScriptCall { keys: keys.keys, arguments: vec![now, life, ttl.to_string().into_bytes(), packed] })
}

/// Decodes the reply to the call that [`encode`] made of the same operations.
pub(super) fn decode(operations: &[&Operation], reply: &Value) -> Result<Vec<OperationReply>, StoreError> {
    let mut bytes = packed_reply(reply)?.iter();
    let replies = operations
        .iter()
        .map(|operation| {
            let one = |_| match bytes.next() {
                Some(0) => Ok(false),
                Some(1) => Ok(true),
                _ => Err(protocol_error("the reply contains an invalid byte or is too short")),
            };
            requests(operation)?.iter().map(one).collect::<Result<_, _>>().map(OperationReply::Permits)
        })
        .collect::<Result<_, StoreError>>()?;
    if bytes.next().is_some() { Err(protocol_error("the reply is too long")) } else { Ok(replies) }
}

fn requests(operation: &Operation) -> Result<&[PermitRequest], StoreError> {
    match operation {
        Operation::Permits(requests) => Ok(requests),
        _ => Err(foreign_operation()),
    }
}
