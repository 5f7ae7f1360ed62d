//! The I/O thread, and a second thread that frees callers if it hangs.

use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::{oneshot, watch};

use super::connect::RedisConnector;
use super::dispatcher::Dispatcher;
use super::error::ConnectError;
use super::routes::RouteTable;
use super::{LinkRuntime, LinkState, stats};
use crate::config::RedisConfig;
use crate::key::KeyNames;

/// Far longer than the interval of the heartbeat, so that a busy machine is no hanging thread.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Why the thread could not be started.
#[derive(Debug, Error)]
pub(super) enum ThreadStartError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the I/O thread cannot be started: {0}")]
    Thread(#[from] io::Error),
}

/// Starts the threads.
pub(super) fn start(
    config: &RedisConfig,
    names: &Arc<KeyNames>,
    shared: &Arc<LinkState>,
) -> Result<LinkRuntime, ThreadStartError> {
    let connector = Arc::new(RedisConnector::new(config)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let (stop, stopped) = oneshot::channel::<()>();
    let (to_available, available) = watch::channel(false);
    let dispatcher =
        Dispatcher::new(config, Arc::clone(names), Arc::clone(&connector), Arc::clone(shared), to_available);
    let end = ThreadEnd(Arc::clone(shared));
    thread::Builder::new().name("redis".to_owned()).spawn(move || {
        let _end = end;
        runtime.block_on(async {
            tokio::select! {
                // The sender is dropped with the link.
                _ = stopped => {}
                () = dispatcher.run() => {}
            }
        });
    })?;
    let watched = Arc::downgrade(shared);
    thread::Builder::new().name("redis-watch".to_owned()).spawn(move || watch(&watched))?;
    Ok(LinkRuntime { handle, connector, available, _stop: stop })
}

/// However the thread ends, calls fail from then on.
struct ThreadEnd(Arc<LinkState>);

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        self.0.routes.store(Arc::new(RouteTable::Unreachable));
        self.0.queue.expire_all();
    }
}

/// Calls expire on the I/O thread. If it makes no progress, this thread ends the waits of all callers.
fn watch(shared: &Weak<LinkState>) {
    let mut last = None;
    while let Some(shared) = shared.upgrade() {
        let beats = shared.beats();
        if last == Some(beats) {
            stats::add(&shared.stats.timeouts, shared.queue.expire_all());
        }
        last = Some(beats);
        drop(shared);
        thread::sleep(WATCH_INTERVAL);
    }
}
