//! Decisions from local blocks.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{
    Check, Coordination, Cost, Decision, Ledger, Outcome, Role, TimeSpan, Timestamp, Verdict, decide,
};
use tidegate_store::StoreError;

use super::block::{ContactReason, LeaseBlock};
use super::contact::{ContactFailure, ContactResult, LeaseNode, ReadyRequest};
use super::request::{LeaseAction, LeaseRequest};
use super::table::{LeaseTable, LockedShards};
use crate::support::supports;

/// How often a decision asks Redis: another decision may spend the units it waited for.
const ROUNDS: usize = 4;

/// What a decision may do if units are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effort {
    /// Request them, and do not decide.
    Request,
    /// Request them and wait; decide if none are missing.
    Wait,
    /// Decide with what there is.
    Decide,
}

/// The result of an attempt to decide.
pub(super) enum LeaseAttempt {
    /// The decision.
    Decided(Decision),
    /// Requests to wait for.
    Waiting(SmallVec<[ContactResult; 4]>),
}

/// The requests of a decision whose blocks lack units.
#[derive(Default)]
struct UnitRequests {
    ready: SmallVec<[ReadyRequest; 4]>,
    /// What the decision waits for, requests of other decisions included.
    waiting: SmallVec<[ContactResult; 4]>,
}

impl LeaseNode {
    /// Decides a single check from the local block, if that is possible.
    #[inline]
    pub(super) fn decide_one(self: &Arc<Self>, check: &Check<'_>, now: Timestamp) -> Option<Decision> {
        let now = self.local_time(now);
        let hash = self.table.hash(check.key);
        let mut shard = self.table.lock(LeaseTable::shard_index(hash))?;
        let slot = shard.find(hash, check.key)?;
        let block = &mut slot.block;
        if !block.has_limit(check.limit) || block.must_ask(check.cost, now) {
            return None;
        }
        let outcome = block.decide(check.cost, check.role, now);
        let at = block.store_time(now);
        let reason = block.reason_to_ask(check.cost.get(), now);
        let ready = reason.and_then(|reason| self.prepare(slot, reason, now));
        drop(shard);
        if let Some(ready) = ready {
            self.send(ready, now);
        }
        Some(Decision::of_one(at, check.role, outcome))
    }

