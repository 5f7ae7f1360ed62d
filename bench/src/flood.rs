//! Ten times more keys than the cap is for, with an abuser, and with regular clients that must not be affected.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use tidegate_core::{Algorithm, Check, CounterKey, Decision, Limit, RuleId, Spec, TimeSpan};
use tidegate_store::{Clock, MemoryStore, Store, SystemClock};

const KEYS: usize = 1_000_000;
const FLOOD: u64 = 10_000_000;
const REGULARS: u64 = 1_000;
/// One in this many requests comes from a regular client, and as many from the abuser.
const EVERY: u64 = 1_000;
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

struct Flood {
    store: MemoryStore,
    clock: SystemClock,
    limit: Limit,
}

impl Flood {
    fn decide(&self, client: &[u8]) -> anyhow::Result<Decision> {
        let checks = [Check::new(CounterKey::new(RuleId::named("default"), client), &self.limit)];
        match pin!(self.store.decide(&checks, self.clock.now())).poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(decision) => Ok(decision?),
            Poll::Pending => bail!("the future of an in-memory store must be ready at once"),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures to read, not to compute with")]
pub(crate) fn run() -> anyhow::Result<()> {
    let before = resident_bytes()?;
    // A single request counts for a minute and a half: the table fills up long before that.
    let limit = Limit::new(Algorithm::TokenBucket, Spec::new(40, TimeSpan::from_secs(3_600)))?;
    let cap = MemoryStore::cap_for(KEYS);
    let flood = Flood { store: MemoryStore::with_cap(cap), clock: SystemClock::new(), limit };
    let mut rng = fastrand::Rng::with_seed(SEED);
    for _ in 0..limit.capacity() {
        flood.decide(b"abuser")?;
    }
    for regular in 0..REGULARS {
        flood.decide(&regular.to_be_bytes())?;
    }
    let (mut longest, mut most, mut abuser_admitted, mut regulars_rejected, mut regular_requests) =
        (Duration::ZERO, before, 0_u64, 0_u64, 0_u64);
    let mut waited = run_queue_wait()?;
    for request in 0..FLOOD {
        let start = Instant::now();
        flood.decide(&rng.u128(..).to_be_bytes())?;
        let mut took = start.elapsed();
        if took > LONGEST_PAUSE {
            // Subtract the time in which other threads had the processor.
            let now_waited = run_queue_wait()?;
            took = took.saturating_sub(now_waited.saturating_sub(waited));
            waited = now_waited;
        }
        longest = longest.max(took);
        if request % EVERY == 0 {
            abuser_admitted += u64::from(flood.decide(b"abuser")?.passes());
            // Each regular client sends ten requests in total: far below its limit.
            let regular = request / EVERY % REGULARS;
            regular_requests += 1;
            regulars_rejected += u64::from(!flood.decide(&regular.to_be_bytes())?.passes());
        }
        if request % 100_000 == 0 {
            most = most.max(resident_bytes()?);
        }
    }
    let used = flood.store.memory_use();
    let taken = (most - before) as f64;
    println!("{FLOOD} random keys (seed {SEED}) against a cap for {KEYS}");
    println!(
        "  memory          {:.1} MB at most, {:.3} x the cap, {:.1} B per key it is for",
        taken / 1e6,
        taken / cap as f64,
        taken / KEYS as f64
    );
    println!(
        "  overflow        {} checks, {:.1} % of all, were decided by shared counters",
        used.overflowed,
        used.overflowed as f64 / FLOOD as f64 * 100.0
    );
    println!("  longest pause   {longest:?} of processor time");
    println!("  abuser          admitted {abuser_admitted} times over its limit");
    println!("  regular clients rejected {regulars_rejected} of {regular_requests} times");
    ensure!(taken <= cap as f64 * 1.05, "memory exceeded the cap by more than 5 %");
    ensure!(abuser_admitted <= 1, "the abuser was admitted over its limit");
    ensure!(regulars_rejected == 0, "regular clients were rejected");
    ensure!(longest <= LONGEST_PAUSE, "a decision took {longest:?}");
    println!("target met");
    Ok(())
}

const SEED: u64 = 42;

/// How long this thread was runnable but had to wait for a processor, since its start.
pub(crate) fn run_queue_wait() -> anyhow::Result<Duration> {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").context("this needs Linux")?;
    let nanos = schedstat.split_whitespace().nth(1).context("no waiting time")?;
    Ok(Duration::from_nanos(nanos.parse()?))
}

/// Resident memory of this process.
pub(crate) fn resident_bytes() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("this needs Linux")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    let kilobytes: u64 = line.split_whitespace().nth(1).context("no figure")?.parse()?;
    Ok(kilobytes * 1024)
}
