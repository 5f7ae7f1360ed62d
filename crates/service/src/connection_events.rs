//! What a connection waits for besides its bytes: the end of the service, and the next check of its timeouts.

use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::unconstrained;
use tokio::time::{Sleep, sleep};

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionEvent {
    /// The service stops.
    Stop,
    /// An interval has passed.
    Tick,
}

/// The events of one connection. All are polled by one task: it is registered once for each, and not at every poll.
pub(crate) struct ConnectionEvents {
    stop: watch::Receiver<bool>,
    is_stopped: bool,
    stopped: Pin<Box<dyn Future<Output = ()>>>,
    tick: Pin<Box<Sleep>>,
    interval: Duration,
    is_registered: bool,
}

impl ConnectionEvents {
    /// `stop` turns true when the service stops. A tick comes after each `interval`.
    pub(crate) fn new(stop: &watch::Receiver<bool>, interval: Duration) -> Self {
        let mut stopping = stop.clone();
        let stopped = async move { drop(stopping.wait_for(|stop| *stop).await) };
        Self {
            stop: stop.clone(),
            is_stopped: false,
            stopped: Box::pin(stopped),
            tick: Box::pin(sleep(interval)),
            interval,
            is_registered: false,
        }
    }

    /// Whether the service stops. Cheap enough for each read.
    pub(crate) fn is_stopped(&mut self) -> bool {
        self.is_stopped = self.is_stopped
            || match self.stop.has_changed() {
                Ok(false) => false,
                Ok(true) => *self.stop.borrow_and_update(),
                // The service has ended.
                Err(_) => true,
            };
        self.is_stopped
    }

    /// The next event. After `Stop` there is no other.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionEvent> {
        if self.is_stopped() {
            return Poll::Ready(ConnectionEvent::Stop);
        }
        if !self.is_registered {
            self.register(cx);
        }
        if self.is_stopped {
            return Poll::Ready(ConnectionEvent::Stop);
        }
        if !self.tick.is_elapsed() {
            return Poll::Pending;
        }
        self.tick.set(sleep(self.interval));
        self.is_registered = false;
        Poll::Ready(ConnectionEvent::Tick)
    }

    /// Registers the task for both events.
    fn register(&mut self, cx: &mut Context<'_>) {
        // A task that has used up its budget would not be registered.
        let mut registering = pin!(unconstrained(poll_fn(|cx| {
            self.is_stopped = self.stopped.as_mut().poll(cx).is_ready();
            // Whether it has elapsed is asked later.
            let _ = self.tick.as_mut().poll(cx);
            Poll::Ready(())
        })));
        self.is_registered = registering.as_mut().poll(cx).is_ready();
    }
}

/// Lets the tasks that are ready run before this one.
///
/// Connections do so before they send small answers: the answers to all requests that have arrived are then sent one after the
/// other, clients send their next requests together, and both sides wake up less often.
pub(crate) async fn requeue() {
    let mut is_queued = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut is_queued, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Decides for a worker whether answers are deferred with [`requeue`], which only delays them while one connection at a time is
/// ready.
#[derive(Debug, Default)]
pub(crate) struct AnswerDeferral {
    /// The number of answers, deferred or not.
    answers: Cell<u64>,
    /// The connections that wait now.
    waiting: Cell<usize>,
    /// Whether another connection waited or answered while the last one waited.
    is_shared: Cell<bool>,
    /// The answers since the last one that was deferred.
    skipped: Cell<u8>,
}

impl AnswerDeferral {
    /// After this many answers without a deferral, one is deferred to find out whether others are ready.
    const MAX_SKIPPED: u8 = 15;

    /// Lets other connections that are ready run first, if recent answers found any.
    pub(crate) async fn wait(&self) {
        let number = self.answers.get().wrapping_add(1);
        self.answers.set(number);
        if !self.is_shared.get() && self.skipped.get() < Self::MAX_SKIPPED {
            self.skipped.set(self.skipped.get() + 1);
            return;
        }
        self.skipped.set(0);
        let others = self.waiting.get();
        let waiting = WaitingAnswer::new(&self.waiting);
        requeue().await;
        drop(waiting);
        self.is_shared.set(others > 0 || self.answers.get() != number);
    }
}

/// Counts a connection that waits. Drop ends the wait, also that of a connection that is aborted.
struct WaitingAnswer<'w>(&'w Cell<usize>);

