//! Which nodes share the limits: each announces itself every second.
//!
//! The nodes are in one sorted set, by the time of their last heartbeat on the server's clock. Each heartbeat also removes the
//! nodes that have been silent for [`SILENCE`] and counts the others.
//!
//! The number of nodes divides the limit, in the first lease and while Redis fails. Too small a number would admit too much,
//! so it follows growth at once, but shrinks only to the largest number seen during [`HOLD_DOWN`].

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::{TimeSpan, Timestamp};
use tidegate_store::StoreError;

use crate::link::Link;
use crate::nodes::{NodeCount, NodeId};

/// The time between heartbeats.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(1);
/// A node that has been silent for this long is not counted.
const SILENCE: Duration = Duration::from_secs(3);
/// How long fewer nodes must have been seen before the number shrinks.
const HOLD_DOWN: TimeSpan = TimeSpan::from_secs(10);
/// The TTL of the set, renewed by each heartbeat.
const SET_TTL: Duration = Duration::from_mins(1);

/// KEYS: the set of nodes. ARGV: the node, the silence and the TTL in milliseconds. Reply: the number of live nodes.
const SCRIPT: &str = "#!lua
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now - tonumber(ARGV[2])))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return redis.call('ZCARD', KEYS[1])";

/// Announces this node and counts the others.
#[derive(Debug)]
pub(crate) struct Membership {
    node: NodeId,
    nodes: Arc<NodeCount>,
    hold_down: Mutex<HoldDown>,
}

impl Membership {
    /// Before the first heartbeat `nodes` has the configured number.
    pub(crate) fn new(node: NodeId, nodes: Arc<NodeCount>) -> Self {
        let hold_down = Mutex::new(HoldDown { count: nodes.get(), lower: None });
        Self { node, nodes, hold_down }
    }

    /// Sends one heartbeat and updates the number of nodes.
    pub(crate) async fn beat(&self, link: &Link) -> Result<(), StoreError> {
        let key = link.names().internal("nodes", "");
        let mut command = redis::cmd("EVAL");
        command.arg(SCRIPT).arg(1).arg(key.as_bytes()).arg(format!("{:016x}", self.node.0));
        command.arg(millis(SILENCE)).arg(millis(SET_TTL));
        let reply = link.command(key.slot(), &command).await?;
        let live: u32 = redis::from_redis_value(reply)
            .map_err(|_| StoreError::Protocol { reason: "the number of nodes is not a number".to_owned() })?;
        self.observe(NonZeroU32::new(live).unwrap_or(NonZeroU32::MIN), link.clock().now());
        Ok(())
    }

    fn observe(&self, live: NonZeroU32, now: Timestamp) {
        let mut hold_down = self.hold_down.lock().unwrap_or_else(PoisonError::into_inner);
        self.nodes.set(hold_down.observe(live, now));
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Follows a number up at once and down late.
#[derive(Debug)]
struct HoldDown {
    count: NonZeroU32,
    /// Since when fewer were seen, and the most since then.
    lower: Option<(Timestamp, NonZeroU32)>,
}

impl HoldDown {
    fn observe(&mut self, live: NonZeroU32, now: Timestamp) -> NonZeroU32 {
        if live >= self.count {
            (self.count, self.lower) = (live, None);
            return live;
        }
        let (since, most) = self.lower.map_or((now, live), |(since, most)| (since, most.max(live)));
        self.lower = Some((since, most));
        if now.since(since) >= HOLD_DOWN {
            self.count = most;
            self.lower = if live < most { Some((now, live)) } else { None };
        }
        self.count
    }
}

#[cfg(test)]
mod tests {
    use tidegate_store::{Clock, ManualClock};

    use super::*;

    fn count(number: u32) -> NonZeroU32 {
        NonZeroU32::new(number).unwrap()
    }

    /// The number after each heartbeat, one per second.
    fn follow(configured: u32, seen: &[u32]) -> Vec<u32> {
        let clock = ManualClock::at(Timestamp::from_secs(100));
        let nodes = Arc::new(NodeCount::new(count(configured)));
        let membership = Membership::new(NodeId(1), Arc::clone(&nodes));
        let step = |live: &u32| {
            membership.observe(count(*live), clock.now());
            clock.advance(TimeSpan::from_secs(1));
            nodes.get().get()
        };
        seen.iter().map(step).collect()
    }

    #[test]
    fn node_count_grows_at_once() {
        assert_eq!(follow(1, &[1, 3, 5]), [1, 3, 5]);
    }

    #[test]
    fn node_count_shrinks_to_the_most_seen_during_the_hold_down() {
        let seen = [1, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1];
        assert_eq!(follow(3, &seen), [3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2]);
        let later = [&seen[..], &[1; 10]].concat();
        assert_eq!(follow(3, &later).last(), Some(&1));
    }

    #[test]
    fn node_count_after_a_short_gap_stays() {
        let seen = [3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 2, 3, 3];
        assert_eq!(follow(3, &seen), [3; 14]);
    }
}
