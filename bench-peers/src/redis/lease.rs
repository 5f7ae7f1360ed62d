//! Two nodes with leases: how often they ask Redis, and how fast they decide.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use tidegate_core::{Algorithm, Check, Coordination, CounterKey, Limit, RuleId, Spec, TimeSpan};
use tidegate_redis::{RedisConfig, RedisStore};
use tidegate_store::{Clock, Store, SystemClock};
use tokio::task::JoinSet;

use super::Report;
use super::central::{runtime, warm_up};
use super::server::RedisProcess;

const NODES: usize = 2;
const CALLERS: usize = 64;
const DECISIONS: usize = 10_000_000;
const CLIENTS: usize = 100_000;
const REQUESTS: u64 = 100;
const SECONDS: u64 = 60;

pub(crate) fn run(redis: &RedisProcess, report: &mut Report, central: Option<f64>) -> anyhow::Result<()> {
    let zipf = Arc::new(zipf_clients());
    // The default algorithm of a policy.
    let limit = Limit::new(Algorithm::SlidingCounter, Spec::new(REQUESTS, TimeSpan::from_secs(SECONDS)))?;
    let before = redis.info()?;
    let (mut speeds, mut operations) = (Vec::new(), 0.0);
    // Both nodes at once: they share the keys.
    let nodes: Vec<_> = (0..NODES)
        .map(|node| {
            let config = RedisConfig { coordination: Coordination::Lease, ..redis.config()? };
            let zipf = Arc::clone(&zipf);
            Ok(std::thread::spawn(move || run_node(config, &zipf, limit, node)))
        })
        .collect::<anyhow::Result<_>>()?;
    for node in nodes {
        let (per_second, requests) = node.join().ok().context("a node panicked")??;
        operations += requests;
        report.record("lease", "node, wall", per_second, "decisions/s");
        speeds.push(per_second);
    }
    let after = redis.info()?;
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let decisions = DECISIONS as f64;
    let calls = after.script_calls()? - before.script_calls()?;
    let commands = after.number("total_commands_processed")? - before.number("total_commands_processed")?;
    report.record("lease", "script calls", calls / decisions, "per decision");
    report.record("lease", "with commands inside scripts", commands / decisions, "per decision");
    report.record("lease", "requests for leases", operations / decisions, "per decision");
    // A script call contains up to 64 requests: the bar counts each as a command.
    report.bars.at_most("requests to Redis per decision", operations / decisions, 0.1);
    // The nodes share one core here, so together they are as fast as one.
    let speed: f64 = speeds.iter().sum();
    match central {
        Some(central) => report.bars.at_least("× central, decisions per second", speed / central, 10.0),
        None => report.bars.without_figure("lease against central; run without --only"),
    }
    Ok(())
}

fn run_node(
    config: RedisConfig,
    zipf: &Arc<Vec<u32>>,
    limit: Limit,
    node: usize,
) -> anyhow::Result<(f64, f64)> {
    let runtime = runtime()?;
    let clock = Arc::new(SystemClock::new());
    let store = Arc::new(RedisStore::new(config, clock.clone()));
    runtime.block_on(warm_up(&store))?;
    let start = Instant::now();
    runtime.block_on(async {
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (store, clock, zipf) = (Arc::clone(&store), Arc::clone(&clock), Arc::clone(zipf));
            callers.spawn(async move {
                let mut rng = fastrand::Rng::with_seed((node * CALLERS + caller) as u64);
                for number in 0..DECISIONS / NODES / CALLERS {
                    let client = zipf[rng.usize(..zipf.len())].to_be_bytes();
                    let check = Check::new(CounterKey::new(RuleId::named("bench"), &client), &limit);
                    store.decide(&[check], clock.now()).await?;
                    if number % 64 == 0 {
                        // A real node serves other requests, too.
                        tokio::task::yield_now().await;
                    }
                }
                anyhow::Ok(())
            });
        }
        while let Some(ended) = callers.join_next().await {
            ended??;
        }
        anyhow::Ok(())
    })?;
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let (decisions, operations) = ((DECISIONS / NODES) as f64, store.report().link.operations as f64);
    Ok((decisions / start.elapsed().as_secs_f64(), operations))
}

/// A table of clients in which client k appears about 1/k as often as client 1.
fn zipf_clients() -> Vec<u32> {
    const TABLE: usize = 1 << 22;
    let harmonic: f64 = (1..=CLIENTS).map(|rank| 1.0 / f64::from(u32::try_from(rank).unwrap_or(1))).sum();
    let mut table = Vec::with_capacity(TABLE + CLIENTS);
    for rank in 1..=u32::try_from(CLIENTS).unwrap_or(u32::MAX) {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share"
        )]
        let times = ((TABLE as f64 / harmonic / f64::from(rank)).round() as usize).max(1);
        table.extend(std::iter::repeat_n(rank, times));
    }
    table
}
