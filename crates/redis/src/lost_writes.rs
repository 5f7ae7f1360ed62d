//! Detects that Redis has lost writes: after a restart from an old snapshot, or a failover to a replica that was behind.
//!
//! With each heartbeat the node increments counters that only it writes. A reply that is not larger than an earlier one
//! proves that a write which was confirmed is gone, and with it what was charged at about that time. There is one such
//! counter on a single server; in a cluster there are [`SAMPLES`], spread over the hash slots, so that every primary with a
//! sixteenth of the slots has one. A loss between two heartbeats that contains none of them is not detected.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tidegate_store::StoreError;

use crate::key::{KeyName, slot_of};
use crate::link::Link;
use crate::nodes::NodeId;

/// The number of counters in a cluster.
const SAMPLES: u16 = 16;
/// The number of hash slots of a cluster.
const SLOTS: u16 = 16_384;
/// The TTL of a counter, renewed by each heartbeat. A counter that Redis was not asked for that long has expired.
const COUNTER_TTL: Duration = Duration::from_secs(3_600);

/// KEYS: the counter. ARGV: its TTL in milliseconds. Reply: its value, the server's time in milliseconds, and the identity
/// of the server's process (empty if the user may not see it).
const SCRIPT: &str = "#!lua
local time = redis.call('TIME')
local count = redis.call('INCR', KEYS[1])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
local info = redis.pcall('INFO', 'server')
local run = ''
if type(info) == 'string' then
  run = string.match(info, 'run_id:(%x+)') or ''
end
return { count, tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000), run }";

/// Counts losses of writes.
#[derive(Debug)]
pub(crate) struct LostWrites {
    samples: Vec<WriteSample>,
    detected: AtomicU64,
}

/// A counter that only this node writes.
#[derive(Debug)]
struct WriteSample {
    key: KeyName,
    last: Mutex<Option<SampleReply>>,
}

/// What a server said.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SampleReply {
    count: u64,
    /// The server's time in milliseconds.
    at: u64,
    run: String,
}

impl LostWrites {
    /// The counters of `node`.
    pub(crate) fn new(link: &Link, node: NodeId) -> Self {
        let name = format!("writes:{:016x}", node.0);
        let sample =
            |tag: &str| WriteSample { key: link.names().internal(tag, &name), last: Mutex::new(None) };
        let samples = if link.has_slots() {
            (0..SAMPLES).filter_map(tag_in_part).map(|tag| sample(&tag)).collect()
        } else {
            vec![sample("nodes")]
        };
        Self { samples, detected: AtomicU64::new(0) }
    }

    /// Increments every counter. Returns whether a loss was detected.
    pub(crate) async fn beat(&self, link: &Link) -> Result<bool, StoreError> {
        let (mut has_lost, mut result) = (false, Ok(()));
        for sample in &self.samples {
            match sample.increment(link).await {
                Ok(reply) => has_lost |= sample.observe(reply, &self.detected),
                Err(error) => result = Err(error),
            }
        }
        if has_lost { Ok(true) } else { result.map(|()| false) }
    }

    /// Losses since the start.
    pub(crate) fn detected(&self) -> u64 {
        self.detected.load(Ordering::Relaxed)
    }
}

impl WriteSample {
    async fn increment(&self, link: &Link) -> Result<SampleReply, StoreError> {
        let mut command = redis::cmd("EVAL");
        command.arg(SCRIPT).arg(1).arg(self.key.as_bytes());
        command.arg(u64::try_from(COUNTER_TTL.as_millis()).unwrap_or(u64::MAX));
        let reply = link.command(self.key.slot(), &command).await?;
        let (count, at, run) = redis::from_redis_value(reply)
            .map_err(|_| StoreError::Protocol { reason: "unknown reply to a heartbeat".to_owned() })?;
        Ok(SampleReply { count, at, run })
    }

    /// Whether a confirmed increment is missing in `reply`.
    fn observe(&self, reply: SampleReply, detected: &AtomicU64) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = last.as_ref().is_some_and(|last| last.is_lost_in(&reply));
        if let Some(last) = last.as_ref().filter(|_| lost) {
            detected.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                event = "store_lost_writes",
                slot = self.key.slot(),
                lost = last.count + 1 - reply.count.min(last.count),
                is_new_process = last.run != reply.run,
                "Redis has lost writes: counters may have gone back by some seconds"
            );
        }
        *last = Some(reply);
        lost
    }
}

impl SampleReply {
    fn is_lost_in(&self, later: &Self) -> bool {
        let ttl = u64::try_from(COUNTER_TTL.as_millis()).unwrap_or(u64::MAX);
        later.count <= self.count && later.at.saturating_sub(self.at) < ttl
    }
}

/// A hash tag whose slot is in this one of [`SAMPLES`] equal parts.
fn tag_in_part(part: u16) -> Option<String> {
    let width = SLOTS / SAMPLES;
    (0..u32::from(SLOTS)).map(|n| format!("w{n}")).find(|tag| slot_of(tag.as_bytes()) / width == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(count: u64, at: u64) -> SampleReply {
        SampleReply { count, at, run: String::new() }
    }

    #[test]
    fn confirmed_increment_that_is_missing_is_a_loss() {
        let before = reply(10, 1_000);
        let lost = |count| before.is_lost_in(&reply(count, 2_000));
        assert_eq!([1, 9, 10, 11, 12].map(lost), [true, true, true, false, false]);
    }

    #[test]
    fn expired_counter_is_no_loss() {
        assert!(!reply(10, 1_000).is_lost_in(&reply(1, 3_601_000)));
        assert!(reply(10, 1_000).is_lost_in(&reply(1, 3_600_000)));
    }

    #[test]
    fn samples_of_a_cluster_are_spread_over_its_slots() {
        for part in 0..SAMPLES {
            let tag = tag_in_part(part).unwrap();
            assert_eq!(slot_of(tag.as_bytes()) / 1_024, part, "{tag}");
        }
    }
}
