//! Permits of concurrency limits that nodes share.
//!
//! Redis has the permits of a rule and a client in one sorted set. A permit expires after [`PERMIT_LIFE`], and its node renews
//! it every [`RENEWAL_INTERVAL`] while the request is in progress: the permits of a node that was killed return by themselves.
//!
//! Requests for one permit are queued in the order in which they are made, so a permit is not renewed after its release.
//! Nobody waits for the reply to a release. One that failed is sent again until the permit has expired.
//!
//! A server that does not respond may run requests later, even after those of the next connection. So after a failure a
//! release withdraws the permit: an acquisition or a renewal that the server runs later has no effect.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::{CounterKey, TimeSpan, Timestamp};
use tidegate_store::{SharedPermit, StoreError};

use crate::key::KeyName;
use crate::link::{Link, is_unsent};
use crate::nodes::NodeId;
use crate::operation::{Operation, OperationReply};

/// The time after which a permit that is not renewed returns. Long enough that an outage of Redis of several seconds does not
/// return the permits of requests in progress.
pub(crate) const PERMIT_LIFE: TimeSpan = TimeSpan::from_secs(30);
/// The time between renewals: two may be lost before a permit expires.
pub(crate) const RENEWAL_INTERVAL: Duration = Duration::from_secs(10);
/// Permits that are renewed in one operation.
const RENEWAL_BATCH: usize = 128;

/// A request about one permit.
#[derive(Clone, Debug)]
pub(crate) struct PermitRequest {
    pub(crate) action: PermitAction,
    /// The set of permits.
    pub(crate) key: KeyName,
    pub(crate) permit: PermitId,
}

/// What to do with a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PermitAction {
    /// Adds it if fewer than `max` are in use.
    Acquire { max: u32 },
    /// Delays its expiry.
    Renew,
    /// Removes it.
    Release,
    /// Removes it, also if the server runs earlier requests for it later.
    Withdraw,
}

/// The member of the sorted set: the node and the number of the permit there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermitId(pub(crate) [u8; 16]);

/// The permits of this node.
#[derive(Debug)]
pub(crate) struct SharedPermits {
    link: Arc<Link>,
    node: NodeId,
    numbers: Mutex<PermitNumbers>,
}

/// The permits in use, by their numbers.
#[derive(Debug, Default)]
struct PermitNumbers {
    last: u64,
    in_use: BTreeMap<u64, KeyName>,
    /// The permits whose release failed, and when they expire in Redis.
    unreleased: BTreeMap<u64, (KeyName, Timestamp)>,
    /// Redis may run requests that failed later: for permits up to this number, until this time.
    in_doubt: (u64, Timestamp),
}

impl SharedPermits {
    pub(crate) fn new(link: Arc<Link>, node: NodeId) -> Self {
        Self { link, node, numbers: Mutex::default() }
    }

