//! The store that the policy selects.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;
use tidegate_admin::AdminState;
use tidegate_core::{Check, CounterKey, Decision, Limit, Refund, RuleId, TimeSpan, Timestamp};
use tidegate_gateway::Gateway;
use tidegate_policy::{StorePlan, StoreUrl};
use tidegate_redis::{Endpoint, RedisConfig, RedisStore, TlsMaterial};
use tidegate_store::{
    Clock, HeavyKey, MemoryStore, MemoryUse, Override, PermitGrant, RetainedLimits, RuleSettings, Store,
    StoreError,
};
use tidegate_telemetry::Exposition;
use tokio::runtime::Runtime;

use super::admin::AdminBackend;
use super::store_report;

/// The store for counters. The rest of the process is generic over the store.
///
/// Futures of the Redis store are boxed, so that those of the memory store stay small.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one store per process; a box would cost the memory store an access"
)]
pub(crate) enum SelectedStore {
    /// In the memory of this process.
    Memory(MemoryStore),
    /// In Redis, shared with other nodes.
    Redis(Box<SharedCounters>),
}

/// Counters in Redis.
#[derive(Debug)]
pub(crate) struct SharedCounters {
    store: RedisStore,
    /// The URL without the password.
    url: String,
}

impl SelectedStore {
    /// Creates the store that `plan` configures. Does not wait for Redis.
    pub(crate) fn new(plan: &StorePlan, clock: &Arc<dyn Clock>) -> anyhow::Result<Self> {
        match &plan.url {
            None => Ok(Self::Memory(MemoryStore::with_cap(max_memory(plan)))),
            Some(url) => {
                let store = RedisStore::new(redis_config(plan, url)?, Arc::clone(clock));
                Ok(Self::Redis(Box::new(SharedCounters { store, url: url.to_string() })))
            }
        }
    }

    /// The clients with the most requests under each rule, as counted by this process. Redis does not know clients.
    pub(crate) fn heaviest(&self) -> Vec<HeavyKey> {
        match self {
            Self::Memory(store) => store.heaviest(),
            Self::Redis(_) => Vec::new(),
        }
    }

    /// The memory that counters use in this process, if they are in this process.
    pub(crate) fn memory_use(&self) -> Option<MemoryUse> {
        match self {
            Self::Memory(store) => Some(store.memory_use()),
            Self::Redis(_) => None,
        }
    }

    /// The state of the shared store for `/v1/status`; null if there is none.
    pub(crate) fn status(&self) -> Value {
        match self {
            Self::Memory(_) => Value::Null,
            Self::Redis(shared) => store_report::status(&shared.store, &shared.url),
        }
    }

    /// Returns units that this node has not spent to the other nodes, and tells them that it stops. After the last request; takes
    /// a bounded time if Redis does not respond.
    pub(crate) async fn close(&self) {
        if let Self::Redis(shared) = self {
            shared.store.close().await;
            // The others notice its silence anyway, only later.
            let _ = shared.store.leave().await;
        }
    }

    /// Writes the metrics of the shared store, if there is one.
    pub(crate) fn write_metrics(&self, page: &mut Exposition) {
        if let Self::Redis(shared) = self {
            store_report::write_metrics(page, &shared.store);
        }
    }
}

fn max_memory(plan: &StorePlan) -> usize {
    usize::try_from(plan.max_memory).unwrap_or(usize::MAX)
}

