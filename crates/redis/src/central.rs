//! The central store: Redis makes every decision.

use redis::Script;
use redis::aio::ConnectionManager;
use tidegate_core::{Check, CounterKey, Decision, Refund, Timestamp};
use tidegate_store::{Override, Store, StoreError};

use crate::script::{ScriptCall, central, decisions};

/// The shortest TTL of a key: short enough to cost little, long enough for every round trip.
const MIN_TTL_MILLIS: u64 = 1_000;
/// With time from the caller, keys must outlive a trace that is replayed faster than real time.
const CALLER_TTL_MILLIS: u64 = 3_600_000;

/// The clock that counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeSource {
    /// The Redis server's clock: all nodes agree.
    #[default]
    Server,
    /// The caller's `now`, to replay traces.
    Caller,
}

/// Counters in one Redis server.
#[derive(Clone)]
pub struct CentralStore {
    connection: ConnectionManager,
    script: Script,
    time: TimeSource,
}

impl CentralStore {
    /// A store over an open connection.
    pub fn new(connection: ConnectionManager, time: TimeSource) -> Self {
        Self { connection, script: central(), time }
    }

    /// Connects to `url`, such as `redis://127.0.0.1:6379`.
    pub async fn connect(url: &str, time: TimeSource) -> Result<Self, StoreError> {
        let client = redis::Client::open(url).map_err(store_error)?;
        let connection = ConnectionManager::new(client).await.map_err(store_error)?;
        Ok(Self::new(connection, time))
    }

    async fn run(&self, operation: &str, call: &ScriptCall, now: Timestamp) -> Result<Vec<u64>, StoreError> {
        let (now, ttl) = match self.time {
            TimeSource::Server => (String::new(), MIN_TTL_MILLIS),
            TimeSource::Caller => (now.as_micros().to_string(), CALLER_TTL_MILLIS),
        };
        let mut invocation = self.script.prepare_invoke();
        invocation.arg(operation).arg(now).arg(ttl);
        for key in &call.keys {
            invocation.key(key);
        }
        for number in &call.numbers {
            invocation.arg(*number);
        }
        invocation.invoke_async(&mut self.connection.clone()).await.map_err(store_error)
    }

    async fn run_checks(
        &self,
        operation: &str,
        batch: &[&[Check<'_>]],
        now: Timestamp,
    ) -> Result<Vec<Decision>, StoreError> {
        let reply = self.run(operation, &ScriptCall::checks(batch)?, now).await?;
        decisions(batch, &reply)
    }

    async fn run_one(
        &self,
        operation: &str,
        checks: &[Check<'_>],
        now: Timestamp,
    ) -> Result<Decision, StoreError> {
        let mut decisions = self.run_checks(operation, &[checks], now).await?;
        decisions.pop().ok_or_else(|| StoreError::Protocol { reason: "no decision in the reply".to_owned() })
    }
}

impl Store for CentralStore {
    async fn decide(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        self.run_one("decide", checks, now).await
    }

    async fn decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        decisions.append(&mut self.run_checks("decide", batch, now).await?);
        Ok(())
    }

    async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        self.run_one("peek", checks, now).await
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<(), StoreError> {
        self.run("refund", &ScriptCall::refunds(refunds)?, now).await.map(drop)
    }

    async fn reset(&self, key: CounterKey<'_>) -> Result<(), StoreError> {
        self.run("reset", &ScriptCall::reset(key), Timestamp::ZERO).await.map(drop)
    }

    async fn override_limit(
        &self,
        key: CounterKey<'_>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.run("override", &ScriptCall::override_limit(key, replacement.as_ref())?, now).await.map(drop)
    }
}

/// An error reply of the server is not an outage: its cause is the script, the user's permissions or the server's version.
fn store_error(error: redis::RedisError) -> StoreError {
    match error.kind() {
        redis::ErrorKind::Server(_) | redis::ErrorKind::Extension => {
            StoreError::Protocol { reason: format!("{error} (Redis 7.0 or newer is required)") }
        }
        _ => StoreError::Unavailable(Box::new(error)),
    }
}
