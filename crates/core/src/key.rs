//! The identity of counters.

use alloc::boxed::Box;
use core::borrow::Borrow;
use core::fmt;
use core::hash::{Hash, Hasher};

/// A rule's identity: a stable hash of its name.
///
/// The name *is* the identity: a rule keeps its counters across reloads, restarts and nodes, and decisions carry no
/// strings. The loader of a policy must reject two names with the same id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(u64);

impl RuleId {
    /// The id of the rule called `name` (64-bit FNV-1a).
    pub const fn named(name: &str) -> Self {
        const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        let mut hash = OFFSET;
        let mut rest = name.as_bytes();
        while let [byte, tail @ ..] = rest {
            hash = (hash ^ *byte as u64).wrapping_mul(PRIME);
            rest = tail;
        }
        Self(hash)
    }

    /// The id with this number, as returned by [`as_u64`](Self::as_u64), perhaps before a restart.
    pub const fn from_u64(id: u64) -> Self {
        Self(id)
    }

    /// The id as a number, for hashing and for key names.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RuleId({:016x})", self.0)
    }
}

/// The key of a counter: a rule and the client it counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CounterKey<'a> {
    /// The rule.
    pub rule: RuleId,
    /// The client: an API key, an address, or empty for one counter shared by all clients.
    pub client: &'a [u8],
}

impl<'a> CounterKey<'a> {
    /// The counter of `client` under `rule`.
    pub const fn new(rule: RuleId, client: &'a [u8]) -> Self {
        Self { rule, client }
    }
}

impl fmt::Debug for CounterKey<'_> {
    /// Redacted: a client may be an API key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CounterKey({:?}, {} bytes)", self.rule, self.client.len())
    }
}

/// A counter key that owns its client.
///
/// A map by `OwnedKey` is searched for a [`CounterKey`] without a copy, through [`AsKey`]. Equality, order and hash are those
/// of the counter key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnedKey {
    /// The rule.
    pub rule: RuleId,
    /// The client, as in the counter key.
    pub client: Box<[u8]>,
}

impl OwnedKey {
    /// The counter key.
    pub const fn as_key(&self) -> CounterKey<'_> {
        CounterKey { rule: self.rule, client: &self.client }
    }
}

impl From<CounterKey<'_>> for OwnedKey {
    fn from(key: CounterKey<'_>) -> Self {
        Self { rule: key.rule, client: key.client.into() }
    }
}

impl fmt::Debug for OwnedKey {
    /// Redacted like the counter key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_key().fmt(f)
    }
}

/// The borrowed form of [`OwnedKey`]: `map.get(&key as &dyn AsKey)` finds the entry of a [`CounterKey`].
pub trait AsKey {
    /// The counter key.
    fn as_key(&self) -> CounterKey<'_>;
}

impl AsKey for CounterKey<'_> {
    fn as_key(&self) -> CounterKey<'_> {
        *self
    }
}

impl AsKey for OwnedKey {
    fn as_key(&self) -> CounterKey<'_> {
        self.as_key()
    }
}

impl<'a> Borrow<dyn AsKey + 'a> for OwnedKey {
    fn borrow(&self) -> &(dyn AsKey + 'a) {
        self
    }
}

impl PartialEq for dyn AsKey + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.as_key() == other.as_key()
    }
}

impl Eq for dyn AsKey + '_ {}

impl Hash for dyn AsKey + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_key().hash(state);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn rule_id_of_a_name_is_stable() {
        assert_eq!(RuleId::named("").as_u64(), 0xcbf2_9ce4_8422_2325);
        assert_eq!(RuleId::named("a").as_u64(), 0xaf63_dc4c_8601_ec8c);
        assert_ne!(RuleId::named("default"), RuleId::named("global"));
    }

    #[test]
    fn counter_key_debug_output_hides_the_client() {
        let shown = std::format!("{:?}", CounterKey::new(RuleId::named("default"), b"sk_live_secret"));
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn owned_key_in_a_map_is_found_by_its_counter_key_only() {
        let keys = [("one", &b"ann"[..]), ("one", b""), ("other", b"ann"), ("other", b"bob")]
            .map(|(rule, client)| CounterKey::new(RuleId::named(rule), client));
        let map: HashMap<OwnedKey, usize> = keys.iter().map(|key| OwnedKey::from(*key)).zip(0..3).collect();
        let found = keys.map(|key| map.get(&key as &dyn AsKey).copied());
        assert_eq!(found, [Some(0), Some(1), Some(2), None]);
    }

    #[test]
    fn owned_key_debug_output_hides_the_client() {
        let key = CounterKey::new(RuleId::named("default"), b"sk_live_secret");
        assert_eq!(std::format!("{:?}", OwnedKey::from(key)), std::format!("{key:?}"));
    }
}
