//! One cache line: four slots.
//!
//! ```text
//!           63        62       18 17  14 13      0
//! tags[i]  | spilled | fingerprint | away | limit |   spilled: a flag of the line, stored in tags[0]
//!           63       62       61                 0
//! words[i] | locked | pooled | packed state       |
//! ```
//!
//! A word changes in one step, by compare-and-swap, unless it is locked. A tag changes only while its line is locked
//! (word 0 is locked) and its own word is locked too. Reading a tag and its word needs no lock: every word ever stored
//! under a tag was a complete state of that key.

use std::cell::Cell;
use std::hint::select_unpredictable;

use tidegate_core::WORD_MAX;

use crate::sync::{AtomicU64, Ordering, spin, yield_now};

pub(super) const SLOTS: usize = 4;

// Unit tests have few numbers, so that numbers are reused often; loom has few lines to explore.
const LIMIT_BITS: u32 = if cfg!(loom) {
    3
} else if cfg!(test) {
    5
} else {
    14
};
const AWAY_BITS: u32 = if cfg!(loom) { 1 } else { 4 };
/// The number of consecutive lines that a key may live in; its home is the first.
pub(super) const LINES: usize = 1 << AWAY_BITS;
/// The number of distinct limits.
pub(super) const LIMITS: usize = 1 << LIMIT_BITS;

const SPILLED: u64 = 1 << 63;
const LOCKED: u64 = 1 << 63;
const POOLED: u64 = 1 << 62;
/// A lock is released within nanoseconds, unless its thread was descheduled.
const SPINS: u32 = 64;

/// The key of a slot, its distance from its home, and the limit it was last counted under. Never zero, because limits are
/// numbered from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(u64);

impl Tag {
    pub(super) const EMPTY: Self = Self(0);

    #[inline]
    pub(super) fn new(hash: u64, away: usize, limit: u16) -> Self {
        // The highest bit is reserved for `SPILLED`.
        let fingerprint = (hash << (LIMIT_BITS + AWAY_BITS + 1)) >> 1;
        Self(fingerprint | (away as u64) << LIMIT_BITS | u64::from(limit))
    }

    /// The limit's number.
    pub(super) fn limit(self) -> u16 {
        (self.0 & (LIMITS as u64 - 1)) as u16
    }

    /// The distance from the key's home.
    pub(super) fn away(self) -> usize {
        (self.0 >> LIMIT_BITS) as usize & (LINES - 1)
    }

    /// Whether both tags belong to the same key, under any limit.
    fn is_of(self, other: Self) -> bool {
        self != Self::EMPTY && (self.0 ^ other.0) >> LIMIT_BITS == 0
    }
}

/// A state packed into a word, or the index of its place in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotWord {
    Packed(u64),
    Pooled(u64),
}

impl SlotWord {
    /// The word of an emptied slot. It equals no state, so a thread that read the slot before cannot replace it.
    pub(super) const VACANT: Self = Self::Pooled(WORD_MAX);

    pub(super) fn from_bits(bits: u64) -> Self {
        let content = bits & WORD_MAX;
        if bits & POOLED == 0 { Self::Packed(content) } else { Self::Pooled(content) }
    }

    pub(super) fn to_bits(self) -> u64 {
        match self {
            Self::Packed(content) => content,
            Self::Pooled(content) => content | POOLED,
        }
    }
}

/// One line of the table.
#[repr(align(64))]
#[derive(Debug, Default)]
pub(super) struct CacheLine {
    tags: [AtomicU64; SLOTS],
    words: [AtomicU64; SLOTS],
}

impl CacheLine {
    /// The slot of the key in `wanted`, under any limit. Only a hint unless the line is locked.
    pub(super) fn find(&self, wanted: Tag) -> Option<(usize, Tag)> {
        (0..SLOTS).map(|slot| (slot, self.tag(slot))).find(|(_, tag)| tag.is_of(wanted))
    }

