//! The contenders: governor's keyed limiter, as it comes and with a faster hasher, and our in-memory store.

use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use governor::clock::{Clock as _, DefaultClock};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};
use tidegate_core::{Algorithm, Check, CounterKey, Decision, Limit, RuleId, Spec, TimeSpan};
use tidegate_store::{Clock, MemoryStore, Store, SystemClock};

/// Requests that arrive together.
pub(crate) const BATCH: usize = 16;
/// Checks in one decision.
pub(crate) const CHECKS: usize = 4;

/// How generous the limit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rate {
    /// A thousand million a second: everything passes, however hot the key.
    Generous,
    /// One an hour: all but the first are refused.
    Stingy,
}

/// How requests are passed to a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// One by one, the clock read for each.
    OneByOne,
    /// So many at a time, where the contender can.
    Batches,
    /// Four keys for one decision; without that, four calls.
    FourChecks,
}

/// Decides for each key. Returns how many were admitted.
pub(crate) trait Contender: Sync {
    fn name(&self) -> &'static str;
    fn run(&self, way: Way, keys: &[String]) -> u64;
}

/// Governor over `DashMap`, with any hasher.
pub(crate) struct Governor<S: BuildHasher + Clone> {
    name: &'static str,
    limiter: RateLimiter<
        String,
        DashMapStateStore<String, S>,
        DefaultClock,
        NoOpMiddleware<<DefaultClock as governor::clock::Clock>::Instant>,
    >,
}

impl<S: BuildHasher + Clone + Default> Governor<S> {
    pub(crate) fn new(name: &'static str, rate: Rate) -> Self {
        let quota = match rate {
            Rate::Generous => Quota::per_second(NonZeroU32::new(1_000_000_000).unwrap_or(NonZeroU32::MIN)),
            Rate::Stingy => Quota::per_hour(NonZeroU32::MIN),
        };
        let clock = DefaultClock::default();
        clock.now();
        Self { name, limiter: RateLimiter::dashmap_with_clock_and_hasher(quota, clock, S::default()) }
    }
}

impl<S: BuildHasher + Clone + Send + Sync> Contender for Governor<S> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn run(&self, _way: Way, keys: &[String]) -> u64 {
        keys.iter().map(|key| u64::from(self.limiter.check_key(key).is_ok())).sum()
    }
}

pub(crate) struct Tidegate {
    pub(crate) store: MemoryStore,
    clock: SystemClock,
    limit: Limit,
}

const RULE: RuleId = RuleId::named("default");

impl Tidegate {
    pub(crate) fn new(keys: usize, rate: Rate) -> anyhow::Result<Self> {
        let spec = match rate {
            Rate::Generous => Spec::new(1_000_000_000, TimeSpan::from_secs(1)),
            Rate::Stingy => Spec::new(1, TimeSpan::from_secs(3_600)),
        };
        let limit = Limit::new(Algorithm::TokenBucket, spec)?;
        let store = MemoryStore::with_cap(MemoryStore::cap_for(keys));
        Ok(Self { store, clock: SystemClock::new(), limit })
    }

    fn check<'a>(&'a self, key: &'a str) -> Check<'a> {
        Check::new(CounterKey::new(RULE, key.as_bytes()), &self.limit)
    }

    fn one_by_one(&self, keys: &[String]) -> u64 {
        let mut passed = 0;
        for key in keys {
            let checks = [self.check(key)];
            let decision = ready(self.store.decide(&checks, self.clock.now()));
            passed += u64::from(decision.is_ok_and(|decision| decision.passes()));
        }
        passed
    }

    fn batches(&self, keys: &[String]) -> u64 {
        let mut passed = 0;
        let mut decisions: Vec<Decision> = Vec::with_capacity(BATCH);
        for keys in keys.chunks_exact(BATCH) {
            let checks: [[Check<'_>; 1]; BATCH] = std::array::from_fn(|n| [self.check(&keys[n])]);
            let batch: [&[Check<'_>]; BATCH] = std::array::from_fn(|n| &checks[n][..]);
            decisions.clear();
            if ready(self.store.decide_batch(&batch, self.clock.now(), &mut decisions)).is_ok() {
                passed += decisions.iter().filter(|decision| decision.passes()).count() as u64;
            }
        }
        passed
    }

    fn four_checks(&self, keys: &[String]) -> u64 {
        let mut passed = 0;
        for keys in keys.chunks_exact(CHECKS) {
            let checks: [Check<'_>; CHECKS] = std::array::from_fn(|n| self.check(&keys[n]));
            let decision = ready(self.store.decide(&checks, self.clock.now()));
            passed += u64::from(decision.is_ok_and(|decision| decision.passes())) * CHECKS as u64;
        }
        passed
    }
}

impl Contender for Tidegate {
    fn name(&self) -> &'static str {
        "tidegate"
    }

    fn run(&self, way: Way, keys: &[String]) -> u64 {
        match way {
            Way::OneByOne => self.one_by_one(keys),
            Way::Batches => self.batches(keys),
            Way::FourChecks => self.four_checks(keys),
        }
    }
}

/// The answer of a future that never waits: an in-memory store's.
#[expect(clippy::inline_always, reason = "it stands for an await")]
#[inline(always)]
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("an in-memory store answers at once"),
    }
}
