//! Places keys in a fixed number of lines.
//!
//! The hash of a key selects its home line. If the home is full of live keys, the key lives in one of the fifteen lines
//! behind it, and the home is marked as spilled. A slot whose state equals an unused one is free for other keys; nothing is
//! moved or grown. If all sixteen lines are full, the key has no slot.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tidegate_core::{Algorithm, Cost, CounterState, Limit, TimeSpan, Timestamp};

use super::cache_line::{CacheLine, LINES, LineLock, SLOTS, SlotWord, Tag};
use super::carried::{CarriedCounter, CompactLimit};
use super::limit_registry::{CARRIED, LimitRegistry};
use super::locked_path::ResolvedCheck;
use super::pool::{Pool, PoolFull, PoolShare};
use super::prefetch::{in_huge_pages, prefetch};
use super::reclaim::Sweep;
use crate::sync::Mutex;

/// Lines, the limits named by their tags, and the pool that their words refer to.
#[derive(Debug)]
pub(super) struct CounterTable {
    lines: Box<[CacheLine]>,
    /// The number of home lines. The last lines are not homes, so that every home has lines behind it.
    homes: usize,
    pub(super) limits: LimitRegistry,
    pub(super) pool: Pool,
    pool_sweep: PoolSweep,
    /// The progress of the sweep for numbers of limits.
    pub(super) sweep: Mutex<Sweep>,
}

/// Times are packed relative to 2026-01-01, which leaves room for decades.
pub(super) const ORIGIN: Timestamp = Timestamp::from_secs(1_767_225_600);

/// The slots of a line that only keys under pinned limits take, while there are any: half of all slots.
const RESERVED_SLOTS: usize = SLOTS / 2;

/// Lines per step of the sweep for pooled states: microseconds of work.
const SWEEP_LINES: usize = 512;
/// While the pool stays full, the table is swept for pooled states at most this often.
const SWEEP_INTERVAL: TimeSpan = TimeSpan::from_secs(1);

/// The progress of the sweep for pooled states.
#[derive(Debug, Default)]
struct PoolSweep {
    next: AtomicUsize,
    /// When the sweep began, in microseconds.
    began: AtomicU64,
}

impl PoolSweep {
    /// The next of `count` lines to sweep.
    fn next_lines(&self, count: usize, now: Timestamp) -> Range<usize> {
        if self.next.load(Ordering::Relaxed) >= count {
            let began = Timestamp::from_micros(self.began.load(Ordering::Relaxed));
            if began <= now && now.since(began) < SWEEP_INTERVAL {
                return 0..0;
            }
            self.next.store(0, Ordering::Relaxed);
            self.began.store(now.as_micros(), Ordering::Relaxed);
        }
        let first = self.next.fetch_add(SWEEP_LINES, Ordering::Relaxed).min(count);
        first..(first + SWEEP_LINES).min(count)
    }
}

/// A slot of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) line: usize,
    pub(super) slot: usize,
}

impl CounterTable {
    /// A table of at least sixteen lines.
    pub(super) fn new(lines: usize, limits: LimitRegistry, pool: Pool) -> Self {
        let count = lines.max(LINES);
        let mut lines = Vec::with_capacity(count);
        in_huge_pages(&mut lines);
        lines.resize_with(count, CacheLine::default);
        let homes = count - (LINES - 1);
        Self {
            lines: lines.into_boxed_slice(),
            homes,
            limits,
            pool,
            pool_sweep: PoolSweep::default(),
            sweep: Mutex::default(),
        }
    }

    /// The largest number of keys.
    pub(super) fn slots(&self) -> usize {
        self.line_count() * SLOTS
    }

    pub(super) fn line_count(&self) -> usize {
        self.lines.len()
    }

