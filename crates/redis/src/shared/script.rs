//! The script of the shared records: its arguments and replies. See lua/shared.lua.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::{Cmd, Value};
use tidegate_core::Timestamp;
use tidegate_store::{SharedRecord, StoreError};

use super::seal::{FIELD_LENGTH, Field};
use crate::key::KeyName;
use crate::link::Link;
use crate::nodes::NodeId;

/// Records per call, so that Redis is not blocked for long.
pub(super) const PAGE: usize = 500;
/// How long Redis keeps the records of a fleet that is gone. Every node renews it.
const TTL: Duration = Duration::from_hours(30 * 24);
/// How long Redis keeps the mark of a node that is gone. A node that pushes all of its records at an interval renews it.
const MARK_TTL: Duration = Duration::from_hours(24);
/// The digits of a time in front of a sealed record.
const DIGITS: usize = 16;

const SOURCE: &str = concat!("#!lua\n", include_str!("../../lua/shared.lua"));

/// Calls the script for one node.
pub(super) struct SharedScript {
    keys: [KeyName; 4],
    /// The number of the last call.
    calls: AtomicU64,
}

/// What a node knows of the records in Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordCursor {
    /// The node's mark in Redis; 0 if the node knows nothing.
    pub(super) mark: u64,
    /// The version up to which records were pulled.
    pub(super) version: u64,
}

/// A part of what changed.
pub(super) struct PulledPage {
    pub(super) reached: RecordCursor,
    pub(super) is_last: bool,
    /// The server's time.
    pub(super) now: Timestamp,
    pub(super) records: Vec<(Field, Timestamp, Vec<u8>)>,
}

/// What became of records that were pushed.
pub(super) struct PushReply {
    pub(super) mark: u64,
    /// How many were newer than those of Redis.
    pub(super) accepted: i64,
}

impl SharedScript {
    pub(super) fn new(link: &Link, node: NodeId) -> Self {
        let mark = format!("mark:{:016x}", node.0);
        let keys = ["records", "changes", "expiry", &mark].map(|name| link.names().internal("shared", name));
        Self { keys, calls: AtomicU64::new(0) }
    }

    fn command(&self, operation: &str, known: RecordCursor) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(SOURCE).arg(self.keys.len());
        for key in &self.keys {
            command.arg(key.as_bytes());
        }
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        command.arg(operation).arg(TTL.as_secs()).arg(MARK_TTL.as_secs()).arg(number).arg(known.mark);
        command
    }

    async fn call(&self, link: &Link, command: &Cmd) -> Result<Vec<Value>, StoreError> {
        let [first, ..] = &self.keys;
        match link.command(first.slot(), command).await? {
            Value::Array(values) => Ok(values),
            _ => Err(invalid()),
        }
    }

    /// Pulls the records that changed since `known`. `None` if Redis has lost some of what is known.
    pub(super) async fn pull(
        &self,
        link: &Link,
        known: RecordCursor,
    ) -> Result<Option<PulledPage>, StoreError> {
        let mut command = self.command("pull", known);
        command.arg(known.version).arg(PAGE);
        let values = self.call(link, &command).await?;
        let [mark, now, version, reached, pairs @ ..] = values.as_slice() else {
            return if values.is_empty() { Ok(None) } else { Err(invalid()) };
        };
        let (version, reached) = (number(version)?, number(reached)?);
        let records = pairs.chunks_exact(2).map(|pair| parse_pair(pair).ok_or_else(invalid));
        Ok(Some(PulledPage {
            reached: RecordCursor { mark: number(mark)?, version: reached },
            is_last: reached >= version,
            now: Timestamp::from_micros(number(now)?),
            records: records.collect::<Result<_, _>>()?,
        }))
    }

    /// Pushes records. `None` if Redis has lost some of what is known; then nothing was pushed.
    pub(super) async fn push<'r>(
        &self,
        link: &Link,
        known: RecordCursor,
        records: impl Iterator<Item = (Field, &'r SharedRecord, Vec<u8>)>,
    ) -> Result<Option<PushReply>, StoreError> {
        let mut command = self.command("push", known);
        for (field, record, sealed) in records {
            let expires = record.expires.map_or(String::new(), |at| at.as_micros().to_string());
            let changed = format!("{:0DIGITS$}", record.changed.as_micros());
            command.arg(field.as_slice()).arg(changed).arg(expires).arg(sealed);
        }
        match self.call(link, &command).await?.as_slice() {
            [mark, _, Value::Int(accepted)] => {
                Ok(Some(PushReply { mark: number(mark)?, accepted: *accepted }))
            }
            [] => Ok(None),
            _ => Err(invalid()),
        }
    }

    /// Sends `message` to all subscribers of `channel`.
    pub(super) async fn publish(&self, link: &Link, channel: &str, message: &[u8]) -> Result<(), StoreError> {
        let [first, ..] = &self.keys;
        let mut command = redis::cmd("PUBLISH");
        command.arg(channel).arg(message);
        link.command(first.slot(), &command).await.map(drop)
    }
}

fn number(value: &Value) -> Result<u64, StoreError> {
    let Value::Int(number) = value else { return Err(invalid()) };
    u64::try_from(*number).map_err(|_| invalid())
}

fn parse_pair(pair: &[Value]) -> Option<(Field, Timestamp, Vec<u8>)> {
    let [Value::BulkString(field), Value::BulkString(value)] = pair else { return None };
    let field: [u8; FIELD_LENGTH] = field.as_slice().try_into().ok()?;
    let (changed, sealed) = value.split_at_checked(DIGITS)?;
    let changed = std::str::from_utf8(changed).ok()?.parse().ok()?;
    Some((field, Timestamp::from_micros(changed), sealed.to_vec()))
}

fn invalid() -> StoreError {
    StoreError::Protocol { reason: "invalid reply of the script of shared records".to_owned() }
}
