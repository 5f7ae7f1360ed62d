//! The store that a node uses: each rule with its own coordination, its failure mode, and cached rejections.
//!
//! `boxed_store` gives the stores of all coordinations one interface, `compose` decides over several of them, `failure` decides while Redis fails, `batch` decides many requests,
//! `background` has the tasks that run beside decisions, `client_hash` bounds the size of clients.

mod background;
mod batch;
mod boxed_store;
mod client_hash;
mod compose;
mod failure;
mod groups;
mod overrides;
mod settings;
mod share;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use tidegate_core::{
    Check, Coordination, CounterKey, Decision, Limit, Refund, Role, RuleId, StoreFailureMode, TimeSpan,
    Timestamp, Verdict,
};
use tidegate_store::{Clock, Override, PermitGrant, RetainedLimits, RuleSettings, Store, StoreError};

use crate::central::CentralStore;
use crate::config::{RedisConfig, TimeSource};

use crate::invalidation::{CounterChange, InvalidationQueue};

use crate::link::Link;
use crate::lost_writes::LostWrites;
use crate::membership::Membership;
use crate::nodes::{NodeCount, NodeId};
use crate::permits::SharedPermits;
use crate::rejections::{Generation, LONGEST_LIFE, RejectionCache, RejectionSource};
use crate::report::{FallbackDecisions, StoreReport};

use crate::fallback::FallbackStore;
use crate::lease::LeaseStore;
use crate::static_store::StaticStore;
use crate::support::shows_override;
use crate::sync::SyncStore;
use client_hash::{ClientHashes, is_long};
use failure::{FallbackState, is_outage};
use overrides::OverrideTurn;
use settings::SettingsTable;

/// A rejection while an override applies is asked again after this time, because the end of the override is not known here.
const OVERRIDE_LIFE: TimeSpan = TimeSpan::from_secs(1);
/// A rejection by a lease or by synced counts ends when other nodes give units back.
const LOCAL_LIFE: TimeSpan = TimeSpan::from_millis(100);

/// In a cluster a decision over several slots may charge units for a moment and cancel that; a rejection caused by them ends
/// without a message.
const CLUSTER_LIFE: TimeSpan = TimeSpan::from_secs(1);

/// A stop waits for Redis at most this long.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Counters that several nodes share through Redis or Valkey.
///
/// Clones are handles to the same store. While Redis fails, the failure mode of each rule decides.
#[derive(Clone, Debug)]
pub struct RedisStore {
    state: Arc<StoreState>,
}

/// Everything that decisions and background tasks use.
#[derive(Debug)]
struct StoreState {
    link: Arc<Link>,
    node: NodeId,
    nodes: Arc<NodeCount>,
    settings: SettingsTable,
    central: CentralStore,
    lease: LeaseStore,
    sync: SyncStore,
    static_share: StaticStore,
    fallback: FallbackStore,
    failures: FallbackState,
    permits: Arc<SharedPermits>,
    rejections: RejectionCache,
    changes: InvalidationQueue,
    membership: Membership,
    lost_writes: LostWrites,
    overrides: OverrideTurn,
}

/// The moment before Redis is asked.
#[derive(Clone, Copy, Debug)]
struct AskedAt {
    generation: Generation,
    sent: Timestamp,
}

impl RedisStore {
    /// Starts the connection and the background tasks. Does not wait for Redis: until it is there, the node is in fallback.
    pub fn new(config: RedisConfig, clock: Arc<dyn Clock>) -> Self {
        let link = Arc::new(Link::new(config, clock));
        let node = NodeId::random();
        let nodes = Arc::new(NodeCount::new(link.config().nodes));
        let (changes, publisher) = InvalidationQueue::new(node);
        let state = Arc::new(StoreState {
            settings: SettingsTable::new(link.config()),
            central: CentralStore::with_link(Arc::clone(&link)),
            lease: LeaseStore::new(Arc::clone(&link), Arc::clone(&nodes), Some(changes.clone())),
            sync: SyncStore::new(Arc::clone(&link), Arc::clone(&nodes)),
            static_share: StaticStore::new(link.config()),
            fallback: FallbackStore::new(Arc::clone(&link), Arc::clone(&nodes)),
            failures: FallbackState::default(),
            permits: Arc::new(SharedPermits::new(Arc::clone(&link), node)),
            rejections: RejectionCache::new(),
            changes,
            membership: Membership::new(node, Arc::clone(&nodes), &link.names().secret_fingerprint()),
            lost_writes: LostWrites::new(&link, node),
            overrides: OverrideTurn::default(),
            link,
            node,
            nodes,
        });
        background::start(&state, publisher);
        Self { state }
    }

