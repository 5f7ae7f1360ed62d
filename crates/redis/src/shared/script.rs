//! The script of the shared records: its arguments and replies. See lua/shared.lua.

use std::time::Duration;

use redis::{Cmd, Value};
use tidegate_core::Timestamp;
use tidegate_store::{SharedRecord, StoreError};

use super::seal::{FIELD_LENGTH, Field};
use crate::key::KeyName;
use crate::link::Link;

/// Records per call, so that Redis is not blocked for long.
pub(super) const PAGE: usize = 500;
/// How long Redis keeps the records of a fleet that is gone. Every node renews it.
const TTL: Duration = Duration::from_hours(30 * 24);
/// The digits of a time in front of a sealed record.
const DIGITS: usize = 16;

const SOURCE: &str = concat!("#!lua\n", include_str!("../../lua/shared.lua"));

/// Calls the script.
pub(super) struct SharedScript {
    keys: [KeyName; 3],
}

/// A part of what changed.
pub(super) struct PulledPage {
    pub(super) epoch: Vec<u8>,
    /// The version up to which records have been pulled.
    pub(super) reached: u64,
    pub(super) is_last: bool,
    pub(super) records: Vec<(Field, Timestamp, Vec<u8>)>,
}

impl SharedScript {
    pub(super) fn new(link: &Link) -> Self {
        let keys = ["records", "changes", "expiry"].map(|name| link.names().internal("shared", name));
        Self { keys }
    }

    fn command(&self, operation: &str) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(SOURCE).arg(self.keys.len());
        for key in &self.keys {
            command.arg(key.as_bytes());
        }
        // A new epoch for each call: a node must notice that Redis lost the one that it proposed before.
        let epoch = format!("{:016x}", fastrand::u64(..));
        command.arg(operation).arg(TTL.as_secs()).arg(epoch);
        command
    }

    async fn call(&self, link: &Link, command: &Cmd) -> Result<Vec<Value>, StoreError> {
        let [first, ..] = &self.keys;
        match link.command(first.slot(), command).await? {
            Value::Array(values) => Ok(values),
            _ => Err(invalid()),
        }
    }

    /// Pulls the records that changed after `cursor`: an epoch and a version.
    pub(super) async fn pull(&self, link: &Link, cursor: &(Vec<u8>, u64)) -> Result<PulledPage, StoreError> {
        let mut command = self.command("pull");
        command.arg(cursor.0.as_slice()).arg(cursor.1).arg(PAGE);
        let values = self.call(link, &command).await?;
        let [Value::BulkString(epoch), Value::Int(version), Value::Int(reached), pairs @ ..] =
            values.as_slice()
        else {
            return Err(invalid());
        };
        let records = pairs.chunks_exact(2).map(|pair| parse_pair(pair).ok_or_else(invalid));
        Ok(PulledPage {
            epoch: epoch.clone(),
            reached: u64::try_from(*reached).map_err(|_| invalid())?,
            is_last: reached >= version,
            records: records.collect::<Result<_, _>>()?,
        })
    }

    /// Pushes records. Returns how many were newer than those of Redis.
    pub(super) async fn push<'r>(
        &self,
        link: &Link,
        records: impl Iterator<Item = (Field, &'r SharedRecord, Vec<u8>)>,
    ) -> Result<i64, StoreError> {
        let mut command = self.command("push");
        for (field, record, sealed) in records {
            let expires = record.expires.map_or(String::new(), |at| at.as_micros().to_string());
            let changed = format!("{:0DIGITS$}", record.changed.as_micros());
            command.arg(field.as_slice()).arg(changed).arg(expires).arg(sealed);
        }
        match self.call(link, &command).await?.as_slice() {
            [_, _, Value::Int(accepted)] => Ok(*accepted),
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
