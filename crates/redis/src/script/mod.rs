//! The scripts, their arguments and their replies.

mod central;
mod limit;

use std::sync::OnceLock;

use redis::{Script, Value};
use tidegate_core::Timestamp;
use tidegate_store::StoreError;

use crate::operation::{Operation, OperationReply, ScriptName};

/// The source of a script.
pub(crate) fn source(name: ScriptName) -> &'static Script {
    static CENTRAL: OnceLock<Script> = OnceLock::new();
    match name {
        ScriptName::Central => CENTRAL.get_or_init(|| Script::new(central::SOURCE)),
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
    central::encode(operations, now)
}

/// Decodes the reply to the call that [`encode`] made of the same operations.
pub(crate) fn decode(operations: &[&Operation], reply: &Value) -> Result<Vec<OperationReply>, StoreError> {
    central::decode(operations, reply)
}

fn protocol_error(reason: &str) -> StoreError {
    StoreError::Protocol { reason: reason.to_owned() }
}
