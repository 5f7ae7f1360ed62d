//! The connection to Redis: sends operations and returns their replies.
//!
//! One thread does all I/O. Callers put operations into a queue; the thread sends everything that waits for a server as one
//! pipeline, in which operations of one script and one hash slot share a script call. A server that does not respond, or
//! cannot be reached, opens its breaker: calls then fail at once, and only the thread itself probes the server.
//!
//! An operation is sent again only if a server said that it did not execute it (`MOVED`, `ASK`, `TRYAGAIN`, `NOSCRIPT`,
//! `LOADING`, `READONLY`, `CLUSTERDOWN`). After a timeout or a lost connection its result is unknown: it is never sent again.

mod batch;
mod connect;
mod dispatcher;
mod error;
mod error_replies;
mod failure_log;
mod queue;
mod replies;
mod routes;
mod server;
mod stats;
mod subscription;
#[cfg(test)]
mod tests;
mod thread;
mod topology;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate_core::Timestamp;
use tidegate_store::{Clock, ClockReading, StoreError, SystemClock};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};

use self::error_replies::ErrorReplies;
use self::queue::{CallBody, CallQueue, CallReply};
use self::routes::{RouteTable, SlotRoute};
use self::stats::LinkStats;
use crate::config::{RedisConfig, TimeSource};
use crate::key::KeyNames;
use crate::operation::{Operation, OperationReply};
use crate::server_time::ServerTime;

pub(crate) use self::connect::{RedisConnector, ServerConnection};
pub(crate) use self::error::{ConnectError, LinkError, is_unsent, missing_permission};
pub use self::error_replies::ErrorReplyReport;
pub use self::stats::{BATCH_BOUNDS, LATENCY_BOUNDS, LinkReport};
pub(crate) use self::subscription::ChannelEvent;
pub(crate) use self::topology::{Topology, ask_sentinel, discover};

/// How often a server that fails is probed.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// The connection to Redis. Its thread ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Link {
    config: RedisConfig,
    names: Arc<KeyNames>,
    clock: Arc<dyn Clock>,
    server_time: Arc<ServerTime>,
    shared: Arc<LinkState>,
    /// `None` if the thread could not be started: then every call fails.
    runtime: Option<LinkRuntime>,
}

/// The running thread.
#[derive(Debug)]
struct LinkRuntime {
    handle: Handle,
    connector: Arc<RedisConnector>,
    available: watch::Receiver<bool>,
    /// Dropping it stops the thread.
    _stop: oneshot::Sender<()>,
}

/// What callers and the I/O thread share.
#[derive(Debug)]
struct LinkState {
    queue: CallQueue,
    routes: ArcSwap<RouteTable>,
    stats: LinkStats,
    error_replies: ErrorReplies,
    /// The thread's own clock: the store's clock may be set by hand.
    timer: SystemClock,
    /// Counts up while the thread works.
    heartbeat: AtomicU64,
}

/// The reply to a call in the queue.
type PendingReply = oneshot::Receiver<Result<CallReply, StoreError>>;

impl Link {
    /// Starts the thread. Redis need not be there yet.
    pub(crate) fn new(config: RedisConfig, clock: Arc<dyn Clock>) -> Self {
        let names = Arc::new(KeyNames::new(&config.prefix, &config.secret));
        let shared = Arc::new(LinkState {
            queue: CallQueue::default(),
            routes: ArcSwap::from_pointee(RouteTable::Unknown),
            stats: LinkStats::default(),
            error_replies: ErrorReplies::default(),
            timer: SystemClock::new(),
            heartbeat: AtomicU64::new(0),
        });
        let runtime = match thread::start(&config, &names, &shared) {
            Ok(runtime) => Some(runtime),
            Err(error) => {
                shared.routes.store(Arc::new(RouteTable::Unreachable));
                tracing::error!(event = "redis_unavailable", "cannot use the store: {error}");
                None
            }
        };
        let server_time = match config.time {
            TimeSource::Server => ServerTime::unknown(),
            // A trace has no other time than its own.
            TimeSource::Caller => ServerTime::equal(),
        };
        Self { config, names, clock, server_time: Arc::new(server_time), shared, runtime }
    }

    /// Derives the names of keys.
    pub(crate) fn names(&self) -> &KeyNames {
        &self.names
    }

    /// The configuration.
    pub(crate) fn config(&self) -> &RedisConfig {
        &self.config
    }

    /// The clock of this process.
    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The server's time as it was seen last.
    pub(crate) fn server_time(&self) -> &Arc<ServerTime> {
        &self.server_time
    }

    /// Whether keys of different slots need separate operations.
    pub(crate) fn has_slots(&self) -> bool {
        self.config.endpoint.is_cluster()
    }

