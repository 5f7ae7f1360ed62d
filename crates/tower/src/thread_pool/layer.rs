//! The layer.

use tower_layer::Layer;

use super::handle::ThreadPool;
use super::service::ThreadPoolService;

/// Makes a service of a blocking function: `Fn(Request) -> Result<Response, Error>`.
#[derive(Clone, Debug)]
pub struct ThreadPoolLayer {
    pool: ThreadPool,
}

impl ThreadPoolLayer {
    /// Functions with clones of one pool share its threads.
    pub fn new(pool: ThreadPool) -> Self {
        Self { pool }
    }
}

impl<H> Layer<H> for ThreadPoolLayer {
    type Service = ThreadPoolService<H>;

    fn layer(&self, handler: H) -> Self::Service {
        ThreadPoolService { handler, pool: self.pool.clone() }
    }
}
