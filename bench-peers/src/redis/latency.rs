//! How long central decisions take.

use std::sync::Arc;
use std::time::Instant;

use tidegate_redis::RedisStore;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::central::{CALLERS, CAPACITY, CLIENTS, SECONDS, bucket, decide, runtime, warm_up};
use super::server::RedisProcess;
use super::{Pace, Report};
use crate::bars::median;

/// Latency at about half of the saturation, which fewer callers produce, and of PINGs on the same connection meanwhile.
pub(crate) fn run(
    redis: &RedisProcess,
    report: &mut Report,
    pace: Pace,
    saturation: f64,
) -> anyhow::Result<()> {
    let runtime = &runtime()?;
    let store = &Arc::new(RedisStore::new(redis.config()?, RedisProcess::clock()));
    runtime.block_on(warm_up(store))?;
    let mut callers = 1;
    while callers < CALLERS && load(runtime, store, callers, 20_000)?.per_second < saturation / 2.0 {
        callers += 1;
    }
    let (mut ratios, mut latencies) = (Vec::new(), Load::default());
    for _ in 0..pace.rounds {
        let round = load(runtime, store, callers, pace.decisions)?;
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