    /// Decides checks, asking Redis for missing units.
    pub(super) async fn decide_all(
        self: &Arc<Self>,
        checks: &[Check<'_>],
        now: Timestamp,
    ) -> Result<Decision, StoreError> {
        for _ in 0..ROUNDS {
            match self.try_decide(checks, now, Effort::Wait)? {
                LeaseAttempt::Decided(decision) => return Ok(decision),
                LeaseAttempt::Waiting(requests) => {
                    for request in requests {
                        // A request that was given up (the counter was reset) is repeated.
                        if let Ok(Err(failure)) = request.await {
                            return Err(failure.into());
                        }
                    }
                }
            }
        }
        match self.try_decide(checks, now, Effort::Decide)? {
            LeaseAttempt::Decided(decision) => Ok(decision),
            LeaseAttempt::Waiting(_) => Err(no_room()),
        }
    }

    /// Decides checks if all their blocks have an answer; otherwise requests what is missing.
    pub(super) fn try_decide(
        self: &Arc<Self>,
        checks: &[Check<'_>],
        now: Timestamp,
        effort: Effort,
    ) -> Result<LeaseAttempt, StoreError> {
        let now = self.local_time(now);
        let hashes: SmallVec<[u64; 4]> = checks.iter().map(|check| self.table.hash(check.key)).collect();
        let shards = self.table.lock_all(&hashes);
        let mut ledger = BlockLedger { shards, checks, hashes: &hashes, now };
        let mut requests = UnitRequests::default();
        let requested = self.request_missing(&mut ledger, effort, &mut requests);
        let UnitRequests { mut ready, waiting } = requests;
        let attempt = requested.map(|()| {
            if effort == Effort::Request || !waiting.is_empty() {
                LeaseAttempt::Waiting(waiting)
            } else {
                LeaseAttempt::Decided(self.decide_locked(&mut ledger, &mut ready))
            }
        });
        drop(ledger);
        // After an error too: later decisions wait for every request that was prepared.
        for request in ready {
            self.send(request, now);
        }
        attempt
    }

    /// Prepares requests for the blocks that must ask Redis. Stops at the first error; `requests` then holds those before it.
    fn request_missing(
        &self,
        ledger: &mut BlockLedger<'_, '_>,
        effort: Effort,
        requests: &mut UnitRequests,
    ) -> Result<(), StoreError> {
        let BlockLedger { checks, hashes, now, .. } = *ledger;
        let is_available = self.link.is_available();
        for (check, hash) in checks.iter().zip(hashes) {
            if !supports(Coordination::Lease, check.limit) {
                return Err(StoreError::Unsupported { algorithm: check.limit.algorithm() });
            }
            let new_block = || self.new_block(check.key, check.limit);
            let shard = ledger.shards.shard(*hash);
            let slot = shard
                .and_then(|shard| shard.find_or_insert(*hash, check.key, now, new_block))
                .ok_or_else(no_room)?;
            slot.block.set_limit(check.limit);
            let cost = cost_of_key(checks, check);
            if effort == Effort::Decide || !slot.block.must_ask(cost, now) {
                continue;
            }
            if !is_available {
                return Err(ContactFailure::Unavailable("the breaker is open".to_owned()).into());
            }
            if !slot.block.is_pending() {
                requests.ready.extend(self.prepare(slot, ContactReason::Decision { cost: cost.get() }, now));
            }
            if effort == Effort::Wait {
                let (sender, receiver) = tokio::sync::oneshot::channel();
                slot.waiters.push(sender);
                requests.waiting.push(receiver);
            }
        }
        Ok(())
    }

    fn decide_locked(
        &self,
        ledger: &mut BlockLedger<'_, '_>,
        ready: &mut SmallVec<[ReadyRequest; 4]>,
    ) -> Decision {
        let BlockLedger { checks, hashes, now, .. } = *ledger;
        let mut at = Timestamp::ZERO;
        for position in 0..checks.len() {
            at = ledger.block(position).map_or(at, |block| at.max(block.store_time(now)));
        }
        let decision = decide(checks, at, ledger);
        for (check, hash) in checks.iter().zip(hashes) {
            let shard = ledger.shards.shard(*hash);
            let Some(slot) = shard.and_then(|shard| shard.find(*hash, check.key)) else { continue };
            slot.block.observe(at);
            slot.block.add_demand(check.cost);
            if let Some(reason) = slot.block.reason_to_ask(cost_of_key(checks, check).get(), now) {
                ready.extend(self.prepare(slot, reason, now));
            }
        }
        decision
    }

    /// A copy of the block of a check, or what Redis says if the node does not know the counter.
    pub(super) async fn snapshot(&self, check: &Check<'_>, now: Timestamp) -> Result<LeaseBlock, StoreError> {
        if let Some(block) = self.known_block(check) {
            return Ok(block);
        }
        let action = LeaseAction::Peek { cost: check.cost.get() };
        let request = LeaseRequest { limit: Some(*check.limit), ..self.bare_request(check.key, action) };
        let replies = self.call(vec![request], now).await?;
        let reply = replies.first().ok_or_else(|| ContactFailure::Protocol("no reply".to_owned()))?;
        if let Some(failure) = ContactFailure::of_status(reply.status) {
            return Err(failure.into());
        }
        Ok(LeaseBlock::from_peek(*check.limit, check.cost, reply, now))
    }

    fn known_block(&self, check: &Check<'_>) -> Option<LeaseBlock> {
        let hash = self.table.hash(check.key);
        let mut shard = self.table.lock(LeaseTable::shard_index(hash))?;
        let block = &shard.find(hash, check.key)?.block;
        (block.is_known() && block.has_limit(check.limit)).then(|| block.clone())
    }
}

/// The blocks of a decision, under their locks.
struct BlockLedger<'a, 'b> {
    shards: LockedShards<'a>,
    checks: &'b [Check<'b>],
    hashes: &'b [u64],
    now: Timestamp,
}

impl BlockLedger<'_, '_> {
    fn block(&mut self, check: usize) -> Option<&mut LeaseBlock> {
        let (hash, check) = (*self.hashes.get(check)?, self.checks.get(check)?);
        self.shards.shard(hash)?.find(hash, check.key).map(|slot| &mut slot.block)
    }
}

impl Ledger for BlockLedger<'_, '_> {
    fn evaluate(&self, check: usize, cost: Cost) -> Outcome {
        let slot = match (self.hashes.get(check), self.checks.get(check)) {
            (Some(hash), Some(check)) => self.shards.slot(*hash, check.key),
            _ => None,
        };
        slot.map_or(UNKNOWN, |slot| slot.block.evaluate(cost, self.now))
    }