    /// Acquires one of `max` permits of `key`; `None` if all are in use. Dropping the permit, or the future, releases it.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        key: CounterKey<'_>,
        max: u32,
        now: Timestamp,
    ) -> Result<Option<SharedPermit>, StoreError> {
        let number = {
            let mut numbers = self.lock();
            numbers.last += 1;
            numbers.last
        };
        let mut guard = PermitGuard {
            permits: Arc::clone(self),
            key: self.link.names().permits(key),
            number,
            may_exist: true,
        };
        let request = self.request(PermitAction::Acquire { max }, &guard.key, number);
        let reply = match self.link.call(Operation::Permits(vec![request]), now).await {
            Ok(reply) => reply,
            Err(error) => {
                guard.may_exist = !is_unsent(&error);
                if guard.may_exist {
                    self.lock().note_failure(self.link.clock().now());
                }
                return Err(error);
            }
        };
        let OperationReply::Permits(replies) = reply else {
            return Err(StoreError::Protocol { reason: "no reply to the request for a permit".to_owned() });
        };
        if replies.first() != Some(&true) {
            guard.may_exist = false;
            return Ok(None);
        }
        self.lock().in_use.insert(number, guard.key.clone());
        Ok(Some(SharedPermit::new(guard)))
    }

    /// Sends renewals of all permits in use.
    pub(crate) fn renew(self: &Arc<Self>) {
        let mut start = Bound::Unbounded;
        loop {
            // The lock is held while the renewals are queued: a release that follows is queued after them.
            let mut numbers = self.lock();
            let batch: Vec<_> = numbers.in_use.range((start, Bound::Unbounded)).take(RENEWAL_BATCH).collect();
            let Some((last, _)) = batch.last() else { return };
            start = Bound::Excluded(**last);
            let mut groups: HashMap<u16, Vec<(u64, KeyName)>> = HashMap::new();
            for (number, key) in batch {
                let slot = if self.link.has_slots() { key.slot() } else { 0 };
                groups.entry(slot).or_default().push((*number, key.clone()));
            }
            for permits in groups.into_values() {
                self.send(&mut numbers, PermitRequests { action: PermitAction::Renew, permits });
            }
        }
    }

    fn release(self: &Arc<Self>, key: &KeyName, number: u64) {
        let now = self.link.clock().now();
        let mut numbers = self.lock();
        numbers.in_use.remove(&number);
        let (last, until) = numbers.in_doubt;
        let is_in_doubt = number <= last && now < until;
        let action = if is_in_doubt { PermitAction::Withdraw } else { PermitAction::Release };
        self.send(&mut numbers, PermitRequests { action, permits: vec![(number, key.clone())] });
    }

    /// Sends the releases that failed again, if Redis works.
    pub(crate) fn release_again(self: &Arc<Self>) {
        if !self.link.is_available() {
            return;
        }
        let now = self.link.clock().now();
        let mut numbers = self.lock();
        for (number, (key, expiry)) in std::mem::take(&mut numbers.unreleased) {
            if expiry > now {
                let action = PermitAction::Withdraw;
                self.send(&mut numbers, PermitRequests { action, permits: vec![(number, key)] });
            }
        }
    }

    /// Queues requests whose permits are in one slot. A failure is noted, now or later.
    fn send(self: &Arc<Self>, numbers: &mut PermitNumbers, requests: PermitRequests) {
        let PermitRequests { action, permits } = &requests;
        let packed = permits.iter().map(|(number, key)| self.request(*action, key, *number)).collect();
        // A release does not depend on the time.
        let now = self.link.clock().now();
        match self.link.send(Operation::Permits(packed), now) {
            Ok(reply) => {
                // Weak: the task belongs to the link.
                let node = Arc::downgrade(self);
                self.link.spawn(async move {
                    if reply.await.is_err()
                        && let Some(node) = node.upgrade()
                    {
                        let now = node.link.clock().now();
                        node.lock().keep_failed(requests, now);
                    }
                });
            }
            Err(_) => numbers.keep_failed(requests, now),
        }
    }

    fn request(&self, action: PermitAction, key: &KeyName, number: u64) -> PermitRequest {
        let id = (u128::from(self.node.0) << 64) | u128::from(number);
        PermitRequest { action, key: key.clone(), permit: PermitId(id.to_be_bytes()) }
    }

    fn lock(&self) -> MutexGuard<'_, PermitNumbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PermitNumbers {
    /// Redis may run a request that failed at `now` later.
    fn note_failure(&mut self, now: Timestamp) {
        self.in_doubt = (self.last, now + PERMIT_LIFE);
    }

    /// Keeps releases that failed at `now`, to send them again.
    fn keep_failed(&mut self, failed: PermitRequests, now: Timestamp) {
        self.note_failure(now);
        if failed.action != PermitAction::Renew {
            let expiring = failed.permits.into_iter().map(|(number, key)| (number, (key, now + PERMIT_LIFE)));
            self.unreleased.extend(expiring);
        }
    }
}

/// The same request for several permits, by their numbers.
struct PermitRequests {
    action: PermitAction,
    permits: Vec<(u64, KeyName)>,
}

/// Releases a permit when it is dropped.
struct PermitGuard {
    permits: Arc<SharedPermits>,
    key: KeyName,
    number: u64,
    /// Redis may have the permit: it was granted, or the reply is not known.
    may_exist: bool,
}

