//! hyper's executor on the runtime of the current worker: tasks do not change threads.

use std::future::Future;

use hyper::rt::Executor;

/// Spawns on the runtime of the current worker.
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
