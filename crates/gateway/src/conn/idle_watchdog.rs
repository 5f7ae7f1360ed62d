//! Who looks after the connections of a core: every few seconds somebody goes round, so that none needs a timer.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use slab::Slab;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::conn::activity::Activity;
use crate::conn::liveness::Watch;
use crate::conn::response_streams::ResponseStreams;
use crate::conn::send_queue::{Ends, SendQueues};
use crate::resource_limits::Bounds;

/// When stopping, a connection over which nothing has moved for so long is closed. At once would be too soon: a request
/// may be on its way, and over HTTP/1.1 only an answer can say that no other is taken.
const LINGER: Duration = Duration::from_millis(500);

/// A core with more connections than this lets each rest as soon as it has been answered: making its HTTP state anew
/// for the next request is work, but keeping it for so many is memory that few of them use.
const CROWD: usize = 2_048;

/// What a connection is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Stay,
    /// Nothing goes on: it may give back the memory that it works with.
    Rest,
    /// No further request.
    Close,
    End,
}

/// The connections of a core.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    wards: RefCell<Slab<Rc<Seat>>>,
    queues: SendQueues,
}

/// What is kept of a connection that is looked after.
#[derive(Debug)]
struct Seat {
    activity: Arc<Activity>,
    /// Unknown of a socket that is about to fail.
    ends: Option<Ends>,
    /// Its responses, if it speaks HTTP/2.
    streams: OnceCell<Rc<ResponseStreams>>,
    watch: RefCell<Watch>,
    order: Cell<Order>,
    waker: RefCell<Option<Waker>>,
}

impl Seat {
    fn tell(&self, order: Order) {
        self.order.set(order);
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

impl Rounds {
    /// Looks after a connection until the guard is dropped.
    pub(crate) fn begin(self: &Rc<Self>, activity: &Arc<Activity>, ends: Option<Ends>) -> Ward {
        let seat = Rc::new(Seat {
            activity: Arc::clone(activity),
            ends,
            streams: OnceCell::new(),
            watch: RefCell::default(),
            order: Cell::new(Order::Stay),
            waker: RefCell::default(),
        });
        let place = self.wards.borrow_mut().insert(Rc::clone(&seat));
        Ward { rounds: Rc::clone(self), seat, place }
    }

    /// Goes round every look; when `stop` turns true, more often, and closes what may be closed.
    pub(crate) async fn go(self: Rc<Self>, bounds: Bounds, mut stop: watch::Receiver<bool>) {
        let mut looks = tokio::time::interval(bounds.look);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        looks.reset();
        let mut is_stopping = false;
        loop {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop), if !is_stopping => {
                    is_stopping = true;
                    looks = tokio::time::interval(LINGER);
                    looks.reset();
                }
                _ = looks.tick() => self.round(is_stopping, bounds.reader_bytes),
            }
        }
    }

    fn round(&self, is_stopping: bool, least: u64) {
        for (_, seat) in &*self.wards.borrow() {
            let Seat { activity, watch, ends, streams, .. } = &**seat;
            // The system accepts far more than a slow client takes.
            let delivered = || {
                let waiting = ends.and_then(|ends| self.queues.unacknowledged(ends)).unwrap_or_default();
                activity.written().saturating_sub(waiting.into())
            };
            let order = if is_stopping {
                if Watch::may_close(activity) { Order::Close } else { Order::Stay }
            } else {
                if let Some(streams) = streams.get() {
                    streams.look(activity);
                }
                watch.borrow_mut().look(activity, least, delivered)
            };
            if order != Order::Stay {
                seat.tell(order);
            }
        }
    }
}

/// A connection that is looked after.
#[derive(Debug)]
pub(crate) struct Ward {
    rounds: Rc<Rounds>,
    seat: Rc<Seat>,
    place: usize,
}

impl Ward {
    /// What it is told now. It is woken when it is told something else.
    pub(crate) fn order(&self, cx: &Context<'_>) -> Order {
        let mut waker = self.seat.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        self.seat.order.replace(Order::Stay)
    }

    /// It speaks HTTP/2: its responses are looked after one by one.
    pub(crate) fn multiplex(&self, streams: Rc<ResponseStreams>) {
        self.seat.activity.multiplex();
        // It begins only once.
        let _ = self.seat.streams.set(streams);
    }

    /// Whether a head came that HTTP cannot parse.
    pub(crate) fn is_unparsable(&self) -> bool {
        self.seat.activity.is_unparsable()
    }

    /// Whether it had better rest at once.
    pub(crate) fn makes_room(&self) -> bool {
        self.rounds.wards.borrow().len() > CROWD && self.seat.activity.is_between_requests()
    }
}

impl Drop for Ward {
    fn drop(&mut self) {
        self.rounds.wards.borrow_mut().try_remove(self.place);
    }
}
