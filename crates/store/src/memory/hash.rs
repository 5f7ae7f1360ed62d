//! The hash that identifies keys.
//!
//! It is seeded with 256 random bits, so that clients cannot choose keys that share a counter or a line. It is built from
//! folded multiplications, like the fastest current hashes, and is not cryptographic: its values would reveal the seed, so
//! they never leave the process. It is our own for speed: keys of up to 32 bytes need no call and no loop.

use std::hash::{BuildHasher, RandomState};

use tidegate_core::CounterKey;

/// Hashes keys.
#[derive(Clone, Copy)]
pub(crate) struct KeyHasher {
    seed: [u64; 4],
}

impl std::fmt::Debug for KeyHasher {
    /// Redacted: the seed would allow a client to choose keys that collide.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyHasher")
    }
}

impl KeyHasher {
    /// A hasher with a random seed.
    pub(crate) fn random() -> Self {
        // The standard library seeds `RandomState` from the system's randomness.
        let random = RandomState::new();
        Self { seed: std::array::from_fn(|n| random.hash_one(n)) }
    }

    /// A hasher with a fixed seed, for tests.
    #[cfg(test)]
    pub(super) fn fixed() -> Self {
        Self {
            seed: [
                0x243f_6a88_85a3_08d3,
                0x1319_8a2e_0370_7344,
                0xa409_3822_299f_31d0,
                0x082e_fa98_ec4e_6c89,
            ],
        }
    }

    /// The hash of a key: every bit depends on every bit of the key.
    #[expect(clippy::inline_always, reason = "a few instructions of every decision")]
    #[inline(always)]
    pub(crate) fn hash(&self, key: &CounterKey<'_>) -> u64 {
        let bytes = key.client;
        let client = match (bytes.first_chunk(), bytes.last_chunk()) {
            (Some(first), Some(last)) if bytes.len() <= 32 => self.mix(first, last),
            (Some(_), Some(last)) => self.hash_long(bytes, last),
            _ => self.hash_short(bytes),
        };
        // The length distinguishes names that are read as the same bytes.
        fold(client ^ key.rule.as_u64(), self.seed[3] ^ bytes.len() as u64)
    }

    /// Mixes 32 bytes, which may overlap.
    #[expect(clippy::inline_always, reason = "a few instructions of every decision")]
    #[inline(always)]
    fn mix(&self, first: &[u8; 16], last: &[u8; 16]) -> u64 {
        let ([a, b], [c, d]) = (halves(first), halves(last));
        fold(a ^ self.seed[0], c ^ self.seed[1]) ^ fold(b ^ self.seed[1], d ^ self.seed[2])
    }

    #[inline(never)]
    fn hash_short(&self, bytes: &[u8]) -> u64 {
        let mut padded = [0; 16];
        for (to, from) in padded.iter_mut().zip(bytes) {
            *to = *from;
        }
        self.mix(&padded, &padded)
    }

    #[inline(never)]
    fn hash_long(&self, bytes: &[u8], last: &[u8; 16]) -> u64 {
        let mut hash = self.seed[3];
        for chunk in bytes.as_chunks().0 {
            hash = fold(hash ^ self.seed[0], self.mix(chunk, last) ^ self.seed[1]);
        }
        hash
    }
}

/// The xor of both halves of the product.
#[expect(clippy::inline_always, reason = "three instructions")]
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[expect(clippy::inline_always, reason = "two instructions")]
#[inline(always)]
fn halves(bytes: &[u8; 16]) -> [u64; 2] {
    let both = u128::from_le_bytes(*bytes);
    [both as u64, (both >> 64) as u64]
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;

    use tidegate_core::RuleId;

    use super::*;

    const RULE: RuleId = RuleId::named("default");

    fn hash(client: &[u8]) -> u64 {
        KeyHasher::fixed().hash(&CounterKey::new(RULE, client))
    }

    #[test]
    fn hash_flips_about_half_of_its_bits_for_each_bit_of_the_name() {
        for length in 1..=80 {
            let name: Vec<u8> = (0..length).map(|n| (n * 37 + 11) as u8).collect();
            let (mut turned, mut flips) = (0, 0);
            for bit in 0..length * 8 {
                let mut other = name.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                let difference = (hash(&name) ^ hash(&other)).count_ones();
                assert!(difference >= 10, "bit {bit} of {length} bytes turned only {difference}");
                turned += difference;
                flips += 1;
            }
            let average = turned / flips;
            assert!((29..=35).contains(&average), "{average} of 64 bits on average at {length} bytes");
        }
    }

    #[test]
    fn hash_of_consecutive_names_is_evenly_spread_without_collisions() {
        let (mut seen, mut high, mut low) = (HashSet::new(), [0_u32; 256], [0_u32; 256]);
        for n in 0..100_000 {
            let hash = hash(format!("customer:{n:012}").as_bytes());
            assert!(seen.insert(hash), "two names have the hash {hash:x}");
            high[(hash >> 56) as usize] += 1;
            low[hash as usize % 256] += 1;
        }
        // 391 on average; six standard deviations are 119.
        assert!(high.iter().chain(&low).all(|count| (272..=510).contains(count)), "{high:?} {low:?}");
    }

    #[test]
    fn hash_depends_on_length_rule_and_seed() {
        assert_ne!(hash(b""), hash(b"\0"));
        assert_ne!(hash(&[0; 16]), hash(&[0; 15]));
        assert_ne!(hash(&[0; 32]), hash(&[0; 48]));
        let other = KeyHasher::fixed().hash(&CounterKey::new(RuleId::named("other"), b"a"));
        assert_ne!(hash(b"a"), other);
        assert_ne!(
            KeyHasher::random().hash(&CounterKey::new(RULE, b"a")),
            KeyHasher::random().hash(&CounterKey::new(RULE, b"a"))
        );
    }
}
