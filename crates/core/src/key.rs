//! The identity of counters.

use core::fmt;

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

#[cfg(test)]
mod tests {
    extern crate std;
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
}
