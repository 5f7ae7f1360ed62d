//! Numbers by fingerprint, one cache miss away.
//!
//! A bucket is a cache line and holds three entries; a full one passes the next entry on to its neighbour. The
//! table is made for so many entries and never grows.

/// 128 bits of a keyed hash.
pub(super) type KeyHash = [u8; 16];

const SLOTS: usize = 3;
/// Three of four slots are filled: fuller, and more lookups would see a second bucket.
const FILLED: (usize, usize) = (3, 4);
const VACANT: u32 = u32::MAX;

#[derive(Clone)]
#[repr(align(64))]
struct KeyBucket {
    keys: [KeyHash; SLOTS],
    /// Filled from the first on.
    values: [u32; SLOTS],
}

pub(super) struct KeyTable {
    buckets: Box<[KeyBucket]>,
    len: usize,
}

/// The fingerprint is there already.
pub(super) struct DuplicateKey;

impl KeyTable {
    /// Room for `entries`, and at least one vacant slot, so that every search ends.
    pub(super) fn for_entries(entries: usize) -> Self {
        let (filled, of) = FILLED;
        let vacant = KeyBucket { keys: Default::default(), values: [VACANT; SLOTS] };
        Self { buckets: vec![vacant; entries * of / (filled * SLOTS) + 1].into(), len: 0 }
    }

    /// Adds an entry; `value` must be below `u32::MAX`.
    pub(super) fn insert(&mut self, key: KeyHash, value: u32) -> Result<(), DuplicateKey> {
        let mut at = self.home(&key);
        loop {
            let bucket = &mut self.buckets[at];
            for (known, slot) in bucket.keys.iter_mut().zip(&mut bucket.values) {
                if *slot == VACANT {
                    (*known, *slot) = (key, value);
                    self.len += 1;
                    return Ok(());
                }
                if *known == key {
                    return Err(DuplicateKey);
                }
            }
            at = self.next(at);
        }
    }

    pub(super) fn find(&self, key: &KeyHash) -> Option<u32> {
        let mut at = self.home(key);
        loop {
            let bucket = &self.buckets[at];
            // Which slot it is nobody can predict, so all are compared without a branch. A vacant one may hold
            // the same key, but its value is the largest.
            let slots = bucket.keys.iter().zip(&bucket.values);
            let found = slots
                .fold(VACANT, |found, (known, &value)| if known == key { found.min(value) } else { found });
            if found != VACANT {
                return Some(found);
            }
            if bucket.values.last() == Some(&VACANT) {
                return None;
            }
            at = self.next(at);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// In bytes.
    pub(super) fn size(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    /// A fingerprint is as good as random: its half, scaled to the number of buckets, is one of them.
    fn home(&self, key: &KeyHash) -> usize {
        let half = key.first_chunk().map_or(0, |half| u64::from_le_bytes(*half));
        let scaled = (u128::from(half) * self.buckets.len() as u128) >> u64::BITS;
        usize::try_from(scaled).unwrap_or_default()
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.buckets.len() { 0 } else { at + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> KeyHash {
        let mut key = KeyHash::default();
        key[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        key[8..].copy_from_slice(&n.to_le_bytes());
        key
    }

    #[test]
    fn what_went_in_is_found_and_nothing_else() {
        for entries in [0, 1, 2, 3, 10, 1000] {
            let mut table = KeyTable::for_entries(entries);
            for n in 0..entries {
                assert!(table.insert(key(n as u64), u32::try_from(n).unwrap()).is_ok());
            }
            assert_eq!(table.len(), entries);
            for n in 0..entries {
                assert_eq!(table.find(&key(n as u64)), u32::try_from(n).ok());
                assert!(table.insert(key(n as u64), 0).is_err());
            }
            assert!((entries..2 * entries + 9).all(|n| table.find(&key(n as u64)).is_none()));
            assert_eq!(table.find(&KeyHash::default()).is_some(), entries > 0, "that of 0 is all zeros");
        }
    }

    #[test]
    fn full_buckets_pass_entries_on_around_the_end() {
        let mut table = KeyTable::for_entries(9);
        let last = |n: u8| {
            let mut key = [0xff; 16];
            key[15] = n;
            key
        };
        for n in 0..9 {
            assert!(table.insert(last(n), n.into()).is_ok());
        }
        assert!((0..9).all(|n| table.find(&last(n)) == Some(n.into())));
        assert_eq!(table.find(&last(9)), None);
    }

    #[test]
    fn a_bucket_is_a_cache_line() {
        assert_eq!(size_of::<KeyBucket>(), 64);
    }
}
