//! Request bodies that wait for the server on an HTTP/2 connection.
//!
//! A body that the server does not read can use up the window of the connection, and then all bodies of the connection wait.
//! hyper polls the next frame of a body when the last one has been sent, so a frame that was polled and is not followed by
//! another poll waits. Each frame does for a moment. So the time is taken when another request finds a frame that waits, and
//! the connection is stuck if a later one still finds the same: bodies that make progress cost no clock read. The body that has
//! waited longest is usually the one that has used up the window, so its client is reported.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tidegate_core::{TimeSpan, Timestamp};

use crate::upstream::ClientId;

/// A frame that waits for longer waits for the server.
const USUAL_WAIT: TimeSpan = TimeSpan::from_millis(5);

/// A connection with a frame that waits for longer gets no more bodies: some servers never give back the window of a body that
/// they have not read (Hypercorn).
const LONG_WAIT: TimeSpan = TimeSpan::from_secs(1);

/// The bodies of a connection that have an unsent frame.
#[derive(Debug, Default)]
pub(crate) struct UnsentBodies {
    frames: Cell<u64>,
    /// The numbers of their frames, in ascending order, and their clients.
    waiting: RefCell<Vec<(u64, ClientId)>>,
    found: Cell<Option<FoundFrame>>,
    /// A frame has waited for long.
    has_lost_window: Cell<bool>,
}

/// The first frame when a request found it.
#[derive(Clone, Copy, Debug)]
struct FoundFrame {
    number: u64,
    since: Timestamp,
    is_reported: bool,
}

impl UnsentBodies {
    /// Whether a body waits for the server. `report` gets the client of each that does, once.
    pub(crate) fn are_stuck(
        &self,
        now: impl FnOnce() -> Timestamp,
        report: impl FnOnce(ClientId, Timestamp),
    ) -> bool {
        if self.has_lost_window.get() {
            return true;
        }
        let Some((number, client)) = self.waiting.borrow().first().copied() else { return false };
        let now = now();
        let Some(found) = self.found.get().filter(|found| found.number == number) else {
            self.found.set(Some(FoundFrame { number, since: now, is_reported: false }));
            return false;
        };
        let wait = now.since(found.since);
        let is_stuck = wait >= USUAL_WAIT;
        self.has_lost_window.set(wait >= LONG_WAIT);
        if is_stuck && !found.is_reported {
            self.found.set(Some(FoundFrame { is_reported: true, ..found }));
            report(client, now);
        }
        is_stuck
    }

    /// Whether a body has waited for long.
    pub(crate) fn have_lost_window(&self) -> bool {
        self.has_lost_window.get()
    }

    fn add(&self, client: ClientId) -> u64 {
        let frame = self.frames.get();
        self.frames.set(frame + 1);
        self.waiting.borrow_mut().push((frame, client));
        frame
    }

    fn remove(&self, frame: u64) {
        let mut waiting = self.waiting.borrow_mut();
        if let Ok(index) = waiting.binary_search_by_key(&frame, |(number, _)| *number) {
            waiting.remove(index);
        }
    }
}

/// The unsent frame of one body.
#[derive(Debug)]
pub(crate) struct UnsentFrame {
    bodies: Rc<UnsentBodies>,
    client: ClientId,
    number: Option<u64>,
}

impl UnsentFrame {
    pub(crate) fn new(bodies: &Rc<UnsentBodies>, client: ClientId) -> Self {
        Self { bodies: Rc::clone(bodies), client, number: None }
    }

    /// The last frame was sent; whether there is another one.
    pub(crate) fn replace(&mut self, has_next: bool) {
        if let Some(number) = self.number.take() {
            self.bodies.remove(number);
        }
        self.number = has_next.then(|| self.bodies.add(self.client));
    }
}

impl Drop for UnsentFrame {
    fn drop(&mut self) {
        self.replace(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_700_000_000);

    #[test]
    fn bodies_are_stuck_once_the_same_frame_has_waited_for_the_usual_time() {
        let bodies = Rc::new(UnsentBodies::default());
        let reported = Cell::new(0);
        let report = |_, _| reported.set(reported.get() + 1);
        let at = |millis| bodies.are_stuck(|| START + TimeSpan::from_millis(millis), report);
        let frame = || UnsentFrame::new(&bodies, ClientId::default());
        let (mut first, mut second) = (frame(), frame());
        assert!(!bodies.are_stuck(|| unreachable!("no body waits"), report));
        for turn in 0..10 {
            first.replace(true);
            assert!(!at(turn * 10) && !at(turn * 10 + 4), "{turn}: it makes progress");
        }
        second.replace(true);
        assert!(at(95) && at(96), "the first one");
        assert_eq!(reported.get(), 1, "once");
        drop(first);
        assert!(!at(97) && !at(101));
        assert!(at(102), "the second one");
        assert_eq!(reported.get(), 2);
        second.replace(false);
        assert!(!at(200) && bodies.waiting.borrow().is_empty());
    }

    #[test]
    fn bodies_are_stuck_for_good_after_a_frame_has_waited_for_long() {
        let bodies = Rc::new(UnsentBodies::default());
        let at = |millis| bodies.are_stuck(|| START + TimeSpan::from_millis(millis), |_, _| {});
        for (start, wait, is_lost) in [(0, 999, false), (2_000, 1_000, true)] {
            let mut frame = UnsentFrame::new(&bodies, ClientId::default());
            frame.replace(true);
            assert!(!at(start) && at(start + wait));
            drop(frame);
            assert_eq!(at(start + wait + 1), is_lost);
        }
    }
}
