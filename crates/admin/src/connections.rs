//! Bounds on open connections.
//!
//! A connection is *busy* while it has a request of an operator in progress. Any other connection gives way: when the
//! table is full, the oldest one that is not busy is closed for a new one. Fewer connections can be busy than can be
//! open, so a health check always gets a connection, whatever silent or slow clients do.

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
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    next_id: u64,
    busy: usize,
    /// Open connections by their number: the oldest first.
    open: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    is_busy: bool,
    /// The connection closes when this is dropped.
    _keep_open: oneshot::Sender<Infallible>,
}

impl ConnectionTable {
    pub(crate) fn new(max_open: usize, max_busy: usize) -> Arc<Self> {
        Arc::new(Self { max_open, max_busy, entries: Mutex::default() })
    }

    /// Adds a connection. If the table is full, the oldest connection that is not busy is removed.
    pub(crate) fn add(self: &Arc<Self>) -> (ConnectionEntry, Eviction) {
        let (keep_open, evicted) = oneshot::channel();
        let mut entries = self.lock();
        if entries.open.len() >= self.max_open {
            let oldest = entries.open.iter().find(|(_, entry)| !entry.is_busy).map(|(id, _)| *id);
            if let Some(oldest) = oldest {
                entries.open.remove(&oldest);
            }
        }
        let id = entries.next_id;
        entries.next_id += 1;
        entries.open.insert(id, Entry { is_busy: false, _keep_open: keep_open });
        (ConnectionEntry { table: Arc::clone(self), id }, Eviction(evicted))
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        // No code that holds the lock can panic half-way through a change.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection in the table. Drop removes it.
#[derive(Debug)]
pub(crate) struct ConnectionEntry {
    table: Arc<ConnectionTable>,
    id: u64,
}

impl ConnectionEntry {
    /// Marks the connection as busy until the guard is dropped. `None` if too many are, or this one was removed.
    pub(crate) fn begin_request(&self) -> Option<BusyGuard<'_>> {
        let mut entries = self.table.lock();
        if entries.busy >= self.table.max_busy {
            return None;
        }
        entries.open.get_mut(&self.id)?.is_busy = true;
        entries.busy += 1;
        Some(BusyGuard(self))
    }
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        self.table.lock().open.remove(&self.id);
    }
}

/// A request of an operator in progress.
#[derive(Debug)]
pub(crate) struct BusyGuard<'c>(&'c ConnectionEntry);

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        let mut entries = self.0.table.lock();
        entries.busy -= 1;
        if let Some(entry) = entries.open.get_mut(&self.0.id) {
            entry.is_busy = false;
        }
    }
}

/// Resolves when a connection was removed from the table and is to be closed.
#[derive(Debug)]
pub(crate) struct Eviction(oneshot::Receiver<Infallible>);

impl Eviction {
    pub(crate) async fn wait(&mut self) {
        // Nothing is ever sent: the sender is dropped.
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
    fn connection_added_to_a_full_table_evicts_the_oldest_that_is_not_busy() {
        let table = ConnectionTable::new(3, 2);
        let (busy, mut first) = table.add();
        let (idle, mut second) = table.add();
        let (_other, mut third) = table.add();
        let request = busy.begin_request();
        assert!(request.is_some());
        let (_new, mut fourth) = table.add();
        assert!(!is_evicted(&mut first) && is_evicted(&mut second));
        assert!(!is_evicted(&mut third) && !is_evicted(&mut fourth));
        assert!(idle.begin_request().is_none(), "its place is gone");
        drop(request);
        let (_newer, _) = table.add();
        assert!(is_evicted(&mut first) && !is_evicted(&mut third));
    }

    #[test]
    fn closed_connection_leaves_room() {
        let table = ConnectionTable::new(2, 1);
        let (first, _) = table.add();
        let (_second, mut eviction) = table.add();
        drop(first);
        let (_third, _) = table.add();
        assert!(!is_evicted(&mut eviction));
    }

    #[test]
    fn busy_connections_beyond_the_bound_are_rejected() {
        let table = ConnectionTable::new(3, 1);
        let (first, _) = table.add();
        let (second, _) = table.add();
        let request = first.begin_request();
        assert!(request.is_some() && second.begin_request().is_none());
        drop(request);
        assert!(second.begin_request().is_some() && first.begin_request().is_some());
    }
}