    /// A snapshot of the slot with exactly this tag.
    #[inline]
    pub(super) fn snapshot(&self, wanted: Tag) -> Option<SlotSnapshot<'_>> {
        // Without a branch, because the slot is unpredictable. Slot 0 is the result if no other slot matches.
        let is_in = |slot: usize| self.tags[slot].load(Ordering::Acquire) == wanted.0;
        let slot = select_unpredictable(is_in(2), 2, usize::from(is_in(1)));
        let slot = select_unpredictable(is_in(3), 3, slot);
        let bits = self.tags[slot].load(Ordering::Acquire);
        if bits & !SPILLED == wanted.0 { Some(SlotSnapshot { line: self, slot, bits }) } else { None }
    }

    /// Whether a slot was never used. Only a hint unless the line is locked.
    pub(super) fn has_empty(&self) -> bool {
        (0..SLOTS).any(|slot| self.tag(slot) == Tag::EMPTY)
    }

    #[inline]
    pub(super) fn tag(&self, slot: usize) -> Tag {
        Tag(self.tags[slot].load(Ordering::Acquire) & !SPILLED)
    }

    #[inline]
    pub(super) fn word(&self, slot: usize) -> SlotWord {
        SlotWord::from_bits(self.words[slot].load(Ordering::Acquire))
    }

    /// Whether keys with this home may live in the lines behind it.
    pub(super) fn has_spilled(&self) -> bool {
        self.tags[0].load(Ordering::Acquire) & SPILLED != 0
    }

    /// Waits for the lock.
    #[inline]
    pub(super) fn lock(&self) -> LineLock<'_> {
        spin_until(|| self.try_lock())
    }

    /// Takes the lock if it is free.
    pub(super) fn try_lock(&self) -> Option<LineLock<'_>> {
        // Not `then_some`: a guard created and dropped would release another thread's lock.
        self.try_lock_word(0).then(|| LineLock { line: self, locked: Cell::new(1) })
    }

    fn try_lock_word(&self, slot: usize) -> bool {
        let was = self.words[slot].load(Ordering::Relaxed) & !LOCKED;
        self.words[slot].compare_exchange(was, was | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The address to prefetch.
    pub(super) fn as_ptr(&self) -> *const u8 {
        std::ptr::from_ref(self).cast()
    }
}

/// A slot in which a tag was found without a lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotSnapshot<'t> {
    line: &'t CacheLine,
    slot: usize,
    bits: u64,
}

impl<'t> SlotSnapshot<'t> {
    /// The packed state of the slot, if the tag is unchanged and the word is neither pooled nor locked.
    #[inline]
    pub(super) fn packed(&self) -> Option<u64> {
        let word = self.line.words[self.slot].load(Ordering::Acquire);
        // The word belongs to the tag if the tag is the same before and after reading the word.
        let is_there = self.line.tags[self.slot].load(Ordering::Acquire) == self.bits;
        if word <= WORD_MAX && is_there { Some(word) } else { None }
    }

    /// Replaces one packed state by another, if it is unchanged and not locked.
    #[inline]
    pub(super) fn replace(&self, was: u64, next: u64) -> bool {
        let word = &self.line.words[self.slot];
        word.compare_exchange(was, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Locks a packed state, if it is unchanged and not locked.
    pub(super) fn lock(&self, was: u64) -> Option<WordLock<'t>> {
        // Not `then_some`: a guard created and dropped would release another thread's word.
        self.replace(was, was | LOCKED).then(|| WordLock { word: &self.line.words[self.slot], next: was })
    }
}

/// Retries until `attempt` succeeds. It spins first, because locks are short, and then yields.
pub(super) fn spin_until<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let mut spins = 0;
    loop {
        if let Some(success) = attempt() {
            return success;
        }
        spins += 1;
        if spins < SPINS { spin() } else { yield_now() }
    }
}

/// An exclusive lock on a word, released on drop.
#[derive(Debug)]
pub(super) struct WordLock<'t> {
    word: &'t AtomicU64,
    next: u64,
}

impl WordLock<'_> {
    /// Sets the word to store on release.
    pub(super) fn set(&mut self, next: u64) {
        self.next = next;
    }
}

impl Drop for WordLock<'_> {
    fn drop(&mut self) {
        self.word.store(self.next, Ordering::Release);
    }
}

/// An exclusive lock on a line. Until it is dropped, no other thread changes a tag, a pooled word or a word locked with
/// [`lock_word`](Self::lock_word).
#[derive(Debug)]
pub(super) struct LineLock<'t> {
    line: &'t CacheLine,
    /// One bit per locked word; bit 0 is always set.
    locked: Cell<u8>,
}