    /// Waits for a reply to `PING`, on the connection that decisions use.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.state.link.command(0, &redis::cmd("PING")).await.map(drop)
    }

    /// Returns to Redis what other nodes can use: reports what was spent of leases, releases what was not, and pushes the counts of
    /// `sync`. For the end of the process, after the last decision; takes at most a second. What Redis does not get by then is
    /// as that of a node that was killed. Needs a tokio runtime with time.
    pub async fn close(&self) {
        let now = self.state.link.clock().now();
        let closed = join(self.state.lease.close(now), self.state.sync.close(now));
        if tokio::time::timeout(CLOSE_TIMEOUT, closed).await.is_err() {
            tracing::debug!("not all counters were settled before the stop");
        }
    }

    /// Leaves the nodes that share the limits, so that the others stop counting this one at once. For the end of the process.
    pub async fn leave(&self) -> Result<(), StoreError> {
        self.state.membership.leave(&self.state.link).await
    }

    /// What the store has done since the start, for metrics.
    pub fn report(&self) -> StoreReport {
        let state = &*self.state;
        let failures = &state.failures;
        StoreReport {
            is_in_fallback: failures.since().is_some(),
            fallback_time: failures.total(state.link.clock().now()),
            fallback_decisions: FallbackDecisions {
                local: failures.decisions(StoreFailureMode::Local),
                allow: failures.decisions(StoreFailureMode::Allow),
                deny: failures.decisions(StoreFailureMode::Deny),
            },
            fallback_units_charged: failures.charged(),
            fallback_units_uncharged: failures.uncharged(),
            nodes: state.nodes.get().get(),
            nodes_with_other_secret: state.membership.nodes_with_other_secret(),
            lost_writes: state.lost_writes.detected(),
            cached_rejections_served: state.rejections.served(),
            cached_rejections: state.rejections.len() as u64,
            link: state.link.report(),
            lease: state.lease.report(state.link.clock().now()),
            sync: state.sync.report(),
            fallback: state.fallback.report(),
        }
    }
}

