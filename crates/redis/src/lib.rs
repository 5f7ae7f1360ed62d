//! Counters in Redis or Valkey, shared by all nodes.
//!
//! [`RedisStore`] is the store of a node. Each rule has its own coordination: [`CentralStore`] asks Redis for every decision,
//! [`LeaseStore`] spends leased blocks, [`SyncStore`] exchanges counts at an interval, and [`StaticStore`] enforces a part of
//! the limit without Redis. While Redis fails, the failure mode of each rule decides.
//! The permits of concurrency limits can be shared too: they expire unless their node renews them.
//!
//! Lua scripts decide. Redis runs them exclusively, so a decision over several checks of one hash slot is atomic without a
//! lock; in a cluster, a decision over several slots is charged slot by slot and cancelled if one of them rejects it. Time is
//! the server's, so nodes with different clocks agree. The scripts are the only other copy of the arithmetic in
//! `tidegate-core`; the conformance suite compares the two, field by field.
//!
//! One thread does all I/O; decisions that wait at the same moment share a script call. A node repeats a rejection from memory
//! until the counter may admit again, and learns through a channel that another node has reset, refunded or overridden it.
//! Nodes announce themselves every second; their number divides limits in the first lease and while Redis fails.
//!
//! [`SharedRecords`] exchanges bans, overrides and penalties between nodes, encrypted. [`diagnose`] examines a server for
//! `tidegate doctor`. [`RedisStore::report`] has the numbers for metrics.
//!
//! One server, Sentinel or a cluster; Redis 7.0 or newer, or Valkey.

#![forbid(unsafe_code)]

mod central;
mod config;
mod doctor;
mod endpoint;
mod fallback;
mod invalidation;
mod key;
mod lease;
mod link;
mod local_overrides;
mod lost_writes;
mod membership;
mod nodes;
mod operation;
mod permits;
mod rejections;
mod report;
mod script;
mod server_time;
mod share_table;
mod shared;
mod static_store;
mod store;
mod support;
mod sync;

pub use central::CentralStore;
pub use config::{RedisConfig, TimeSource, TlsMaterial};
pub use doctor::{Diagnosis, DiagnosisItem, DiagnosisLevel, diagnose};
pub use endpoint::{Endpoint, EndpointError};
pub use fallback::FallbackReport;
pub use lease::{LeaseReport, LeaseStore};
pub use link::{BATCH_BOUNDS, ErrorReplyReport, LATENCY_BOUNDS, LinkReport};
pub use report::{FallbackDecisions, StoreReport};
pub use shared::SharedRecords;
pub use static_store::StaticStore;
pub use store::RedisStore;
pub use sync::{SyncReport, SyncStore};
