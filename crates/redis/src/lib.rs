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
mod key;
mod link;
mod nodes;
mod operation;
mod script;
mod shared;

pub use central::CentralStore;
pub use config::{RedisConfig, TimeSource, TlsMaterial};
pub use endpoint::{Endpoint, EndpointError};
pub use shared::SharedRecords;
pub use link::{BATCH_BOUNDS, LATENCY_BOUNDS, LinkReport};
