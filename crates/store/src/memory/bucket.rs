//! One cache line: four slots and the lock that guards them.
//!
//! ```text
//!           63     62       17 16  14 13          0
//! tags[i]  | used | fingerprint | away | limit    |
//!           63     62       61                    0
//! words[i] | flag | pooled | packed state         |   the flag of word 0 is the lock, of word 1 "spilled"
//! ```
//!
//! Whoever changes anything in a line holds its lock. Whoever only reads a tag and its word needs none: every
//! word ever stored under a tag was a whole state of that key.

use std::cell::Cell;

use crate::sync::{AtomicU64, Ordering, spin, yield_now};

pub(super) const SLOTS: usize = 4;

const LIMIT_BITS: u32 = 14;
const AWAY_BITS: u32 = 3;
/// How many lines in a row a key may live in, its home being the first.
pub(super) const LINES: usize = 1 << AWAY_BITS;
/// How many limits can be told apart.
pub(super) const LIMITS: usize = 1 << LIMIT_BITS;

/// Every tag but the empty one has it.
const USED: u64 = 1 << 63;
const FLAG: u64 = 1 << 63;
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
        let fingerprint = hash << (LIMIT_BITS + AWAY_BITS);
        Self(USED | fingerprint | (away as u64) << LIMIT_BITS | u64::from(limit))
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
        (self.0 ^ other.0) >> LIMIT_BITS == 0
    }
}

/// A state packed into a word, or the number of its place in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Packed(u64),
    Pooled(u64),
}

impl Word {
    fn from_bits(bits: u64) -> Self {
        let content = bits & !(FLAG | POOLED);
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
pub(super) struct Bucket {
    tags: [AtomicU64; SLOTS],
    words: [AtomicU64; SLOTS],
}

impl Bucket {
    /// The slot of the key that `wanted` names, whatever its limit. Without the lock this is a hint.
    pub(super) fn find(&self, wanted: Tag) -> Option<(usize, Tag)> {
        (0..SLOTS).map(|slot| (slot, self.tag(slot))).find(|(_, tag)| tag.is_of(wanted))
    }

    /// The slot of exactly this tag. Without the lock this is a hint.
    #[inline]
    pub(super) fn find_exactly(&self, wanted: Tag) -> Option<usize> {
        // All four are compared: which slot it is, no branch predictor knows.
        let found = (0..SLOTS).fold(0_u32, |found, slot| found | u32::from(self.tag(slot) == wanted) << slot);
        if found == 0 { None } else { Some(found.trailing_zeros() as usize % SLOTS) }
    }

    /// Whether a slot was never used. Without the lock this is a hint.
    pub(super) fn has_empty(&self) -> bool {
        (0..SLOTS).any(|slot| self.tag(slot) == Tag::EMPTY)
    }

    #[inline]
    pub(super) fn tag(&self, slot: usize) -> Tag {
        Tag(self.tags[slot].load(Ordering::Acquire))
    }

    #[inline]
    pub(super) fn word(&self, slot: usize) -> Word {
        Word::from_bits(self.words[slot].load(Ordering::Acquire))
    }

    /// Whether keys whose home this is may live in the lines behind it.
    pub(super) fn has_spilled(&self) -> bool {
        self.words[1].load(Ordering::Acquire) & FLAG != 0
    }

    /// Waits for the lock.
    #[inline]
    pub(super) fn lock(&self) -> Locked<'_> {
        let mut spins = 0;
        loop {
            if let Some(locked) = self.try_lock() {
                return locked;
            }
            spins += 1;
            if spins < SPINS { spin() } else { yield_now() }
        }
    }

    /// The lock, if nobody holds it.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<Locked<'_>> {
        let was = self.words[0].load(Ordering::Relaxed) & !FLAG;
        let locked = self.words[0].compare_exchange(was, was | FLAG, Ordering::Acquire, Ordering::Relaxed);
        // Not `then_some`: a guard made and dropped would let go of another's lock.
        locked.is_ok().then(|| Locked { bucket: self, first_word: Cell::new(was) })
    }

    /// The address that a prefetch wants.
    pub(super) fn as_ptr(&self) -> *const u8 {
        std::ptr::from_ref(self).cast()
    }
}

/// A line whose lock is held: until it is dropped, nobody else changes it.
#[derive(Debug)]
pub(super) struct Locked<'t> {
    bucket: &'t Bucket,
    /// What word 0 is to be when the lock is let go.
    first_word: Cell<u64>,
}

impl Locked<'_> {
    pub(super) fn set(&self, slot: usize, tag: Tag, word: Word) {
        self.bucket.tags[slot].store(tag.0, Ordering::Release);
        self.set_word(slot, word);
    }

    #[inline]
    pub(super) fn set_word(&self, slot: usize, word: Word) {
        let flag = self.bucket.words[slot].load(Ordering::Relaxed) & FLAG;
        self.bucket.words[slot].store(word.to_bits() | flag, Ordering::Release);
        if slot == 0 {
            self.first_word.set(word.to_bits());
        }
    }

    pub(super) fn set_spilled(&self, spilled: bool) {
        let bits = self.bucket.words[1].load(Ordering::Relaxed) & !FLAG;
        self.bucket.words[1].store(if spilled { bits | FLAG } else { bits }, Ordering::Release);
    }
}

impl std::ops::Deref for Locked<'_> {
    type Target = Bucket;

    fn deref(&self) -> &Bucket {
        self.bucket
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.bucket.words[0].store(self.first_word.get(), Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_one_cache_line() {
        assert_eq!((size_of::<Bucket>(), align_of::<Bucket>()), (64, 64));
    }

    #[test]
    fn a_tag_is_found_under_any_limit_and_only_at_its_distance() {
        let bucket = Bucket::default();
        bucket.lock().set(2, Tag::new(0xfeed_beef, 3, 7), Word::Packed(42));
        let found = |hash, away| bucket.find(Tag::new(hash, away, 1));
        assert_eq!(found(0xfeed_beef, 3), Some((2, Tag::new(0xfeed_beef, 3, 7))));
        assert_eq!(found(0xfeed_beef, 2), None);
        assert_eq!(found(0xfeed_beee, 3), None);
        assert_eq!((bucket.tag(2).limit(), bucket.tag(2).away()), (7, 3));
        assert_eq!(Bucket::default().find(Tag::new(0, 0, 1)), None, "an empty slot is nobody's");
    }

    #[test]
    fn flags_never_touch_states() {
        let bucket = Bucket::default();
        let locked = bucket.lock();
        for slot in 0..SLOTS {
            locked.set_word(slot, Word::Packed((1 << 62) - 1));
        }
        locked.set_spilled(true);
        drop(locked);
        assert!(bucket.has_spilled());
        for slot in 0..SLOTS {
            assert_eq!(bucket.word(slot), Word::Packed((1 << 62) - 1));
        }
        bucket.lock().set_word(1, Word::Pooled(9));
        assert_eq!((bucket.word(1), bucket.has_spilled()), (Word::Pooled(9), true));
    }
}
