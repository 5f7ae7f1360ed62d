//! Memory of Redis per live key of a token bucket: what `MEMORY USAGE` says of a key, and beside it the growth of the whole
//! server, which includes its tables of keys and of expiry times (the same for every key).

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
    let usage = || key_usage(redis);
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let per_key = |bytes: f64| bytes / KEYS as f64;

    let before = used()?;
    runtime.block_on(async {
        for client in (0..KEYS).chain(0..KEYS) {
            classic.decide(client, REQUESTS, SECONDS).await?;
        }
        anyhow::Ok(())
    })?;
    let peer = usage()?;
    report.record("memory", "classic script", peer, "bytes per key");
    report.record("memory", "classic script, whole server", per_key(used()? - before), "bytes per key");

    redis.flush()?;
    let before = used()?;
    let limit = bucket(REQUESTS, SECONDS)?;
    runtime.block_on(async {
        for client in (0..KEYS).chain(0..KEYS) {
            let client = format!("user:{client:07}");
            let check = Check::new(CounterKey::new(RuleId::named("bench"), client.as_bytes()), &limit);
            store.decide(&[check], Timestamp::ZERO).await?;
        }
        anyhow::Ok(())
    })?;
    let own = usage()?;
    report.record("memory", "tidegate", own, "bytes per key");
    report.record("memory", "tidegate, whole server", per_key(used()? - before), "bytes per key");
    report.bars.at_most("× classic script, bytes per key", own / peer, 0.65);
    Ok(())
}

/// The mean of `MEMORY USAGE` over random keys.
fn key_usage(redis: &RedisProcess) -> anyhow::Result<f64> {
    const SAMPLES: u32 = 200;
    let mut connection = redis.client()?.get_connection()?;
    let mut sum = 0.0;
    for _ in 0..SAMPLES {
        let key: Vec<u8> = redis::cmd("RANDOMKEY").query(&mut connection)?;
        sum += redis::cmd("MEMORY").arg("USAGE").arg(key).query::<f64>(&mut connection)?;
    }
    Ok(sum / f64::from(SAMPLES))
}
