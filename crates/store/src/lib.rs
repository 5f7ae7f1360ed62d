//! State that is kept across requests.
//!
//! A [`Store`] decides checks: data in, data out, one `now` per decision. [`MemoryStore`] keeps its counters in this
//! process, within a memory cap. [`durable`] keeps the records that must survive the process. Other crates keep counters
//! elsewhere. Every store passes the suite in `conformance` (a feature), which replays random traces and requires the
//! decisions of a simple model, field by field.
//!
//! ```
//! use tidegate_core::{Algorithm, Check, CounterKey, Limit, RuleId, TimeSpan, Spec};
//! use tidegate_store::{Clock, MemoryStore, Store, SystemClock};
//!
//! # pollster::block_on(async {
//! let clock = SystemClock::new();
//! let store = MemoryStore::with_cap(MemoryStore::cap_for(100_000));
//! let limit = Limit::new(Algorithm::FixedWindow, Spec::new(2, TimeSpan::from_secs(60)))?;
//! let check = Check::new(CounterKey::new(RuleId::named("default"), b"alice"), &limit);
//!
//! let now = clock.now();
//! assert!(store.decide(&[check], now).await?.passes());
//! assert!(store.decide(&[check], now).await?.passes());
//! assert!(!store.decide(&[check], now).await?.passes());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```

#![deny(unsafe_code)]

mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "durable")]
pub mod durable;
mod memory;
mod penalties;
mod permits;
mod shared;
mod space_saving;
mod store;
mod sync;

pub use clock::{Clock, ClockReading, ManualClock, SystemClock, to_system_time};
pub use memory::{HeavyKey, MemoryStore, MemoryUse, RetainedLimits};
pub use penalties::{LiftListener, Penalties, PenaltyChanges, PenaltyEntry, ViolationListener};
pub use permits::{Permit, PermitGrant, Permits, SharedPermit};
pub use shared::{RecordExchange, SharedEvent, SharedRecord};
pub use space_saving::{SpaceSaving, WeightedItem};
pub use store::{Override, RuleSettings, Store, StoreError, StoredOverride, decide_in_order};

/// The examples of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