    fn charge(&mut self, check: usize, cost: Cost) {
        let now = self.now;
        if let Some(block) = self.block(check) {
            block.charge(cost, now);
        }
    }
}

/// Copies of the blocks of a decision that charges nothing.
pub(super) struct PeekLedger {
    pub(super) blocks: SmallVec<[LeaseBlock; 2]>,
    pub(super) now: Timestamp,
}

impl Ledger for PeekLedger {
    fn evaluate(&self, check: usize, cost: Cost) -> Outcome {
        self.blocks.get(check).map_or(UNKNOWN, |block| block.peek(cost, self.now))
    }

    fn charge(&mut self, _check: usize, _cost: Cost) {}
}

/// The outcome of a check without a block; it does not occur.
const UNKNOWN: Outcome = Outcome::new(Verdict::Never, 0, 0, TimeSpan::ZERO);

/// The cost of all checks on the key of `check` that need units of the lease.
fn cost_of_key(checks: &[Check<'_>], check: &Check<'_>) -> Cost {
    let same_key = checks.iter().filter(|other| other.key == check.key && other.role != Role::Overage);
    same_key.fold(Cost::ZERO, |sum, other| sum.plus(other.cost))
}

fn no_room() -> StoreError {
    StoreError::Unavailable("every counter in the table waits for Redis".into())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use tidegate_core::{Algorithm, CounterKey, Limit, RuleId, Spec};
    use tidegate_store::SystemClock;
    use tidegate_testkit::process::RedisServer;
    use tidegate_testkit::wait::within;

    use super::*;
    use crate::config::RedisConfig;
    use crate::endpoint::Endpoint;
    use crate::link::Link;
    use crate::nodes::NodeCount;

    /// Two clients whose counters are in one shard.
    fn neighbours(node: &LeaseNode) -> (Vec<u8>, Vec<u8>) {
        let shard = |client: &[u8]| {
            LeaseTable::shard_index(node.table.hash(CounterKey::new(RuleId::named("default"), client)))
        };
        let clients = || (0..1_000_u32).map(|client| client.to_le_bytes().to_vec());
        let first = clients().next().unwrap();
        let second = clients().skip(1).find(|client| shard(client) == shard(&first)).unwrap();
        (first, second)
    }

    #[tokio::test]
    async fn decision_without_room_for_one_counter_leaves_no_other_pending() {
        let server = RedisServer::start();
        let config = RedisConfig {
            timeout: Duration::from_secs(5),
            // One counter for each shard.
            max_memory: 0,
            ..RedisConfig::new(Endpoint::parse(&server.url()).unwrap())
        };
        let link = Arc::new(Link::new(config, Arc::new(SystemClock::new())));
        let node = Arc::new(LeaseNode::new(link, Arc::new(NodeCount::new(NonZeroU32::MIN)), None));
        let limit = Limit::new(Algorithm::TokenBucket, Spec::new(10, TimeSpan::from_secs(60))).unwrap();
        let (first, second) = neighbours(&node);
        let checks = [&first, &second]
            .map(|client| Check::new(CounterKey::new(RuleId::named("default"), client), &limit));
        let now = Timestamp::ZERO;
        assert!(node.decide_all(&checks, now).await.is_err(), "the shard has room for one counter");
        let decision = within("the first counter", node.decide_all(&checks[..1], now)).await;
        assert!(decision.unwrap().passes());
    }
}
