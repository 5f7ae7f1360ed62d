//! How a list holds API keys: as they are, or hashed.
//!
//! A list that contains a hash holds all keys hashed: then each key of a request is looked up once, a key that is listed in both
//! forms is a duplicate, and nobody can use a hash as a key.

use sha2::{Digest, Sha256};

/// What a hashed key begins with.
const PREFIX: &[u8] = b"sha256:";

/// How a list holds API keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum KeyForm {
    #[default]
    Plain,
    /// By their SHA-256 hash.
    Hashed,
}

/// A key as a list holds it.
#[derive(Clone, Copy)]
pub(crate) enum FormedKey<'k> {
    Plain(&'k [u8]),
    Hashed([u8; 32]),
}

/// `sha256:` is not followed by a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidHash;

impl KeyForm {
    /// The form of a list with these keys.
    pub(crate) fn of_list<'k>(mut keys: impl Iterator<Item = &'k [u8]>) -> Self {
        if keys.any(|key| hash_in(key).is_some()) { Self::Hashed } else { Self::Plain }
    }

    /// The form of a list with this text. A text that only seems to contain a hash is [`Hashed`](Self::Hashed), which differs
    /// only in its cost.
    pub(crate) fn of_text(text: &[u8]) -> Self {
        let mut colons = memchr::memchr_iter(b':', text);
        let is_prefix = |colon: usize| {
            let before = (colon + 1).checked_sub(PREFIX.len()).and_then(|start| text.get(start..=colon));
            before.is_some_and(|before| before.eq_ignore_ascii_case(PREFIX))
        };
        if colons.any(is_prefix) { Self::Hashed } else { Self::Plain }
    }

    /// A key, or the hash of one, as it is written in a list of this form.
    pub(crate) fn listed(self, text: &[u8]) -> Result<FormedKey<'_>, InvalidHash> {
        match hash_in(text) {
            Some(hash) => parse(hash).map(FormedKey::Hashed).ok_or(InvalidHash),
            None => Ok(self.sent(text)),
        }
    }

    /// The key of a request, as a list of this form holds it.
    pub(crate) fn sent(self, key: &[u8]) -> FormedKey<'_> {
        match self {
            Self::Plain => FormedKey::Plain(key),
            Self::Hashed => FormedKey::Hashed(Sha256::digest(key).into()),
        }
    }
}

impl FormedKey<'_> {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Plain(key) => key,
            Self::Hashed(hash) => hash,
        }
    }
}

/// What follows the prefix of a hash.
fn hash_in(key: &[u8]) -> Option<&[u8]> {
    let (prefix, hash) = key.split_at_checked(PREFIX.len())?;
    prefix.eq_ignore_ascii_case(PREFIX).then_some(hash)
}

/// A hash in hexadecimal.
fn parse(text: &[u8]) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    if text.len() != 2 * hash.len() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    for (byte, digits) in hash.iter_mut().zip(text.chunks_exact(2)) {
        let [high, low] = [digits.first(), digits.last()].map(|one| one.copied().and_then(digit));
        *byte = high? << 4 | low?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The SHA-256 hash of `abc` (FIPS 180-2).
    const ABC: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn hash_and_key_have_the_same_form_in_a_list_of_hashes() {
        let form = KeyForm::of_list([&b"abc"[..], ABC.as_bytes()].into_iter());
        assert_eq!(form, KeyForm::Hashed);
        assert_eq!(form, KeyForm::of_text(ABC.to_uppercase().as_bytes()));
        for listed in [ABC, &ABC.to_uppercase(), "abc"] {
            let listed = form.listed(listed.as_bytes()).unwrap();
            assert_eq!(listed.as_bytes(), form.sent(b"abc").as_bytes());
        }
        assert_ne!(form.sent(ABC.as_bytes()).as_bytes(), form.sent(b"abc").as_bytes());
    }

    #[test]
    fn text_that_is_no_hash_is_a_key_or_invalid() {
        for key in ["abc", "sha-256:00", "sha256", "x:sha256"] {
            assert_eq!(KeyForm::of_list([key.as_bytes()].into_iter()), KeyForm::Plain, "{key}");
            assert_eq!(KeyForm::Plain.listed(key.as_bytes()).unwrap().as_bytes(), key.as_bytes());
        }
        for hash in ["sha256:", "sha256:00", &ABC[..70], &format!("{ABC}0"), &ABC.replace('b', "g")] {
            assert!(KeyForm::Hashed.listed(hash.as_bytes()).is_err(), "{hash}");
        }
    }
}
