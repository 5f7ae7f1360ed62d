//! Limits of open connections.
//!
//! A connection is *busy* while it has a request with the token in progress. When the table is full, a new connection
//! evicts the oldest one that is not busy. Fewer connections can be busy than can be open, so a health check always gets
//! a connection, no matter how many silent or slow clients connect.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// All open connections.
#[derive(Debug)]
pub(crate) struct ConnectionTable {
    /// At most this many are open.
    max_open: usize,
    /// At most this many are busy; less than `max_open`.
    max_busy: usize,
    state: Mutex<TableState>,
}

#[derive(Debug, Default)]
struct TableState {
    next_id: u64,
    busy: usize,
    /// Open connections by id, the oldest first.
    open: BTreeMap<u64, OpenConnection>,
}

#[derive(Debug)]
struct OpenConnection {
    is_busy: bool,
    /// The connection closes when this is dropped.
    _keep_open: oneshot::Sender<Infallible>,
}

impl ConnectionTable {
    pub(crate) fn new(max_open: usize, max_busy: usize) -> Arc<Self> {
        Arc::new(Self { max_open, max_busy, state: Mutex::default() })
    }

    /// Adds a connection. If the table is full, the oldest connection that is not busy is removed.
    pub(crate) fn add(self: &Arc<Self>) -> (ConnectionEntry, Eviction) {
        let (keep_open, evicted) = oneshot::channel();
        let mut state = self.lock();
        if state.open.len() >= self.max_open {
            let oldest = state.open.iter().find(|(_, entry)| !entry.is_busy).map(|(id, _)| *id);
            if let Some(oldest) = oldest {
                state.open.remove(&oldest);
            }
        }
        let id = state.next_id;
        state.next_id += 1;
        state.open.insert(id, OpenConnection { is_busy: false, _keep_open: keep_open });
        (ConnectionEntry { table: Arc::clone(self), id }, Eviction(evicted))
    }

    fn lock(&self) -> MutexGuard<'_, TableState> {
        // A panic cannot leave a partial change: no code that holds the lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection in the table. Drop removes it.
#[derive(Debug)]
pub(crate) struct ConnectionEntry {
    table: Arc<ConnectionTable>,
    id: u64,
}

impl ConnectionEntry {
    /// Marks the connection as busy until the guard is dropped. `None` if too many connections are busy, or this one was
    /// evicted.
    pub(crate) fn begin_request(&self) -> Option<BusyGuard<'_>> {
        let mut state = self.table.lock();
        if state.busy >= self.table.max_busy {
            return None;
        }
        state.open.get_mut(&self.id)?.is_busy = true;
        state.busy += 1;
        Some(BusyGuard(self))
    }
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        self.table.lock().open.remove(&self.id);
    }
}

/// A request with the token in progress.
#[derive(Debug)]
pub(crate) struct BusyGuard<'c>(&'c ConnectionEntry);

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.0.table.lock();
        state.busy -= 1;
        if let Some(entry) = state.open.get_mut(&self.0.id) {
            entry.is_busy = false;
        }
    }
}

/// Signals that a connection was removed from the table and must be closed.
#[derive(Debug)]
pub(crate) struct Eviction(oneshot::Receiver<Infallible>);

impl Eviction {
    pub(crate) async fn wait(&mut self) {
        // The table drops the sender; it never sends.
        let _ = (&mut self.0).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_evicted(eviction: &mut Eviction) -> bool {
        eviction.0.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn connection_added_to_a_full_table_evicts_the_oldest_idle_one() {
        let table = ConnectionTable::new(3, 2);
        let (busy, mut first) = table.add();
        let (idle, mut second) = table.add();
        let (_other, mut third) = table.add();
        let request = busy.begin_request();
        assert!(request.is_some());
        let (_new, mut fourth) = table.add();
        assert!(!is_evicted(&mut first) && is_evicted(&mut second));
        assert!(!is_evicted(&mut third) && !is_evicted(&mut fourth));
        assert!(idle.begin_request().is_none(), "it was evicted");
        drop(request);
        let (_newer, _) = table.add();
        assert!(is_evicted(&mut first) && !is_evicted(&mut third));
    }

    #[test]
    fn connection_added_after_another_closed_evicts_none() {
        let table = ConnectionTable::new(2, 1);
        let (first, _) = table.add();
        let (_second, mut eviction) = table.add();
        drop(first);
        let (_third, _) = table.add();
        assert!(!is_evicted(&mut eviction));
    }

    #[test]
    fn request_beyond_the_busy_limit_is_rejected() {
        let table = ConnectionTable::new(3, 1);
        let (first, _) = table.add();
        let (second, _) = table.add();
        let request = first.begin_request();
        assert!(request.is_some() && second.begin_request().is_none());
        drop(request);
        assert!(second.begin_request().is_some() && first.begin_request().is_some());
    }
}
