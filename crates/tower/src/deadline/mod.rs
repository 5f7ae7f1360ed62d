//! Deadlines: how long the caller waits for the result, passed on from service to service.
//!
//! A [`Deadline`] is read from the headers of a request, is known within the process as a request extension and as a
//! task-local ([`Deadline::current`]), and is written to the headers of outgoing requests as the time that remains.

mod error;
mod handle;
mod headers;

pub use error::DeadlineExceeded;
pub use handle::Deadline;
