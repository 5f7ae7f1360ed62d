//! One cache line: four slots.
//!
//! ```text
//!           63        62       18 17  14 13      0
//! tags[i]  | spilled | fingerprint | away | limit |   spilled: a flag of the line, kept in tags[0]
//!           63     62       61                   0
//! words[i] | held | pooled | packed state         |
//! ```
//!
//! A word changes in one step, by compare-and-swap, unless somebody holds it. A tag changes only while its line is
//! locked, that is word 0 held, and its own word held too. Whoever only reads a tag and its word needs nothing:
//! every word ever stored under a tag was a whole state of that key.

use std::cell::Cell;
use std::hint::select_unpredictable;

use tidegate_core::WORD_MAX;

use crate::sync::{AtomicU64, Ordering, spin, yield_now};

pub(super) const SLOTS: usize = 4;

// Unit tests have few numbers, so that numbers are used again and again, and loom has few lines to try.
const LIMIT_BITS: u32 = if cfg!(loom) {
    3
} else if cfg!(test) {
    5
} else {
    14
};
const AWAY_BITS: u32 = if cfg!(loom) { 1 } else { 4 };
/// How many lines in a row a key may live in, its home being the first.
pub(super) const LINES: usize = 1 << AWAY_BITS;
/// How many limits can be told apart.
pub(super) const LIMITS: usize = 1 << LIMIT_BITS;

const SPILLED: u64 = 1 << 63;
const LOCKED: u64 = 1 << 63;
const POOLED: u64 = 1 << 62;
/// A holder is done within nanoseconds, unless it was put to sleep.
const SPINS: u32 = 64;

/// Whose slot, how far from its home, and under which limit it was last counted. Never zero: limits are
/// numbered from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(u64);

impl Tag {
    pub(super) const EMPTY: Self = Self(0);

    #[inline]
    pub(super) fn new(hash: u64, away: usize, limit: u16) -> Self {
        // The highest bit is not the hash's.
        let fingerprint = (hash << (LIMIT_BITS + AWAY_BITS + 1)) >> 1;
        Self(fingerprint | (away as u64) << LIMIT_BITS | u64::from(limit))
    }

    /// The limit's number.
    pub(super) fn limit(self) -> u16 {
        (self.0 & (LIMITS as u64 - 1)) as u16
    }

    /// How far from its home.
    pub(super) fn away(self) -> usize {
        (self.0 >> LIMIT_BITS) as usize & (LINES - 1)
    }

    /// Whether it is that key's, whatever its limit.
    fn is_of(self, other: Self) -> bool {
        self != Self::EMPTY && (self.0 ^ other.0) >> LIMIT_BITS == 0
    }
}

/// A state packed into a word, or the number of its place in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotWord {
    Packed(u64),
    Pooled(u64),
}

impl SlotWord {
    /// What stands in a slot that was emptied. It equals no state, so whoever read the slot before cannot replace it.
    pub(super) const VACANT: Self = Self::Pooled(WORD_MAX);

    fn from_bits(bits: u64) -> Self {
        let content = bits & WORD_MAX;
        if bits & POOLED == 0 { Self::Packed(content) } else { Self::Pooled(content) }
    }

    fn to_bits(self) -> u64 {
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
    /// The slot of the key that `wanted` names, whatever its limit. Unless the line is locked this is a hint.
    pub(super) fn find(&self, wanted: Tag) -> Option<(usize, Tag)> {
        (0..SLOTS).map(|slot| (slot, self.tag(slot))).find(|(_, tag)| tag.is_of(wanted))
    }

    /// Where exactly this tag is.
    #[inline]
    pub(super) fn snapshot(&self, wanted: Tag) -> Option<SlotSnapshot<'_>> {
        // Without a branch: which slot it is, no branch predictor knows. The first is it if no other is.
        let is_in = |slot: usize| self.tags[slot].load(Ordering::Acquire) == wanted.0;
        let slot = select_unpredictable(is_in(2), 2, usize::from(is_in(1)));
        let slot = select_unpredictable(is_in(3), 3, slot);
        let bits = self.tags[slot].load(Ordering::Acquire);
        if bits & !SPILLED == wanted.0 { Some(SlotSnapshot { line: self, slot, bits }) } else { None }
    }

