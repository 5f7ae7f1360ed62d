//! Connections that are being opened to HTTP/2 servers.
//!
//! Requests that need one at the same time wait for the same connection. Otherwise a burst that exceeds the streams of the
//! open connections would open a connection for each of its requests.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use foldhash::fast::RandomState;
use tokio::sync::Notify;

use super::client_shares::ClientId;
use super::pooled_conn::INITIAL_STREAMS;
use super::server::Server;

/// The connections that a worker is opening, at most one for each server and owner that requests can still wait for.
#[derive(Debug, Default)]
pub(super) struct Openings(RefCell<HashMap<Key, Rc<Opening>, RandomState>>);

/// The server, and the client that the connection is for, if it is for one only.
type Key = (*const Server, Option<ClientId>);

#[derive(Debug, Default)]
struct Opening {
    waiting: Cell<usize>,
    has_timed_out: Cell<bool>,
    ended: Notify,
}

impl Openings {
    /// Waits until a connection that another request opens is open, or that has failed. Returns at once if there is none
    /// with room for this request. Returns whether it has timed out: another attempt would take as long.
    pub(super) async fn join(&self, server: &Server, owner: Option<ClientId>) -> bool {
        let opening = self.0.borrow().get(&(std::ptr::from_ref(server), owner)).map(Rc::clone);
        let has_room = |opening: &Rc<Opening>| opening.waiting.get() + 1 < INITIAL_STREAMS;
        let Some(opening) = opening.filter(has_room) else { return false };
        opening.waiting.set(opening.waiting.get() + 1);
        opening.ended.notified().await;
        opening.has_timed_out.get()
    }

    /// Lets others wait until the guard is dropped.
    pub(super) fn begin(&self, server: &Server, owner: Option<ClientId>) -> OpeningGuard<'_> {
        let (key, opening) = ((std::ptr::from_ref(server), owner), Rc::default());
        self.0.borrow_mut().insert(key, Rc::clone(&opening));
        OpeningGuard { openings: self, key, opening }
    }
}

/// A connection that is being opened.
#[derive(Debug)]
pub(super) struct OpeningGuard<'o> {
    openings: &'o Openings,
    key: Key,
    opening: Rc<Opening>,
}

impl OpeningGuard<'_> {
    pub(super) fn time_out(&self) {
        self.opening.has_timed_out.set(true);
    }
}

impl Drop for OpeningGuard<'_> {
    fn drop(&mut self) {
        let mut openings = self.openings.0.borrow_mut();
        // A later one may have taken its place.
        if openings.get(&self.key).is_some_and(|opening| Rc::ptr_eq(opening, &self.opening)) {
            openings.remove(&self.key);
        }
        self.opening.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn opening_that_ends_wakes_all_that_wait_and_reports_a_timeout() {
        let (openings, server) = (Openings::default(), Server::parse("h2c://a:1").unwrap());
        for times_out in [false, true] {
            assert!(!openings.join(&server, None).await, "there is none to wait for");
            let guard = openings.begin(&server, None);
            let end = async {
                tokio::task::yield_now().await;
                if times_out {
                    guard.time_out();
                }
                drop(guard);
            };
            let (first, second, ()) =
                tokio::join!(openings.join(&server, None), openings.join(&server, None), end);
            assert_eq!((first, second), (times_out, times_out));
        }
    }

    #[tokio::test]
    async fn opening_has_room_for_the_streams_of_one_connection() {
        let (openings, server) = (Openings::default(), Server::parse("h2c://a:1").unwrap());
        let first = openings.begin(&server, None);
        first.opening.waiting.set(INITIAL_STREAMS - 1);
        assert!(!openings.join(&server, None).await, "it does not wait");
        let second = openings.begin(&server, None);
        drop(first);
        assert!(Rc::ptr_eq(&openings.0.borrow()[&(std::ptr::from_ref(&server), None)], &second.opening));
        drop(second);
        assert!(openings.0.borrow().is_empty());
    }
}
