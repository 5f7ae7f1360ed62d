//! Bans, found by who asks.

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tidegate_core::Timestamp;

use super::{Ban, Subject};
use crate::identity::{ClientKind, Handle, Identity};
use crate::networks::NetworkMap;

type Map<K, V> = HashMap<K, V, RandomState>;

/// All bans of operators.
#[derive(Debug, Default)]
pub struct Bans {
    all: Vec<Ban>,
    networks: NetworkMap<usize>,
    /// Only kinds that somebody is banned by.
    clients: Vec<(ClientKind, BannedClients)>,
}

#[derive(Debug, Default)]
struct BannedClients {
    exact: Map<Box<[u8]>, usize>,
    /// A hash may be that of several: they differ in how they begin.
    hashed: Map<[u8; 4], Vec<usize>>,
}

impl Bans {
    /// Indexes bans. Of two of one subject the later counts.
    pub fn new(bans: impl IntoIterator<Item = Ban>) -> Self {
        let mut index = Self::default();
        for ban in bans {
            let at = index.all.len();
            match &ban.subject {
                Subject::Network(network) => index.networks.insert(*network, at),
                Subject::Client(name) => {
                    let Some((kind, handle)) = name.handle() else { continue };
                    let clients = index.of_kind(kind);
                    match handle {
                        Handle::Whole(bytes) => {
                            clients.exact.insert(bytes.into(), at);
                        }
                        Handle::Hash(hash) => clients.hashed.entry(hash).or_default().push(at),
                    }
                }
            }
            index.all.push(ban);
        }
        index
    }

    /// How many there are, those that are over included.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// A ban that is in force at `now` for whoever asks.
    pub fn find(&self, identity: &Identity<'_>, now: Timestamp) -> Option<&Ban> {
        self.find_network(identity, now).or_else(|| {
            self.clients.iter().find_map(|(kind, clients)| {
                let fingerprint;
                let bytes = match kind {
                    // A key that the directory does not know is banned all the same.
                    ClientKind::ApiKey => identity.sent_key(),
                    ClientKind::User => identity.user(),
                    ClientKind::Tenant => identity.tenant(),
                    // Of two values a service may take either.
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
        self.networks.find_map(identity.address(), |_, at| self.in_force(*at, now))
    }

    fn find_client(
        &self,
        kind: ClientKind,
        clients: &BannedClients,
        bytes: &[u8],
        now: Timestamp,
    ) -> Option<&Ban> {
        match Handle::of(kind, bytes) {
            Handle::Whole(bytes) => self.in_force(*clients.exact.get(bytes)?, now),
            Handle::Hash(hash) => clients.hashed.get(&hash)?.iter().find_map(|at| {
                let ban = self.in_force(*at, now)?;
                let is_named = matches!(&ban.subject, Subject::Client(name) if name.names_one(kind, bytes));
                is_named.then_some(ban)
            }),
        }
    }

    fn in_force(&self, at: usize, now: Timestamp) -> Option<&Ban> {
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
