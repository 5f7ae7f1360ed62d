//! Central decisions: what they cost Redis and the node.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tidegate_core::{Algorithm, Check, CounterKey, Limit, RuleId, Spec, TimeSpan, Timestamp};
use tidegate_redis::RedisStore;
use tidegate_store::Store;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::classic::Classic;
use super::server::RedisProcess;
use super::{Pace, Report};
use crate::bars::median;
use crate::clocks::process_time;

pub(crate) const CALLERS: usize = 64;
pub(crate) const CLIENTS: usize = 10_000;
/// Everybody is admitted.
pub(crate) const CAPACITY: u64 = 1_000_000;
pub(crate) const SECONDS: u64 = 60;

/// Processor time of Redis and of the nodes.
pub(crate) const PER_DECISION: &str = "µs per decision";

pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

pub(crate) fn bucket(requests: u64, seconds: u64) -> anyhow::Result<Limit> {
    Ok(Limit::new(Algorithm::TokenBucket, Spec::new(requests, TimeSpan::from_secs(seconds)))?)
}

/// One round of a contender.
pub(crate) struct Cost {
    /// Decisions per processor second of Redis.
    per_core: f64,
    /// Decisions per second.
    pub(crate) per_second: f64,
    /// Processor time of Redis and of the node.
    pub(crate) micros: f64,
}

/// Runs all rounds; returns how many decisions per second a node made.
pub(crate) fn run(redis: &RedisProcess, report: &mut Report, pace: Pace) -> anyhow::Result<f64> {
    let runtime = runtime()?;
    let classic = runtime.block_on(Classic::connect(&redis.client()?))?;
    let store = Arc::new(RedisStore::new(redis.config()?, RedisProcess::clock()));
    runtime.block_on(warm_up(&store))?;
    let (mut ratios, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..pace.rounds {
        let peer = measure_classic(redis, &runtime, &classic, pace)?;
        report.record("central", "classic script", peer.per_core, "decisions/s of a Redis core");
        let own = measure_store(redis, &runtime, &store, pace)?;
        report.record("central", "tidegate", own.per_core, "decisions/s of a Redis core");
        report.record("central", "classic script, wall", peer.per_second, "decisions/s");
        report.record("central", "tidegate, wall", own.per_second, "decisions/s");
        report.record("central", "classic script, processor", peer.micros, PER_DECISION);
        report.record("central", "tidegate, processor", own.micros, PER_DECISION);
        ratios.push(own.per_core / peer.per_core);
        ours.push(own.per_second);
    }
    report.bars.at_least("× classic script, decisions per Redis core", median(&ratios), 1.8);
    Ok(median(&ours))
}

/// How many decisions per second a node makes, without the comparison.
pub(crate) fn speed(redis: &RedisProcess, pace: Pace) -> anyhow::Result<f64> {
    let runtime = runtime()?;
    let store = Arc::new(RedisStore::new(redis.config()?, RedisProcess::clock()));
    runtime.block_on(warm_up(&store))?;
    let round = |_| Ok(measure_store(redis, &runtime, &store, pace)?.per_second);
    let speeds = (0..pace.rounds).map(round).collect::<anyhow::Result<Vec<_>>>()?;
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

/// A round of the classic script.
pub(crate) fn measure_classic(
    redis: &RedisProcess,
    runtime: &Runtime,
    classic: &Classic,
    pace: Pace,
) -> anyhow::Result<Cost> {
    measure(redis, runtime, pace.decisions, |next| call_classic(classic.clone(), next, pace.decisions))
}

fn measure_store(
    redis: &RedisProcess,
    runtime: &Runtime,
    store: &Arc<RedisStore>,
    pace: Pace,
) -> anyhow::Result<Cost> {
    measure(redis, runtime, pace.decisions, |next| call_store(Arc::clone(store), next, pace.decisions))
}

fn measure<F: Future<Output = anyhow::Result<()>> + Send + 'static>(
    redis: &RedisProcess,
    runtime: &Runtime,
    decisions: usize,
    caller: impl Fn(Arc<AtomicUsize>) -> F,
) -> anyhow::Result<Cost> {
    let (cpu, own_before, start) = (redis.info()?.cpu()?, process_time(), Instant::now());
    runtime.block_on(async {
        let next = Arc::new(AtomicUsize::new(0));
        let mut callers: JoinSet<_> = (0..CALLERS).map(|_| caller(Arc::clone(&next))).collect();
        while let Some(ended) = callers.join_next().await {
            ended??;
        }
        anyhow::Ok(())
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let own = process_time().saturating_sub(own_before).as_secs_f64();
    let cpu = redis.info()?.cpu()? - cpu;
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let decisions = decisions as f64;
    Ok(Cost {
        per_core: decisions / cpu,
        per_second: decisions / seconds,
        micros: (own + cpu) * 1e6 / decisions,
    })
}

async fn call_classic(mut classic: Classic, next: Arc<AtomicUsize>, decisions: usize) -> anyhow::Result<()> {
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= decisions {
            return Ok(());
        }
        anyhow::ensure!(classic.decide(number % CLIENTS, CAPACITY, SECONDS).await?, "rejected");
    }
}

async fn call_store(store: Arc<RedisStore>, next: Arc<AtomicUsize>, decisions: usize) -> anyhow::Result<()> {
    let limit = bucket(CAPACITY, SECONDS)?;
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= decisions {
            return Ok(());
        }
        decide(&store, &limit, number % CLIENTS).await?;
    }
}

pub(crate) async fn decide(store: &RedisStore, limit: &Limit, client: usize) -> anyhow::Result<()> {
    let client = format!("user:{client:07}");
    let check = Check::new(CounterKey::new(RuleId::named("bench"), client.as_bytes()), limit);
    let decision = store.decide(&[check], Timestamp::ZERO).await?;
    anyhow::ensure!(decision.passes(), "rejected");
    Ok(())
}