impl StoreState {
    fn hash_clients(&self, checks: &[Check<'_>]) -> ClientHashes {
        ClientHashes::new(self.link.names(), checks.iter().map(|check| check.key))
    }

    /// The rejection of `checks`, if this node knows it. With the caller's time there is none: a trace may go back.
    fn cached(&self, checks: &[Check<'_>]) -> Option<Decision> {
        if self.link.config().time == TimeSource::Caller {
            return None;
        }
        self.rejections.find(checks, self.link.clock().now())
    }

    fn asked_at(&self) -> AskedAt {
        AskedAt { generation: self.rejections.generation(), sent: self.link.clock().now() }
    }

    /// Keeps a rejection that Redis took part in.
    fn remember(&self, checks: &[Check<'_>], decision: &Decision, asked: AskedAt) {
        if decision.passes() || self.link.config().time == TimeSource::Caller {
            return;
        }
        let binding = checks.iter().zip(&decision.outcomes).enumerate();
        let binding = binding.filter(|(_, (check, _))| check.role == Role::Binding);
        let lasting = binding.max_by_key(|(_, (_, outcome))| match outcome.verdict {
            Verdict::Pass { .. } => TimeSpan::ZERO,
            Verdict::NotUntil { retry_after } => retry_after,
            Verdict::Never => TimeSpan::MAX,
        });
        let Some((position, (check, outcome))) = lasting else { return };
        let life = match self.settings.coordination(check.key.rule, check.limit) {
            Coordination::Lease | Coordination::Sync => LOCAL_LIFE,
            _ if self.link.has_slots() => CLUSTER_LIFE,
            Coordination::Central if shows_override(check.limit, check.cost, outcome, decision.at) => {
                OVERRIDE_LIFE
            }
            Coordination::Central | Coordination::Static => LONGEST_LIFE,
        };
        let name = self.link.names().counter(check.key);
        let source = RejectionSource {
            position,
            name: name.as_bytes(),
            life,
            generation: asked.generation,
            sent: asked.sent,
            received: self.link.clock().now(),
        };
        self.rejections.insert(checks, decision, source);
    }

    /// Decides with what this node knows: its own counters, or a rejection by Redis.
    fn try_decide(&self, checks: &[Check<'_>], now: Timestamp) -> Option<Result<Decision, StoreError>> {
        self.try_decide_under(self.settings.coordination_of(checks), checks, now)
    }

    fn try_decide_under(
        &self,
        coordination: Option<Coordination>,
        checks: &[Check<'_>],
        now: Timestamp,
    ) -> Option<Result<Decision, StoreError>> {
        match coordination {
            _ if checks.is_empty() => Some(Ok(Decision::of_none(now))),
            Some(Coordination::Central) | None => self.cached(checks).map(Ok),
            // None of these needs Redis for it, so an error is not an outage.
            Some(local) => self.store_of(local.into()).try_decide(checks, now),
        }
    }

    async fn decide(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        let coordination = self.settings.coordination_of(checks);
        if let Some(decided) = self.try_decide_under(coordination, checks, now) {
            return decided;
        }
        let asks_redis = match coordination {
            Some(coordination) => coordination == Coordination::Central,
            None => checks.iter().any(|check| {
                self.settings.coordination(check.key.rule, check.limit) == Coordination::Central
            }),
        };
        let asked = self.asked_at();
        // If hash slots fail one by one, so do the parts of a decision.
        let is_whole =
            |one: &Coordination| *one != Coordination::Central || !self.central.needs_attempts(checks);
        let decision = if let Some(coordination) = coordination.filter(is_whole) {
            match self.store_of(coordination.into()).decide(checks, now).await {
                Err(error) if is_outage(&error) => {
                    return Box::pin(self.decide_failed(checks, error, now)).await;
                }
                result => result?,
            }
        } else {
            // Boxed, so that the futures of ordinary decisions are small.
            let decided = Box::pin(self.decide_groups(checks, self.groups(checks), now)).await?;
            if decided.has_failed {
                return Ok(decided.decision);
            }
            decided.decision
        };
        if asks_redis {
            self.remember(checks, &decision, asked);
        }
        Ok(decision)
    }

    async fn acquire_permit(
        &self,
        key: CounterKey<'_>,
        max: u32,
        now: Timestamp,
    ) -> Result<PermitGrant, StoreError> {
        match self.permits.acquire(key, max, now).await {
            Ok(Some(permit)) => Ok(PermitGrant::Shared(permit)),
            Ok(None) => Ok(PermitGrant::Exhausted),
            Err(error) => self.permit_after_failure(key.rule, max, error),
        }
    }

    /// Refunds each group where it was charged. The first error is that of the refund. Returns whether any counter contained
    /// any of it.
    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<bool, StoreError> {
        let mut result = Ok(false);
        for coordination in Coordination::ALL {
            let is_ours = |refund: &&Refund<'_>| {
                self.settings.coordination(refund.key.rule, refund.limit) == coordination
            };
            let mut group: Vec<Refund<'_>> = refunds.iter().filter(is_ours).copied().collect();
            if coordination == Coordination::Sync {
                // The copies would take a refund of what they have not charged.
                let of_share = group.extract_if(.., |refund| self.is_charged_to_share(refund, now));
                let of_share: Vec<Refund<'_>> = of_share.collect();
                result = any(result, self.fallback.refund(&of_share, now).await);
            }
            if group.is_empty() {
                continue;
            }
            // Leased units may be refunded here or in Redis, so that one refund may fail and another not.
            let together = if coordination == Coordination::Lease { 1 } else { group.len() };
            for part in group.chunks(together) {
                let refunded = match self.store_of(coordination.into()).refund(part, now).await {
                    Ok(contained) => {
                        self.announce_refunds(coordination, part);
                        Ok(contained)
                    }
                    Err(error) if is_outage(&error) => self.refund_failed(part, error, now).await,
                    Err(error) => Err(error),
                };
                result = any(result, refunded);
            }
        }
        result
    }

    /// Only central counters may have been rejected by other nodes for the refunded units.
    fn announce_refunds(&self, coordination: Coordination, refunds: &[Refund<'_>]) {
        for refund in refunds {
            let name = self.link.names().counter(refund.key);
            self.rejections.forget(name.as_bytes());
            if coordination == Coordination::Central {
                self.changes.push(CounterChange::Refunded, name.as_bytes());
            }
        }
    }

    /// Drops what this node knows about a counter that was changed here, and tells the others.
    fn announce(&self, change: CounterChange, key: CounterKey<'_>) {
        let name = self.link.names().counter(key);
        self.rejections.forget(name.as_bytes());
        self.changes.push(change, name.as_bytes());
    }
}

/// Whether one of two parts of a refund gave anything back; the first error if one has failed.
fn any(one: Result<bool, StoreError>, other: Result<bool, StoreError>) -> Result<bool, StoreError> {
    one.and_then(|one| Ok(one | other?))
}

impl Store for RedisStore {
    async fn decide(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        // Most decisions under a lease need nothing else. Without this they take an eighth more time: the decision is copied through
        // the call of a boxed store and two futures.
        if let [check] = checks
            && !is_long(check.key)
            && self.state.settings.coordination(check.key.rule, check.limit) == Coordination::Lease
            && let Some(decided) = self.state.lease.try_decide(checks, now)
        {
            return decided;
        }
        if checks.iter().any(|check| is_long(check.key)) {
            let hashes = self.state.hash_clients(checks);
            return Box::pin(self.state.decide(&hashes.checks(checks), now)).await;
        }
        self.state.decide(checks, now).await
    }

    fn try_decide(&self, checks: &[Check<'_>], now: Timestamp) -> Option<Result<Decision, StoreError>> {
        if checks.iter().any(|check| is_long(check.key)) {
            let hashes = self.state.hash_clients(checks);
            return self.state.try_decide(&hashes.checks(checks), now);
        }
        self.state.try_decide(checks, now)
    }

    async fn decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        if batch.iter().copied().flatten().any(|check| is_long(check.key)) {
            let hashes: Vec<_> = batch.iter().map(|checks| self.state.hash_clients(checks)).collect();
            let batch: Vec<_> =
                batch.iter().zip(&hashes).map(|(checks, hashes)| hashes.checks(checks)).collect();
            let batch: Vec<&[Check<'_>]> = batch.iter().map(|checks| &checks[..]).collect();
            return Box::pin(self.state.decide_batch(&batch, now, decisions)).await;
        }
        self.state.decide_batch(batch, now, decisions).await
    }

    async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        if checks.is_empty() {
            return Ok(Decision::of_none(now));
        }
        let hashes = self.state.hash_clients(checks);
        let checks = &*hashes.checks(checks);
        Box::pin(self.state.peek_groups(checks, self.state.groups(checks), now)).await
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<bool, StoreError> {
        if refunds.iter().any(|refund| is_long(refund.key)) {
            let hashes = ClientHashes::new(self.state.link.names(), refunds.iter().map(|refund| refund.key));
            return Box::pin(self.state.refund(&hashes.refunds(refunds), now)).await;
        }
        self.state.refund(refunds, now).await
    }

    fn charge_time(&self, rule: RuleId, now: Timestamp) -> Timestamp {
        match self.state.settings.of(rule).coordination {
            Coordination::Static => now,
            _ => self.state.link.server_time().at_server(now),
        }
    }

    async fn reset(&self, key: CounterKey<'_>) -> Result<(), StoreError> {
        let state = &*self.state;
        let hashes = ClientHashes::new(state.link.names(), std::iter::once(key));
        let key = hashes.key(0, key);
        state.fallback.reset(key).await?;
        let coordination = state.settings.of(key.rule).coordination;
        let reset = state.store_of(coordination.into()).reset(key).await;
        // Limits that a lease or an exchange of counts does not support are counted in Redis.
        let central = match coordination {
            Coordination::Lease | Coordination::Sync => state.central.reset(key).await,
            Coordination::Central | Coordination::Static => Ok(()),
        };
        // After an error too: one of the two may have been reset.
        state.announce(CounterChange::Reset, key);
        reset.and(central)
    }

    async fn override_limit(
        &self,
        key: CounterKey<'_>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let hashes = ClientHashes::new(self.state.link.names(), std::iter::once(key));
        self.state.override_limit(hashes.key(0, key), replacement, now).await
    }

    async fn acquire_permit(
        &self,
        key: CounterKey<'_>,
        max: u32,
        now: Timestamp,
    ) -> Result<PermitGrant, StoreError> {
        self.state.acquire_permit(key, max, now).await
    }

    fn retain_limits(&self, limits: &[Limit], now: Timestamp) -> Result<RetainedLimits, StoreError> {
        self.state.static_share.retain_limits(limits, now)
    }

    fn apply_settings(&self, rules: &[RuleSettings]) {
        let has_moved = self.state.settings.apply(rules);
        if has_moved {
            let state = Arc::downgrade(&self.state);
            self.state.link.spawn(overrides::move_all(state));
        }
        // A rule whose coordination has changed starts with new counters.
        self.state.rejections.clear();
    }
}
