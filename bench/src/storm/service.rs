//! The service that is called: a number of workers and a queue.

use std::collections::VecDeque;

/// The service under load. It works on a request even if the caller has given up, as services without deadlines do.
#[derive(Debug)]
pub(super) struct Service {
    workers: usize,
    queue_length: usize,
    busy: usize,
    queue: VecDeque<usize>,
    is_down: bool,
    /// Changes when the service dies, so that work of an earlier life does not end in a later one.
    life: u32,
}

/// What the service does with an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// A worker starts at once.
    Started,
    /// The attempt waits for a worker.
    Queued,
    /// The service is down or its queue is full.
    Refused,
}

impl Service {
    pub(super) fn new(workers: usize, queue_length: usize) -> Self {
        Self { workers, queue_length, busy: 0, queue: VecDeque::new(), is_down: false, life: 0 }
    }

    pub(super) fn life(&self) -> u32 {
        self.life
    }

    pub(super) fn arrive(&mut self, attempt: usize) -> Arrival {
        if self.is_down || self.queue.len() >= self.queue_length {
            return Arrival::Refused;
        }
        if self.busy < self.workers {
            self.busy += 1;
            return Arrival::Started;
        }
        self.queue.push_back(attempt);
        Arrival::Queued
    }

    /// Ends the work of one worker. Returns the attempt that it starts next.
    pub(super) fn end_work(&mut self) -> Option<usize> {
        let next = self.queue.pop_front();
        if next.is_none() {
            self.busy -= 1;
        }
        next
    }

    /// Drops all work.
    pub(super) fn die(&mut self) {
        self.is_down = true;
        self.life += 1;
        self.busy = 0;
        self.queue.clear();
    }

    pub(super) fn recover(&mut self) {
        self.is_down = false;
    }
}
