//! An index of bans by network and client.

use std::net::IpAddr;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tidegate_core::Timestamp;

use super::{Ban, Subject};
use crate::directory::Directory;
use crate::identity::{ClientKind, Identity, LookupKey, RuleClient};
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
        // The address is found only if it is needed.
        let has_networks = !self.networks.is_empty();
        let by_network = has_networks.then(|| self.find_network(identity.address(), now)).flatten();
        by_network.or_else(|| {
            self.clients.iter().find_map(|(kind, clients)| {
                let fingerprint;
                let bytes = match kind {
                    // A ban applies to every key that the upstream may read, whether or not the directory lists it.
                    ClientKind::ApiKey => {
                        let mut keys = identity.sent_keys();
                        return keys.find_map(|key| self.find_identity(*kind, clients, &key, now));
                    }
                    ClientKind::User => identity.user(),
                    // The upstream may serve the tenant of the key or that of the token, so check both.
                    ClientKind::Tenant => {
                        let tenants = [identity.granted_tenant(), identity.sent_tenant()];
                        let mut tenants = tenants.into_iter().flatten();
                        return tenants.find_map(|tenant| self.find_identity(*kind, clients, tenant, now));
                    }
                    // The upstream may read any of several values, so check all of them.
                    ClientKind::Cookie => {
                        return identity
                            .cookies()
                            .find_map(|value| self.find_identity(*kind, clients, &value, now));
                    }
                    ClientKind::Fingerprint => {
                        fingerprint = identity.fingerprint();
                        fingerprint.as_ref().map(<[u8; 16]>::as_slice)
                    }
                    ClientKind::Ip | ClientKind::Anonymous => None,
                };
                self.find_identity(*kind, clients, bytes?, now)
            })
        })
    }

    /// Returns a ban that is active at `now` for a client that a caller has identified. An API key also has the tenant that
    /// `directory` gives it.
    pub fn find_client(
        &self,
        client: &RuleClient,
        directory: Option<&Directory>,
        now: Timestamp,
    ) -> Option<&Ban> {
        let by_network = client.addresses().find_map(|address| self.find_network(address, now));
        by_network.or_else(|| {
            self.clients.iter().find_map(|(banned, clients)| {
                client.identities().find_map(|(kind, bytes)| {
                    let bytes = match (banned, kind) {
                        (ClientKind::Tenant, ClientKind::ApiKey) => directory?.get(bytes)?.tenant?.as_bytes(),
                        _ if *banned == kind => bytes,
                        _ => return None,
                    };
                    self.find_identity(*banned, clients, bytes, now)
                })
            })
        })
    }

    fn find_network(&self, address: IpAddr, now: Timestamp) -> Option<&Ban> {
        self.networks.find_map_banned(address, |_, at| self.active(*at, now))
    }

    fn find_identity(
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
