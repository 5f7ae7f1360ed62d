//! Which nodes share the limits: each announces itself every second.
//!
//! The nodes are in one sorted set, by the time of their last heartbeat on the server's clock. Each heartbeat also removes the
//! nodes that have been silent for [`SILENCE`] and counts the others.
//!
//! The number of nodes divides the limit, in the first lease and while Redis fails. Too small a number would admit too much,
//! so it follows growth at once, but shrinks only to the largest number seen during [`HOLD_DOWN`]. A node that stops leaves the
//! set and is counted as one that has left: then there is nothing to wait for.
//!
//! Each member carries a fingerprint of the node's secret. Nodes with another secret use other keys, so that they share no limit
//! with this one; they are not counted, but reported.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::Cmd;
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

/// Members of the set that are read. An attacker who can write to Redis could add more, and thereby divide the limits by their
/// number.
const MAX_MEMBERS: u32 = 1_000;
/// A secret that differs is logged this often.
const WARNING_INTERVAL: TimeSpan = TimeSpan::from_secs(60);

/// KEYS: the set of nodes and the number of nodes that have left. ARGV: the node, the silence and the TTL in milliseconds, the
/// fingerprint of its secret, the most members. Reply: the number of live nodes with this secret, of those with another one,
/// and of nodes that have left.
const BEAT: &str = "#!lua
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local silence = tonumber(ARGV[2])
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now - silence))
redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('(%.0f', now + silence), '+inf')
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
local same, other = 0, 0
for _, member in ipairs(redis.call('ZREVRANGE', KEYS[1], 0, tonumber(ARGV[5]) - 1)) do
  if string.sub(member, -#ARGV[4]) == ARGV[4] then same = same + 1 else other = other + 1 end
end
return {same, other, tonumber(redis.call('GET', KEYS[2]) or '0') or 0}";

/// KEYS: as in [`BEAT`]. ARGV: the node, the TTL in milliseconds.
const LEAVE: &str = "#!lua
if redis.call('ZREM', KEYS[1], ARGV[1]) == 1 then
  redis.call('INCR', KEYS[2])
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
return 1";

/// Announces this node and counts the others.
#[derive(Debug)]
pub(crate) struct Membership {
    /// The node and the fingerprint of its secret.
    member: String,
    fingerprint: String,
    nodes: Arc<NodeCount>,
    other_secret: AtomicU32,
    has_left: AtomicBool,
    hold_down: Mutex<HoldDown>,
    /// When nodes with another secret were logged.
    warned: Mutex<Option<Timestamp>>,
}

/// What a heartbeat has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeartbeatReply {
    live: NonZeroU32,
    /// Live nodes with another secret.
    other_secret: u32,
    /// Nodes that have left, ever.
    left: u64,
}

impl Membership {
    /// Before the first heartbeat `nodes` has the configured number.
    pub(crate) fn new(node: NodeId, nodes: Arc<NodeCount>, fingerprint: &str) -> Self {
        let hold_down = Mutex::new(HoldDown { count: nodes.get(), lower: None, left: None });
        Self {
            member: format!("{:016x}:{fingerprint}", node.0),
            fingerprint: fingerprint.to_owned(),
            nodes,
            other_secret: AtomicU32::new(0),
            has_left: AtomicBool::new(false),
            hold_down,
            warned: Mutex::new(None),
        }
    }

    /// Live nodes whose secret differs.
    pub(crate) fn nodes_with_other_secret(&self) -> u32 {
        self.other_secret.load(Ordering::Relaxed)
    }

    /// Sends one heartbeat and updates the number of nodes.
    pub(crate) async fn beat(&self, link: &Link) -> Result<(), StoreError> {
        if self.has_left.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (slot, mut command) = self.command(link, BEAT);
        command.arg(millis(SILENCE)).arg(millis(SET_TTL)).arg(&self.fingerprint).arg(MAX_MEMBERS);
        let reply = link.command(slot, &command).await?;
        let (live, other_secret, left): (u32, u32, u64) = redis::from_redis_value(reply)
            .map_err(|_| StoreError::Protocol { reason: "the number of nodes is not a number".to_owned() })?;
        let live = NonZeroU32::new(live).unwrap_or(NonZeroU32::MIN);
        self.observe(HeartbeatReply { live, other_secret, left }, link.clock().now());
        Ok(())
    }

    /// Removes this node. It sends no heartbeat afterwards.
    pub(crate) async fn leave(&self, link: &Link) -> Result<(), StoreError> {
        match self.departure(link) {
            Some((slot, command)) => link.command(slot, &command).await.map(drop),
            None => Ok(()),
        }
    }

