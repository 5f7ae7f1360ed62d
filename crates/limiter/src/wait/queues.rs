//! The queues of requests that wait for their turn: a state machine without clock, threads or tasks.
//!
//! A counter has a queue while requests wait for it. Law: places leave the front of a queue in the order in which they joined it,
//! and a request for a counter that has a queue cannot be decided before all of them. So only the first place of each queue needs a
//! timer; the one behind it is told when it becomes the first. `turn` is when the first place may depart; the others know at
//! least how much later theirs comes ([`Limit::least_time_between`]), and do not join if that is too late.
//!
//! Places are numbered in the order in which they joined, so a queue is an ordered set of numbers: any place can leave it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{AsKey, Cost, CounterKey, Limit, OwnedKey, TimeSpan, Timestamp};

use super::KeyMap;

/// How many requests may wait or be delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitBounds {
    /// For one counter.
    pub counter: usize,
    /// Of one client.
    pub client: u32,
    /// In total.
    pub total: usize,
}

impl Default for WaitBounds {
    fn default() -> Self {
        Self { counter: 20_000, client: 1_000, total: 100_000 }
    }
}

/// Identifies a place. Larger numbers joined later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PlaceId(u64);

/// A request that wants to wait.
#[derive(Debug)]
pub(super) struct WaitRequest<'a, S> {
    pub(super) key: CounterKey<'a>,
    pub(super) limit: &'a Limit,
    pub(super) cost: Cost,
    /// The hash of its client.
    pub(super) client: u64,
    /// Whether other clients use the counter too.
    pub(super) is_shared: bool,
    /// When it may depart if nobody waits before it.
    pub(super) turn: Timestamp,
    /// When it no longer waits.
    pub(super) expires: Timestamp,
    /// The counters whose lock-out ends the wait.
    pub(super) lock_outs: Vec<OwnedKey>,
    /// How it is told that its state has changed.
    pub(super) signal: S,
}

impl<'a> WaitRequest<'a, ()> {
    /// The same request, which is told by `signal`.
    pub(super) fn signalled<S>(self, signal: S) -> WaitRequest<'a, S> {
        let Self { key, limit, cost, client, is_shared, turn, expires, lock_outs, signal: () } = self;
        WaitRequest { key, limit, cost, client, is_shared, turn, expires, lock_outs, signal }
    }
}

/// Why a request cannot wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JoinError {
    /// Its turn cannot come before this time, which is too late.
    TooLate(Timestamp),
    /// Too many requests wait.
    Full,
}

/// The state of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceState {
    /// Others depart before it.
    Behind,
    /// It is the first, and may depart at `turn`.
    First { turn: Timestamp },
    /// It may depart at `turn`, whatever others do: a leaky bucket or a soft limit delays it.
    Delayed { turn: Timestamp },
    /// The wait has ended: its turn comes too late, its client is locked out, or the process stops.
    Over,
}

#[derive(Debug)]
struct Place<S> {
    /// The counter that it waits for; `None` for a delay.
    key: Option<Arc<OwnedKey>>,
    cost: u64,
    client: u64,
    expires: Timestamp,
    /// When a delay ends.
    turn: Timestamp,
    lock_outs: Vec<OwnedKey>,
    signal: S,
}

#[derive(Debug)]
struct CounterQueue {
    key: Arc<OwnedKey>,
    places: BTreeSet<PlaceId>,
    /// The costs of all places.
    units: u64,
    /// When the first place may depart.
    turn: Timestamp,
    limit: Limit,
}

/// All queues of a process. `S` is a handle by which the owner of a place is told of changes; what returns a handle leaves the call
/// to the caller.
#[derive(Debug)]
pub(super) struct WaitQueues<S> {
    bounds: WaitBounds,
    queues: KeyMap<CounterQueue>,
    places: BTreeMap<PlaceId, Place<S>>,
    clients: BTreeMap<u64, u32>,
    lock_outs: KeyMap<BTreeSet<PlaceId>>,
    next: u64,
    /// What departs later is refused, because the process ends.
    ends: Option<Timestamp>,
}

impl<S: Clone> WaitQueues<S> {
    pub(super) fn new(bounds: WaitBounds) -> Self {
        Self {
            bounds,
            queues: KeyMap::default(),
            places: BTreeMap::new(),
            clients: BTreeMap::new(),
            lock_outs: KeyMap::default(),
            next: 0,
            ends: None,
        }
    }

