//! Ten times more keys than the cap is for, an abuser among them, and regulars who must not suffer.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use tidegate_core::{Algorithm, Check, CounterKey, Decision, Limit, RuleId, Spec, TimeSpan};
use tidegate_store::{Clock, MemoryStore, Store, SystemClock};

const KEYS: usize = 1_000_000;
const FLOOD: u64 = 10_000_000;
const REGULARS: u64 = 1_000;
/// One request of so many is a regular's, one of as many the abuser's.
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
            Poll::Pending => bail!("an in-memory store answers at once"),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures to read, not to compute with")]
pub(crate) fn run() -> anyhow::Result<()> {
    let before = resident_bytes()?;
    // Whoever asked once counts for a minute and a half: the table fills up long before that.
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
    let (mut longest, mut most, mut abuser_passed, mut regulars_refused, mut regulars_asked) =
        (Duration::ZERO, before, 0_u64, 0_u64, 0_u64);
    let mut waited = waited_for_a_processor()?;
    for request in 0..FLOOD {
        let start = Instant::now();
        flood.decide(&rng.u128(..).to_be_bytes())?;
        let mut took = start.elapsed();
        if took > LONGEST_PAUSE {
            // Others may have had the processor meanwhile: that is no pause of ours.
            let now_waited = waited_for_a_processor()?;
            took = took.saturating_sub(now_waited.saturating_sub(waited));
            waited = now_waited;
        }
        longest = longest.max(took);
        if request % EVERY == 0 {
            abuser_passed += u64::from(flood.decide(b"abuser")?.passes());
            // Each regular asks ten times in all: far below its limit.
            let regular = request / EVERY % REGULARS;
            regulars_asked += 1;
            regulars_refused += u64::from(!flood.decide(&regular.to_be_bytes())?.passes());
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
        "  overflow        {} checks, {:.1} % of all, were judged by shared counters",
        used.overflowed,
        used.overflowed as f64 / FLOOD as f64 * 100.0
    );
    println!("  longest pause   {longest:?} in which this thread had a processor");
    println!("  the abuser      passed {abuser_passed} times while it was to be refused");
    println!("  the regulars    were refused {regulars_refused} of {regulars_asked} times");
    ensure!(taken <= cap as f64 * 1.05, "memory went over the cap by more than 5 %");
    ensure!(abuser_passed <= 1, "the abuser was let through");
    ensure!(regulars_refused == 0, "regulars were refused, though they were there first");
    ensure!(longest <= LONGEST_PAUSE, "a decision took {longest:?}");
    println!("bar held");
    Ok(())
}

const SEED: u64 = 42;

/// How long this thread was ready to run and had to wait for others, since its start.
pub(crate) fn waited_for_a_processor() -> anyhow::Result<Duration> {
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
