//! Two threads that compete for the same counters.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;

use tidegate_core::{Algorithm, Check, Cost, CounterKey, Limit, RuleId, Spec, TimeSpan, Timestamp};

use crate::store::Store;

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
const NARROW: u64 = 5_000;
const WIDE: u64 = 8_000;
/// Both threads together request more than the narrow limit admits.
const REQUESTS_PER_THREAD: u64 = 4_000;

/// Two threads charge a narrow and a wide counter, in opposite order, in a store whose futures are always ready. Time
/// stands still: exactly the narrow limit is admitted, and the wide counter is charged for exactly that.
///
/// # Panics
/// If more or less is admitted, or if a charge is lost.
pub fn assert_two_threads_admit_exactly_the_limit(store: &impl Store, algorithm: Algorithm) {
    // The leaky bucket may delay requests for any time.
    let max_wait = (algorithm == Algorithm::LeakyBucket).then_some(TimeSpan::MAX);
    let limit = |requests| {
        let spec = Spec { max_wait, ..Spec::new(requests, TimeSpan::from_secs(3_600)) };
        Limit::new(algorithm, spec).expect("a valid limit")
    };
    let (narrow, wide) = (limit(NARROW), limit(WIDE));
    let checks = [
        Check::new(CounterKey::new(RuleId::named("narrow"), b"client"), &narrow),
        Check::new(CounterKey::new(RuleId::named("wide"), b""), &wide),
    ];
    let mut reversed = checks;
    reversed.reverse();
    let passed = AtomicU64::new(0);
    thread::scope(|scope| {
        for checks in [&checks, &reversed] {
            let passed = &passed;
            scope.spawn(move || {
                for _ in 0..REQUESTS_PER_THREAD {
                    let decision = poll_ready(store.decide(checks, NOW)).expect("the store decides");
                    passed.fetch_add(u64::from(decision.passes()), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(passed.into_inner(), narrow.capacity(), "{algorithm}");
    let left = poll_ready(store.peek(&[checks[1].cost(Cost::ZERO)], NOW)).expect("the store peeks");
    let ideal = wide.capacity() - narrow.capacity();
    assert_eq!(left.outcomes[0].remaining, ideal, "{algorithm}: no charge is lost");
}

fn poll_ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("the future of this store is not ready at once"),
    }
}