    /// Whether a slot was never used. Unless the line is locked this is a hint.
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

    /// Whether keys whose home this is may live in the lines behind it.
    pub(super) fn has_spilled(&self) -> bool {
        self.tags[0].load(Ordering::Acquire) & SPILLED != 0
    }

    /// Waits for the lock.
    #[inline]
    pub(super) fn lock(&self) -> LineLock<'_> {
        spin_until(|| self.try_lock())
    }

    /// The lock, if nobody holds it.
    pub(super) fn try_lock(&self) -> Option<LineLock<'_>> {
        // Not `then_some`: a guard made and dropped would let go of another's lock.
        self.try_lock_word(0).then(|| LineLock { bucket: self, held: Cell::new(1) })
    }

    fn try_lock_word(&self, slot: usize) -> bool {
        let was = self.words[slot].load(Ordering::Relaxed) & !LOCKED;
        self.words[slot].compare_exchange(was, was | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The address that a prefetch wants.
    pub(super) fn as_ptr(&self) -> *const u8 {
        std::ptr::from_ref(self).cast()
    }
}

/// A slot in which a tag was seen without any lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotSnapshot<'t> {
    line: &'t CacheLine,
    slot: usize,
    bits: u64,
}

impl<'t> SlotSnapshot<'t> {
    /// The state there, if the tag is still there too, and the state is packed and held by nobody.
    #[inline]
    pub(super) fn packed(&self) -> Option<u64> {
        let word = self.line.words[self.slot].load(Ordering::Acquire);
        // The word was the tag's if the tag was there before it was read and is there after it.
        let is_there = self.line.tags[self.slot].load(Ordering::Acquire) == self.bits;
        if word <= WORD_MAX && is_there { Some(word) } else { None }
    }

    /// Puts one packed state in the place of another, if that is still there and nobody holds it.
    #[inline]
    pub(super) fn replace(&self, was: u64, next: u64) -> bool {
        let word = &self.line.words[self.slot];
        word.compare_exchange(was, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Holds a packed state, if it is still there and nobody else holds it.
    pub(super) fn hold(&self, was: u64) -> Option<WordLock<'t>> {
        // Not `then_some`: a guard made and dropped would let go of another's word.
        self.replace(was, was | LOCKED).then(|| WordLock { word: &self.line.words[self.slot], then: was })
    }
}

/// Tries until it succeeds; at first without giving way, for holders are quick.
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

/// A word that nobody else changes until this is dropped.
#[derive(Debug)]
pub(super) struct WordLock<'t> {
    word: &'t AtomicU64,
    then: u64,
}

impl WordLock<'_> {
    /// What the word is to be when it is let go.
    pub(super) fn set(&mut self, next: u64) {
        self.then = next;
    }
}

impl Drop for WordLock<'_> {
    fn drop(&mut self) {
        self.word.store(self.then, Ordering::Release);
    }
}

/// A line whose lock is held: until this is dropped, nobody else changes a tag, a pooled word or a word that
/// [`hold`](Self::hold) was called for.
#[derive(Debug)]
pub(super) struct LineLock<'t> {
    bucket: &'t CacheLine,
    /// A bit for each word that is held; word 0 always is.
    held: Cell<u8>,
}