    /// Runs `operation` within the timeout. An operation whose result is unknown is never sent again. `now` counts only with
    /// [`TimeSource::Caller`].
    pub(crate) async fn call(
        &self,
        operation: Operation,
        now: Timestamp,
    ) -> Result<OperationReply, StoreError> {
        let slot = operation.slot().unwrap_or_default();
        match self.submit(CallBody::Operation(operation, self.counted_time(now)), slot).await? {
            CallReply::Operation(reply) => Ok(reply),
            CallReply::Command(_) => {
                Err(StoreError::Protocol { reason: "no reply to the operation".to_owned() })
            }
        }
    }

    /// Sends `operation` without waiting for its reply. It is in the queue when this returns, behind all earlier ones. Unless
    /// the reply is awaited, it may not be sent.
    pub(crate) fn send(
        &self,
        operation: Operation,
        now: Timestamp,
    ) -> Result<impl Future<Output = Result<(), StoreError>> + Send + use<>, StoreError> {
        let slot = operation.slot().unwrap_or_default();
        let reply = self.enqueue(CallBody::Operation(operation, self.counted_time(now)), slot)?;
        Ok(async move { reply.await.unwrap_or_else(|_| Err(LinkError::Stopped.into())).map(drop) })
    }

    /// The time that counts, if it is the caller's.
    fn counted_time(&self, now: Timestamp) -> Option<Timestamp> {
        match self.config.time {
            TimeSource::Server => None,
            TimeSource::Caller => Some(now),
        }
    }

    /// Sends a command of the store itself to the server of hash slot `slot`, within the timeout.
    pub(crate) async fn command(&self, slot: u16, command: &redis::Cmd) -> Result<redis::Value, StoreError> {
        match self.submit(CallBody::Command(command.clone()), slot).await? {
            CallReply::Command(value) => Ok(value),
            CallReply::Operation(_) => {
                Err(StoreError::Protocol { reason: "no reply to the command".to_owned() })
            }
        }
    }

    async fn submit(&self, body: CallBody, slot: u16) -> Result<CallReply, StoreError> {
        self.enqueue(body, slot)?.await.unwrap_or_else(|_| Err(LinkError::Stopped.into()))
    }

    fn enqueue(&self, body: CallBody, slot: u16) -> Result<PendingReply, StoreError> {
        let LinkState { queue, routes, stats, timer, .. } = &*self.shared;
        let error = match routes.load().route(slot) {
            SlotRoute::Server(server) if !server.is_available() => {
                Some(LinkError::BreakerOpen { address: server.address.clone() })
            }
            SlotRoute::Nowhere => Some(LinkError::NoServer { slot }),
            SlotRoute::Server(_) | SlotRoute::Wait => None,
        };
        if let Some(error) = error {
            stats::add(&stats.rejected_open, 1);
            return Err(error.into());
        }
        let reply = queue.submit(body, slot, timer.read());
        Ok(reply.inspect_err(|_| stats::add(&stats.rejected_full, 1))?)
    }

    /// Whether Redis is believed to work: calls are sent to at least one server.
    pub(crate) fn is_available(&self) -> bool {
        match &**self.shared.routes.load() {
            RouteTable::Unknown => true,
            routes => routes.servers().iter().any(|server| server.is_available()),
        }
    }

    /// Whether a server replies, but with errors to everything: it is reachable and does not work.
    pub(crate) fn is_refused(&self) -> bool {
        self.shared.routes.load().servers().iter().any(|server| server.is_refusing())
    }

    /// Waits until every known server is connected and works.
    pub(crate) async fn wait_until_connected(&self) {
        if let Some(runtime) = &self.runtime {
            // An error means that the thread has ended.
            let _ = runtime.available.clone().wait_for(|available| *available).await;
        }
    }

    /// Runs a background task of the store until the link is dropped.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.handle.spawn(task);
        }
    }

    /// Subscribes to a channel, and again whenever the connection was lost.
    pub(crate) fn subscribe(&self, channel: &str) -> mpsc::Receiver<ChannelEvent> {
        let (sender, receiver) = mpsc::channel(1_024);
        if let Some(runtime) = &self.runtime {
            let (shared, connector) = (Arc::clone(&self.shared), Arc::clone(&runtime.connector));
            self.spawn(subscription::run(shared, connector, channel.to_owned(), sender));
        }
        receiver
    }

    /// The state and the counts.
    pub(crate) fn report(&self) -> LinkReport {
        let (routes, now) = (self.shared.routes.load(), self.shared.timer.now());
        let open = routes.servers().iter().filter(|server| !server.is_available()).count();
        LinkReport {
            servers: routes.servers().len() as u64,
            servers_open: open as u64,
            servers_connected: self.shared.stats.connected.load(Ordering::Relaxed),
            unanswered: self.shared.queue.unanswered() as u64,
            last_error_reply: self.shared.error_replies.last(now),
            ..self.shared.stats.report(now)
        }
    }
}

impl LinkState {
    fn now(&self) -> Timestamp {
        self.timer.now()
    }

    fn timer_reading(&self) -> ClockReading {
        self.timer.read()
    }

    fn beats(&self) -> u64 {
        self.heartbeat.load(Ordering::Relaxed)
    }
}
