//! Waiting with a deadline.
//!
//! Await an event ([`within`], [`soon`]) wherever there is one. [`eventually`] and [`eventually_some`] poll: they are for
//! what has no event to wait for, such as a gauge of the program under test or a file of another process.

use std::time::{Duration, Instant};

/// An event that has not happened after this time fails the test. No test that succeeds waits this long.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// The time between two polls.
const PAUSE: Duration = Duration::from_millis(2);

/// Waits for `event`; fails after [`DEADLINE`] and names `what` was waited for.
pub async fn within<F: Future>(what: &str, event: F) -> F::Output {
    tokio::time::timeout(DEADLINE, event).await.unwrap_or_else(|late| panic!("{what}: {late}"))
}

/// Waits for `event`; fails after [`DEADLINE`].
pub async fn soon<F: Future>(event: F) -> F::Output {
    within("an event", event).await
}

/// Polls until `condition` holds; fails after [`DEADLINE`].
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let polling = async {
        while !condition() {
            tokio::time::sleep(PAUSE).await;
        }
    };
    within(what, polling).await;
}

/// Polls until there is a result, and blocks the thread meanwhile; fails after [`DEADLINE`].
pub fn eventually_some<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    #[expect(clippy::disallowed_methods, reason = "a deadline for another process is one of real time")]
    let since = Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(since.elapsed() < DEADLINE, "{what}: not within {DEADLINE:?}");
        std::thread::sleep(PAUSE);
    }
}

/// [`eventually`] for tests without a runtime.
pub fn eventually_blocking(what: &str, mut condition: impl FnMut() -> bool) {
    eventually_some(what, || condition().then_some(()));
}
