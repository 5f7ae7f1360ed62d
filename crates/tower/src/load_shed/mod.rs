//! Load shedding: when an adaptive concurrency limit is reached, less important requests are rejected first.
//!
//! [`LoadShedder`] is the handle: one for each service that can be overloaded on its own. [`LoadShedLayer`] rejects calls with
//! [`Overload`] and records the latency of the others, as far as they [tell it](MeasureLatency). A call that ends at its deadline
//! tells nothing, because its caller chose the deadline: a [timeout](crate::timeout) further in, shorter than usual deadlines, does.

mod error;
mod future;
mod handle;
mod layer;
mod measure;
mod service;

pub use error::Overload;
pub use future::LoadShedFuture;
pub use handle::{LoadShedPermit, LoadShedder, criticality};
pub use layer::{ByCriticalityHeader, FindCriticality, LoadShedLayer};
pub use measure::{MeasureLatency, SuccessfulResponses};
pub use service::LoadShedService;
pub use tidegate_core::{AdaptiveConfig, AdaptiveConfigError, AdaptiveLimit, Criticality};