impl<'w> WaitingAnswer<'w> {
    fn new(waiting: &'w Cell<usize>) -> Self {
        waiting.set(waiting.get() + 1);
        Self(waiting)
    }
}

impl Drop for WaitingAnswer<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

impl fmt::Debug for ConnectionEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionEvents").field("interval", &self.interval).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(15);

    async fn next(events: &mut ConnectionEvents) -> ConnectionEvent {
        poll_fn(|cx| events.poll(cx)).await
    }

    #[tokio::test(start_paused = true)]
    #[expect(clippy::disallowed_methods, reason = "time is paused: no clock is read")]
    async fn events_tick_at_intervals_until_the_stop() {
        let (sender, stop) = watch::channel(false);
        let mut events = ConnectionEvents::new(&stop, INTERVAL);
        let start = Instant::now();
        for number in 1..=3 {
            assert_eq!(next(&mut events).await, ConnectionEvent::Tick);
            assert_eq!(start.elapsed().as_secs(), number * INTERVAL.as_secs());
            assert!(!events.is_stopped());
        }
        let stopping = async {
            tokio::task::yield_now().await;
            sender.send(true).unwrap();
        };
        let (event, ()) = tokio::join!(next(&mut events), stopping);
        assert_eq!((event, start.elapsed()), (ConnectionEvent::Stop, 3 * INTERVAL));
        assert_eq!(next(&mut events).await, ConnectionEvent::Stop, "for ever");
        drop(sender);
        assert!(events.is_stopped());
    }

    #[tokio::test]
    async fn requeued_task_runs_after_those_that_are_ready() {
        let order = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let tasks = tokio::task::LocalSet::new();
        for name in ["a", "b"] {
            let order = std::rc::Rc::clone(&order);
            tasks.spawn_local(async move {
                order.borrow_mut().push(format!("{name} 1"));
                requeue().await;
                order.borrow_mut().push(format!("{name} 2"));
            });
        }
        tasks.await;
        assert_eq!(*order.borrow(), ["a 1", "b 1", "a 2", "b 2"]);
    }

    #[tokio::test]
    async fn answers_of_one_connection_at_a_time_are_rarely_deferred() {
        let deferral = AnswerDeferral::default();
        for answer in 0..40_u8 {
            deferral.wait().await;
            assert_eq!((deferral.skipped.get(), deferral.is_shared.get()), ((answer + 1) % 16, false));
        }
        assert_eq!(deferral.waiting.get(), 0);
    }

    #[tokio::test]
    async fn answers_of_connections_that_are_ready_together_are_deferred_together() {
        let deferral = std::rc::Rc::new(AnswerDeferral::default());
        let most = std::rc::Rc::new(Cell::new(0));
        let tasks = tokio::task::LocalSet::new();
        for _ in 0..3 {
            let (deferral, most) = (std::rc::Rc::clone(&deferral), std::rc::Rc::clone(&most));
            tasks.spawn_local(async move {
                for _ in 0..40 {
                    deferral.wait().await;
                    most.set(most.get().max(deferral.waiting.get()));
                    tokio::task::yield_now().await;
                }
            });
        }
        tasks.await;
        assert_eq!((most.get(), deferral.waiting.get(), deferral.is_shared.get()), (2, 0, true));
    }

    #[tokio::test(start_paused = true)]
    async fn events_of_a_dropped_service_are_its_stop() {
        let (sender, stop) = watch::channel(false);
        let mut events = ConnectionEvents::new(&stop, INTERVAL);
        drop(sender);
        assert_eq!(next(&mut events).await, ConnectionEvent::Stop);
    }

    #[tokio::test(start_paused = true)]
    async fn events_of_a_task_without_budget_are_not_lost() {
        let (_sender, stop) = watch::channel(false);
        let mut events = ConnectionEvents::new(&stop, INTERVAL);
        let tasks = tokio::task::LocalSet::new();
        let waiting = tasks.spawn_local(async move {
            // Uses up the budget.
            poll_fn(|cx| {
                while pin!(tokio::task::consume_budget()).poll(cx).is_ready() {}
                Poll::Ready(())
            })
            .await;
            next(&mut events).await
        });
        assert_eq!(tasks.run_until(waiting).await.unwrap(), ConnectionEvent::Tick);
    }
}
