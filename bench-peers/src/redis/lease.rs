//! Two nodes with leases: how often they ask Redis, how fast they decide, and what that costs.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use tidegate_core::{Algorithm, Check, Coordination, CounterKey, Limit, RuleId, Spec, TimeSpan};
use tidegate_redis::{LeaseReport, RedisConfig, RedisStore};
use tidegate_store::{Clock, Store, SystemClock};
use tokio::task::JoinSet;

use super::central::{PER_DECISION, measure_classic, runtime, warm_up};
use super::classic::Classic;
use super::server::RedisProcess;
use super::{Pace, Report};
use crate::bars::median;
use crate::clocks::process_time;

const NODES: usize = 2;
const CALLERS: usize = 64;
const DECISIONS: usize = 10_000_000;
const CLIENTS: usize = 100_000;
const REQUESTS: u64 = 100;
const SECONDS: u64 = 60;
/// More than a run takes.
const ROOM: Duration = Duration::from_secs(20);

/// What a node did.
struct NodeRun {
    took: Duration,
    /// Requests to Redis.
    operations: f64,
    lease: LeaseReport,
}

/// What a round says about the bars.
struct LeaseRound {
    operations_per_decision: f64,
    per_second: f64,
}

/// The sizes of a round.
#[derive(Clone, Copy)]
struct Size {
    decisions: usize,
    clients: usize,
    room: Duration,
}

/// `central` is the number of central decisions per second of a node.
pub(crate) fn run(redis: &RedisProcess, report: &mut Report, pace: Pace, central: f64) -> anyhow::Result<()> {
    let divisor = pace.lease_divisor;
    let size = Size {
        decisions: DECISIONS / divisor,
        clients: CLIENTS / divisor,
        room: ROOM / u32::try_from(divisor)?,
    };
    let zipf = zipf_clients(size.clients);
    let runtime = runtime()?;
    let classic = runtime.block_on(Classic::connect(&redis.client()?))?;
    let mut rounds = Vec::new();
    for _ in 0..pace.lease_rounds {
        let clients: Vec<_> = (0..NODES).map(|node| draw_all(&zipf, node, size.decisions)).collect();
        let peer = measure_classic(redis, &runtime, &classic, pace)?;
        report.record("lease", "classic script, processor", peer.micros, PER_DECISION);
        redis.flush()?;
        await_window_with_room(size.room)?;
        rounds.push(round(redis, report, size, clients)?);
    }
    let figures = |figure: fn(&LeaseRound) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>());
    // A script call contains up to 64 requests: the bar counts each as a command.
    report.bars.at_most(
        "requests to Redis per decision",
        figures(|round| round.operations_per_decision),
        0.1,
    );
    // The nodes share one core here, so together they are as fast as one.
    let times = figures(|round| round.per_second) / central;
    report.bars.at_least("× central, decisions per second", times, 10.0);
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn round(
    redis: &RedisProcess,
    report: &mut Report,
    size: Size,
    clients: Vec<Vec<Vec<u32>>>,
) -> anyhow::Result<LeaseRound> {
    // The default algorithm of a policy.
    let limit = Limit::new(Algorithm::SlidingCounter, Spec::new(REQUESTS, TimeSpan::from_secs(SECONDS)))?;
    let (before, own_before) = (redis.info()?, process_time());
    let start = Arc::new(Barrier::new(NODES));
    // Both nodes at once: they share the clients, and one core.
    let nodes: Vec<_> = clients
        .into_iter()
        .map(|clients| {
            let config = RedisConfig { coordination: Coordination::Lease, ..redis.config()? };
            let start = Arc::clone(&start);
            Ok(std::thread::spawn(move || run_node(config, clients, limit, &start)))
        })
        .collect::<anyhow::Result<_>>()?;
    let (mut longest, mut operations) = (Duration::ZERO, 0.0);
    for node in nodes {
        let run = node.join().ok().context("a node panicked")??;
        let per_second = (size.decisions / NODES) as f64 / run.took.as_secs_f64();
        report.record("lease", "node, wall", per_second, "decisions/s");
        let LeaseReport { grants, settlements, rejections, .. } = run.lease;
        println!("    {grants} grants, {settlements} settlements, {rejections} requests without a grant");
        operations += run.operations;
        longest = longest.max(run.took);
    }
    let after = redis.info()?;
    let decisions = size.decisions as f64;
    let calls = after.script_calls()? - before.script_calls()?;
    let commands = after.number("total_commands_processed")? - before.number("total_commands_processed")?;
    let cpu = after.cpu()? - before.cpu()?;
    let own = process_time().saturating_sub(own_before).as_secs_f64();
    let per_second = decisions / longest.as_secs_f64();
    report.record("lease", "both nodes on one core, wall", per_second, "decisions/s");
    report.record("lease", "requests in a script call", operations / calls, "");
    report.record("lease", "commands, also in scripts", commands / decisions, "per decision");
    report.record("lease", "Redis, per request", cpu / operations * 1e6, "µs of a core");
    report.record("lease", "nodes, per decision", own / decisions * 1e6, "µs of a core");
    report.record("lease", "tidegate, processor", (own + cpu) / decisions * 1e6, PER_DECISION);
    Ok(LeaseRound { operations_per_decision: operations / decisions, per_second })
}

