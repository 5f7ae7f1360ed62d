//! Requests that wait for their turn, or are delayed.
//!
//! - `queues`: who departs next. A pure state machine, tested on virtual time.
//! - this file: one lock around it, a signal for each place, and a timer for the first place of each queue. A request waits in its own
//!   task, so it may be dropped at any time: its place is a guard.
//! - `turn`: joining a queue, and the decision when the turn has come.
//!
//! **Why so.** The queue does not decide anything: when its turn has come, a request is checked like a new one, so bans, lock-outs,
//! permits and other limits apply as they are then, and nothing is held meanwhile but the request itself. One lock for all queues is
//! enough, because it is taken only for requests that wait and, while any does, for requests whose limit can make them wait. The first
//! place learns the turn of the second in the same call of the store that decides about its own request, so a departure needs
//! one call, whatever the length of the queue.

mod queues;
mod turn;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_core::{ActionSet, Cost, CounterKey, OwnedKey, Timestamp};
use tidegate_store::Clock;
use tokio::sync::Notify;
use tokio::time::timeout;

pub use queues::WaitBounds;
use queues::{JoinError, PlaceId, PlaceState, WaitQueues, WaitRequest};
pub use turn::WaitTerms;

type KeyMap<V> = HashMap<OwnedKey, V>;
type Signal = Arc<Notify>;

/// All places of a process.
#[derive(Debug)]
pub struct WaitRoom {
    queues: Mutex<WaitQueues<Signal>>,
    /// The number of places, for requests that need not lock the queues.
    len: AtomicUsize,
    hasher: RandomState,
}

impl Default for WaitRoom {
    fn default() -> Self {
        let queues = Mutex::new(WaitQueues::new(WaitBounds::default()));
        Self { queues, len: AtomicUsize::new(0), hasher: RandomState::new() }
    }
}

impl WaitRoom {
    /// The number of requests that wait or are delayed.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Replaces the bounds. Places that exceed the new ones stay.
    pub fn set_bounds(&self, bounds: WaitBounds) {
        self.lock().set_bounds(bounds);
    }

    /// From now on nothing waits beyond `ends`, because the process ends: requests whose turn comes later are refused at once.
    pub fn end_at(&self, ends: Timestamp) {
        for signal in self.change(|queues| queues.end_at(ends)) {
            signal.notify_one();
        }
    }

    /// A place for a request of `client` that departs at `turn`; `None` if too many wait, or if the process ends before.
    pub fn delay(self: &Arc<Self>, client: &[u8], turn: Timestamp) -> Option<WaitPlace> {
        let (client, signal) = (self.hasher.hash_one(client), Signal::default());
        let id = self.change(|queues| queues.delay(client, turn, Arc::clone(&signal))).ok()?;
        let terms = WaitTerms { arrived: turn, deadline: None, performs: ActionSet::NONE };
        Some(WaitPlace {
            room: Arc::clone(self),
            id,
            signal,
            key: None,
            expires: turn,
            terms,
            turn: Turn::Come,
        })
    }

    /// Ends the waits of a client that is locked out.
    pub(crate) fn lock_out(&self, key: CounterKey<'_>) {
        if !self.is_empty() {
            for signal in self.change(|queues| queues.lock_out(key)) {
                signal.notify_one();
            }
        }
    }

    /// The counter of `key` has changed: the first that waits for it may depart now.
    pub(crate) fn hasten(&self, key: CounterKey<'_>, now: Timestamp) {
        if !self.is_empty() {
            let first = self.lock().hasten(key, now);
            if let Some(signal) = first {
                signal.notify_one();
            }
        }
    }

    /// The earliest turn of a request that would join the queue of `key`; `None` if there is no queue.
    fn turn_behind(&self, key: CounterKey<'_>, cost: Cost) -> Option<Timestamp> {
        if self.is_empty() { None } else { self.lock().turn_behind(key, cost) }
    }

    fn join(
        self: &Arc<Self>,
        request: WaitRequest<'_, ()>,
        terms: WaitTerms,
        now: Timestamp,
    ) -> Result<WaitPlace, JoinError> {
        let signal = Signal::default();
        let (key, expires) = (OwnedKey::from(request.key), request.expires);
        let request = request.signalled(Arc::clone(&signal));
        let id = self.change(|queues| queues.join(request, now))?;
        let room = Arc::clone(self);
        Ok(WaitPlace { room, id, signal, key: Some(key), expires, terms, turn: Turn::Come })
    }

    /// Changes the queues, and publishes the number of places.
    fn change<R>(&self, change: impl FnOnce(&mut WaitQueues<Signal>) -> R) -> R {
        let mut queues = self.lock();
        let result = change(&mut queues);
        self.len.store(queues.len(), Ordering::Release);
        result
    }

    fn lock(&self) -> MutexGuard<'_, WaitQueues<Signal>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a request that waits or is delayed. Dropped, it is free, and those behind it move up.
#[derive(Debug)]
pub struct WaitPlace {
    room: Arc<WaitRoom>,
    id: PlaceId,
    signal: Signal,
    /// The counter that it waits for; `None` for a delay.
    key: Option<OwnedKey>,
    expires: Timestamp,
    terms: WaitTerms,
    /// How the wait has ended.
    turn: Turn,
}

/// How a wait ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The turn of the request has come.
    Come,
    /// It does not come in time: the request is refused.
    Over,
}

impl WaitPlace {
    /// Waits for the turn. Nothing polls: the first place of a queue has a timer, and the others are told.
    pub async fn turn(&mut self, clock: &dyn Clock) -> Turn {
        loop {
            let state = self.room.lock().state(self.id);
            let (until, due) = match state {
                PlaceState::Over => return self.end(Turn::Over),
                PlaceState::Behind => (self.expires, Turn::Over),
                PlaceState::First { turn } | PlaceState::Delayed { turn } => (turn, Turn::Come),
            };
            let left = until.since(clock.now());
            // A change since the state was read has left a permit.
            if left.is_zero() || timeout(left.into(), self.signal.notified()).await.is_err() {
                return self.end(due);
            }
        }
    }

    fn end(&mut self, turn: Turn) -> Turn {
        self.turn = turn;
        turn
    }

    /// Leaves the queue. `next` is when the place behind may depart, if that is known.
    fn leave(&self, next: Option<Timestamp>) {
        let told = self.room.change(|queues| {
            if let Some(next) = next {
                queues.set_turn(self.id, next);
            }
            queues.leave(self.id)
        });
        if let Some(signal) = told {
            signal.notify_one();
        }
    }

    /// Stays the first of its queue, and may depart at `turn`. Whether that is in time.
    fn postpone(&self, turn: Timestamp) -> bool {
        self.room.lock().set_turn(self.id, turn);
        turn <= self.expires
    }

    /// The cost of the request behind.
    fn next_cost(&self) -> Option<Cost> {
        self.room.lock().next_cost(self.id)
    }
}

impl Drop for WaitPlace {
    fn drop(&mut self) {
        self.leave(None);
    }
}
