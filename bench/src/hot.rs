//! One kind of decision in a loop, for profiling.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use tidegate_core::{Algorithm, Check, CounterKey, Decision, Limit, RuleId, Spec, TimeSpan};
use tidegate_store::{Clock, MemoryStore, Store, SystemClock};

const DECISIONS: u64 = 1 << 24;
const BATCH: usize = 16;
const RULE: RuleId = RuleId::named("default");

struct Hot {
    store: MemoryStore,
    clock: SystemClock,
    limit: Limit,
}

pub(crate) fn run(keys: usize, batch: bool, reject: bool) -> anyhow::Result<()> {
    let spec = if reject {
        Spec::new(1, TimeSpan::from_secs(3_600))
    } else {
        Spec::new(1_000_000_000, TimeSpan::from_secs(1))
    };
    let limit = Limit::new(Algorithm::TokenBucket, spec)?;
    let store = MemoryStore::with_cap(MemoryStore::cap_for(keys));
    let hot = Hot { store, clock: SystemClock::new(), limit };
    let mut rng = fastrand::Rng::with_seed(1);
    let names: Vec<_> = (0..1 << 14).map(|_| format!("customer:{:012}", rng.usize(0..keys))).collect();
    let start = Instant::now();
    let (mut decided, mut passed) = (0, 0);
    while decided < DECISIONS {
        passed += if batch { hot.batches(&names) } else { hot.one_by_one(&names) };
        decided += names.len() as u64;
    }
    let took = crate::nanos_each(start.elapsed(), decided);
    anyhow::ensure!((passed == decided) != reject, "{passed} of {decided} were admitted");
    println!("{took:.1} ns per decision");
    Ok(())
}

impl Hot {
    fn check<'a>(&'a self, name: &'a str) -> Check<'a> {
        Check::new(CounterKey::new(RULE, name.as_bytes()), &self.limit)
    }

    fn one_by_one(&self, names: &[String]) -> u64 {
        let mut passed = 0;
        for name in names {
            let checks = [self.check(name)];
            let decision = ready(self.store.decide(&checks, self.clock.now()));
            passed += u64::from(decision.is_some_and(|d| d.is_ok_and(|d| d.passes())));
        }
        passed
    }

    fn batches(&self, names: &[String]) -> u64 {
        let mut passed = 0;
        let mut decisions: Vec<Decision> = Vec::with_capacity(BATCH);
        for names in names.chunks_exact(BATCH) {
            let checks: [[Check<'_>; 1]; BATCH] = std::array::from_fn(|n| [self.check(&names[n])]);
            let batch: [&[Check<'_>]; BATCH] = std::array::from_fn(|n| &checks[n][..]);
            decisions.clear();
            if ready(self.store.decide_batch(&batch, self.clock.now(), &mut decisions)).is_some() {
                passed += decisions.iter().filter(|decision| decision.passes()).count() as u64;
            }
        }
        passed
    }
}

/// The output of a future that is ready at once, as an in-memory store's.
fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
