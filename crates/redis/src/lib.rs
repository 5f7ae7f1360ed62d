//! Counters in Redis or Valkey, shared by all nodes.
//!
//! One Lua script decides. Redis runs it exclusively, so a decision over several checks is atomic without a lock. Time is the
//! server's, so nodes with different clocks agree. The script is the only other copy of the arithmetic in `tidegate-core`;
//! the conformance suite compares the two, field by field.
//!
//! Supported so far: `token_bucket`, one server, Redis 7.0 or newer.

#![forbid(unsafe_code)]

mod central;
mod config;
mod endpoint;
mod invalidation;
mod key;
mod lease;
mod link;
mod lost_writes;
mod membership;
mod nodes;
mod operation;
mod rejections;
mod report;
mod script;
mod stand_in;
mod store;

pub use central::CentralStore;
pub use config::{RedisConfig, TimeSource, TlsMaterial};
pub use endpoint::{Endpoint, EndpointError};
pub use lease::{LeaseReport, LeaseStore};
pub use link::{BATCH_BOUNDS, LATENCY_BOUNDS, LinkReport};
pub use report::{FallbackDecisions, StoreReport};
pub use store::RedisStore;
