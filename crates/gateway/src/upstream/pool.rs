//! The connection pool of one worker.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;

use super::http1_fast::PlainConn;
use super::pooled_conn::{Conn, ConnNeed, Http1Conn, Http2Conn};
use super::server::Server;
use tidegate_store::Clock;
use tidegate_tower::bulkhead::Bulkhead;

/// Idle connections of one kind that a worker keeps to one server.
const MAX_IDLE: usize = 256;

/// All pooled connections of a worker.
#[derive(Debug)]
pub(super) struct ConnPool {
    /// By the address in memory of a server; the entry keeps the server alive.
    servers: RefCell<HashMap<*const Server, ServerConns, RandomState>>,
}

/// What the upstream of a connection says about keeping it.
#[derive(Clone, Debug)]
pub(super) struct KeepSettings {
    /// How long a connection may be idle.
    pub(super) idle: Duration,
    /// The upstream's bound on connections.
    pub(super) slots: Option<Bulkhead>,
}

impl KeepSettings {
    /// Whether a request waits for the slot of a connection, and no free slot is on its way to it.
    fn is_slot_needed(&self) -> bool {
        let is_full = |slots: &Bulkhead| slots.waiting() > 0 && slots.in_use() >= slots.config().concurrent;
        self.slots.as_ref().is_some_and(is_full)
    }

    /// Whether a connection may be replaced that keeps its slot until its last request has ended.
    pub(super) fn can_replace(&self) -> bool {
        let has_room = |slots: &Bulkhead| slots.in_use() * 2 < slots.config().concurrent;
        self.slots.as_ref().is_none_or(has_room)
    }

    /// Whether another connection can be opened now.
    pub(super) fn has_free_slot(&self) -> bool {
        self.slots.as_ref().is_none_or(|slots| slots.in_use() < slots.config().concurrent)
    }
}

#[derive(Debug)]
struct ServerConns {
    server: Arc<Server>,
    settings: KeepSettings,
    plain: Vec<IdleConn<PlainConn>>,
    http1: Vec<IdleConn<Http1Conn>>,
    /// Includes connections in use: each carries many requests.
    http2: Vec<IdleConn<Http2Conn>>,
}

impl ServerConns {
    /// The place of an HTTP/2 connection for a request. One with a body avoids connections on which another body waits, if
    /// another one can be opened: it might wait as long.
    fn find_http2(&self, need: ConnNeed, clock: &dyn Clock) -> Option<usize> {
        if need.is_alone {
            return None;
        }
        let avoids_stuck = need.has_body && self.settings.can_replace();
        let fits = |conn: &Http2Conn| {
            conn.is_for(need.owner)
                && conn.has_capacity()
                && !(avoids_stuck && conn.has_stuck_body(&self.server, clock))
        };
        self.http2.iter().position(|kept| fits(&kept.conn))
    }

    /// Closes an idle connection, the one that was used least recently. Returns whether there was one.
    fn close_one(&mut self) -> bool {
        if !self.plain.is_empty() {
            self.plain.remove(0);
        } else if !self.http1.is_empty() {
            self.http1.remove(0);
        } else if let Some(unused) = self.http2.iter().position(|kept| kept.conn.streams() == 0) {
            self.http2.remove(unused);
        } else {
            return false;
        }
        true
    }
}

/// A connection in the pool.
#[derive(Debug)]
struct IdleConn<C> {
    conn: C,
    /// How long it has certainly been idle; `None` before the first sweep.
    idle: Option<Duration>,
}

impl<C> IdleConn<C> {
    fn new(conn: C) -> Self {
        Self { conn, idle: None }
    }

    /// Whether it survives a sweep, `period` after the last one.
    fn survives(&mut self, is_usable: bool, max_idle: Duration, period: Duration) -> bool {
        let idle = self.idle.map_or(Duration::ZERO, |idle| idle.saturating_add(period));
        self.idle = Some(idle);
        is_usable && idle < max_idle
    }
}

impl ConnPool {
    pub(super) fn new() -> Self {
        Self { servers: RefCell::default() }
    }

    /// Takes a connection for one request, the most recently used one.
    pub(super) fn take(&self, server: &Server, need: ConnNeed, clock: &dyn Clock) -> Option<Conn> {
        let mut servers = self.servers.borrow_mut();
        let conns = servers.get_mut(&std::ptr::from_ref(server))?;
        while need.is_plain
            && let Some(idle) = conns.plain.pop()
        {
            if idle.conn.is_usable() {
                return Some(Conn::Plain(idle.conn));
            }
        }
        if let Some(index) = conns.find_http2(need, clock)
            && let Some(kept) = conns.http2.get_mut(index)
        {
            kept.idle = None;
            return Some(Conn::Http2(kept.conn.clone()));
        }
        while let Some(idle) = conns.http1.pop() {
            // A connection that is not ready is closed, or still writes a request.
            if idle.conn.sender.is_ready() {
                return Some(Conn::Http1(idle.conn));
            }
        }
        None
    }