    /// The same, without waiting for it. The link lives until then.
    pub(crate) fn leave_in_background(&self, link: &Arc<Link>) {
        if let Some((slot, command)) = self.departure(link).filter(|_| link.is_available()) {
            let held = Arc::clone(link);
            // The store is gone, so the error has no reader; the other nodes notice the missing heartbeats.
            link.spawn(async move { drop(held.command(slot, &command).await) });
        }
    }

    /// The command that removes this node, once.
    fn departure(&self, link: &Link) -> Option<(u16, Cmd)> {
        if self.has_left.swap(true, Ordering::Relaxed) {
            return None;
        }
        let (slot, mut command) = self.command(link, LEAVE);
        command.arg(millis(SET_TTL));
        Some((slot, command))
    }

    fn command(&self, link: &Link, script: &str) -> (u16, Cmd) {
        let (set, left) = (link.names().internal("nodes", ""), link.names().internal("nodes", "left"));
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(2).arg(set.as_bytes()).arg(left.as_bytes()).arg(&self.member);
        (set.slot(), command)
    }

    fn observe(&self, reply: HeartbeatReply, now: Timestamp) {
        let mut hold_down = self.hold_down.lock().unwrap_or_else(PoisonError::into_inner);
        self.nodes.set(hold_down.observe(reply.live, reply.left, now));
        drop(hold_down);
        self.other_secret.store(reply.other_secret, Ordering::Relaxed);
        if reply.other_secret > 0 && self.is_warning_due(now) {
            tracing::warn!(
                event = "store_secret_differs",
                nodes = reply.other_secret,
                "other nodes use another secret and count separately; give all nodes the same `store.secret_file`"
            );
        }
    }

    fn is_warning_due(&self, now: Timestamp) -> bool {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = warned.is_none_or(|last| now.since(last) >= WARNING_INTERVAL);
        if is_due {
            *warned = Some(now);
        }
        is_due
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
    /// Nodes that had left at the last heartbeat.
    left: Option<u64>,
}

impl HoldDown {
    /// `left` counts the nodes that have left: for them there is nothing to wait for.
    fn observe(&mut self, live: NonZeroU32, left: u64, now: Timestamp) -> NonZeroU32 {
        let departures = self.left.replace(left).map_or(0, |before| left.saturating_sub(before));
        if departures > 0 {
            let rest = self.count.get().saturating_sub(u32::try_from(departures).unwrap_or(u32::MAX));
            self.count = NonZeroU32::new(rest).unwrap_or(NonZeroU32::MIN).max(live);
            self.lower = self.lower.map(|(since, most)| (since, most.min(self.count)));
        }
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

    fn reply(live: u32, other_secret: u32, left: u64) -> HeartbeatReply {
        HeartbeatReply { live: count(live), other_secret, left }
    }

    /// The number after each heartbeat, one per second.
    fn follow(configured: u32, seen: &[u32]) -> Vec<u32> {
        let clock = ManualClock::at(Timestamp::from_secs(100));
        let nodes = Arc::new(NodeCount::new(count(configured)));
        let membership = Membership::new(NodeId(1), Arc::clone(&nodes), "00000000");
        let step = |live: &u32| {
            membership.observe(reply(*live, 0, 7), clock.now());
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

    #[test]
    fn node_that_leaves_is_not_counted_at_once() {
        let nodes = Arc::new(NodeCount::new(count(1)));
        let membership = Membership::new(NodeId(1), Arc::clone(&nodes), "00000000");
        let count_after = |live, left| {
            membership.observe(reply(live, 0, left), Timestamp::from_secs(100));
            nodes.get().get()
        };
        assert_eq!([count_after(4, 7), count_after(3, 8), count_after(1, 9)], [4, 3, 2]);
        assert_eq!(count_after(1, 900), 1, "never fewer than are live");
        assert_eq!(count_after(3, 1_000), 3);
    }

    #[test]
    fn warning_about_another_secret_is_due_once_a_minute() {
        let membership = Membership::new(NodeId(1), Arc::new(NodeCount::new(count(1))), "00000000");
        let due = (100..221).filter(|second| membership.is_warning_due(Timestamp::from_secs(*second)));
        assert_eq!(due.collect::<Vec<_>>(), [100, 160, 220]);
        membership.observe(reply(1, 2, 0), Timestamp::from_secs(300));
        assert_eq!((membership.nodes_with_other_secret(), membership.nodes.get()), (2, count(1)));
    }
}
