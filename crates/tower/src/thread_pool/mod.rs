//! An isolated pool of threads for blocking work, with a bounded queue.
//!
//! Blocking work on the threads of the runtime stops everything else; on the runtime's own blocking threads all kinds of work
//! share one pool. A [`ThreadPool`] for each kind keeps a slow one from taking the threads of the others.
//! [`ThreadPoolLayer`] makes a service of a blocking function.

mod error;
mod future;
mod handle;
mod layer;
mod service;

pub use error::{ThreadPoolError, ThreadPoolFull, ThreadPoolPanic};
pub use future::{ThreadPoolFuture, ThreadPoolWork};
pub use handle::ThreadPool;
pub use layer::ThreadPoolLayer;
pub use service::ThreadPoolService;
