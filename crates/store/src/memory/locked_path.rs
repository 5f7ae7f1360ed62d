//! Decisions under locks: several checks, new keys, and everything else that the fast path does not handle.

use std::sync::TryLockError;

use smallvec::SmallVec;
use tidegate_core::{Cost, CounterState, Ledger, Limit, Outcome, Timestamp};

use super::cache_line::{LINES, LineLock, Tag};
use super::carried::{SharedUsage, SharedUsageCell};
use super::limit_registry::{CARRIED, SharedCell};
use super::metrics::StoreMetrics;
use super::pool::PoolFull;
use super::table::{CounterTable, LatestLimit, Slot, StateUnderLimit};
use crate::sync::{Mutex, MutexGuard};

/// A check ready to be decided: the hash of its key, the limit that applies and that limit's number, or [`CARRIED`].
#[derive(Clone, Copy, Debug)]
pub(super) struct ResolvedCheck {
    pub(super) hash: u64,
    pub(super) limit: Limit,
    pub(super) number: u16,
}

/// The location of a check's counter.
#[derive(Clone, Copy, Debug)]
enum CounterPlace {
    /// In the key's own slot.
    Slot(Slot),
    /// Not stored yet: the key takes this slot when it is charged.
    Free(Slot),
    /// Shared with other keys because the table is full; the index of its lock.
    Shared(usize),
}

/// The index of a shared counter that is not locked yet.
const UNLOCKED: usize = usize::MAX;

/// A locked counter that several keys share.
#[derive(Debug)]
enum SharedLock<'t> {
    Numbered(&'t SharedCell, MutexGuard<'t, CounterState>),
    Carried(&'t SharedUsageCell, MutexGuard<'t, SharedUsage>),
}

