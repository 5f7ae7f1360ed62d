//! The names of counters in Redis.

use std::fmt;

use aws_lc_rs::hmac;
use tidegate_core::CounterKey;

/// Characters of the hash tag: 90 bits, so that two of 10^9 clients share one with a probability below 10^-9.
const TAG_CHARACTERS: usize = 15;
/// Characters of the rule: 48 bits.
const RULE_CHARACTERS: usize = 8;
/// The end of the names of counters that are leased.
const LEASE_SUFFIX: u8 = b'L';
/// The end of the names of counters of which nodes keep copies.
const SYNC_SUFFIX: u8 = b'S';
/// The end of the names of sets of permits.
const PERMITS_SUFFIX: u8 = b'P';
/// Safe in key names and in hash tags.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Derives key names. Clients appear only as keyed hashes, so a copy of the database does not reveal them.
pub(crate) struct KeyNames {
    prefix: Box<str>,
    secret: hmac::Key,
}

impl KeyNames {
    /// Names that start with `prefix`. Every node must use the same `secret`.
    pub(crate) fn new(prefix: &str, secret: &[u8]) -> Self {
        Self { prefix: prefix.into(), secret: hmac::Key::new(hmac::HMAC_SHA256, secret) }
    }

    /// `prefix{client}rule`: all counters of a client share a hash slot. The name is the same on every node and after every
    /// restart, and contains no bytes from the client (such as an API key or a brace).
    pub(crate) fn counter(&self, key: CounterKey<'_>) -> KeyName {
        let digest = self.client_hash(key.client);
        let mut name = Vec::with_capacity(self.prefix.len() + TAG_CHARACTERS + RULE_CHARACTERS + 2);
        name.extend_from_slice(self.prefix.as_bytes());
        name.push(b'{');
        push_base64(&mut name, digest.as_ref(), TAG_CHARACTERS);
        name.push(b'}');
        push_base64(&mut name, &key.rule.as_u64().to_be_bytes(), RULE_CHARACTERS);
        let tag = name.get(self.prefix.len() + 1..self.prefix.len() + 1 + TAG_CHARACTERS).unwrap_or_default();
        KeyName { slot: slot_of(tag), name: name.into() }
    }

    /// The name of the counter's leases.
    pub(crate) fn lease(&self, key: CounterKey<'_>) -> KeyName {
        self.with_suffix(key, LEASE_SUFFIX)
    }

    /// The name of a counter of which nodes keep copies.
    pub(crate) fn sync(&self, key: CounterKey<'_>) -> KeyName {
        self.with_suffix(key, SYNC_SUFFIX)
    }

    /// The name of the set of permits.
    pub(crate) fn permits(&self, key: CounterKey<'_>) -> KeyName {
        self.with_suffix(key, PERMITS_SUFFIX)
    }

    /// A hash that stands for a client.
    pub(crate) fn client_hash(&self, client: &[u8]) -> hmac::Tag {
        hmac::sign(&self.secret, client)
    }

    fn with_suffix(&self, key: CounterKey<'_>, suffix: u8) -> KeyName {
        let KeyName { slot, name } = self.counter(key);
        let mut name = name.into_vec();
        name.push(suffix);
        KeyName { slot, name: name.into() }
    }

    /// A short hash that differs if the secret differs. It does not reveal the secret.
    pub(crate) fn secret_fingerprint(&self) -> String {
        let digest = hmac::sign(&self.secret, b"tidegate:secret fingerprint");
        let prefix =
            digest.as_ref().iter().take(4).fold(0_u32, |prefix, byte| prefix << 8 | u32::from(*byte));
        format!("{prefix:08x}")
    }

    /// A key for the purposes of the store itself, such as the list of nodes.
    pub(crate) fn internal(&self, tag: &str, name: &str) -> KeyName {
        let full = format!("{}{{{tag}}}{name}", self.prefix);
        KeyName { slot: slot_of(tag.as_bytes()), name: full.into_bytes().into() }
    }
}

impl fmt::Debug for KeyNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyNames").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// The name of a key and its hash slot.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct KeyName {
    slot: u16,
    name: Box<[u8]>,
}

impl KeyName {
    /// The hash slot, 0 to 16383.
    pub(crate) fn slot(&self) -> u16 {
        self.slot
    }

    /// The bytes of the name: printable ASCII, unless the prefix is not.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.name
    }
}

impl fmt::Debug for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyName({}, slot {})", self.name.escape_ascii(), self.slot)
    }
}

/// Appends `count` characters, six bits each.
fn push_base64(out: &mut Vec<u8>, bytes: &[u8], count: usize) {
    let (mut bits, mut held) = (0_u32, 0_u32);
    let mut rest = bytes.iter();
    for _ in 0..count {
        if held < 6 {
            bits = (bits << 8) | u32::from(rest.next().copied().unwrap_or_default());
            held += 8;
        }
        held -= 6;
        let index = (bits >> held) & 63;
        out.push(ALPHABET.get(index as usize).copied().unwrap_or(b'A'));
    }
}

/// The hash slot of a tag, as in the cluster specification: CRC-16 (XMODEM) modulo 16384.
pub(crate) fn slot_of(tag: &[u8]) -> u16 {
    let mut crc = 0_u16;
    for byte in tag {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc % 16_384
}

#[cfg(test)]
mod tests {
    use tidegate_core::RuleId;

    use super::*;

    fn name(rule: &str, client: &[u8]) -> String {
        let names = KeyNames::new("tg:", b"secret");
        String::from_utf8(names.counter(CounterKey::new(RuleId::named(rule), client)).as_bytes().to_vec())
            .unwrap()
    }

    #[test]
    fn key_name_is_stable_and_hides_the_client() {
        assert_eq!(name("default", b"sk_live_{secret}"), "tg:{Y3NqSObQBsQHJTE}662lFoYg");
    }

    #[test]
    fn key_names_share_a_hash_tag_only_per_client() {
        let tag = |name: &str| name[name.find('{').unwrap()..=name.find('}').unwrap()].to_owned();
        assert_eq!(tag(&name("global", b"a")), tag(&name("default", b"a")));
        assert_ne!(name("global", b"a"), name("default", b"a"));
        assert_ne!(tag(&name("global", b"a")), tag(&name("global", b"a}b")));
    }

    #[test]
    fn key_names_depend_on_the_secret() {
        let key = CounterKey::new(RuleId::named("default"), b"alice");
        let of = |secret: &[u8]| KeyNames::new("tg:", secret).counter(key);
        assert_eq!(of(b"one"), of(b"one"));
        assert_ne!(of(b"one"), of(b"two"));
    }

    #[test]
    fn slot_of_a_tag_matches_the_specification() {
        assert_eq!(slot_of(b"123456789"), 0x31C3);
        assert_eq!(slot_of(b"foo"), 12_182);
    }
}