    /// Replaces the bounds.
    pub(super) fn set_bounds(&mut self, bounds: WaitBounds) {
        self.bounds = bounds;
    }

    /// The number of places.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// The earliest turn of a request that would join the queue of `key`; `None` if there is no queue.
    pub(super) fn turn_behind(&self, key: CounterKey<'_>, cost: Cost) -> Option<Timestamp> {
        let queue = self.queues.get(&key as &dyn AsKey)?;
        Some(queue.turn_of(self.first_cost(queue), queue.units, cost.get()))
    }

    /// Adds a place at the end of the queue of its counter.
    pub(super) fn join(&mut self, request: WaitRequest<'_, S>, now: Timestamp) -> Result<PlaceId, JoinError> {
        let WaitRequest { key, limit, cost, client, is_shared, turn, expires, lock_outs, signal } = request;
        let behind = self.turn_behind(key, cost);
        let turn = behind.map_or(turn, |behind| behind.max(turn));
        let is_full = self
            .queues
            .get(&key as &dyn AsKey)
            .is_some_and(|queue| queue.places.len() >= self.bounds.counter);
        if is_full {
            return Err(JoinError::Full);
        }
        self.admit(client, turn)?;
        // A client that waits already leaves the second half of the time to others: otherwise it alone could fill the queue.
        let waits = is_shared && self.clients.contains_key(&client);
        let latest = if waits { now + half(expires.since(now)) } else { expires };
        if turn > latest {
            return Err(JoinError::TooLate(turn));
        }
        let id = self.number();
        let queue = self.queues.entry(OwnedKey::from(key)).or_insert_with_key(|key| CounterQueue {
            key: Arc::new(key.clone()),
            places: BTreeSet::new(),
            units: 0,
            turn,
            limit: *limit,
        });
        queue.places.insert(id);
        queue.units = queue.units.saturating_add(cost.get());
        queue.limit = *limit;
        for key in &lock_outs {
            self.lock_outs.entry(key.clone()).or_default().insert(id);
        }
        let key = Some(Arc::clone(&queue.key));
        let place = Place { key, cost: cost.get(), client, expires, turn, lock_outs, signal };
        self.insert(id, place);
        Ok(id)
    }

    /// Adds a place that departs at `turn`.
    pub(super) fn delay(&mut self, client: u64, turn: Timestamp, signal: S) -> Result<PlaceId, JoinError> {
        self.admit(client, turn)?;
        let id = self.number();
        let lock_outs = Vec::new();
        self.insert(id, Place { key: None, cost: 0, client, expires: turn, turn, lock_outs, signal });
        Ok(id)
    }

    /// Checks the bounds that do not depend on a counter.
    fn admit(&self, client: u64, turn: Timestamp) -> Result<(), JoinError> {
        if self.ends.is_some_and(|ends| turn > ends) {
            return Err(JoinError::TooLate(turn));
        }
        let of_client = self.clients.get(&client).copied().unwrap_or_default();
        if self.places.len() >= self.bounds.total || of_client >= self.bounds.client {
            return Err(JoinError::Full);
        }
        Ok(())
    }

    fn number(&mut self) -> PlaceId {
        self.next += 1;
        PlaceId(self.next)
    }

    fn insert(&mut self, id: PlaceId, place: Place<S>) {
        *self.clients.entry(place.client).or_default() += 1;
        self.places.insert(id, place);
    }

    /// The state of a place.
    pub(super) fn state(&self, id: PlaceId) -> PlaceState {
        let Some(place) = self.places.get(&id) else { return PlaceState::Over };
        let Some(key) = &place.key else { return PlaceState::Delayed { turn: place.turn } };
        match self.queues.get(&key.as_key() as &dyn AsKey) {
            Some(queue) if queue.places.first() == Some(&id) => {
                if queue.turn > place.expires {
                    PlaceState::Over
                } else {
                    PlaceState::First { turn: queue.turn }
                }
            }
            _ => PlaceState::Behind,
        }
    }

    /// The counter that a place waits for.
    pub(super) fn key(&self, id: PlaceId) -> Option<&OwnedKey> {
        self.places.get(&id)?.key.as_deref()
    }

