//! What the I/O thread knows about one server.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::connect::ServerConnection;
use super::queue::{PendingCall, TICKS_PER_TIMEOUT};
use super::routes::RedisServerHealth;
use crate::operation::ScriptName;

/// Pipelines in flight per server. Calls that come meanwhile collect for the next pipeline. With one in flight, a call may wait
/// for a whole round trip before it is sent; with two, on average for less, and calls still collect.
const MAX_IN_FLIGHT: usize = 2;
/// Calls in one pipeline.
const MAX_CALLS: usize = 512;

/// A server, its connection and the calls that wait for it.
#[derive(Debug)]
pub(super) struct ServerState {
    pub(super) health: Arc<RedisServerHealth>,
    connection: Option<ServerConnection>,
    /// Changes with every connection, so that events of an earlier one are ignored.
    pub(super) generation: u64,
    /// The tick at which the current attempt to connect began.
    pub(super) connecting_since: Option<u64>,
    /// The ticks at which the pipelines in flight were sent; replies come in this order.
    sent: VecDeque<u64>,
    backlog: VecDeque<PendingCall>,
    /// Scripts to load before the next pipeline.
    pub(super) missing_scripts: HashSet<ScriptName>,
}

impl ServerState {
    pub(super) fn new(health: Arc<RedisServerHealth>) -> Self {
        Self {
            health,
            connection: None,
            generation: 0,
            connecting_since: None,
            sent: VecDeque::new(),
            backlog: VecDeque::new(),
            missing_scripts: HashSet::new(),
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Whether nothing is connected, in flight or waiting.
    pub(super) fn is_idle(&self) -> bool {
        self.sent.is_empty() && self.backlog.is_empty()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.sent.len()
    }

    pub(super) fn set_connection(&mut self, connection: ServerConnection) {
        self.connecting_since = None;
        self.connection = Some(connection);
    }

    /// Closes the connection. What was sent has an unknown result.
    pub(super) fn disconnect(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.abort();
        }
        self.generation += 1;
        self.sent.clear();
    }

    pub(super) fn push(&mut self, call: PendingCall) {
        self.backlog.push_back(call);
    }

    pub(super) fn push_first(&mut self, call: PendingCall) {
        self.backlog.push_front(call);
    }

    /// Takes all calls that wait.
    pub(super) fn take_backlog(&mut self) -> VecDeque<PendingCall> {
        std::mem::take(&mut self.backlog)
    }

    /// Removes calls whose callers have a result or have given up.
    pub(super) fn remove_unwanted(&mut self) {
        self.backlog.retain(|call| call.reply.is_wanted());
    }

    /// The connection and the calls to send now.
    pub(super) fn next_calls(&mut self, now: u64) -> Option<(ServerConnection, Vec<PendingCall>)> {
        let connection = self.connection.as_ref().filter(|_| self.sent.len() < MAX_IN_FLIGHT)?;
        let mut calls = Vec::new();
        while calls.len() < MAX_CALLS {
            let Some(call) = self.backlog.pop_front() else { break };
            if call.reply.is_wanted() {
                calls.push(call);
            }
        }
        if calls.is_empty() {
            return None;
        }
        let connection = connection.clone();
        self.sent.push_back(now);
        Some((connection, calls))
    }

    /// The connection for a ping, if the server has nothing to do.
    pub(super) fn next_ping(&mut self, now: u64) -> Option<ServerConnection> {
        let connection = self.connection.clone().filter(|_| self.is_idle())?;
        self.sent.push_back(now);
        Some(connection)
    }

    /// A pipeline of this generation was answered.
    pub(super) fn finish(&mut self) {
        self.sent.pop_front();
    }

    /// Whether a pipeline, or an attempt to connect, has taken longer than the timeout.
    pub(super) fn is_stalled(&self, now: u64) -> bool {
        let is_over = |since: &u64| since + u64::from(TICKS_PER_TIMEOUT) <= now;
        self.sent.front().is_some_and(is_over) || self.connecting_since.as_ref().is_some_and(is_over)
    }
}
