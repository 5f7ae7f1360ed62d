//! Visits the connections of a worker at regular ticks, so that none of them needs a timer.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use slab::Slab;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::activity::Activity;
use super::idle_policy::{IdlePolicy, IdleTimeouts};
use super::response_streams::ResponseStreams;
use super::send_queue::{AddressPair, SendQueues};
use crate::resource_limits::ResourceLimits;

/// The tick during a shutdown: a connection without traffic for one tick is closed. Closing immediately would be too soon: a
/// request may be in transit, and over HTTP/1.1 only a response can announce that no further request is accepted.
const STOPPING_TICK: Duration = Duration::from_millis(500);

/// A worker with more connections than this parks each one after its response. That saves memory and costs rebuilding the
/// HTTP state for the next request.
const PARK_EARLY_ABOVE: usize = 2_048;

/// What a connection must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdleAction {
    Keep,
    /// Drop the HTTP state while the connection is idle.
    Park,
    /// Accept no further request.
    Drain,
    /// Close immediately.
    Abort,
}

/// Watches the connections of a worker.
#[derive(Debug)]
pub(crate) struct Watchdog {
    tick: Duration,
    timeouts: IdleTimeouts,
    connections: RefCell<Slab<Rc<WatchedConn>>>,
    queues: SendQueues,
}

/// The watchdog's state of a connection.
#[derive(Debug)]
struct WatchedConn {
    activity: Arc<Activity>,
    /// `None` if the socket is about to fail.
    addresses: Option<AddressPair>,
    /// Its responses, over HTTP/2.
    streams: OnceCell<Rc<ResponseStreams>>,
    policy: RefCell<IdlePolicy>,
    action: Cell<IdleAction>,
    waker: RefCell<Option<Waker>>,
}

impl WatchedConn {
    fn request(&self, action: IdleAction) {
        self.action.set(action);
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

impl Watchdog {
    pub(crate) fn new(limits: &ResourceLimits) -> Self {
        Self {
            tick: limits.tick(),
            timeouts: IdleTimeouts::new(limits),
            connections: RefCell::default(),
            queues: SendQueues::default(),
        }
    }

    /// Watches a connection until the handle is dropped.
    pub(super) fn watch(
        self: &Rc<Self>,
        activity: &Arc<Activity>,
        addresses: Option<AddressPair>,
    ) -> WatchHandle {
        let watched = Rc::new(WatchedConn {
            activity: Arc::clone(activity),
            addresses,
            streams: OnceCell::new(),
            policy: RefCell::default(),
            action: Cell::new(IdleAction::Keep),
            waker: RefCell::default(),
        });
        let key = self.connections.borrow_mut().insert(Rc::clone(&watched));
        WatchHandle { watchdog: Rc::clone(self), watched, key }
    }

    /// Visits all connections at every tick. After `stop` turns true, it ticks more often and drains connections that may
    /// be closed.
    pub(crate) async fn run(self: Rc<Self>, mut stop: watch::Receiver<bool>) {
        let mut ticks = tokio::time::interval(self.tick);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        let mut is_stopping = false;
        loop {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop), if !is_stopping => {
                    is_stopping = true;
                    ticks = tokio::time::interval(STOPPING_TICK);
                    ticks.reset();
                }
                _ = ticks.tick() => self.visit_all(is_stopping),
            }
        }
    }

    fn visit_all(&self, is_stopping: bool) {
        for (_, watched) in &*self.connections.borrow() {
            let WatchedConn { activity, policy, addresses, streams, .. } = &**watched;
            // Written bytes may still be in the send queue: the kernel buffers far more than a slow client reads.
            let delivered = || {
                let waiting =
                    addresses.and_then(|addresses| self.queues.unacknowledged(addresses)).unwrap_or_default();
                activity.written().saturating_sub(waiting.into())
            };
            let action = if is_stopping {
                if IdlePolicy::may_close(activity) { IdleAction::Drain } else { IdleAction::Keep }
            } else {
                if let Some(streams) = streams.get() {
                    streams.tick(activity);
                }
                policy.borrow_mut().tick(activity, &self.timeouts, delivered)
            };
            if action != IdleAction::Keep {
                watched.request(action);
            }
        }
    }
}

