//! Memory of Redis per live key of a token bucket.

use std::sync::Arc;

use tidegate_core::{Check, CounterKey, RuleId, Timestamp};
use tidegate_redis::RedisStore;
use tidegate_store::Store;

use super::Report;
use super::central::{bucket, runtime, warm_up};
use super::classic::Classic;
use super::server::RedisProcess;

const KEYS: usize = 100_000;
const REQUESTS: u64 = 100;
/// Long enough that every key is live at the end.
const SECONDS: u64 = 3_600;

pub(crate) fn run(redis: &RedisProcess, report: &mut Report) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let mut classic = runtime.block_on(Classic::connect(&redis.client()?))?;
    let store = Arc::new(RedisStore::new(redis.config()?, RedisProcess::clock()));
    runtime.block_on(warm_up(&store))?;
    let used = || redis.info()?.number("used_memory");
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let per_key = |bytes: f64| bytes / KEYS as f64;

    let before = used()?;
    runtime.block_on(async {
        for client in 0..KEYS {
            classic.decide(client, REQUESTS, SECONDS).await?;
        }
        anyhow::Ok(())
    })?;
    let peer = per_key(used()? - before);
    report.record("memory", "classic script", peer, "bytes per key");

    redis.flush()?;
    let before = used()?;
    let limit = bucket(REQUESTS, SECONDS)?;
    runtime.block_on(async {
        for client in 0..KEYS {
            let client = format!("user:{client:07}");
            let check = Check::new(CounterKey::new(RuleId::named("bench"), client.as_bytes()), &limit);
            store.decide(&[check], Timestamp::ZERO).await?;
        }
        anyhow::Ok(())
    })?;
    let own = per_key(used()? - before);
    report.record("memory", "tidegate", own, "bytes per key");
    report.bars.at_most("× classic script, bytes per key", own / peer, 0.65);
    Ok(())
}