/// The connection that `plan` configures.
pub(crate) fn redis_config(plan: &StorePlan, url: &StoreUrl) -> anyhow::Result<RedisConfig> {
    let duration = |span: TimeSpan| Duration::from_micros(span.as_micros());
    let endpoint = Endpoint::parse(url.expose()).context("invalid `store.url`")?;
    let password = plan.password.as_ref().map(|password| password.secret.expose().to_vec());
    let client = plan.tls.client.as_ref().map(|(chain, key)| (chain.clone(), key.expose().to_vec()));
    Ok(RedisConfig {
        password: password.map(String::from_utf8).transpose().context("invalid `store.password_file`")?,
        tls: TlsMaterial { ca: plan.tls.ca.clone(), client },
        prefix: plan.prefix.clone(),
        secret: plan.secret.as_ref().map(|secret| secret.secret.expose().to_vec()).unwrap_or_default(),
        timeout: duration(plan.timeout),
        sync_interval: duration(plan.sync_interval),
        coordination: plan.coordination,
        on_store_failure: plan.on_store_failure,
        fallback_share: plan.fallback_share,
        nodes: plan.nodes,
        max_memory: max_memory(plan),
        ..RedisConfig::new(endpoint)
    })
}

/// Starts the background work of a shared store, until the runtime is dropped: shares bans, overrides and penalties with the
/// other nodes, and logs when the store fails.
pub(crate) fn start_sharing(
    runtime: &Runtime,
    gateway: &Gateway<SelectedStore>,
    state: &Arc<AdminState<AdminBackend>>,
) {
    if let SelectedStore::Redis(shared) = gateway.limiter().store() {
        let (records, events) = shared.store.share_records();
        runtime.spawn(Arc::clone(state).share(Arc::new(records), events));
        runtime.spawn(store_report::log_changes(shared.store.clone(), shared.url.clone()));
    }
}

/// Calls a method of the selected store. The futures of the shared store are boxed, so that those of the other are small.
macro_rules! delegate {
    ($self:ident.$method:ident($($argument:expr),*)) => {
        match $self {
            Self::Memory(store) => store.$method($($argument),*),
            Self::Redis(shared) => shared.store.$method($($argument),*),
        }
    };
    (async $self:ident.$method:ident($($argument:expr),*)) => {
        match $self {
            Self::Memory(store) => store.$method($($argument),*).await,
            Self::Redis(shared) => Box::pin(shared.store.$method($($argument),*)).await,
        }
    };
}

impl Store for SelectedStore {
    #[inline]
    async fn decide(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        delegate!(async self.decide(checks, now))
    }

    #[inline]
    fn try_decide(&self, checks: &[Check<'_>], now: Timestamp) -> Option<Result<Decision, StoreError>> {
        delegate!(self.try_decide(checks, now))
    }

    async fn decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        delegate!(async self.decide_batch(batch, now, decisions))
    }

    fn try_decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Option<Result<(), StoreError>> {
        delegate!(self.try_decide_batch(batch, now, decisions))
    }

    async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        delegate!(async self.peek(checks, now))
    }

    fn try_peek(&self, checks: &[Check<'_>], now: Timestamp) -> Option<Result<Decision, StoreError>> {
        delegate!(self.try_peek(checks, now))
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<bool, StoreError> {
        delegate!(async self.refund(refunds, now))
    }

    fn try_refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Option<Result<bool, StoreError>> {
        delegate!(self.try_refund(refunds, now))
    }

    fn charge_time(&self, rule: RuleId, now: Timestamp) -> Timestamp {
        delegate!(self.charge_time(rule, now))
    }

    async fn reset(&self, key: CounterKey<'_>) -> Result<(), StoreError> {
        delegate!(async self.reset(key))
    }

    async fn override_limit(
        &self,
        key: CounterKey<'_>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        delegate!(async self.override_limit(key, replacement, now))
    }

    async fn acquire_permit(
        &self,
        key: CounterKey<'_>,
        max: u32,
        now: Timestamp,
    ) -> Result<PermitGrant, StoreError> {
        delegate!(async self.acquire_permit(key, max, now))
    }

    fn retain_limits(&self, limits: &[Limit], now: Timestamp) -> Result<RetainedLimits, StoreError> {
        delegate!(self.retain_limits(limits, now))
    }

    fn apply_settings(&self, rules: &[RuleSettings]) {
        delegate!(self.apply_settings(rules));
    }
}