    /// The cost of the place that departs after the first one.
    pub(super) fn next_cost(&self, id: PlaceId) -> Option<Cost> {
        let queue = self.queues.get(&self.key(id)?.as_key() as &dyn AsKey)?;
        let next = queue.places.iter().find(|other| **other != id)?;
        self.places.get(next).map(|place| Cost::new(place.cost))
    }

    /// Sets when the first place of the queue of place `id` may depart.
    pub(super) fn set_turn(&mut self, id: PlaceId, turn: Timestamp) {
        let Some(key) = self.places.get(&id).and_then(|place| place.key.clone()) else { return };
        if let Some(queue) = self.queues.get_mut(&key.as_key() as &dyn AsKey) {
            queue.turn = turn;
        }
    }

    /// The first place of the queue of `key` may depart at `now`. Returns its handle.
    pub(super) fn hasten(&mut self, key: CounterKey<'_>, now: Timestamp) -> Option<S> {
        let queue = self.queues.get_mut(&key as &dyn AsKey)?;
        queue.turn = queue.turn.min(now);
        let first = queue.places.first()?;
        self.places.get(first).map(|place| place.signal.clone())
    }

    /// Removes a place. Returns the handle of the place that is the first now, if that has changed.
    pub(super) fn leave(&mut self, id: PlaceId) -> Option<S> {
        let place = self.places.remove(&id)?;
        if let Some(count) = self.clients.get_mut(&place.client) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.clients.remove(&place.client);
            }
        }
        for key in &place.lock_outs {
            if let Some(ids) = self.lock_outs.get_mut(&key.as_key() as &dyn AsKey) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.lock_outs.remove(&key.as_key() as &dyn AsKey);
                }
            }
        }
        let key = place.key?;
        let queue = self.queues.get_mut(&key.as_key() as &dyn AsKey)?;
        let was_first = queue.places.first() == Some(&id);
        queue.places.remove(&id);
        queue.units = queue.units.saturating_sub(place.cost);
        let Some(first) = queue.places.first() else {
            self.queues.remove(&key.as_key() as &dyn AsKey);
            return None;
        };
        if was_first { self.places.get(first).map(|place| place.signal.clone()) } else { None }
    }

    /// Ends the waits of a client that is locked out. Returns whom to tell.
    pub(super) fn lock_out(&mut self, key: CounterKey<'_>) -> SmallVec<[S; 2]> {
        let ids = self.lock_outs.get(&key as &dyn AsKey).cloned().unwrap_or_default();
        self.end(ids)
    }

    /// From now on nothing departs after `ends`. Ends the waits whose turn comes later, and returns whom to tell.
    pub(super) fn end_at(&mut self, ends: Timestamp) -> SmallVec<[S; 2]> {
        self.ends = Some(self.ends.map_or(ends, |earlier| earlier.min(ends)));
        let mut late = BTreeSet::new();
        for queue in self.queues.values() {
            let (first, mut units) = (self.first_cost(queue), 0_u64);
            for id in &queue.places {
                let cost = self.places.get(id).map_or(0, |place| place.cost);
                if queue.turn_of(first, units, cost) > ends {
                    late.insert(*id);
                }
                units = units.saturating_add(cost);
            }
        }
        let delayed = self.places.iter().filter(|(_, place)| place.key.is_none() && place.turn > ends);
        late.extend(delayed.map(|(id, _)| *id));
        self.end(late)
    }

    fn end(&mut self, ids: BTreeSet<PlaceId>) -> SmallVec<[S; 2]> {
        let mut signals = SmallVec::new();
        for id in ids {
            signals.extend(self.places.get(&id).map(|place| place.signal.clone()));
            signals.extend(self.leave(id));
        }
        signals
    }

    fn first_cost(&self, queue: &CounterQueue) -> u64 {
        let first = queue.places.first().and_then(|id| self.places.get(id));
        first.map_or(0, |place| place.cost)
    }
}

impl CounterQueue {
    /// The earliest turn of a place of cost `cost` behind `units` units, of which the first place has `first`.
    fn turn_of(&self, first: u64, units: u64, cost: u64) -> Timestamp {
        let Some(more) = units.checked_sub(first).filter(|_| units > 0) else { return self.turn };
        self.turn + self.limit.least_time_between(first, more.saturating_add(cost))
    }
}

fn half(span: TimeSpan) -> TimeSpan {
    TimeSpan::from_micros(span.as_micros() / 2)
}

#[cfg(test)]
mod tests;