/// Takes a lock if it is free.
fn try_lock<T>(cell: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match cell.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Why the counters could not be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockError {
    /// Another decision holds a line that must not be waited for.
    Busy,
    /// A limit's number was retired after it was looked up.
    Retired,
}

/// The locked lines and counters of one decision, released on drop.
#[derive(Debug)]
pub(super) struct LockedCounters<'t> {
    table: &'t CounterTable,
    metrics: &'t StoreMetrics,
    resolved: &'t [ResolvedCheck],
    now: Timestamp,
    lines: SmallVec<[(usize, LineLock<'t>); 4]>,
    places: SmallVec<[CounterPlace; 4]>,
    shared: SmallVec<[SharedLock<'t>; 1]>,
}

impl<'t> LockedCounters<'t> {
    /// Locks the home lines of all checks in ascending order and locates their counters.
    ///
    /// A line behind a home may come before a line already locked. It is not waited for, or two decisions could deadlock. On
    /// `Busy` the caller releases everything and starts again.
    ///
    /// Once all lines are locked, every number is checked: see `reclaim`.
    pub(super) fn lock(
        table: &'t CounterTable,
        metrics: &'t StoreMetrics,
        resolved: &'t [ResolvedCheck],
        now: Timestamp,
    ) -> Result<Self, LockError> {
        let mut homes: SmallVec<[usize; 4]> =
            resolved.iter().map(|resolved| table.home(resolved.hash)).collect();
        homes.sort_unstable();
        homes.dedup();
        let lines = homes.into_iter().map(|line| (line, table.line(line).lock())).collect();
        let (places, shared) = (SmallVec::new(), SmallVec::new());
        let mut held = Self { table, metrics, resolved, now, lines, places, shared };
        for check in 0..held.resolved.len() {
            let place = held.find_place(check)?;
            held.places.push(place.unwrap_or(CounterPlace::Shared(UNLOCKED)));
        }
        let is_retired = |resolved: &ResolvedCheck| {
            resolved.number != CARRIED && !table.limits.belongs_to(resolved.number, &resolved.limit)
        };
        if held.resolved.iter().any(is_retired) {
            return Err(LockError::Retired);
        }
        // Shared counters last, and without waiting: their holders wait for nothing.
        for check in 0..held.resolved.len() {
            if let CounterPlace::Shared(_) = held.places[check] {
                held.metrics.overflowed();
                held.places[check] = held.lock_shared(check).ok_or(LockError::Busy)?;
            }
        }
        Ok(held)
    }

    fn lock_shared(&mut self, check: usize) -> Option<CounterPlace> {
        let ResolvedCheck { hash, limit, number } = &self.resolved[check];
        let (limits, budget) = (&self.table.limits, &self.table.pool.budget);
        let numbered = if *number == CARRIED { None } else { limits.shared(*number, budget, *hash) };
        let lock = if let Some(cell) = numbered {
            let is_this = |held: &SharedLock<'_>| matches!(held, SharedLock::Numbered(held, _) if std::ptr::eq(*held, cell));
            if let Some(held) = self.shared.iter().position(is_this) {
                return Some(CounterPlace::Shared(held));
            }
            SharedLock::Numbered(cell, try_lock(cell)?)
        } else {
            let cell = limits.shared_usage(limit, budget, *hash);
            let is_this = |held: &SharedLock<'_>| matches!(held, SharedLock::Carried(held, _) if std::ptr::eq(*held, cell));
            if let Some(held) = self.shared.iter().position(is_this) {
                return Some(CounterPlace::Shared(held));
            }
            SharedLock::Carried(cell, try_lock(cell)?)
        };
        self.shared.push(lock);
        Some(CounterPlace::Shared(self.shared.len() - 1))
    }

    /// The key's own place, or a free one; `None` if there is none.
    fn find_place(&mut self, check: usize) -> Result<Option<CounterPlace>, LockError> {
        let resolved = &self.resolved[check];
        let same_key = self.resolved[..check].iter().position(|earlier| earlier.hash == resolved.hash);
        if let Some(earlier) = same_key {
            return Ok(Some(self.places[earlier]));
        }
        let home = self.table.home(resolved.hash);
        let found = self.line(home).and_then(|line| self.table.find(line, home, resolved.hash));
        if let Some(slot) = found {
            self.lock_line(slot.line)?;
            // Before its line was locked, another key may have taken a fresh slot behind the home.
            if self.still_owns(slot, resolved.hash, home) {
                self.lock_word(slot);
                return Ok(self.can_convert(resolved, slot).then_some(CounterPlace::Slot(slot)));
            }
        }
        // Prefer a slot that was never used: taking a fresh one makes its owner search for another.
        for line in home..home + LINES {
            if self.table.line(line).has_empty() {
                self.lock_line(line)?;
                let excluded = |slot| self.is_excluded(slot, resolved.number);
                if let Some(slot) = self.table.empty_slot(line, excluded) {
                    self.lock_word(slot);
                    return Ok(self.claim(resolved, slot));
                }
            }
        }
        let mut latest = LatestLimit(resolved.number, resolved.limit);
        for line in home..home + LINES {
            self.lock_line(line)?;
            let mut fresh = |this: &Self| {
                let excluded = |slot| this.is_excluded(slot, resolved.number);
                this.table.fresh_slot(line, this.now, &mut latest, excluded)
            };
            while let Some(slot) = fresh(self) {
                self.lock_word(slot);
                // Before the word was locked, its owner may have used it again.
                if fresh(self) == Some(slot) {
                    return Ok(self.claim(resolved, slot));
                }
            }
        }
        Ok(None)
    }

    fn claim(&self, resolved: &ResolvedCheck, slot: Slot) -> Option<CounterPlace> {
        self.table.has_room_for(resolved, self.now).then_some(CounterPlace::Free(slot))
    }

    /// Whether there is room for the slot's counter under the check's limit. If not, the counter stays as it is, and the key
    /// shares one under this limit.
    fn can_convert(&self, resolved: &ResolvedCheck, slot: Slot) -> bool {
        let counted = self.table.line(slot.line).tag(slot.slot).limit();
        resolved.number != CARRIED
            || self.table.counts_under(slot, resolved)
            || counted == CARRIED && CounterTable::fits_word(&resolved.limit, self.now)
            || self.table.has_room_for(resolved, self.now)
    }

    fn still_owns(&self, slot: Slot, hash: u64, home: usize) -> bool {
        let found = self.table.line(slot.line).find(Tag::new(hash, slot.line - home, 0));
        found.is_some_and(|(at, _)| at == slot.slot)
    }

    /// Whether a new key under the limit with this number cannot take the slot.
    fn is_excluded(&self, slot: Slot, number: u16) -> bool {
        self.is_taken(slot) || self.table.is_reserved(slot, number)
    }

    /// Whether another check of this decision uses or will use the slot.
    fn is_taken(&self, slot: Slot) -> bool {
        self.places.iter().any(
            |place| matches!(place, CounterPlace::Slot(other) | CounterPlace::Free(other) if *other == slot),
        )
    }

    fn lock_word(&self, slot: Slot) {
        if let Some(line) = self.line(slot.line) {
            line.lock_word(slot.slot);
        }
    }

    fn line(&self, line: usize) -> Option<&LineLock<'t>> {
        self.lines.iter().find(|(held, _)| *held == line).map(|(_, locked)| locked)
    }

    /// Locks one more line. Waits for it only if it comes after all locked lines.
    fn lock_line(&mut self, line: usize) -> Result<(), LockError> {
        if self.line(line).is_some() {
            return Ok(());
        }
        let last = self.lines.iter().all(|(held, _)| *held < line);
        let cache_line = self.table.line(line);
        let locked = if last { cache_line.lock() } else { cache_line.try_lock().ok_or(LockError::Busy)? };
        self.lines.push((line, locked));
        Ok(())
    }

    /// Converts counters to the limits that apply, if those have changed.
    pub(super) fn adopt(&mut self) {
        for check in 0..self.resolved.len() {
            let CounterPlace::Slot(slot) = self.places[check] else { continue };
            let resolved = &self.resolved[check];
            let counted = self.table.line(slot.line).tag(slot.slot).limit();
            if counted != resolved.number || !self.table.counts_under(slot, resolved) {
                let state = self.table.read(slot, resolved, self.now, Clone::clone);
                self.write(check, slot, state);
                self.lock_late(check);
            }
        }
    }

    fn write(&mut self, check: usize, slot: Slot, state: CounterState) {
        let resolved = &self.resolved[check];
        let home = self.table.home(resolved.hash);
        let away = slot.line - home;
        let tag = Tag::new(resolved.hash, away, resolved.number);
        let Some(line) = self.line(slot.line) else { return };
        let written =
            self.table.write(line, slot.slot, tag, StateUnderLimit { limit: &resolved.limit, state });
        if away > 0
            && let Some(home) = self.line(home)
        {
            home.set_spilled(true);
        }
        // If a carried limit does not fit, the slot still has its counter, and other checks of the key may use it.
        let (place, is_only_this) = match written {
            Ok(()) => (CounterPlace::Slot(slot), false),
            Err(PoolFull) => (CounterPlace::Shared(UNLOCKED), resolved.number == CARRIED),
        };
        for (other, known) in self.places.iter_mut().enumerate() {
            if other == check || !is_only_this && self.resolved[other].hash == resolved.hash {
                *known = place;
            }
        }
    }

    /// Changes the state of a check's counter and writes it back.
    pub(super) fn change(&mut self, check: usize, change: impl Fn(&Limit, &mut CounterState)) {
        let resolved = &self.resolved[check];
        match self.places[check] {
            CounterPlace::Slot(slot) => {
                if let Some((place, share)) = self.table.pooled_state(slot, resolved) {
                    self.table.pool.change(place, share, |state| change(&resolved.limit, state));
                } else {
                    let mut state = self.table.read(slot, resolved, self.now, Clone::clone);
                    change(&resolved.limit, &mut state);
                    self.write(check, slot, state);
                }
            }
            CounterPlace::Free(slot) => {
                let mut state = CounterState::Unseen;
                change(&resolved.limit, &mut state);
                let Some(line) = self.line(slot.line) else { return };
                self.table.clear(line, slot.slot);
                self.write(check, slot, state);
            }
            CounterPlace::Shared(_) => {}
        }
        self.lock_late(check);
        if let CounterPlace::Shared(shared) = self.places[check] {
            match self.shared.get_mut(shared) {
                Some(SharedLock::Numbered(_, state)) => {
                    self.table.pool.budget.change_shared(state, |state| change(&resolved.limit, state));
                }
                Some(SharedLock::Carried(_, usage)) => {
                    usage.change(&resolved.limit, self.now, |state| change(&resolved.limit, state));
                }
                None => {}
            }
        }
    }

    /// Locks the shared counter of a check if its own counter has just turned out not to fit: the pool may have filled up
    /// since the place was found. Does not wait: at worst one unit of one new key is not counted.
    fn lock_late(&mut self, check: usize) {
        if let CounterPlace::Shared(UNLOCKED) = self.places[check] {
            self.places[check] = self.lock_shared(check).unwrap_or(CounterPlace::Shared(UNLOCKED));
        }
    }

    /// Whether a check has its own counter, and that counter uses the check's limit.
    pub(super) fn counts_under_its_limit(&self, check: usize) -> bool {
        let resolved = &self.resolved[check];
        matches!(self.places[check], CounterPlace::Slot(slot) if self.table.counts_under(slot, resolved))
    }
}

impl Ledger for LockedCounters<'_> {
    fn evaluate(&self, check: usize, cost: Cost) -> Outcome {
        let resolved = &self.resolved[check];
        let evaluate = |state: &CounterState| resolved.limit.evaluate(state, self.now, cost);
        match self.places[check] {
            CounterPlace::Slot(slot) => self.table.read(slot, resolved, self.now, evaluate),
            CounterPlace::Free(_) => evaluate(&CounterState::Unseen),
            CounterPlace::Shared(shared) => match self.shared.get(shared) {
                Some(SharedLock::Numbered(_, state)) => evaluate(state),
                Some(SharedLock::Carried(_, usage)) => usage.evaluate(&resolved.limit, self.now, cost),
                None => evaluate(&CounterState::Unseen),
            },
        }
    }

    fn charge(&mut self, check: usize, cost: Cost) {
        let now = self.now;
        self.change(check, |limit, state| limit.charge(state, now, cost));
    }
}
