//! Calls through tower services, timed on one or several threads.

use std::hint::spin_loop;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::runtime::Runtime;
use tower::{Service, ServiceExt};

use crate::clocks::thread_time;

/// Calls between two barriers: so few that their requests stay in the first caches.
const CHUNK: usize = 256;
/// Chunks per thread and round.
const CHUNKS: usize = 1_024;

/// A service under test, and its name.
pub(crate) struct Contender<R> {
    pub(crate) name: &'static str,
    caller: Box<dyn Fn() -> anyhow::Result<Box<dyn Caller<R>>> + Sync>,
}

impl<R: 'static> Contender<R> {
    /// Each thread calls its own clone of `service`; clones share the state of their layers.
    pub(crate) fn new<S>(name: &'static str, service: S) -> Self
    where
        S: Service<R> + Clone + Send + 'static,
    {
        let service = Mutex::new(service);
        let caller = move || {
            let service = service.lock().ok().context("a thread failed")?.clone();
            Ok(Box::new(CloneCaller { service }) as Box<dyn Caller<R>>)
        };
        Self { name, caller: Box::new(caller) }
    }

    /// Calls the service once for each request, on one thread.
    pub(crate) fn call_all(&self, requests: Vec<R>) -> anyhow::Result<()> {
        (self.caller)()?.call_all(&runtime()?, requests);
        Ok(())
    }
}

/// One thread's clone of a service.
trait Caller<R> {
    /// Calls the service with one request after the other. Returns how many calls succeeded, and how long all took.
    fn call_all(&mut self, runtime: &Runtime, requests: Vec<R>) -> (usize, Duration);
}

struct CloneCaller<S> {
    service: S,
}

impl<R, S: Service<R>> Caller<R> for CloneCaller<S> {
    fn call_all(&mut self, runtime: &Runtime, requests: Vec<R>) -> (usize, Duration) {
        // Results are dropped after the time is taken: what that costs is not the layers' part.
        let mut results = Vec::with_capacity(requests.len());
        let taken = runtime.block_on(async {
            let start = thread_time();
            for request in requests {
                if let Ok(service) = self.service.ready().await {
                    results.push(service.call(request).await);
                }
            }
            thread_time().saturating_sub(start)
        });
        (results.iter().filter(|result| result.is_ok()).count(), taken)
    }
}

/// A runtime of one thread. Timers work.
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_time().build()?)
}

/// The calls of a race.
pub(crate) struct Course<'a, R> {
    pub(crate) threads: usize,
    /// Whether the calls must all succeed; otherwise all must fail.
    pub(crate) succeeds: bool,
    /// Makes the requests of a thread: number of the thread, number of the chunk, how many.
    pub(crate) requests: &'a (dyn Fn(usize, usize, usize) -> Vec<R> + Sync),
}

/// All threads at once: nanoseconds of processor time per call. Requests are made between the timed chunks.
#[expect(clippy::cast_precision_loss, reason = "a figure to read, not to compute with")]
pub(crate) fn race<R: Send>(course: &Course<'_, R>, contender: &Contender<R>) -> anyhow::Result<f64> {
    let barrier = Barrier { threads: course.threads, arrived: AtomicUsize::new(0) };
    let run = |number: usize| -> anyhow::Result<(usize, Duration)> {
        let (mut caller, runtime) = ((contender.caller)()?, runtime()?);
        let (mut succeeded, mut taken) = (0, Duration::ZERO);
        for chunk in 0..CHUNKS {
            let requests = (course.requests)(number, chunk, CHUNK);
            barrier.wait();
            let (chunk_succeeded, chunk_taken) = caller.call_all(&runtime, requests);
            succeeded += chunk_succeeded;
            taken += chunk_taken;
        }
        Ok((succeeded, taken))
    };
    let ends: Vec<_> = thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..course.threads).map(|number| scope.spawn(move || run(number))).collect();
        threads.into_iter().map(|thread| thread.join().ok().context("a thread failed")?).collect()
    });
    let (mut succeeded, mut all_taken) = (0, Duration::ZERO);
    for end in ends {
        let (thread_succeeded, taken) = end?;
        succeeded += thread_succeeded;
        all_taken += taken;
    }
    let calls = CHUNK * CHUNKS * course.threads;
    let expected = if course.succeeds { calls } else { 0 };
    ensure!(
        succeeded == expected,
        "{}: {succeeded} of {calls} calls succeeded, not {expected}",
        contender.name
    );
    Ok(all_taken.as_nanos() as f64 / calls as f64)
}

/// Lets threads start together, within nanoseconds, so that all of them call while any of them is timed.
struct Barrier {
    threads: usize,
    arrived: AtomicUsize,
}

impl Barrier {
    fn wait(&self) {
        let before = self.arrived.fetch_add(1, Ordering::AcqRel);
        let all = (before / self.threads + 1) * self.threads;
        while self.arrived.load(Ordering::Acquire) < all {
            spin_loop();
        }
    }
}
