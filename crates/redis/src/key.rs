//! The names of counters in Redis.

use std::fmt::Write;

use sha2::{Digest, Sha256};
use tidegate_core::CounterKey;

/// Enough of SHA-256 to prevent clients from finding two names with the same tag.
const TAG_BYTES: usize = 16;

/// `tidegate:{client}:rule`, both hashed: all counters of a client share a hash slot, the name is the same on every node and
/// after every restart, and it contains no bytes from the client (such as an API key or a brace).
pub(crate) fn name(key: CounterKey<'_>) -> String {
    let digest = Sha256::digest(key.client);
    let mut name = String::with_capacity(64);
    name.push_str("tidegate:{");
    for byte in digest.iter().take(TAG_BYTES) {
        // Writing to a String does not fail.
        let _ = write!(name, "{byte:02x}");
    }
    let _ = write!(name, "}}:{:016x}", key.rule.as_u64());
    name
}

#[cfg(test)]
mod tests {
    use tidegate_core::RuleId;

    use super::*;

    #[test]
    fn key_name_is_stable_and_hides_the_client() {
        let key = CounterKey::new(RuleId::named("default"), b"sk_live_{secret}");
        assert_eq!(name(key), "tidegate:{ff0fc420c7edbe4f10a5934303a56811}:ebada5168620c5fe");
    }

    #[test]
    fn key_names_share_a_hash_tag_only_per_client() {
        let tag = |rule, client: &[u8]| {
            let name = name(CounterKey::new(RuleId::named(rule), client));
            (name[name.find('{').unwrap()..=name.find('}').unwrap()].to_owned(), name)
        };
        assert_eq!(tag("global", b"a").0, tag("default", b"a").0);
        assert_ne!(tag("global", b"a").1, tag("default", b"a").1);
        assert_ne!(tag("global", b"a").0, tag("global", b"a}b").0);
    }
}
