//! hyper's executor on the runtime of one core: no part of a request changes threads.

use std::future::Future;

use hyper::rt::Executor;

/// Spawns on the runtime of the current core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalExecutor;

impl<F> Executor<F> for LocalExecutor
where
    F: Future + 'static,
{
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}
