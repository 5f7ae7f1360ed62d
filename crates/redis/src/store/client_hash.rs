//! Clients with long identifiers. Requests may carry keys of many kilobytes, and the tables of this process keep clients: the
//! store replaces a long one by a keyed hash, so that a counter takes a bounded amount of memory.

use smallvec::SmallVec;
use tidegate_core::{Check, CounterKey, Refund};

use crate::key::KeyNames;

/// Longer clients are replaced.
pub(super) const MAX_CLIENT_BYTES: usize = 128;

/// Stands for a long client. It is longer than every client that is not replaced, so that it equals none of them.
type ClientHash = [u8; MAX_CLIENT_BYTES + 1];

/// Whether the client is replaced by its hash.
#[inline]
pub(super) fn is_long(key: CounterKey<'_>) -> bool {
    key.client.len() > MAX_CLIENT_BYTES
}

/// The hashes of the long clients among some keys, by position.
pub(super) struct ClientHashes(SmallVec<[Option<ClientHash>; 1]>);

impl ClientHashes {
    /// The hashes are the same on every node with the same secret.
    pub(super) fn new<'k>(names: &KeyNames, keys: impl Iterator<Item = CounterKey<'k>>) -> Self {
        let hash = |key: CounterKey<'k>| {
            is_long(key).then(|| {
                let mut hash = [0; MAX_CLIENT_BYTES + 1];
                for (place, byte) in hash.iter_mut().zip(names.client_hash(key.client).as_ref()) {
                    *place = *byte;
                }
                hash
            })
        };
        Self(keys.map(hash).collect())
    }

    /// The key at `position`, with the hash instead of a long client.
    pub(super) fn key<'a>(&'a self, position: usize, key: CounterKey<'a>) -> CounterKey<'a> {
        match self.0.get(position) {
            Some(Some(hash)) => CounterKey::new(key.rule, hash),
            _ => key,
        }
    }

    /// The checks with these keys.
    pub(super) fn checks<'a>(&'a self, checks: &'a [Check<'a>]) -> SmallVec<[Check<'a>; 4]> {
        let replaced =
            |(position, check): (usize, &Check<'a>)| Check { key: self.key(position, check.key), ..*check };
        checks.iter().enumerate().map(replaced).collect()
    }

    /// The refunds with these keys.
    pub(super) fn refunds<'a>(&'a self, refunds: &'a [Refund<'a>]) -> Vec<Refund<'a>> {
        let replaced = |(position, refund): (usize, &Refund<'a>)| Refund {
            key: self.key(position, refund.key),
            ..*refund
        };
        refunds.iter().enumerate().map(replaced).collect()
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::RuleId;

    use super::*;

    #[test]
    fn long_clients_are_replaced_by_hashes_of_bounded_size() {
        let names = KeyNames::new("tg:", b"secret");
        let clients = [vec![b'a'; 1 << 16], vec![b'b'; 1 << 16], vec![b'a'; MAX_CLIENT_BYTES], vec![]];
        let keys = || clients.iter().map(|client| CounterKey::new(RuleId::named("default"), client));
        let (hashes, again) = (ClientHashes::new(&names, keys()), ClientHashes::new(&names, keys()));
        let replaced: Vec<_> =
            keys().enumerate().map(|(position, key)| hashes.key(position, key).client).collect();
        assert_eq!(replaced.iter().map(|client| client.len()).collect::<Vec<_>>(), [129, 129, 128, 0]);
        assert_ne!(replaced[0], replaced[1]);
        assert_eq!(replaced[2..], [&clients[2][..], &clients[3]]);
        assert_eq!(hashes.0, again.0);
    }
}
