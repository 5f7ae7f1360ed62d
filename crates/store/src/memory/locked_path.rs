//! Deciding with locks held: several checks at once, newcomers, and whatever the fast way does not do.

use std::sync::TryLockError;

use smallvec::SmallVec;
use tidegate_core::{Cost, Ledger, Limit, Outcome, State, Timestamp};

use super::bucket::{LINES, Locked, Tag, Word};
use super::limit_registry::SharedCell;
use super::metrics::Metrics;
use super::table::{Counted, LatestLimit, Slot, Table};
use crate::sync::MutexGuard;

/// One check, ready to be decided: its key's hash, the limit in force and that limit's number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) hash: u64,
    pub(super) limit: Limit,
    pub(super) number: u16,
}

/// Where the counter of a check is.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In a slot of its own.
    Slot(Slot),
    /// Nowhere yet: this slot becomes its own when it is charged.
    Free(Slot),
    /// Shared with others, for the table is full; the number of its lock.
    Shared(usize),
}

/// The lock of a shared counter that is not held yet.
const NOT_YET: usize = usize::MAX;

/// Why not everything could be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotHeld {
    /// Another decision holds a line that we may not wait for.
    Busy,
    /// A limit's number was retired after it was looked up.
    Retired,
}

/// The lines and places of one decision, their locks held until it is dropped.
#[derive(Debug)]
pub(super) struct Held<'t> {
    table: &'t Table,
    metrics: &'t Metrics,
    asked: &'t [Asked],
    now: Timestamp,
    lines: SmallVec<[(usize, Locked<'t>); 4]>,
    places: SmallVec<[Place; 4]>,
    shared: SmallVec<[(&'t SharedCell, MutexGuard<'t, State>); 1]>,
}

impl<'t> Held<'t> {
    /// Locks the homes of all checks, in ascending order, and finds their places.
    ///
    /// A line behind a home may come after a line already held: it is not waited for, or two decisions could
    /// wait for each other. Whoever meets `Busy` lets everything go and begins again.
    ///
    /// Once all lines are locked, every number is checked: see `reclaim`.
    pub(super) fn lock(
        table: &'t Table,
        metrics: &'t Metrics,
        asked: &'t [Asked],
        now: Timestamp,
    ) -> Result<Self, NotHeld> {
        let mut homes: SmallVec<[usize; 4]> = asked.iter().map(|asked| table.home(asked.hash)).collect();
        homes.sort_unstable();
        homes.dedup();
        let lines = homes.into_iter().map(|line| (line, table.line(line).lock())).collect();
        let (places, shared) = (SmallVec::new(), SmallVec::new());
        let mut held = Self { table, metrics, asked, now, lines, places, shared };
        for check in 0..held.asked.len() {
            let place = held.find_place(check)?;
            held.places.push(place.unwrap_or(Place::Shared(NOT_YET)));
        }
        if held.asked.iter().any(|asked| !table.limits.belongs_to(asked.number, &asked.limit)) {
            return Err(NotHeld::Retired);
        }
        // Shared counters last, and without waiting: whoever holds one waits for nothing.
        for check in 0..held.asked.len() {
            if let Place::Shared(_) = held.places[check] {
                held.metrics.overflowed();
                held.places[check] = held.hold_shared(check).ok_or(NotHeld::Busy)?;
            }
        }
        Ok(held)
    }

    fn hold_shared(&mut self, check: usize) -> Option<Place> {
        let asked = &self.asked[check];
        let cell = self.table.limits.shared(asked.number, &self.table.pool.budget, asked.hash);
        if let Some(held) = self.shared.iter().position(|(held, _)| std::ptr::eq(*held, cell)) {
            return Some(Place::Shared(held));
        }
        let guard = match cell.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.shared.push((cell, guard));
        Some(Place::Shared(self.shared.len() - 1))
    }

    /// Its own place, or one that can become it; `None` if there is none.
    fn find_place(&mut self, check: usize) -> Result<Option<Place>, NotHeld> {
        let asked = &self.asked[check];
        let same_key = self.asked[..check].iter().position(|earlier| earlier.hash == asked.hash);
        if let Some(earlier) = same_key {
            return Ok(Some(self.places[earlier]));
        }
        let home = self.table.home(asked.hash);
        let found = self.line(home).and_then(|line| self.table.find(line, home, asked.hash));
        if let Some(slot) = found {
            self.hold(slot.line)?;
            // Before its own line was locked, a fresh slot behind its home may have been given away.
            if self.is_its(slot, asked.hash, home) {
                self.hold_word(slot);
                return Ok(Some(Place::Slot(slot)));
            }
        }
        // A slot never used first, wherever: whoever takes a fresh one sends its owner looking for another.
        for line in home..home + LINES {
            if self.table.line(line).has_empty() {
                self.hold(line)?;
                if let Some(slot) = self.table.empty_slot(line, |slot| self.is_taken(slot)) {
                    self.hold_word(slot);
                    return Ok(self.free(asked, slot));
                }
            }
        }
        let mut latest = LatestLimit(asked.number, asked.limit);
        for line in home..home + LINES {
            self.hold(line)?;
            let mut fresh =
                |this: &Self| this.table.fresh_slot(line, this.now, &mut latest, |slot| this.is_taken(slot));
            while let Some(slot) = fresh(self) {
                self.hold_word(slot);
                // Before it was held, its owner may have come back.
                if fresh(self) == Some(slot) {
                    return Ok(self.free(asked, slot));
                }
            }
        }
        Ok(None)
    }

    fn free(&self, asked: &Asked, slot: Slot) -> Option<Place> {
        self.table.has_room_for(&asked.limit, self.now).then_some(Place::Free(slot))
    }

    fn is_its(&self, slot: Slot, hash: u64, home: usize) -> bool {
        let found = self.table.line(slot.line).find(Tag::new(hash, slot.line - home, 0));
        found.is_some_and(|(at, _)| at == slot.slot)
    }

    /// Whether another check of this decision lives there, or is about to.
    fn is_taken(&self, slot: Slot) -> bool {
        self.places
            .iter()
            .any(|place| matches!(place, Place::Slot(other) | Place::Free(other) if *other == slot))
    }

    fn hold_word(&self, slot: Slot) {
        if let Some(line) = self.line(slot.line) {
            line.hold(slot.slot);
        }
    }

    fn line(&self, line: usize) -> Option<&Locked<'t>> {
        self.lines.iter().find(|(held, _)| *held == line).map(|(_, locked)| locked)
    }

    /// Holds one more line: waits for it only if it comes after all that are held.
    fn hold(&mut self, line: usize) -> Result<(), NotHeld> {
        if self.line(line).is_some() {
            return Ok(());
        }
        let last = self.lines.iter().all(|(held, _)| *held < line);
        let bucket = self.table.line(line);
        let locked = if last { bucket.lock() } else { bucket.try_lock().ok_or(NotHeld::Busy)? };
        self.lines.push((line, locked));
        Ok(())
    }

    /// Moves counters to the limits in force where those have changed.
    pub(super) fn adopt(&mut self) {
        for check in 0..self.asked.len() {
            let Place::Slot(slot) = self.places[check] else { continue };
            let asked = &self.asked[check];
            if self.table.line(slot.line).tag(slot.slot).limit() != asked.number {
                let state = self.table.read(slot, asked, self.now, Clone::clone);
                self.write(check, slot, state);
            }
        }
    }

    fn write(&mut self, check: usize, slot: Slot, state: State) {
        let asked = &self.asked[check];
        let home = self.table.home(asked.hash);
        let away = slot.line - home;
        let tag = Tag::new(asked.hash, away, asked.number);
        let Some(line) = self.line(slot.line) else { return };
        let written = self.table.write(line, slot.slot, tag, Counted { limit: &asked.limit, state });
        if away > 0
            && let Some(home) = self.line(home)
        {
            home.set_spilled(true);
        }
        let place = if written.is_ok() { Place::Slot(slot) } else { Place::Shared(NOT_YET) };
        for (other, known) in self.asked.iter().zip(&mut self.places) {
            if other.hash == asked.hash {
                *known = place;
            }
        }
    }

    /// The state of a check's counter, changed and written back.
    pub(super) fn change(&mut self, check: usize, change: impl Fn(&Limit, &mut State)) {
        let asked = &self.asked[check];
        match self.places[check] {
            Place::Slot(slot) => {
                let bucket = self.table.line(slot.line);
                if let (Word::Pooled(place), true) =
                    (bucket.word(slot.slot), self.counts_under_its_limit(check))
                {
                    self.table.pool.change(place, |state| change(&asked.limit, state));
                } else {
                    let mut state = self.table.read(slot, asked, self.now, Clone::clone);
                    change(&asked.limit, &mut state);
                    self.write(check, slot, state);
                }
            }
            Place::Free(slot) => {
                let mut state = State::Unseen;
                change(&asked.limit, &mut state);
                let Some(line) = self.line(slot.line) else { return };
                self.table.clear(line, slot.slot);
                self.write(check, slot, state);
            }
            Place::Shared(_) => {}
        }
        // The pool may have filled up since a place was found. Then nobody is waited for: the worst that can happen
        // is that one unit of one newcomer goes uncounted.
        if let Place::Shared(NOT_YET) = self.places[check] {
            self.places[check] = self.hold_shared(check).unwrap_or(Place::Shared(NOT_YET));
        }
        if let Place::Shared(shared) = self.places[check]
            && let Some((_, state)) = self.shared.get_mut(shared)
        {
            self.table.pool.budget.change_shared(state, |state| change(&asked.limit, state));
        }
    }

    /// Whether a check has a counter of its own, and that counts under the limit it names.
    pub(super) fn counts_under_its_limit(&self, check: usize) -> bool {
        let asked = &self.asked[check];
        matches!(self.places[check], Place::Slot(slot)
            if self.table.line(slot.line).tag(slot.slot).limit() == asked.number)
    }
}

impl Ledger for Held<'_> {
    fn evaluate(&self, check: usize, cost: Cost) -> Outcome {
        let asked = &self.asked[check];
        let evaluate = |state: &State| asked.limit.evaluate(state, self.now, cost);
        match self.places[check] {
            Place::Slot(slot) => self.table.read(slot, asked, self.now, evaluate),
            Place::Free(_) => evaluate(&State::Unseen),
            Place::Shared(shared) => match self.shared.get(shared) {
                Some((_, state)) => evaluate(state),
                None => evaluate(&State::Unseen),
            },
        }
    }

    fn charge(&mut self, check: usize, cost: Cost) {
        let now = self.now;
        self.change(check, |limit, state| limit.charge(state, now, cost));
    }
}