/// Waits if the window ends during the measurement, which takes a small part of a window. At the end of a window all leases end, so
/// that the first requests of all clients would be counted twice, and a window that is not used up only once.
fn await_window_with_room(room: Duration) -> anyhow::Result<()> {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let left = Duration::from_secs(SECONDS - since_epoch.as_secs() % SECONDS);
    if left < room {
        println!("  waiting {} s for the next window", left.as_secs());
        std::thread::sleep(left);
    }
    Ok(())
}

/// Decides for clients that are drawn before the measurement, by as many callers as in the work with central decisions.
fn run_node(
    config: RedisConfig,
    clients: Vec<Vec<u32>>,
    limit: Limit,
    start: &Barrier,
) -> anyhow::Result<NodeRun> {
    let runtime = runtime()?;
    let clock = Arc::new(SystemClock::new());
    let store = Arc::new(RedisStore::new(config, clock.clone()));
    let connected = runtime.block_on(warm_up(&store));
    start.wait();
    connected?;
    let started = Instant::now();
    runtime.block_on(async {
        let mut callers = JoinSet::new();
        for clients in clients {
            let (store, clock) = (Arc::clone(&store), Arc::clone(&clock));
            callers.spawn(async move {
                for (number, client) in clients.iter().enumerate() {
                    let client = client.to_be_bytes();
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
    let took = started.elapsed();
    let report = store.report();
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let operations = report.link.operations as f64;
    Ok(NodeRun { took, operations, lease: report.lease })
}

/// The clients of each caller of a node.
fn draw_all(zipf: &[u32], node: usize, decisions: usize) -> Vec<Vec<u32>> {
    let count = decisions / NODES / CALLERS;
    (0..CALLERS).map(|caller| draw(zipf, (node * CALLERS + caller) as u64, count)).collect()
}

/// The clients of one caller, in order.
fn draw(zipf: &[u32], seed: u64, count: usize) -> Vec<u32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let draws = (0..count).filter_map(|_| zipf.get(rng.usize(..zipf.len())).copied());
    draws.collect()
}

/// A table of clients in which client k appears about 1/k as often as client 1.
fn zipf_clients(clients: usize) -> Vec<u32> {
    const TABLE: usize = 1 << 22;
    let harmonic: f64 = (1..=clients).map(|rank| 1.0 / f64::from(u32::try_from(rank).unwrap_or(1))).sum();
    let mut table = Vec::with_capacity(TABLE + clients);
    for rank in 1..=u32::try_from(clients).unwrap_or(u32::MAX) {
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
