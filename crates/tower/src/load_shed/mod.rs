//! Load shedding: when an adaptive concurrency limit is reached, less important requests are rejected first.
//!
//! [`LoadShedder`] is the handle: one for each service that can be overloaded on its own.

mod error;
mod handle;

pub use error::Overload;
pub use handle::{LoadShedPermit, LoadShedder, criticality};