impl LineLock<'_> {
    /// Holds a word too. Others hold a word only while they wait for nothing, so this never waits for long.
    pub(super) fn hold(&self, slot: usize) {
        if self.held.get() & 1 << slot == 0 {
            spin_until(|| self.bucket.try_lock_word(slot).then_some(()));
            self.held.set(self.held.get() | 1 << slot);
        }
    }

    /// Fills a slot.
    pub(super) fn set(&self, slot: usize, tag: Tag, word: SlotWord) {
        self.hold(slot);
        let spilled = self.bucket.tags[slot].load(Ordering::Relaxed) & SPILLED;
        self.bucket.tags[slot].store(tag.0 | spilled, Ordering::Release);
        self.bucket.words[slot].store(word.to_bits() | LOCKED, Ordering::Release);
    }

    pub(super) fn set_spilled(&self, spilled: bool) {
        let tag = self.bucket.tag(0).0;
        self.bucket.tags[0].store(if spilled { tag | SPILLED } else { tag }, Ordering::Release);
    }
}

impl std::ops::Deref for LineLock<'_> {
    type Target = CacheLine;

    fn deref(&self) -> &CacheLine {
        self.bucket
    }
}

impl Drop for LineLock<'_> {
    fn drop(&mut self) {
        // SlotWord 0 last: it is the lock.
        for slot in (0..SLOTS).rev().filter(|slot| self.held.get() & 1 << slot != 0) {
            let word = self.bucket.word(slot);
            self.bucket.words[slot].store(word.to_bits(), Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_one_cache_line() {
        assert_eq!((size_of::<CacheLine>(), align_of::<CacheLine>()), (64, 64));
    }

    #[test]
    fn a_tag_is_found_under_any_limit_and_only_at_its_distance() {
        let bucket = CacheLine::default();
        bucket.lock().set(2, Tag::new(0xfeed_beef, 3, 7), SlotWord::Packed(42));
        let found = |hash, away| bucket.find(Tag::new(hash, away, 1));
        assert_eq!(found(0xfeed_beef, 3), Some((2, Tag::new(0xfeed_beef, 3, 7))));
        assert_eq!(found(0xfeed_beef, 2), None);
        assert_eq!(found(0xfeed_beee, 3), None);
        assert_eq!((bucket.tag(2).limit(), bucket.tag(2).away()), (7, 3));
        assert_eq!(CacheLine::default().find(Tag::new(0, 0, 1)), None, "an empty slot is nobody's");
    }

    #[test]
    fn flags_never_touch_states() {
        let bucket = CacheLine::default();
        let locked = bucket.lock();
        for slot in 0..SLOTS {
            locked.set(slot, Tag::new(slot as u64, 0, 1), SlotWord::Packed(WORD_MAX));
        }
        locked.set_spilled(true);
        drop(locked);
        assert!(bucket.has_spilled());
        for slot in 0..SLOTS {
            assert_eq!(bucket.tag(slot), Tag::new(slot as u64, 0, 1));
            assert_eq!(bucket.word(slot), SlotWord::Packed(WORD_MAX));
        }
        bucket.lock().set(0, Tag::new(7, 0, 1), SlotWord::Pooled(9));
        assert_eq!((bucket.word(0), bucket.has_spilled()), (SlotWord::Pooled(9), true));
    }

    #[test]
    fn a_word_that_is_held_is_not_replaced() {
        let bucket = CacheLine::default();
        let locked = bucket.lock();
        locked.set(2, Tag::new(1, 0, 1), SlotWord::Packed(5));
        let seen = bucket.snapshot(Tag::new(1, 0, 1)).unwrap();
        assert!(!seen.replace(5, 6) && seen.packed().is_none());
        drop(locked);
        let mut held = seen.hold(5).unwrap();
        assert!(seen.hold(5).is_none() && !seen.replace(5, 6));
        held.set(7);
        assert_eq!(bucket.word(2), SlotWord::Packed(5), "until it is let go");
        drop(held);
        assert!(seen.replace(7, 8));
        assert_eq!(seen.packed(), Some(8));
        bucket.lock().set(2, Tag::new(2, 0, 1), SlotWord::Packed(9));
        assert_eq!(seen.packed(), None, "it is another's now");
    }
}