/// Registers a connection with the watchdog until it is dropped.
#[derive(Debug)]
pub(super) struct WatchHandle {
    watchdog: Rc<Watchdog>,
    watched: Rc<WatchedConn>,
    key: usize,
}

impl WatchHandle {
    /// Takes the pending action. The task is woken when there is another.
    pub(super) fn poll_action(&self, cx: &Context<'_>) -> IdleAction {
        let mut waker = self.watched.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        self.watched.action.replace(IdleAction::Keep)
    }

    /// The connection uses HTTP/2: the read rate of each response is measured separately. `start` is what the client has sent
    /// so far.
    pub(super) fn begin_http2(&self, start: &[u8]) -> Rc<ResponseStreams> {
        self.watched.activity.http2_started();
        let new = || Rc::new(ResponseStreams::new(start, self.watchdog.timeouts.reader));
        Rc::clone(self.watched.streams.get_or_init(new))
    }

    /// Whether hyper could not parse a head.
    pub(super) fn is_unparsable(&self) -> bool {
        self.watched.activity.is_unparsable()
    }

    /// Whether to park the connection without waiting for a tick.
    pub(super) fn should_park(&self) -> bool {
        self.watchdog.connections.borrow().len() > PARK_EARLY_ABOVE
            && self.watched.activity.is_between_requests()
    }
}

impl Drop for WatchHandle {
    fn drop(&mut self) {
        self.watchdog.connections.borrow_mut().try_remove(self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use tokio::time::{Instant, sleep};

    use super::*;

    type Event = fn(&Activity);

    /// The time from `event` to the abort, for a connection that starts `offset` after a tick.
    #[expect(clippy::disallowed_methods, reason = "paused time")]
    async fn aborted_after(limits: &ResourceLimits, offset: Duration, event: Event) -> Duration {
        let watchdog = Rc::new(Watchdog::new(limits));
        let (_stop, stopping) = watch::channel(false);
        let aborted = async {
            sleep(offset).await;
            let activity = Arc::new(Activity::default());
            let handle = watchdog.watch(&activity, None);
            event(&activity);
            let since = Instant::now();
            poll_fn(|cx| match handle.poll_action(cx) {
                IdleAction::Abort => Poll::Ready(()),
                IdleAction::Keep | IdleAction::Park | IdleAction::Drain => Poll::Pending,
            })
            .await;
            since.elapsed()
        };
        tokio::select! {
            elapsed = aborted => elapsed,
            () = Rc::clone(&watchdog).run(stopping) => unreachable!("the watchdog does not return"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn idle_watchdog_timeouts_fire_never_early_and_less_than_a_tick_late() {
        let limits = ResourceLimits::default();
        let uneven = ResourceLimits { head_timeout: Duration::from_millis(7_100), ..limits };
        for limits in [limits, uneven] {
            let cases: [(&str, Duration, Event); 3] = [
                ("idle", limits.idle_timeout, |_| {}),
                ("head", limits.head_timeout, Activity::bytes_received),
                ("reader", limits.reader_window, |activity| activity.socket_wrote(&Poll::Pending)),
            ];
            for (name, timeout, event) in cases {
                let (timeout, tick) = (timeout.as_millis(), limits.tick().as_millis());
                let in_whole_ticks = timeout.next_multiple_of(tick);
                for offset in [1, 1_000, 2_300] {
                    let elapsed = aborted_after(&limits, Duration::from_millis(offset), event).await;
                    // Tokio rounds every timer up to a millisecond.
                    let possible = timeout..in_whole_ticks + tick + 50;
                    assert!(possible.contains(&elapsed.as_millis()), "{name} {offset}: {elapsed:?}");
                }
            }
        }
    }
}