    /// Whether [`Self::take`] finds a connection.
    pub(super) fn has_idle(&self, server: &Server, need: ConnNeed, clock: &dyn Clock) -> bool {
        let servers = self.servers.borrow();
        servers.get(&std::ptr::from_ref(server)).is_some_and(|conns| {
            (need.is_plain && conns.plain.iter().any(|idle| idle.conn.is_usable()))
                || conns.find_http2(need, clock).is_some()
                || conns.http1.iter().any(|idle| idle.conn.sender.is_ready())
        })
    }

    /// Whether connections to the server are known to use HTTP/2.
    pub(super) fn has_http2(&self, server: &Server) -> bool {
        let servers = self.servers.borrow();
        servers.get(&std::ptr::from_ref(server)).is_some_and(|conns| !conns.http2.is_empty())
    }

    /// Keeps a connection for the next request, unless a request is still being written over it.
    pub(super) fn keep(&self, server: &Arc<Server>, conn: Conn, settings: &KeepSettings) {
        if settings.is_slot_needed() {
            return;
        }
        self.with_conns(server, settings, |conns| match conn {
            Conn::Plain(plain) if plain.is_reusable() && conns.plain.len() < MAX_IDLE => {
                conns.plain.push(IdleConn::new(plain));
            }
            Conn::Http1(http1) if http1.sender.is_ready() && conns.http1.len() < MAX_IDLE => {
                conns.http1.push(IdleConn::new(http1));
            }
            _ => {}
        });
    }

    /// Adds a new HTTP/2 connection.
    pub(super) fn add_http2(&self, server: &Arc<Server>, http2: &Http2Conn, settings: &KeepSettings) {
        self.with_conns(server, settings, |conns| conns.http2.push(IdleConn::new(http2.clone())));
    }

    /// Removes an HTTP/2 connection. Requests in progress continue.
    pub(super) fn remove_http2(&self, server: &Arc<Server>, http2: &Http2Conn) {
        if let Some(conns) = self.servers.borrow_mut().get_mut(&Arc::as_ptr(server)) {
            conns.http2.retain(|kept| !kept.conn.is_same(http2));
        }
    }

    /// Drops connections that have timed out or that the server has closed. The last sweep was `period` ago.
    pub(super) fn sweep(&self, period: Duration) {
        self.servers.borrow_mut().retain(|_, conns| {
            let max_idle = conns.settings.idle;
            conns.plain.retain_mut(|idle| idle.survives(idle.conn.is_usable(), max_idle, period));
            conns.http1.retain_mut(|idle| idle.survives(idle.conn.sender.is_ready(), max_idle, period));
            conns.http2.retain_mut(|kept| {
                let is_in_use = kept.conn.streams() > 0;
                if is_in_use {
                    kept.idle = None;
                }
                // Otherwise uploads that the server does not read would leave many of them.
                let is_usable = !kept.conn.sender.is_closed() && (is_in_use || !kept.conn.has_lost_window());
                kept.survives(is_usable, max_idle, period)
            });
            !(conns.plain.is_empty() && conns.http1.is_empty() && conns.http2.is_empty())
        });
    }

    /// Closes one idle connection to any of `servers`. Returns whether there was one.
    pub(super) fn close_idle(&self, servers: &[Arc<Server>]) -> bool {
        let mut known = self.servers.borrow_mut();
        servers.iter().any(|server| known.get_mut(&Arc::as_ptr(server)).is_some_and(ServerConns::close_one))
    }

    /// Closes up to `count` idle connections to upstreams that have no slot left for requests that wait.
    pub(super) fn close_idle_for_waiting(&self, mut count: u64) {
        for conns in self.servers.borrow_mut().values_mut() {
            while count > 0 && conns.settings.is_slot_needed() && conns.close_one() {
                count -= 1;
            }
        }
    }

    pub(super) fn keep_only(&self, is_used: impl Fn(&Arc<Server>) -> bool) {
        self.servers.borrow_mut().retain(|_, conns| is_used(&conns.server));
    }

    fn with_conns(&self, server: &Arc<Server>, settings: &KeepSettings, act: impl FnOnce(&mut ServerConns)) {
        let mut servers = self.servers.borrow_mut();
        let conns = servers.entry(Arc::as_ptr(server)).or_insert_with(|| ServerConns {
            server: Arc::clone(server),
            settings: settings.clone(),
            plain: Vec::new(),
            http1: Vec::new(),
            http2: Vec::new(),
        });
        // A reload may have changed it.
        conns.settings.clone_from(settings);
        act(conns);
    }
}
