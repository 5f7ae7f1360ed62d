//! One way of deciding, over and over: something to hold a profiler to.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use tidegate_core::{Algorithm, Check, Key, Limit, RuleId, Span, Spec};
use tidegate_store::{Clock, MemoryStore, Store, SystemClock};

const DECISIONS: u64 = 1 << 24;

pub(crate) fn run(keys: usize) -> anyhow::Result<()> {
    let limit = Limit::new(Algorithm::TokenBucket, Spec::new(1_000_000_000, Span::from_secs(1)))?;
    let store = MemoryStore::with_cap(MemoryStore::cap_for(keys));
    let clock = SystemClock::new();
    let mut rng = fastrand::Rng::with_seed(1);
    let names: Vec<_> = (0..1 << 14).map(|_| format!("customer:{:012}", rng.usize(0..keys))).collect();
    let rule = RuleId::named("default");
    let start = Instant::now();
    let (mut decided, mut passed) = (0, 0);
    while decided < DECISIONS {
        for name in &names {
            let checks = [Check::new(Key::new(rule, name.as_bytes()), &limit)];
            let future = pin!(store.decide(&checks, clock.now()));
            if let Poll::Ready(decision) = future.poll(&mut Context::from_waker(Waker::noop())) {
                passed += u64::from(decision?.passes());
            }
            decided += 1;
        }
    }
    anyhow::ensure!(passed == decided, "{} were refused", decided - passed);
    println!("{:.1} ns per decision", crate::nanos_each(start.elapsed(), decided));
    Ok(())
}
