//! An index of bans by network and client.

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tidegate_core::Timestamp;

use super::{Ban, Subject};
use crate::identity::{ClientKind, Identity, LookupKey};
use crate::networks::NetworkMap;

type Map<K, V> = HashMap<K, V, RandomState>;

/// All bans that operators added at run time.
#[derive(Debug, Default)]
pub struct Bans {
    all: Vec<Ban>,
    networks: NetworkMap<usize>,
    /// Only the kinds of clients that have a ban.
    clients: Vec<(ClientKind, BannedClients)>,
}

#[derive(Debug, Default)]
struct BannedClients {
    exact: Map<Box<[u8]>, usize>,
    /// Several names may share a hash; they differ in their first characters.
    hashed: Map<[u8; 4], Vec<usize>>,
}

impl Bans {
    /// Builds the index. If a subject has two bans, the later one applies.
    pub fn new(bans: impl IntoIterator<Item = Ban>) -> Self {
        let mut index = Self::default();
        for ban in bans {
            let at = index.all.len();
            match &ban.subject {
                Subject::Network(network) => index.networks.insert(*network, at),
                Subject::Client(name) => {
                    let Some((kind, handle)) = name.lookup_key() else { continue };
                    let clients = index.of_kind(kind);
                    match handle {
                        LookupKey::Whole(bytes) => {
                            clients.exact.insert(bytes.into(), at);
                        }
                        LookupKey::Hash(hash) => clients.hashed.entry(hash).or_default().push(at),
                    }
                }
            }
            index.all.push(ban);
        }
        index
    }

    /// The number of bans, including expired ones.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are no bans.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns a ban that is active at `now` for the client.
    pub fn find(&self, identity: &Identity<'_>, now: Timestamp) -> Option<&Ban> {
        self.find_network(identity, now).or_else(|| {
            self.clients.iter().find_map(|(kind, clients)| {
                let fingerprint;
                let bytes = match kind {
                    // A ban applies to the key as sent, whether or not the directory lists it.
                    ClientKind::ApiKey => identity.sent_key(),
                    ClientKind::User => identity.user(),
                    ClientKind::Tenant => identity.tenant(),
                    // The upstream may read any of several values, so check all of them.
                    ClientKind::Cookie => {
                        return identity
                            .cookies()
                            .find_map(|value| self.find_client(*kind, clients, value, now));
                    }
                    ClientKind::Fingerprint => {
                        fingerprint = identity.fingerprint();
                        fingerprint.as_ref().map(<[u8; 16]>::as_slice)
                    }
                    ClientKind::Ip | ClientKind::Anonymous => None,
                };
                self.find_client(*kind, clients, bytes?, now)
            })
        })
    }

    fn find_network(&self, identity: &Identity<'_>, now: Timestamp) -> Option<&Ban> {
        if self.networks.is_empty() {
            return None;
        }
        self.networks.find_map(identity.address(), |_, at| self.active(*at, now))
    }

    fn find_client(
        &self,
        kind: ClientKind,
        clients: &BannedClients,
        bytes: &[u8],
        now: Timestamp,
    ) -> Option<&Ban> {
        match LookupKey::of(kind, bytes) {
            LookupKey::Whole(bytes) => self.active(*clients.exact.get(bytes)?, now),
            LookupKey::Hash(hash) => clients.hashed.get(&hash)?.iter().find_map(|at| {
                let ban = self.active(*at, now)?;
                let is_named = matches!(&ban.subject, Subject::Client(name) if name.names_one(kind, bytes));
                is_named.then_some(ban)
            }),
        }
    }

    fn active(&self, at: usize, now: Timestamp) -> Option<&Ban> {
        self.all.get(at).filter(|ban| !ban.is_over(now))
    }

    fn of_kind(&mut self, kind: ClientKind) -> &mut BannedClients {
        let known = self.clients.iter().position(|(known, _)| *known == kind);
        let at = known.unwrap_or_else(|| {
            self.clients.push((kind, BannedClients::default()));
            self.clients.len() - 1
        });
        &mut self.clients[at].1
    }
}