impl LineLock<'_> {
    /// Locks a word too. Other threads do not wait while they hold a word, so this wait is short.
    pub(super) fn lock_word(&self, slot: usize) {
        if self.locked.get() & 1 << slot == 0 {
            spin_until(|| self.line.try_lock_word(slot).then_some(()));
            self.locked.set(self.locked.get() | 1 << slot);
        }
    }

    /// Fills a slot.
    pub(super) fn set(&self, slot: usize, tag: Tag, word: SlotWord) {
        self.lock_word(slot);
        let spilled = self.line.tags[slot].load(Ordering::Relaxed) & SPILLED;
        self.line.tags[slot].store(tag.0 | spilled, Ordering::Release);
        self.line.words[slot].store(word.to_bits() | LOCKED, Ordering::Release);
    }

    pub(super) fn set_spilled(&self, spilled: bool) {
        let tag = self.line.tag(0).0;
        self.line.tags[0].store(if spilled { tag | SPILLED } else { tag }, Ordering::Release);
    }
}

impl std::ops::Deref for LineLock<'_> {
    type Target = CacheLine;

    fn deref(&self) -> &CacheLine {
        self.line
    }
}

impl Drop for LineLock<'_> {
    fn drop(&mut self) {
        // Word 0 last: it is the lock of the line.
        for slot in (0..SLOTS).rev().filter(|slot| self.locked.get() & 1 << slot != 0) {
            let word = self.line.word(slot);
            self.line.words[slot].store(word.to_bits(), Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn cache_line_has_the_size_and_alignment_of_64_bytes() {
        assert_eq!((size_of::<CacheLine>(), align_of::<CacheLine>()), (64, 64));
    }

    #[test]
    fn cache_line_tag_is_found_under_any_limit_and_only_at_its_distance() {
        let line = CacheLine::default();
        line.lock().set(2, Tag::new(0xfeed_beef, 3, 7), SlotWord::Packed(42));
        let found = |hash, away| line.find(Tag::new(hash, away, 1));
        assert_eq!(found(0xfeed_beef, 3), Some((2, Tag::new(0xfeed_beef, 3, 7))));
        assert_eq!(found(0xfeed_beef, 2), None);
        assert_eq!(found(0xfeed_beee, 3), None);
        assert_eq!((line.tag(2).limit(), line.tag(2).away()), (7, 3));
        assert_eq!(CacheLine::default().find(Tag::new(0, 0, 1)), None, "an empty slot belongs to no key");
    }

    #[test]
    fn cache_line_flags_do_not_change_states() {
        let line = CacheLine::default();
        let locked = line.lock();
        for slot in 0..SLOTS {
            locked.set(slot, Tag::new(slot as u64, 0, 1), SlotWord::Packed(WORD_MAX));
        }
        locked.set_spilled(true);
        drop(locked);
        assert!(line.has_spilled());
        for slot in 0..SLOTS {
            assert_eq!(line.tag(slot), Tag::new(slot as u64, 0, 1));
            assert_eq!(line.word(slot), SlotWord::Packed(WORD_MAX));
        }
        line.lock().set(0, Tag::new(7, 0, 1), SlotWord::Pooled(9));
        assert_eq!((line.word(0), line.has_spilled()), (SlotWord::Pooled(9), true));
    }

    #[test]
    fn cache_line_locked_word_is_not_replaced() {
        let line = CacheLine::default();
        let locked = line.lock();
        locked.set(2, Tag::new(1, 0, 1), SlotWord::Packed(5));
        let snapshot = line.snapshot(Tag::new(1, 0, 1)).unwrap();
        assert!(!snapshot.replace(5, 6) && snapshot.packed().is_none());
        drop(locked);
        let mut word_lock = snapshot.lock(5).unwrap();
        assert!(snapshot.lock(5).is_none() && !snapshot.replace(5, 6));
        word_lock.set(7);
        assert_eq!(line.word(2), SlotWord::Packed(5), "until the lock is released");
        drop(word_lock);
        assert!(snapshot.replace(7, 8));
        assert_eq!(snapshot.packed(), Some(8));
        line.lock().set(2, Tag::new(2, 0, 1), SlotWord::Packed(9));
        assert_eq!(snapshot.packed(), None, "the slot belongs to another key");
    }
}
