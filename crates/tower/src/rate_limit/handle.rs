//! Limits, their store and their clock.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Check, CounterKey, Decision, Limit, LimitError, RuleId, Spec, TimeSpan};
use tidegate_headers::Quota;
use tidegate_store::{Clock, MemoryStore, RetainedLimits, Store, StoreError};

use super::error::RateLimiterError;
use crate::clock::system_clock;

/// A limit with a name.
#[derive(Clone, Debug)]
pub struct RateLimitRule {
    pub(super) name: Arc<str>,
    id: RuleId,
    limit: Limit,
    pub(super) quota: Quota,
}

impl RateLimitRule {
    /// A limit for each client. Counters belong to the name: equal limits of one store with the same name count together, in
    /// several limiters. Limits that differ need different names.
    pub fn new(name: &str, algorithm: Algorithm, spec: Spec) -> Result<Self, LimitError> {
        let limit = Limit::new(algorithm, spec)?;
        let quota = Quota::new(&limit, &spec);
        Ok(Self { name: name.into(), id: RuleId::named(name), limit, quota })
    }

    fn check<'a>(&'a self, client: &'a [u8]) -> Check<'a> {
        Check::new(CounterKey::new(self.id, client), &self.limit)
    }

    /// `requests` in each `window`, by a sliding window counter.
    pub fn per_window(name: &str, requests: u64, window: impl Into<TimeSpan>) -> Result<Self, LimitError> {
        Self::new(name, Algorithm::SlidingCounter, Spec::new(requests, window.into()))
    }
}

/// What to do with a request if the store fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStoreFailure {
    /// Fail with the [`StoreError`], which becomes 503.
    #[default]
    Deny,
    /// Admit the request without a limit.
    Allow,
}

/// The limits of a service. Clones share them.
pub struct RateLimiter<S> {
    shared: Arc<LimitsWithStore<S>>,
}

struct LimitsWithStore<S> {
    rules: Vec<RateLimitRule>,
    store: Arc<S>,
    clock: Arc<dyn Clock>,
    on_store_failure: OnStoreFailure,
    _retained: RetainedLimits,
}

/// The bytes of most clients, without an allocation.
pub(super) type ClientBytes = SmallVec<[u8; 40]>;

/// More limits than this need an allocation per request.
type Checks<'a> = SmallVec<[Check<'a>; 4]>;

impl RateLimiter<MemoryStore> {
    /// The clients whose counters [`Self::in_memory`] keeps apart. Beyond them, new clients share counters: they are still limited.
    pub const CLIENTS_IN_MEMORY: usize = 100_000;

    /// One limit for each client, `requests` in each `window`, with its counters in this process: see
    /// [`RateLimitRule::per_window`]. For other limits and stores there is [`Self::new`].
    pub fn in_memory(requests: u64, window: impl Into<TimeSpan>) -> Result<Self, RateLimiterError> {
        let store = MemoryStore::with_cap(MemoryStore::cap_for(Self::CLIENTS_IN_MEMORY));
        Self::new(vec![RateLimitRule::per_window("default", requests, window)?], Arc::new(store))
    }
}

impl<S: Store> RateLimiter<S> {
    /// Limits that use the [system clock](system_clock). All of them apply to every request; it is admitted if all admit it. Their
    /// names differ.
    pub fn new(rules: Vec<RateLimitRule>, store: Arc<S>) -> Result<Self, RateLimiterError> {
        Self::with_clock(rules, store, system_clock(), OnStoreFailure::default())
    }

    /// Limits that use `clock`.
    pub fn with_clock(
        rules: Vec<RateLimitRule>,
        store: Arc<S>,
        clock: Arc<dyn Clock>,
        on_store_failure: OnStoreFailure,
    ) -> Result<Self, RateLimiterError> {
        // Each would take the counter of the other one for its own before a change of the limit.
        let mut names = HashSet::new();
        if let Some(rule) = rules.iter().find(|rule| !names.insert(&rule.name)) {
            return Err(RateLimiterError::DuplicateName { name: rule.name.clone() });
        }
        let limits: Vec<_> = rules.iter().map(|rule| rule.limit).collect();
        let retained = store.retain_limits(&limits, clock.now())?;
        let shared = LimitsWithStore { rules, store, clock, on_store_failure, _retained: retained };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Charges `client`, if all limits admit it.
    pub async fn decide(&self, client: &[u8]) -> Result<Decision, StoreError> {
        let now = self.shared.clock.now();
        self.shared.store.decide(&self.checks(client), now).await
    }

    /// Charges `client` like [`decide`](Self::decide), if the store decides without a wait.
    #[expect(clippy::inline_always, reason = "a store computes only what its caller reads, if it is inlined")]
    #[inline(always)]
    pub(super) fn try_decide(&self, client: &[u8]) -> Option<Result<Decision, StoreError>> {
        let now = self.shared.clock.now();
        match &*self.shared.rules {
            [rule] => self.shared.store.try_decide(&[rule.check(client)], now),
            _ => self.shared.store.try_decide(&self.checks(client), now),
        }
    }

    fn checks<'a>(&'a self, client: &'a [u8]) -> Checks<'a> {
        self.shared.rules.iter().map(|rule| rule.check(client)).collect()
    }

    /// The limits, in the order of the outcomes of a decision.
    pub fn rules(&self) -> &[RateLimitRule] {
        &self.shared.rules
    }

    pub(super) fn on_store_failure(&self) -> OnStoreFailure {
        self.shared.on_store_failure
    }
}

impl<S: Store + 'static> RateLimiter<S> {
    /// Refunds what `decision` charged; in a task of its own, if the store has to wait.
    pub(super) fn refund(&self, client: ClientBytes, decision: &Decision) {
        let now = self.shared.clock.now();
        // If the store fails, the charge stays: it rejects too much, never too little.
        if self.shared.store.try_refund(&decision.refunds(&self.checks(&client)), now).is_some() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (limiter, decision) = (self.clone(), decision.clone());
            runtime.spawn(async move {
                let refunds = decision.refunds(&limiter.checks(&client));
                let _ = limiter.shared.store.refund(&refunds, now).await;
            });
        }
    }
}

impl<S> Clone for RateLimiter<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<S> fmt::Debug for RateLimiter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter").field("rules", &self.shared.rules).finish_non_exhaustive()
    }
}
