//! One node process: decides and logs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use tidegate_core::{Algorithm, Check, Coordination, CounterKey, Limit, TimeSpan, Timestamp};
use tidegate_redis::{Endpoint, FallbackDecisions, RedisConfig, RedisStore};
use tidegate_store::{Clock, Store, SystemClock};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::record::Record;
use super::{CLIENTS, limit, rule};

const CALLERS: u64 = 32;
/// The time between two attempts of a caller.
const PACE: Duration = Duration::from_millis(1);
pub(super) const SYNC_INTERVAL: Duration = Duration::from_millis(100);

/// The parameters of a node.
#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    #[arg(long)]
    url: String,
    #[arg(long)]
    coordination: String,
    #[arg(long)]
    algorithm: Algorithm,
    #[arg(long, allow_hyphen_values = true)]
    skew: i64,
    #[arg(long)]
    decisions: u64,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    log: PathBuf,
}

/// A clock that is wrong by a constant.
#[derive(Debug)]
struct SkewedClock {
    clock: SystemClock,
    seconds: i64,
}

impl Clock for SkewedClock {
    fn now(&self) -> Timestamp {
        let by = TimeSpan::from_secs(self.seconds.unsigned_abs());
        if self.seconds < 0 { self.clock.now() - by } else { self.clock.now() + by }
    }
}

pub(super) fn run(args: &NodeArgs) -> anyhow::Result<()> {
    let coordination = Coordination::ALL.into_iter().find(|known| known.name() == args.coordination);
    let config = RedisConfig {
        coordination: coordination.with_context(|| format!("unknown coordination {}", args.coordination))?,
        sync_interval: SYNC_INTERVAL,
        // This is about accuracy: no decision may be made by the fallback because the machine is busy.
        timeout: Duration::from_secs(5),
        nodes: 3.try_into()?,
        ..RedisConfig::new(Endpoint::parse(&args.url)?)
    };
    let clock: Arc<dyn Clock> = Arc::new(SkewedClock { clock: SystemClock::new(), seconds: args.skew });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let records = runtime.block_on(async {
        let store = Arc::new(RedisStore::new(config, Arc::clone(&clock)));
        while store.ping().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // All nodes are known before the first request.
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let seed = args.seed.wrapping_mul(CALLERS).wrapping_add(caller);
            let limit = limit(args.algorithm)?;
            callers.spawn(call(
                Arc::clone(&store),
                Arc::clone(&clock),
                limit,
                seed,
                args.decisions / CALLERS,
            ));
        }
        let mut records = Vec::new();
        while let Some(ended) = callers.join_next().await {
            records.extend(ended??);
        }
        let fallback = store.report().fallback_decisions;
        ensure!(fallback == FallbackDecisions::default(), "decisions were made without Redis: {fallback:?}");
        anyhow::Ok(records)
    })?;
    Record::write_all(&args.log, &records)
}

async fn call(
    store: Arc<RedisStore>,
    clock: Arc<dyn Clock>,
    limit: Limit,
    seed: u64,
    decisions: u64,
) -> anyhow::Result<Vec<Record>> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut records = Vec::new();
    let mut ticks = tokio::time::interval(PACE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for _ in 0..decisions {
        ticks.tick().await;
        let client = zipf(&mut rng);
        let name = client.to_be_bytes();
        let check = Check::new(CounterKey::new(rule(), &name), &limit);
        let decision = store.decide(&[check], clock.now()).await?;
        records.push(Record { at: decision.at.as_micros(), client, admitted: decision.passes(), node: 0 });
    }
    Ok(records)
}

/// A client whose probability is about proportional to 1/rank.
fn zipf(rng: &mut fastrand::Rng) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "below the number of clients"
    )]
    let rank = f64::from(CLIENTS).powf(rng.f64()) as u32;
    rank.min(CLIENTS)
}
