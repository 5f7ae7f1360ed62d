//! Counters in Redis or Valkey, shared by every node that asks.
//!
//! One Lua script decides: Redis runs it alone, so a decision over several checks is atomic without any lock
//! of ours. Time is the server's, so nodes whose clocks differ agree. The script is the second and last copy
//! of the arithmetic in `tidegate-core`; the conformance suite holds the two together, field by field.
//!
//! So far: `token_bucket`, one server, Redis 7.0 or newer.

#![forbid(unsafe_code)]

mod central;
mod key;
mod script;

pub use central::{CentralStore, TimeSource};
