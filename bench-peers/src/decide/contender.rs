//! Who competes: governor's keyed limiter, as it comes and with a faster hasher, and our stores.

use std::num::NonZeroU32;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use governor::clock::DefaultClock;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tidegate_core::{Algorithm, Check, Key, Limit, RuleId, Span, Spec};
use tidegate_store::{Clock, ReferenceStore, Store, SystemClock};

/// So much per second that no key is ever refused.
const PER_SECOND: u32 = 1_000_000;

/// Decides one request per key, and says how many passed.
pub(crate) trait Contender: Sync {
    fn name(&self) -> &'static str;
    fn decide_each(&self, keys: &[String]) -> u64;
}

pub(crate) struct Governor(DefaultKeyedRateLimiter<String>);

type FoldStore = DashMapStateStore<String, foldhash::fast::RandomState>;

pub(crate) struct GovernorFold(
    RateLimiter<
        String,
        FoldStore,
        DefaultClock,
        NoOpMiddleware<<DefaultClock as governor::clock::Clock>::Instant>,
    >,
);

fn quota() -> Quota {
    let rate = NonZeroU32::new(PER_SECOND).unwrap_or(NonZeroU32::MIN);
    Quota::per_second(rate)
}

impl Governor {
    pub(crate) fn new() -> Self {
        Self(RateLimiter::keyed(quota()))
    }
}

impl Contender for Governor {
    fn name(&self) -> &'static str {
        "governor 0.10, keyed, default store"
    }

    fn decide_each(&self, keys: &[String]) -> u64 {
        keys.iter().map(|key| u64::from(self.0.check_key(key).is_ok())).sum()
    }
}

impl GovernorFold {
    pub(crate) fn new() -> Self {
        Self(RateLimiter::dashmap_with_clock_and_hasher(
            quota(),
            DefaultClock::default(),
            foldhash::fast::RandomState::default(),
        ))
    }
}

impl Contender for GovernorFold {
    fn name(&self) -> &'static str {
        "governor 0.10, keyed, DashMap with foldhash"
    }

    fn decide_each(&self, keys: &[String]) -> u64 {
        keys.iter().map(|key| u64::from(self.0.check_key(key).is_ok())).sum()
    }
}

pub(crate) struct Tidegate<S> {
    name: &'static str,
    store: S,
    clock: SystemClock,
    limit: Limit,
}

impl Tidegate<ReferenceStore> {
    pub(crate) fn reference() -> anyhow::Result<Self> {
        let limit = Limit::new(Algorithm::TokenBucket, Spec::new(PER_SECOND.into(), Span::from_secs(1)))?;
        let (store, clock) = (ReferenceStore::new(), SystemClock::new());
        Ok(Self { name: "tidegate, reference store", store, clock, limit })
    }
}

impl<S: Store> Contender for Tidegate<S> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn decide_each(&self, keys: &[String]) -> u64 {
        let rule = RuleId::named("default");
        let decide = |key: &String| {
            let check = Check::new(Key::new(rule, key.as_bytes()), &self.limit);
            let decision = ready(self.store.decide(&[check], self.clock.now()));
            u64::from(decision.is_ok_and(|decision| decision.passes()))
        };
        keys.iter().map(decide).sum()
    }
}

/// The answer of a future that never waits: an in-memory store's.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("an in-memory store answers at once"),
    }
}
