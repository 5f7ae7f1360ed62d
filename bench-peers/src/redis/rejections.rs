//! A flood of rejected requests of one client.

use std::sync::Arc;
use std::time::Instant;

use tidegate_core::{Check, CounterKey, RuleId};
use tidegate_redis::RedisStore;
use tidegate_store::{Clock, Store};

use super::Report;
use super::central::{bucket, runtime, warm_up};
use super::server::RedisProcess;

const FLOOD: u32 = 1_000_000;

pub(crate) fn run(redis: &RedisProcess, report: &mut Report) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let clock = RedisProcess::clock();
    let store = Arc::new(RedisStore::new(redis.config()?, clock.clone()));
    let limit = bucket(1, 3_600)?;
    let check = Check::new(CounterKey::new(RuleId::named("bench"), b"flooder"), &limit);
    let reject = async |times: u32| {
        for _ in 0..times {
            anyhow::ensure!(!store.decide(&[check], clock.now()).await?.passes(), "admitted");
        }
        Ok(())
    };
    runtime.block_on(async {
        warm_up(&store).await?;
        anyhow::ensure!(store.decide(&[check], clock.now()).await?.passes(), "the first request is rejected");
        reject(1).await
    })?;
    let sent = |store: &RedisStore| store.report().link.operations;
    let (before, start) = (sent(&store), Instant::now());
    runtime.block_on(reject(FLOOD))?;
    let nanos = start.elapsed().as_secs_f64() * 1e9 / f64::from(FLOOD);
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let operations = (sent(&store) - before) as f64;
    report.record("rejections", "tidegate", operations, "operations sent to Redis per 1,000,000 rejections");
    report.record("rejections", "tidegate", nanos, "ns per rejection");
    report.bars.at_most("Redis operations per rejection after the first", operations / f64::from(FLOOD), 0.0);
    Ok(())
}
