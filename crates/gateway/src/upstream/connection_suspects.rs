//! Clients whose requests may have taken an HTTP/2 connection from others.
//!
//! The connection carries requests of many clients, and one of them may break it: its handler closes the connection, or the
//! server does not accept its head or its frames. The gateway cannot tell which one it was. So every client with a request on a
//! connection that breaks is suspected, and so is one whose body the server does not read, because that uses up the window of
//! the connection. One that is suspected twice within [`MEMORY`] gets connections of its own for this time, and harms no others.
//! A server that cannot be reached has failed by itself, which ends all suspicions.
//!
//! Nothing is locked while no connection breaks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_core::{TimeSpan, Timestamp};

use super::client_shares::ClientId;

/// How long a suspicion counts.
const MEMORY: TimeSpan = TimeSpan::from_secs(60);
/// The suspicions after which a client gets connections of its own.
const ENOUGH: u32 = 2;
/// More than the clients of two connections, so that one on both of them is found.
const MAX_CLIENTS: usize = 256;

/// The suspected clients of one server.
#[derive(Debug, Default)]
pub(super) struct ConnectionSuspects {
    has_any: AtomicBool,
    /// The one that was suspected last is the last one.
    clients: Mutex<Vec<Suspect>>,
}

#[derive(Clone, Copy, Debug)]
struct Suspect {
    client: ClientId,
    suspicions: u32,
    until: Timestamp,
}

impl ConnectionSuspects {
    /// A connection with a request of `client` has broken, or is stuck.
    #[cold]
    pub(super) fn record(&self, client: ClientId, now: Timestamp) {
        let mut clients = self.lock();
        clients.retain(|suspect| suspect.until > now);
        let known = clients.iter().position(|suspect| suspect.client == client);
        let suspicions = known.map_or(0, |index| clients.remove(index).suspicions).saturating_add(1);
        if clients.len() >= MAX_CLIENTS
            && let Some((index, _)) = clients.iter().enumerate().min_by_key(|(_, suspect)| suspect.suspicions)
        {
            clients.remove(index);
        }
        clients.push(Suspect { client, suspicions, until: now + MEMORY });
        self.has_any.store(true, Ordering::Relaxed);
    }

    /// Whether `client` gets connections of its own.
    #[inline]
    pub(super) fn isolates(&self, client: ClientId, now: impl FnOnce() -> Timestamp) -> bool {
        self.has_any.load(Ordering::Relaxed) && self.is_suspected(client, now())
    }

    #[cold]
    fn is_suspected(&self, client: ClientId, now: Timestamp) -> bool {
        let mut clients = self.lock();
        // Those that were suspected last are the last ones.
        if clients.last().is_none_or(|latest| latest.until <= now) {
            clients.clear();
            self.has_any.store(false, Ordering::Relaxed);
        }
        let known = clients.iter().find(|suspect| suspect.client == client);
        known.is_some_and(|suspect| suspect.suspicions >= ENOUGH && suspect.until > now)
    }

    /// The server cannot be reached.
    pub(super) fn clear(&self) {
        if self.has_any.load(Ordering::Relaxed) {
            let mut clients = self.lock();
            clients.clear();
            self.has_any.store(false, Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Suspect>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use tidegate_policy::Addresses;

    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_700_000_000);
    const SECOND: TimeSpan = TimeSpan::from_secs(1);

    fn client(number: u32) -> ClientId {
        ClientId::new(&Addresses::default(), IpAddr::V4(Ipv4Addr::from_bits(number)))
    }

    #[test]
    fn client_on_two_broken_connections_is_isolated_for_a_minute_after_the_last_one() {
        let suspects = ConnectionSuspects::default();
        let isolates = |number, now| suspects.isolates(client(number), || now);
        assert!(!suspects.isolates(client(1), || unreachable!("nothing has broken")));
        suspects.record(client(1), START);
        suspects.record(client(2), START);
        assert!(!isolates(1, START));
        suspects.record(client(1), START + TimeSpan::from_secs(59));
        assert!(isolates(1, START + TimeSpan::from_secs(59)) && !isolates(2, START + SECOND));
        assert!(isolates(1, START + TimeSpan::from_secs(118)));
        assert!(!isolates(1, START + TimeSpan::from_secs(119)));
        assert!(!suspects.isolates(client(1), || unreachable!("everything is forgotten")));
    }

    #[test]
    fn client_whose_connections_break_rarely_is_never_isolated() {
        let suspects = ConnectionSuspects::default();
        for turn in 0..10 {
            let now = START + TimeSpan::from_secs(61 * turn);
            suspects.record(client(1), now);
            assert!(!suspects.isolates(client(1), || now), "{turn}");
        }
    }

    #[test]
    fn client_on_every_broken_connection_is_found_among_all_clients_of_two_connections() {
        let suspects = ConnectionSuspects::default();
        for number in (1..=127).chain([0]).chain([0]).chain(200..=326) {
            suspects.record(client(number), START);
        }
        for number in 1_000..2_000 {
            suspects.record(client(number), START);
        }
        assert!(suspects.isolates(client(0), || START));
        assert_eq!(suspects.lock().len(), MAX_CLIENTS);
    }

    #[test]
    fn server_that_cannot_be_reached_clears_all_suspicions() {
        let suspects = ConnectionSuspects::default();
        for _ in 0..3 {
            suspects.record(client(1), START);
        }
        assert!(suspects.isolates(client(1), || START));
        suspects.clear();
        assert!(!suspects.isolates(client(1), || START));
    }
}
