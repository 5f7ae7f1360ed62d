//! Central decisions: what they cost Redis, and how long they take.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tidegate_core::{Algorithm, Check, CounterKey, Limit, RuleId, Spec, TimeSpan, Timestamp};
use tidegate_redis::RedisStore;
use tidegate_store::Store;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::Report;
use super::classic::Classic;
use super::server::RedisProcess;
use crate::bars::median;

const ROUNDS: usize = 5;
const CALLERS: usize = 64;
const DECISIONS: usize = 100_000;
const CLIENTS: usize = 10_000;
/// Everybody is admitted.
const CAPACITY: u64 = 1_000_000;
const SECONDS: u64 = 60;

pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

pub(crate) fn bucket(requests: u64, seconds: u64) -> anyhow::Result<Limit> {
    Ok(Limit::new(Algorithm::TokenBucket, Spec::new(requests, TimeSpan::from_secs(seconds)))?)
}

/// One round of a contender.
struct Cost {
    /// Decisions per processor second of Redis.
    per_core: f64,
    /// Decisions per second.
    per_second: f64,
}

/// Runs all rounds; returns how many decisions per second a node made.
pub(crate) fn run(redis: &RedisProcess, report: &mut Report) -> anyhow::Result<Option<f64>> {
    let runtime = runtime()?;
    let classic = runtime.block_on(Classic::connect(&redis.client()?))?;
    let store = Arc::new(RedisStore::new(redis.config()?, RedisProcess::clock()));
    runtime.block_on(warm_up(&store))?;
    let (mut ratios, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let peer = measure(redis, &runtime, |next| call_classic(classic.clone(), next))?;
        report.record("central", "classic script", peer.per_core, "decisions/s of a Redis core");
        let own = measure(redis, &runtime, |next| call_store(Arc::clone(&store), next))?;
        report.record("central", "tidegate", own.per_core, "decisions/s of a Redis core");
        report.record("central", "classic script, wall", peer.per_second, "decisions/s");
        report.record("central", "tidegate, wall", own.per_second, "decisions/s");
        ratios.push(own.per_core / peer.per_core);
        ours.push(own.per_second);
    }
    report.bars.at_least("× classic script, decisions per Redis core", median(&ratios), 1.8);
    latency(&runtime, &store, report, median(&ours))?;
    Ok(Some(median(&ours)))
}

/// How many decisions per second a node makes, without the comparison.
pub(crate) fn speed(redis: &RedisProcess) -> anyhow::Result<f64> {
    let runtime = runtime()?;
    let store = Arc::new(RedisStore::new(redis.config()?, RedisProcess::clock()));
    runtime.block_on(warm_up(&store))?;
    let round = |_| Ok(measure(redis, &runtime, |next| call_store(Arc::clone(&store), next))?.per_second);
    let speeds = (0..ROUNDS).map(round).collect::<anyhow::Result<Vec<_>>>()?;
    println!("  central, wall: {:.0} decisions/s", median(&speeds));
    Ok(median(&speeds))
}