    /// The home line of a hash.
    #[inline]
    pub(super) fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.homes as u128) >> 64) as usize
    }

    #[inline]
    pub(super) fn line(&self, line: usize) -> &CacheLine {
        &self.lines[line]
    }

    #[inline]
    pub(super) fn prefetch(&self, line: usize) {
        prefetch(self.line(line));
    }

    /// The slot of a key whose home line is locked, if it has one. Only an expired slot behind the home can be taken from the
    /// key meanwhile.
    pub(super) fn find(&self, home: &LineLock<'_>, at: usize, hash: u64) -> Option<Slot> {
        if let Some((slot, _)) = home.find(Tag::new(hash, 0, 0)) {
            return Some(Slot { line: at, slot });
        }
        if !home.has_spilled() {
            return None;
        }
        let mut still_spilled = false;
        for away in 1..LINES {
            let line = self.line(at + away);
            if let Some((slot, _)) = line.find(Tag::new(hash, away, 0)) {
                return Some(Slot { line: at + away, slot });
            }
            still_spilled |= (0..SLOTS).any(|slot| {
                let tag = line.tag(slot);
                tag != Tag::EMPTY && tag.away() == away
            });
        }
        if !still_spilled {
            home.set_spilled(false);
        }
        None
    }

    /// Whether a new key under the limit with this number must not take the slot.
    pub(super) fn is_reserved(&self, slot: Slot, number: u16) -> bool {
        slot.slot < RESERVED_SLOTS && self.limits.is_secondary(number)
    }

    /// A slot of this line that was never used and is not `taken`.
    pub(super) fn empty_slot(&self, line: usize, taken: impl Fn(Slot) -> bool) -> Option<Slot> {
        let bucket = self.line(line);
        let mut slots = (0..SLOTS).map(|slot| Slot { line, slot });
        slots.find(|slot| bucket.tag(slot.slot) == Tag::EMPTY && !taken(*slot))
    }

    /// A slot of this line whose state equals an unused one at `now` and that is not `taken`. This line and those that `latest`
    /// was used for are locked, so that no number has changed its limit meanwhile.
    pub(super) fn fresh_slot(
        &self,
        line: usize,
        now: Timestamp,
        latest: &mut LatestLimit,
        taken: impl Fn(Slot) -> bool,
    ) -> Option<Slot> {
        let bucket = self.line(line);
        let mut slots = (0..SLOTS).map(|slot| Slot { line, slot });
        slots.find(|slot| {
            let number = bucket.tag(slot.slot).limit();
            if number == CARRIED {
                return !taken(*slot) && self.is_fresh(bucket, slot.slot, now);
            }
            if latest.0 != number {
                let Some(limit) = self.limits.limit(number).as_deref().copied() else { return false };
                *latest = LatestLimit(number, limit);
            }
            !taken(*slot) && self.is_fresh_under(&latest.1, bucket, slot.slot, now)
        })
    }

    /// Whether the state of a slot of a locked line equals an unused one; false for an empty slot.
    #[inline(never)]
    pub(super) fn is_fresh(&self, bucket: &CacheLine, slot: usize, now: Timestamp) -> bool {
        self.read_own(bucket, slot, |limit, state| limit.is_fresh(state, now)).unwrap_or(false)
    }

    /// Reads the state of a slot of a locked line, and the limit under which it is counted; `None` for an empty slot.
    fn read_own<R>(
        &self,
        bucket: &CacheLine,
        slot: usize,
        read: impl FnOnce(&Limit, &CounterState) -> R,
    ) -> Option<R> {
        if let Some(counter) = self.carried(bucket, slot) {
            let limit = counter.limit().restore()?;
            return Some(self.pool.read_carried(&counter, &limit, |state| read(&limit, state)));
        }
        let limit = self.limits.limit(bucket.tag(slot).limit());
        let limit = limit.as_deref()?;
        Some(match bucket.word(slot) {
            SlotWord::Packed(word) => read(limit, &limit.unpack(word, ORIGIN)),
            SlotWord::Pooled(place) => self.pool.read(place, |state| read(limit, state)),
        })
    }

    fn is_fresh_under(&self, limit: &Limit, bucket: &CacheLine, slot: usize, now: Timestamp) -> bool {
        match bucket.word(slot) {
            SlotWord::Packed(word) => limit.is_fresh(&limit.unpack(word, ORIGIN), now),
            SlotWord::Pooled(place) => self.pool.read(place, |state| limit.is_fresh(state, now)),
        }
    }

    /// The counter of a slot of a locked line, if its limit has no number.
    fn carried(&self, bucket: &CacheLine, slot: usize) -> Option<CarriedCounter> {
        match (bucket.tag(slot).limit(), bucket.word(slot)) {
            (CARRIED, SlotWord::Pooled(place)) => self.pool.carried(place),
            _ => None,
        }
    }

    /// Whether the state of a slot of a locked line is counted under the requested limit.
    pub(super) fn counts_under(&self, slot: Slot, resolved: &ResolvedCheck) -> bool {
        let bucket = self.line(slot.line);
        match self.carried(bucket, slot.slot) {
            Some(counter) => *counter.limit() == CompactLimit::new(&resolved.limit),
            None => bucket.tag(slot.slot).limit() == resolved.number,
        }
    }

    /// The place of a state in the pool, if the slot of a locked line has one and is counted under the requested limit and
    /// number.
    pub(super) fn pooled_state(&self, slot: Slot, resolved: &ResolvedCheck) -> Option<(u64, PoolShare)> {
        let bucket = self.line(slot.line);
        if bucket.tag(slot.slot).limit() != resolved.number || !self.counts_under(slot, resolved) {
            return None;
        }
        match (self.carried(bucket, slot.slot), bucket.word(slot.slot)) {
            (Some(counter), _) => counter.state_place().map(|place| (place, PoolShare::Carried)),
            (None, SlotWord::Pooled(place)) => Some((place, PoolShare::Numbered)),
            (None, SlotWord::Packed(_)) => None,
        }
    }

    /// Reads the state of a slot of a locked line, converted to the requested limit.
    pub(super) fn read<R>(
        &self,
        slot: Slot,
        ResolvedCheck { limit, number, .. }: &ResolvedCheck,
        now: Timestamp,
        read: impl FnOnce(&CounterState) -> R,
    ) -> R {
        let bucket = self.line(slot.line);
        if let Some(counter) = self.carried(bucket, slot.slot) {
            return self.read_carried(&counter, limit, now, read);
        }
        let counted = bucket.tag(slot.slot).limit();
        let other = (counted != *number).then(|| self.limits.limit(counted));
        let old = other.as_ref().and_then(|other| other.as_deref());
        let rebased = |state: CounterState| match old {
            Some(old) if old != limit => limit.rebase(old, state, now),
            _ => state,
        };
        match bucket.word(slot.slot) {
            SlotWord::Packed(word) => read(&rebased(old.unwrap_or(limit).unpack(word, ORIGIN))),
            SlotWord::Pooled(place) => self.pool.read(place, |state| match old {
                Some(old) if old != limit => read(&rebased(state.clone())),
                _ => read(state),
            }),
        }
    }

    fn read_carried<R>(
        &self,
        counter: &CarriedCounter,
        limit: &Limit,
        now: Timestamp,
        read: impl FnOnce(&CounterState) -> R,
    ) -> R {
        if *counter.limit() == CompactLimit::new(limit) {
            return self.pool.read_carried(counter, limit, read);
        }
        let old = counter.limit().restore();
        let rebased = old.map_or(CounterState::Unseen, |old| {
            limit.rebase(&old, self.pool.read_carried(counter, &old, Clone::clone), now)
        });
        read(&rebased)
    }

    /// Writes a state into a slot of a locked line, under a limit without a number. Changes nothing if the pool is full.
    fn write_carried(
        &self,
        line: &LineLock<'_>,
        slot: usize,
        tag: Tag,
        StateUnderLimit { limit, state }: StateUnderLimit<'_>,
    ) -> Result<(), PoolFull> {
        match line.word(slot) {
            SlotWord::Pooled(place) if self.carried(line, slot).is_some() => {
                self.pool.replace_carried(place, limit, state)
            }
            _ => {
                let place = self.pool.insert_carried(limit, state)?;
                self.clear(line, slot);
                line.set(slot, tag, SlotWord::Pooled(place));
                Ok(())
            }
        }
    }

    /// Writes a state into a slot of a locked line. Empties the slot if the state fits neither a word nor the pool. A carried
    /// limit that does not fit changes nothing.
    pub(super) fn write(
        &self,
        line: &LineLock<'_>,
        slot: usize,
        tag: Tag,
        counted: StateUnderLimit<'_>,
    ) -> Result<(), PoolFull> {
        if tag.limit() == CARRIED {
            return self.write_carried(line, slot, tag, counted);
        }
        let packed = counted.limit.pack(&counted.state, ORIGIN);
        match (packed, line.word(slot), line.tag(slot) == Tag::EMPTY) {
            (Some(word), SlotWord::Pooled(place), false) => {
                self.pool.remove(place);
                line.set(slot, tag, SlotWord::Packed(word));
            }
            (Some(word), ..) => line.set(slot, tag, SlotWord::Packed(word)),
            (None, SlotWord::Pooled(place), false) => {
                self.pool.remove(place);
                return self.write_pooled(line, slot, tag, counted.state);
            }
            (None, ..) => return self.write_pooled(line, slot, tag, counted.state),
        }
        Ok(())
    }

    fn write_pooled(
        &self,
        line: &LineLock<'_>,
        slot: usize,
        tag: Tag,
        state: CounterState,
    ) -> Result<(), PoolFull> {
        match self.pool.insert(state, PoolShare::Numbered) {
            Ok(place) => line.set(slot, tag, SlotWord::Pooled(place)),
            Err(full) => {
                line.set(slot, Tag::EMPTY, SlotWord::VACANT);
                return Err(full);
            }
        }
        Ok(())
    }

    /// Whether the first state of a new key can be stored. If the pool is full, sweeps a few lines for expired pooled states.
    pub(super) fn has_room_for(
        &self,
        ResolvedCheck { limit, number, .. }: &ResolvedCheck,
        now: Timestamp,
    ) -> bool {
        let share = if *number == CARRIED { PoolShare::Carried } else { PoolShare::Numbered };
        if share == PoolShare::Numbered && Self::fits_word(limit, now) || self.pool.has_room(share) {
            return true;
        }
        self.sweep_pooled(now);
        self.pool.has_room(share)
    }

    /// Whether the first state of a new key under this limit fits a word.
    pub(super) fn fits_word(limit: &Limit, now: Timestamp) -> bool {
        let mut first = CounterState::Unseen;
        limit.charge(&mut first, now, Cost::ONE);
        limit.pack(&first, ORIGIN).is_some()
    }

    /// Whether every state that requests can cause under this limit fits a word.
    pub(super) fn always_fits_word(limit: &Limit, now: Timestamp) -> bool {
        let mut full = CounterState::Unseen;
        limit.charge(&mut full, now, Cost::new(limit.capacity()));
        limit.algorithm() != Algorithm::SlidingLog && limit.pack(&full, ORIGIN).is_some()
    }

    /// Empties slots of the next few lines whose state is in the pool and has expired.
    fn sweep_pooled(&self, now: Timestamp) {
        for line in self.pool_sweep.next_lines(self.line_count(), now) {
            // Skip a locked line; a later sweep visits it.
            let Some(line) = self.line(line).try_lock() else { continue };
            for slot in 0..SLOTS {
                if matches!(line.word(slot), SlotWord::Pooled(_)) && self.is_fresh(&line, slot, now) {
                    self.clear(&line, slot);
                }
            }
        }
    }

    /// Resets the counter of a key.
    pub(super) fn forget(&self, hash: u64) {
        let at = self.home(hash);
        let home = self.line(at).lock();
        match self.find(&home, at, hash) {
            Some(Slot { line, slot }) if line == at => self.clear(&home, slot),
            Some(Slot { line, slot }) => {
                let behind = self.line(line).lock();
                if behind.find(Tag::new(hash, line - at, 0)).is_some_and(|(found, _)| found == slot) {
                    self.clear(&behind, slot);
                }
            }
            None => {}
        }
    }

    /// Empties a slot of a locked line.
    pub(super) fn clear(&self, line: &LineLock<'_>, slot: usize) {
        if let (SlotWord::Pooled(place), false) = (line.word(slot), line.tag(slot) == Tag::EMPTY) {
            self.pool.remove(place);
        }
        line.set(slot, Tag::EMPTY, SlotWord::VACANT);
    }
}

/// The limit that was looked up last, with its number: neighbouring slots often share it.
#[derive(Debug)]
pub(super) struct LatestLimit(pub(super) u16, pub(super) Limit);

/// A state and the limit it is counted under.
#[derive(Debug)]
pub(super) struct StateUnderLimit<'a> {
    pub(super) limit: &'a Limit,
    pub(super) state: CounterState,
}
