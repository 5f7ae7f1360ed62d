//! A hash table from key hashes to numbers; most lookups cost one cache miss.
//!
//! A bucket is one cache line with three slots; entries of a full bucket go to the next one. The table has a fixed
//! capacity.

/// 128 bits of a keyed hash.
pub(super) type KeyHash = [u8; 16];

const SLOTS: usize = 3;
/// The load factor, three of four slots; with more, more lookups would read a second bucket.
const FILLED: (usize, usize) = (3, 4);
const VACANT: u32 = u32::MAX;

#[derive(Clone)]
#[repr(align(64))]
struct KeyBucket {
    keys: [KeyHash; SLOTS],
    /// Filled from the start.
    values: [u32; SLOTS],
}

pub(super) struct KeyTable {
    buckets: Box<[KeyBucket]>,
    len: usize,
}

/// The table already contains the key.
pub(super) struct DuplicateKey;

impl KeyTable {
    /// Allocates slots for `entries`, and at least one vacant slot, so that every search ends.
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
            // The slot is unpredictable, so compare all of them without a branch. A vacant slot may contain the same
            // key, but its value is the maximum.
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

    /// All keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = &KeyHash> {
        let slots = self.buckets.iter().flat_map(|bucket| bucket.keys.iter().zip(&bucket.values));
        slots.filter(|(_, value)| **value != VACANT).map(|(key, _)| key)
    }

    /// The size in bytes.
    pub(super) fn size(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    /// Scales the first half of the hash, which is uniform, to the number of buckets.
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
    fn table_finds_inserted_keys_and_nothing_else() {
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
            assert_eq!(table.find(&KeyHash::default()).is_some(), entries > 0, "the key of 0 is all zeros");
        }
    }

    #[test]
    fn table_full_last_bucket_continues_at_the_first() {
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
    fn bucket_has_the_size_of_a_cache_line() {
        assert_eq!(size_of::<KeyBucket>(), 64);
    }
}