/// The first calls connect and load the script.
pub(crate) async fn warm_up(store: &RedisStore) -> anyhow::Result<()> {
    let start = Instant::now();
    while store.ping().await.is_err() {
        anyhow::ensure!(start.elapsed() < Duration::from_secs(5), "the store does not connect");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

fn measure<F: Future<Output = anyhow::Result<()>> + Send + 'static>(
    redis: &RedisProcess,
    runtime: &Runtime,
    caller: impl Fn(Arc<AtomicUsize>) -> F,
) -> anyhow::Result<Cost> {
    let (cpu, start) = (redis.info()?.cpu()?, Instant::now());
    runtime.block_on(async {
        let next = Arc::new(AtomicUsize::new(0));
        let mut callers: JoinSet<_> = (0..CALLERS).map(|_| caller(Arc::clone(&next))).collect();
        while let Some(ended) = callers.join_next().await {
            ended??;
        }
        anyhow::Ok(())
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let cpu = redis.info()?.cpu()? - cpu;
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let decisions = DECISIONS as f64;
    Ok(Cost { per_core: decisions / cpu, per_second: decisions / seconds })
}

async fn call_classic(mut classic: Classic, next: Arc<AtomicUsize>) -> anyhow::Result<()> {
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= DECISIONS {
            return Ok(());
        }
        anyhow::ensure!(classic.decide(number % CLIENTS, CAPACITY, SECONDS).await?, "rejected");
    }
}

async fn call_store(store: Arc<RedisStore>, next: Arc<AtomicUsize>) -> anyhow::Result<()> {
    let limit = bucket(CAPACITY, SECONDS)?;
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= DECISIONS {
            return Ok(());
        }
        decide(&store, &limit, number % CLIENTS).await?;
    }
}

async fn decide(store: &RedisStore, limit: &Limit, client: usize) -> anyhow::Result<()> {
    let client = format!("user:{client:07}");
    let check = Check::new(CounterKey::new(RuleId::named("bench"), client.as_bytes()), limit);
    let decision = store.decide(&[check], Timestamp::ZERO).await?;
    anyhow::ensure!(decision.passes(), "rejected");
    Ok(())
}

/// Latency at about half of the saturation, which fewer callers produce, and of PINGs on the same connection meanwhile.
fn latency(
    runtime: &Runtime,
    store: &Arc<RedisStore>,
    report: &mut Report,
    saturation: f64,
) -> anyhow::Result<()> {
    let mut callers = 1;
    while callers < CALLERS && load(runtime, store, callers, 20_000)?.per_second < saturation / 2.0 {
        callers += 1;
    }
    let (mut ratios, mut latencies) = (Vec::new(), Load::default());
    for _ in 0..ROUNDS {
        let round = load(runtime, store, callers, DECISIONS)?;
        report.record("latency", "decision, p50", percentile(&round.decisions, 0.5), "µs");
        report.record("latency", "PING, p50", percentile(&round.pings, 0.5), "µs");
        ratios.push(percentile(&round.decisions, 0.5) / percentile(&round.pings, 0.5));
        latencies = round;
    }
    println!(
        "  {callers} callers, {:.0} decisions/s of {saturation:.0}; p99: decision {:.0} µs, PING {:.0} µs",
        latencies.per_second,
        percentile(&latencies.decisions, 0.99),
        percentile(&latencies.pings, 0.99)
    );
    report.bars.at_most("× PING on the same connection, p50 at half load", median(&ratios), 1.3);
    Ok(())
}

/// Latencies in microseconds.
#[derive(Default)]
struct Load {
    decisions: Vec<f64>,
    pings: Vec<f64>,
    per_second: f64,
}

/// Each caller makes its decisions one after the other; every eighth call is a PING instead.
fn load(runtime: &Runtime, store: &Arc<RedisStore>, callers: usize, calls: usize) -> anyhow::Result<Load> {
    let limit = bucket(CAPACITY, SECONDS)?;
    let start = Instant::now();
    let mut all = runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for caller in 0..callers {
            let store = Arc::clone(store);
            tasks.spawn(async move {
                let mut load = Load::default();
                for number in 0..calls / callers {
                    let sent = Instant::now();
                    if (number + caller) % 8 == 0 {
                        store.ping().await?;
                        load.pings.push(sent.elapsed().as_secs_f64() * 1e6);
                    } else {
                        decide(&store, &limit, (number * callers + caller) % CLIENTS).await?;
                        load.decisions.push(sent.elapsed().as_secs_f64() * 1e6);
                    }
                }
                anyhow::Ok(load)
            });
        }
        let mut all = Load::default();
        while let Some(load) = tasks.join_next().await {
            let load = load??;
            all.decisions.extend(load.decisions);
            all.pings.extend(load.pings);
        }
        anyhow::Ok(all)
    })?;
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let done = (all.decisions.len() + all.pings.len()) as f64;
    all.per_second = done / start.elapsed().as_secs_f64();
    Ok(all)
}

fn percentile(latencies: &[f64], part: f64) -> f64 {
    let mut sorted = latencies.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index"
    )]
    let index = (sorted.len() as f64 * part) as usize;
    sorted.get(index).copied().unwrap_or(f64::NAN)
}
