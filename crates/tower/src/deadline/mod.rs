//! Deadlines: how long the caller waits for the result, passed on from service to service.
//!
//! A [`Deadline`] is read from the headers of a request, is known within the process as a request extension and as a
//! task-local ([`Deadline::current`]), and is written to the headers of outgoing requests as the time that remains.
//!
//! [`DeadlineLayer`] does the first two in a server: a request whose deadline has passed is not started, and is dropped when
//! it passes. [`OutgoingDeadlineLayer`] does the last in a client.

mod error;
mod future;
mod handle;
mod headers;
mod layer;
mod service;

pub use error::DeadlineExceeded;
pub use future::DeadlineFuture;
pub use handle::Deadline;
pub use layer::{DeadlineLayer, OutgoingDeadlineLayer};
pub use service::{DeadlineService, OutgoingDeadlineService};
