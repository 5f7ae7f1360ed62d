//! The loop of the I/O thread: routes calls to servers, sends them, keeps servers connected.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{RedisResult, Value};
use tidegate_core::CallOutcome;
use tidegate_store::StoreError;
use tokio::sync::{mpsc, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::batch::{Batch, Grouping};
use super::connect::{RedisConnector, ServerConnection};
use super::error::{ConnectError, LinkError};
use super::failure_log::FailureLog;
use super::queue::{PendingCall, TICKS_PER_TIMEOUT};
use super::routes::{RedisServerHealth, RouteTable, SlotRoute};
use super::server::ServerState;
use super::topology::{Topology, discover};
use super::{LinkState, PROBE_INTERVAL, stats};
use crate::config::RedisConfig;
use crate::endpoint::{Deployment, ServerAddress};
use crate::key::KeyNames;

/// The number of probe intervals between two tests of an idle server.
const PROBES_PER_PING: u64 = 10;
/// The number of probe intervals after which Sentinels are asked again: a primary that is cut off does not know it.
const PROBES_PER_SENTINEL_REFRESH: u64 = 10;
/// The nodes of a cluster redirect calls, so that they need not be asked often.
const PROBES_PER_CLUSTER_REFRESH: u64 = 100;

/// The number of turns of the loop after which the tasks that read and write sockets run at the latest.
const TURNS_PER_YIELD: u32 = 8;

/// What happens to the I/O thread's servers.
pub(super) enum LinkEvent {
    /// An attempt to connect has ended.
    Connected { address: ServerAddress, generation: u64, result: Result<ServerConnection, ConnectError> },
    /// A connection has ended.
    Closed { address: ServerAddress, generation: u64 },
    /// A pipeline was answered, or has failed.
    Answered { address: ServerAddress, generation: u64, batch: Batch, result: RedisResult<Vec<Value>> },
    /// The servers were found, or not.
    Discovered(Result<Topology, ConnectError>),
}

/// The state of the I/O thread.
pub(super) struct Dispatcher {
    pub(super) shared: Arc<LinkState>,
    pub(super) names: Arc<KeyNames>,
    connector: Arc<RedisConnector>,
    deployment: Deployment,
    pub(super) grouping: Grouping,
    tick: Duration,
    pub(super) servers: HashMap<ServerAddress, ServerState>,
    pub(super) routes: Arc<RouteTable>,
    /// Calls that wait for the first routes.
    unrouted: Vec<PendingCall>,
    /// Calls that are sent again at the next tick.
    pub(super) delayed: Vec<PendingCall>,
    is_discovering: bool,
    events: mpsc::UnboundedSender<LinkEvent>,
    received: mpsc::UnboundedReceiver<LinkEvent>,
    available: watch::Sender<bool>,
    failures: FailureLog,
    intervals: u64,
}

impl Dispatcher {
    pub(super) fn new(
        config: &RedisConfig,
        names: Arc<KeyNames>,
        connector: Arc<RedisConnector>,
        shared: Arc<LinkState>,
        available: watch::Sender<bool>,
    ) -> Self {
        let (events, received) = mpsc::unbounded_channel();
        Self {
            shared,
            names,
            connector,
            deployment: config.endpoint.deployment.clone(),
            grouping: Grouping { has_slots: config.endpoint.is_cluster() },
            tick: (config.timeout / TICKS_PER_TIMEOUT).max(Duration::from_micros(100)),
            servers: HashMap::new(),
            routes: Arc::new(RouteTable::Unknown),
            unrouted: Vec::new(),
            delayed: Vec::new(),
            is_discovering: false,
            events,
            received,
            available,
            failures: FailureLog::default(),
            intervals: 0,
        }
    }

    /// Runs until it is dropped.
    pub(super) async fn run(mut self) {
        // A thread that did not run for a while must not take the replies that wait in its sockets for timeouts.
        let delaying = |period| {
            let mut interval: Interval = interval(period);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            interval
        };
        let (mut ticks, mut intervals) = (delaying(self.tick), delaying(PROBE_INTERVAL));
        let shared = Arc::clone(&self.shared);
        self.refresh();
        let (mut is_ticking, mut turns) = (false, 0_u32);
        loop {
            let is_waiting = self.is_waiting();
            if is_waiting && !is_ticking {
                ticks.reset();
            }
            is_ticking = is_waiting;
            tokio::select! {
                // Timers are first: under constant load there is always an event or a call.
                biased;
                _ = ticks.tick(), if is_ticking => self.tick(),
                _ = intervals.tick() => self.maintain(),
                event = self.received.recv() => {
                    let mut next = event;
                    while let Some(event) = next {
                        self.handle(event);
                        next = self.received.try_recv().ok();
                    }
                }
                () = shared.queue.wait() => {}
            }
            for call in shared.queue.take() {
                self.route(call);
            }
            self.send_waiting();
            turns = turns.wrapping_add(1);
            if turns % TURNS_PER_YIELD == 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Whether time matters: somebody waits, or a server has to respond.
    fn is_waiting(&self) -> bool {
        let is_working = |server: &ServerState| server.in_flight() > 0 || server.connecting_since.is_some();
        self.shared.queue.unanswered() > 0 || self.servers.values().any(is_working)
    }

    fn handle(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Connected { address, generation, result } => {
                self.handle_connected(&address, generation, result);
            }
            LinkEvent::Closed { address, generation } => self.handle_closed(&address, generation),
            LinkEvent::Answered { address, generation, batch, result } => {
                if let Some(server) =
                    self.servers.get_mut(&address).filter(|server| server.generation == generation)
                {
                    server.finish();
                }
                self.handle_replies(&address, batch, result);
            }
            LinkEvent::Discovered(result) => {
                self.is_discovering = false;
                match result {
                    Ok(topology) => {
                        self.failures.discovered();
                        self.apply(topology);
                    }
                    Err(error) => self.handle_undiscovered(&error),
                }
            }
        }
    }

    /// Puts a call where it can be sent.
    pub(super) fn route(&mut self, call: PendingCall) {
        match self.routes.route(call.slot) {
            SlotRoute::Server(health) => self.push(&health, call),
            SlotRoute::Wait => self.unrouted.push(call),
            SlotRoute::Nowhere => self.reject(&call, LinkError::NoServer { slot: call.slot }),
        }
    }

    /// Appends a call to the backlog of a server.
    pub(super) fn push(&mut self, health: &Arc<RedisServerHealth>, call: PendingCall) {
        if health.is_available() {
            self.server(health).push(call);
        } else {
            self.reject(&call, LinkError::BreakerOpen { address: health.address.clone() });
        }
    }

    /// The state of a server; connects to it if it is new.
    pub(super) fn server(&mut self, health: &Arc<RedisServerHealth>) -> &mut ServerState {
        if !self.servers.contains_key(&health.address) {
            self.servers.insert(health.address.clone(), ServerState::new(Arc::clone(health)));
            self.connect(&health.address);
        }
        self.servers.entry(health.address.clone()).or_insert_with(|| ServerState::new(Arc::clone(health)))
    }

    /// The health of a server that may be new.
    pub(super) fn health(&self, address: &ServerAddress) -> Arc<RedisServerHealth> {
        self.servers.get(address).map_or_else(
            || Arc::new(RedisServerHealth::new(address.clone())),
            |server| Arc::clone(&server.health),
        )
    }

    /// A call that was not sent fails.
    fn reject(&self, call: &PendingCall, error: LinkError) {
        stats::add(&self.shared.stats.rejected_open, 1);
        self.shared.queue.answer(&call.reply, Err(error.into()));
    }

    /// Sends what waits for servers that can take it.
    fn send_waiting(&mut self) {
        let now = self.shared.queue.now();
        for (address, server) in &mut self.servers {
            while let Some((connection, calls)) = server.next_calls(now) {
                let mut batch = Batch::new(calls, self.grouping, server.missing_scripts.drain());
                for (call, error) in batch.invalid.drain(..) {
                    self.shared.queue.answer(&call.reply, Err(error));
                }
                for group in batch.groups.iter().flatten().filter(|group| !group.is_command()) {
                    self.shared.stats.add_script_call(group.requests());
                }
                if batch.groups.is_empty() {
                    server.finish();
                    continue;
                }
                let sending = Sending { address: address.clone(), generation: server.generation, batch };
                sending.spawn(connection, self.events.clone());
            }
        }
    }

    /// Connects, unless that is under way.
    fn connect(&mut self, address: &ServerAddress) {
        let now = self.shared.queue.now();
        let Some(server) = self.servers.get_mut(address).filter(|server| server.connecting_since.is_none())
        else {
            return;
        };
        server.disconnect();
        server.connecting_since = Some(now);
        let (connector, address, generation) =
            (Arc::clone(&self.connector), address.clone(), server.generation);
        let key = self.names.internal(&self.routes.probe_tag(&address), "probe");
        let (events, closed, closed_address) = (self.events.clone(), self.events.clone(), address.clone());
        tokio::spawn(async move {
            // The receiver has ended only if the thread ends.
            let closed = move || drop(closed.send(LinkEvent::Closed { address: closed_address, generation }));
            let result = connector.connect_and_probe(&address, key.as_bytes(), closed).await;
            let _ = events.send(LinkEvent::Connected { address, generation, result });
        });
    }

    fn handle_connected(
        &mut self,
        address: &ServerAddress,
        generation: u64,
        result: Result<ServerConnection, ConnectError>,
    ) {
        let now = self.shared.now();
        let Some(server) = self.servers.get_mut(address).filter(|server| server.generation == generation)
        else {
            return;
        };
        match result {
            Ok(connection) => {
                server.set_connection(connection);
                server.health.set_refusing(false);
                server.health.close(now);
                self.note_breakers(false);
                self.failures.recovered(address);
            }
            Err(error) => {
                server.connecting_since = None;
                server.health.set_refusing(error.is_reply());
                stats::add(&self.shared.stats.connection_errors, 1);
                if !server.health.is_available() {
                    // It was a probe.
                    server.health.record(CallOutcome::Failure, now);
                }
                self.log_failure(&error);
                self.open(address);
                self.refresh();
            }
        }
    }

    fn handle_closed(&mut self, address: &ServerAddress, generation: u64) {
        let now = self.shared.now();
        let Some(server) = self.servers.get_mut(address).filter(|server| server.generation == generation)
        else {
            return;
        };
        if server.connecting_since.is_some() {
            // The attempt itself reports what is wrong.
            return;
        }
        stats::add(&self.shared.stats.connection_errors, 1);
        server.health.set_refusing(false);
        server.disconnect();
        // A server that closes every connection at once opens the breaker; one loss does not.
        let has_opened = server.health.record(CallOutcome::Failure, now);
        if has_opened {
            self.reject_backlog(address);
        } else {
            self.connect(address);
        }
        self.note_breakers(has_opened);
        self.refresh();
    }

    /// Opens the breaker of a server and fails the calls that wait for it.
    fn open(&mut self, address: &ServerAddress) {
        let now = self.shared.now();
        if let Some(server) = self.servers.get(address) {
            let has_opened = server.health.open(now);
            self.note_breakers(has_opened);
            self.reject_backlog(address);
        }
    }

    pub(super) fn reject_backlog(&mut self, address: &ServerAddress) {
        let calls = self.servers.get_mut(address).map(ServerState::take_backlog).unwrap_or_default();
        for call in calls {
            self.reject(&call, LinkError::BreakerOpen { address: address.clone() });
        }
    }

    /// Publishes whether all servers work, after a breaker may have changed.
    pub(super) fn note_breakers(&self, has_opened: bool) {
        let servers = self.routes.servers();
        let is_open = servers.iter().any(|server| !server.is_available());
        self.shared.stats.set_open(is_open, has_opened, self.shared.now());
        let is_ready = |server: &Arc<RedisServerHealth>| {
            server.is_available() && self.servers.get(&server.address).is_some_and(ServerState::is_connected)
        };
        let connected = servers.iter().filter(|server| is_ready(server)).count();
        self.shared.stats.connected.store(connected as u64, Ordering::Relaxed);
        let available = !servers.is_empty() && connected == servers.len();
        self.available.send_if_modified(|current| std::mem::replace(current, available) != available);
    }

    /// A tick of the timeout: calls expire, servers that do not respond fail.
    fn tick(&mut self) {
        let expired = self.shared.queue.tick();
        stats::add(&self.shared.stats.timeouts, expired);
        for call in std::mem::take(&mut self.delayed) {
            if call.reply.is_wanted() {
                self.route(call);
            }
        }
        if expired > 0 {
            self.unrouted.retain(|call| call.reply.is_wanted());
            self.servers.values_mut().for_each(ServerState::remove_unwanted);
        }
        let (tick, now) = (self.shared.queue.now(), self.shared.now());
        let stalled: Vec<_> = self
            .servers
            .values()
            .filter(|server| server.is_stalled(tick))
            .map(|server| server.health.clone())
            .collect();
        for health in stalled {
            health.set_refusing(false);
            if health.is_available() && health.record(CallOutcome::Failure, now) {
                self.log_failure(&ConnectError::Timeout { address: health.address.clone() });
                self.note_breakers(true);
                self.reject_backlog(&health.address);
                if let Some(server) =
                    self.servers.get_mut(&health.address).filter(|server| server.is_connected())
                {
                    server.disconnect();
                }
                self.refresh();
            }
        }
    }

    /// Work at every probe interval: probes, pings and new routes.
    fn maintain(&mut self) {
        self.intervals += 1;
        self.shared.error_replies.check_end(self.shared.now());
        self.shared.heartbeat.fetch_add(1, Ordering::Relaxed);
        let tick = self.shared.queue.now();
        let addresses: Vec<_> = self.servers.keys().cloned().collect();
        for address in &addresses {
            let Some(server) = self.servers.get_mut(address) else { continue };
            if !server.is_connected() {
                self.connect(address);
            } else if self.intervals.is_multiple_of(PROBES_PER_PING)
                && let Some(connection) = server.next_ping(tick)
            {
                let (generation, batch) = (server.generation, Batch::ping());
                let sending = Sending { address: address.clone(), generation, batch };
                sending.spawn(connection, self.events.clone());
            }
        }
        let period = match self.deployment {
            Deployment::Single(_) => return,
            Deployment::Sentinel { .. } => PROBES_PER_SENTINEL_REFRESH,
            Deployment::Cluster(_) => PROBES_PER_CLUSTER_REFRESH,
        };
        let has_failed = self.routes.servers().is_empty()
            || self.routes.servers().iter().any(|server| !server.is_available());
        if has_failed || self.intervals.is_multiple_of(period) {
            self.refresh();
        }
    }

    /// Finds the servers again, unless that is under way.
    pub(super) fn refresh(&mut self) {
        let is_known = matches!(*self.routes, RouteTable::Single(_));
        if self.is_discovering || (is_known && matches!(self.deployment, Deployment::Single(_))) {
            return;
        }
        self.is_discovering = true;
        let known = self.routes.servers().iter().map(|server| server.address.clone()).collect();
        let (connector, deployment) = (Arc::clone(&self.connector), self.deployment.clone());
        let events = self.events.clone();
        tokio::spawn(async move {
            let found = discover(&connector, &deployment, known).await;
            let _ = events.send(LinkEvent::Discovered(found));
        });
    }

    /// Uses new routes. Calls that wait for a server without slots are routed again.
    fn apply(&mut self, topology: Topology) {
        let routes = match topology {
            Topology::Primary(address) => RouteTable::Single(self.health(&address)),
            Topology::Ranges(ranges) => RouteTable::cluster(&ranges, |address| self.health(address)),
        };
        self.set_routes(routes);
        let used: Vec<_> = self.routes.servers().to_vec();
        let is_used = |address: &ServerAddress| used.iter().any(|server| server.address == *address);
        let mut calls = std::mem::take(&mut self.unrouted);
        for (address, server) in &mut self.servers {
            if !is_used(address) {
                calls.extend(server.take_backlog());
            }
        }
        self.servers.retain(|address, server| is_used(address) || server.in_flight() > 0);
        for health in &used {
            self.server(health);
        }
        for call in calls {
            self.route(call);
        }
        self.note_breakers(false);
    }

    pub(super) fn set_routes(&mut self, routes: RouteTable) {
        self.routes = Arc::new(routes);
        self.shared.routes.store(Arc::clone(&self.routes));
    }

    fn handle_undiscovered(&mut self, error: &ConnectError) {
        stats::add(&self.shared.stats.connection_errors, 1);
        self.log_failure(error);
        if matches!(*self.routes, RouteTable::Unknown) {
            self.set_routes(RouteTable::Unreachable);
            for call in std::mem::take(&mut self.unrouted) {
                self.route(call);
            }
        }
    }

    /// Logs a failure when it is a new one.
    pub(super) fn log_failure(&mut self, error: &ConnectError) {
        self.failures.failed(error, self.shared.now());
    }

    /// Counts an error reply, and logs it when it is a new one.
    pub(super) fn note_error_reply(&self, address: &ServerAddress, reason: &str) {
        stats::add(&self.shared.stats.error_replies, 1);
        self.shared.error_replies.record(address, reason, self.shared.now());
    }

    /// Answers a call with an error reply of the server.
    pub(super) fn answer_rejected(&self, address: &ServerAddress, call: &PendingCall, reason: &str) {
        self.note_error_reply(address, reason);
        self.shared.queue.answer(&call.reply, Err(StoreError::Protocol { reason: reason.to_owned() }));
    }
}

/// A pipeline on its way.
struct Sending {
    address: ServerAddress,
    generation: u64,
    batch: Batch,
}

impl Sending {
    fn spawn(self, mut connection: ServerConnection, events: mpsc::UnboundedSender<LinkEvent>) {
        let Self { address, generation, batch } = self;
        tokio::spawn(async move {
            let result = connection.send(&batch.pipeline).await;
            let _ = events.send(LinkEvent::Answered { address, generation, batch, result });
        });
    }
}
