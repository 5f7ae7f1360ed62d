//! The store against real servers.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests speak through their names and fail by panicking")]

mod carried_limits;
mod central;
mod close;
mod doctor;
mod failure;
mod lease;
mod link;
mod membership;
mod other_nodes;
mod overrides;
mod permits;
mod rolling_change;
mod rolling_nodes;
mod shared;
mod store;
mod sync;

use tidegate_core::{TimeSpan, Timestamp};
use tidegate_store::{Clock, SystemClock};
use tidegate_testkit::process::RedisServer;

async fn raw(server: &RedisServer) -> redis::aio::MultiplexedConnection {
    redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap()
}

/// Every key expires: one without a TTL would stay for ever. Returns the number of keys.
async fn assert_all_keys_expire(connection: &mut redis::aio::MultiplexedConnection) -> usize {
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query_async(connection).await.unwrap();
    for key in &keys {
        let ttl: i64 = redis::cmd("PTTL").arg(key).query_async(connection).await.unwrap();
        assert_ne!(ttl, -1, "{} does not expire", key.escape_ascii());
    }
    keys.len()
}

/// A clock with the right speed and the wrong time.
#[derive(Debug)]
pub(crate) struct SkewedClock {
    ahead: TimeSpan,
    behind: TimeSpan,
    clock: SystemClock,
}

impl Clock for SkewedClock {
    fn now(&self) -> Timestamp {
        self.clock.now() + self.ahead - self.behind
    }
}

impl SkewedClock {
    fn new(ahead: TimeSpan, behind: TimeSpan) -> Self {
        Self { ahead, behind, clock: SystemClock::new() }
    }
}
