//! The connection pool of one worker.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::http1_fast::PlainConn;
use super::pooled_conn::{Conn, Http1Conn, Http2Conn};
use super::server::Server;

/// Idle connections of one kind that a worker keeps to one server.
const MAX_IDLE: usize = 256;

/// All pooled connections of a worker.
#[derive(Debug)]
pub(super) struct ConnPool {
    /// By the address in memory of a server; the entry keeps the server alive.
    servers: RefCell<HashMap<*const Server, ServerConns, RandomState>>,
    /// How many sweeps an idle connection survives.
    max_sweeps: u32,
}

#[derive(Debug)]
struct ServerConns {
    server: Arc<Server>,
    plain: Vec<IdleConn<PlainConn>>,
    http1: Vec<IdleConn<Http1Conn>>,
    /// Includes connections in use: each carries many requests.
    http2: Vec<IdleConn<Http2Conn>>,
}

/// A connection in the pool.
#[derive(Debug)]
struct IdleConn<C> {
    conn: C,
    /// Consecutive sweeps that found it idle.
    sweeps: u32,
}

impl<C> IdleConn<C> {
    fn new(conn: C) -> Self {
        Self { conn, sweeps: 0 }
    }

    fn survives(&mut self, is_usable: bool, max_sweeps: u32) -> bool {
        self.sweeps += 1;
        is_usable && self.sweeps <= max_sweeps
    }
}

impl ConnPool {
    pub(super) fn new(max_sweeps: u32) -> Self {
        Self { servers: RefCell::default(), max_sweeps }
    }

    /// Takes a connection for one request, the most recently used one.
    pub(super) fn take(&self, server: &Server, is_plain: bool) -> Option<Conn> {
        let mut servers = self.servers.borrow_mut();
        let conns = servers.get_mut(&std::ptr::from_ref(server))?;
        while is_plain && let Some(idle) = conns.plain.pop() {
            if idle.conn.is_usable() {
                return Some(Conn::Plain(idle.conn));
            }
        }
        if let Some(kept) = conns.http2.iter_mut().find(|kept| kept.conn.has_capacity()) {
            kept.sweeps = 0;
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

    /// Keeps a connection for the next request, unless a request is still being written over it.
    pub(super) fn keep(&self, server: &Arc<Server>, conn: Conn) {
        self.with_conns(server, |conns| match conn {
            Conn::Plain(plain) if plain.is_reusable() && conns.plain.len() < MAX_IDLE => {
                conns.plain.push(IdleConn::new(plain));
            }
            Conn::Http1(http1) if http1.sender.is_ready() && conns.http1.len() < MAX_IDLE => {
                conns.http1.push(IdleConn::new(http1));
            }
            _ => {}
        });
    }

    /// Adds a new HTTP/2 connection. Of connections that were opened at the same time, one is kept.
    pub(super) fn add_http2(&self, server: &Arc<Server>, http2: &Http2Conn) {
        self.with_conns(server, |conns| {
            if !conns.http2.iter().any(|kept| kept.conn.has_capacity()) {
                conns.http2.push(IdleConn::new(http2.clone()));
            }
        });
    }

    /// Removes an HTTP/2 connection. Requests in progress continue.
    pub(super) fn remove_http2(&self, server: &Arc<Server>, http2: &Http2Conn) {
        self.with_conns(server, |conns| conns.http2.retain(|kept| !kept.conn.is_same(http2)));
    }

    /// Drops connections that have timed out or that the server has closed.
    pub(super) fn sweep(&self) {
        let max_sweeps = self.max_sweeps;
        self.servers.borrow_mut().retain(|_, conns| {
            conns.plain.retain_mut(|idle| idle.survives(idle.conn.is_usable(), max_sweeps));
            conns.http1.retain_mut(|idle| idle.survives(idle.conn.sender.is_ready(), max_sweeps));
            conns.http2.retain_mut(|kept| {
                if kept.conn.streams() > 0 {
                    kept.sweeps = 0;
                }
                kept.survives(!kept.conn.sender.is_closed(), max_sweeps)
            });
            !(conns.plain.is_empty() && conns.http1.is_empty() && conns.http2.is_empty())
        });
    }

    pub(super) fn keep_only(&self, is_used: impl Fn(&Arc<Server>) -> bool) {
        self.servers.borrow_mut().retain(|_, conns| is_used(&conns.server));
    }

    fn with_conns(&self, server: &Arc<Server>, act: impl FnOnce(&mut ServerConns)) {
        let mut servers = self.servers.borrow_mut();
        act(servers.entry(Arc::as_ptr(server)).or_insert_with(|| ServerConns {
            server: Arc::clone(server),
            plain: Vec::new(),
            http1: Vec::new(),
            http2: Vec::new(),
        }));
    }
}
