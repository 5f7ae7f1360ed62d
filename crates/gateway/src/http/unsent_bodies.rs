//! Request bodies that wait for the server on an HTTP/2 connection.
//!
//! A body that the server does not read can use up the window of the connection, and then all bodies of the connection wait.
//! hyper polls the next frame of a body when the last one has been sent, so a frame that was polled and is not followed by
//! another poll waits. Each frame does for a moment. So the time is taken when another request finds a frame that waits, and
//! the connection is stuck if a later one still finds the same: bodies that make progress cost no clock read.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tidegate_core::{TimeSpan, Timestamp};

/// A frame that waits for longer waits for the server.
const USUAL_WAIT: TimeSpan = TimeSpan::from_millis(5);

/// The bodies of a connection that have an unsent frame.
#[derive(Debug, Default)]
pub(crate) struct UnsentBodies {
    frames: Cell<u64>,
    /// The numbers of their frames, in ascending order.
    waiting: RefCell<Vec<u64>>,
    /// The first of them when a request found it, and when that was.
    found: Cell<Option<(u64, Timestamp)>>,
}

impl UnsentBodies {
    /// Whether a body waits for the server.
    pub(crate) fn are_stuck(&self, now: impl FnOnce() -> Timestamp) -> bool {
        let Some(oldest) = self.waiting.borrow().first().copied() else { return false };
        let now = now();
        match self.found.get() {
            Some((frame, since)) if frame == oldest => now.since(since) >= USUAL_WAIT,
            _ => {
                self.found.set(Some((oldest, now)));
                false
            }
        }
    }

    fn add(&self) -> u64 {
        let frame = self.frames.get();
        self.frames.set(frame + 1);
        self.waiting.borrow_mut().push(frame);
        frame
    }

    fn remove(&self, frame: u64) {
        let mut waiting = self.waiting.borrow_mut();
        if let Ok(index) = waiting.binary_search(&frame) {
            waiting.remove(index);
        }
    }
}

/// The unsent frame of one body.
#[derive(Debug)]
pub(crate) struct UnsentFrame {
    bodies: Rc<UnsentBodies>,
    number: Option<u64>,
}

impl UnsentFrame {
    pub(crate) fn new(bodies: &Rc<UnsentBodies>) -> Self {
        Self { bodies: Rc::clone(bodies), number: None }
    }

    /// The last frame was sent; whether there is another one.
    pub(crate) fn replace(&mut self, has_next: bool) {
        if let Some(number) = self.number.take() {
            self.bodies.remove(number);
        }
        self.number = has_next.then(|| self.bodies.add());
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
        let at = |millis| bodies.are_stuck(|| START + TimeSpan::from_millis(millis));
        let (mut first, mut second) = (UnsentFrame::new(&bodies), UnsentFrame::new(&bodies));
        assert!(!bodies.are_stuck(|| unreachable!("no body waits")));
        for turn in 0..10 {
            first.replace(true);
            assert!(!at(turn * 10) && !at(turn * 10 + 4), "{turn}: it makes progress");
        }
        second.replace(true);
        assert!(at(95), "the first one");
        drop(first);
        assert!(!at(96) && !at(100));
        assert!(at(101), "the second one");
        second.replace(false);
        assert!(!at(200) && bodies.waiting.borrow().is_empty());
    }
}