impl Drop for PermitGuard {
    fn drop(&mut self) {
        if self.may_exist {
            self.permits.release(&self.key, self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::RuleId;
    use tidegate_store::ManualClock;
    use tidegate_testkit::process::RedisServer;
    use tidegate_testkit::wait::within;

    use super::*;
    use crate::config::{RedisConfig, TimeSource};
    use crate::endpoint::Endpoint;

    const KEY: CounterKey<'static> = CounterKey::new(RuleId::named("exports"), b"ann");

    async fn permits(server: &RedisServer, clock: &Arc<ManualClock>) -> Arc<SharedPermits> {
        let config = RedisConfig {
            time: TimeSource::Caller,
            timeout: Duration::from_secs(2),
            ..RedisConfig::new(Endpoint::parse(&server.url()).unwrap())
        };
        let link = Arc::new(Link::new(config, Arc::clone(clock) as Arc<_>));
        within("a connection", link.wait_until_connected()).await;
        Arc::new(SharedPermits::new(link, NodeId::random()))
    }

    #[tokio::test]
    async fn permit_that_is_renewed_counts_until_it_is_released() {
        let server = RedisServer::start();
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(100)));
        let (one, two) = (permits(&server, &clock).await, permits(&server, &clock).await);
        let at = |seconds| Timestamp::from_secs(seconds);
        let permit = one.acquire(KEY, 1, at(100)).await.unwrap().unwrap();
        clock.set(at(120));
        one.renew();
        assert!(one.acquire(KEY, 1, at(149)).await.unwrap().is_none(), "renewed until 150");
        server.command(&["FLUSHALL"]);
        one.renew();
        assert!(one.acquire(KEY, 1, at(149)).await.unwrap().is_none(), "Redis knows the permit again");
        drop(permit);
        one.renew();
        let permit = one.acquire(KEY, 1, at(149)).await.unwrap().unwrap();
        assert!(two.acquire(KEY, 1, at(149)).await.unwrap().is_none());
        assert_eq!(one.lock().in_use.len(), 1);
        drop(permit);
        assert!(one.lock().in_use.is_empty());
    }

    #[tokio::test]
    async fn permit_withdrawn_before_its_requests_run_is_neither_acquired_nor_renewed() {
        let server = RedisServer::start();
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(100)));
        let node = permits(&server, &clock).await;
        let key = node.link.names().permits(KEY);
        let run = async |action, number, seconds| {
            let operation = Operation::Permits(vec![node.request(action, &key, number)]);
            match node.link.call(operation, Timestamp::from_secs(seconds)).await.unwrap() {
                OperationReply::Permits(replies) => replies[0],
                other => panic!("{other:?}"),
            }
        };
        let acquire = PermitAction::Acquire { max: 1 };
        run(PermitAction::Withdraw, 7, 100).await;
        assert!(!run(acquire, 7, 101).await, "it was withdrawn");
        run(PermitAction::Renew, 7, 102).await;
        assert!(run(acquire, 8, 103).await, "a withdrawn permit does not count");
        assert!(!run(acquire, 9, 104).await);
        run(PermitAction::Withdraw, 8, 105).await;
        run(PermitAction::Renew, 8, 106).await;
        assert!(run(acquire, 9, 107).await);
        let members =
            || server.command(&["EVAL", "return redis.call('ZCARD', redis.call('KEYS', '*')[1])", "0"]);
        assert!(members().contains('3'), "{}", members());
        assert!(!run(acquire, 10, 136).await);
        assert!(members().contains('1'), "{}: withdrawn permits expire too", members());
    }

    #[tokio::test]
    async fn renewal_of_many_permits_reaches_all_of_them() {
        let server = RedisServer::start();
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(100)));
        let node = permits(&server, &clock).await;
        let max = u32::try_from(2 * RENEWAL_BATCH + 1).unwrap();
        let mut acquired = Vec::new();
        for _ in 0..max {
            acquired.extend(node.acquire(KEY, max, Timestamp::from_secs(100)).await.unwrap());
        }
        clock.set(Timestamp::from_secs(120));
        node.renew();
        let late = Timestamp::from_secs(140);
        assert!(node.acquire(KEY, max, late).await.unwrap().is_none(), "{} are in use", acquired.len());
    }
}
