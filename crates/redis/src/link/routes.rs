//! Which server has which hash slot, and whether it works.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_core::{
    Breaker, BreakerConfig, BreakerState, CallOutcome, CallTiming, Ratio, TimeSpan, Timestamp,
};

use crate::endpoint::ServerAddress;
use crate::key::slot_of;

/// The number of hash slots.
pub(super) const SLOTS: u16 = 16_384;
const NO_SERVER: u16 = u16::MAX;
/// Failures in a row that open a breaker. A stalled server fails once per tick, an eighth of the timeout.
const MAX_FAILURES: u32 = 3;
/// Shorter than the interval between probes, so that each interval has one.
const OPEN_FOR: TimeSpan = TimeSpan::from_millis(80);

/// A server and its breaker. The breaker is closed while calls are sent.
#[derive(Debug)]
pub(super) struct RedisServerHealth {
    pub(super) address: ServerAddress,
    pub(super) breaker: Option<Breaker>,
    /// Its last reply was an error that says that it executes nothing.
    refuses: AtomicBool,
}

impl RedisServerHealth {
    pub(super) fn new(address: ServerAddress) -> Self {
        let config = BreakerConfig {
            failures: Some(MAX_FAILURES),
            open_for: OPEN_FOR,
            max_open_for: OPEN_FOR,
            open_jitter: Ratio::from_percent(10),
            ..BreakerConfig::default()
        };
        // The configuration is a valid constant; without a breaker every call would be sent.
        Self { address, breaker: Breaker::new(config).ok(), refuses: AtomicBool::new(false) }
    }

    /// Whether calls are sent.
    pub(super) fn is_available(&self) -> bool {
        self.breaker.as_ref().is_none_or(|breaker| breaker.state() == BreakerState::Closed)
    }

    /// Whether it replies, but executes nothing.
    pub(super) fn is_refusing(&self) -> bool {
        self.refuses.load(Ordering::Relaxed)
    }

    /// Notes whether it replies, but executes nothing.
    pub(super) fn set_refusing(&self, refuses: bool) {
        if self.is_refusing() != refuses {
            self.refuses.store(refuses, Ordering::Relaxed);
        }
    }

    /// Counts a result. Returns whether the state has changed.
    pub(super) fn record(&self, outcome: CallOutcome, now: Timestamp) -> bool {
        let Some(breaker) = &self.breaker else { return false };
        let timing = || CallTiming { now, elapsed: TimeSpan::ZERO, random: fastrand::u64(..) };
        breaker.try_acquire(|| now).is_ok_and(|ticket| breaker.record(ticket, outcome, timing).is_some())
    }

    /// Opens the breaker at once: the server is known to be away.
    pub(super) fn open(&self, now: Timestamp) -> bool {
        let was_available = self.is_available();
        for _ in 0..MAX_FAILURES {
            if self.is_available() {
                self.record(CallOutcome::Failure, now);
            }
        }
        was_available && !self.is_available()
    }

    /// Closes the breaker: a probe was successful.
    pub(super) fn close(&self, now: Timestamp) -> bool {
        let was_available = self.is_available();
        if !was_available && !self.record(CallOutcome::Success, now) {
            // The attempt began before the breaker opened.
            self.breaker.iter().for_each(Breaker::reset);
        }
        !was_available
    }
}

/// Which server has which slot, for callers and for the I/O thread.
#[derive(Clone, Debug)]
pub(super) enum RouteTable {
    /// Not known yet: calls wait.
    Unknown,
    /// No server could be asked: calls fail.
    Unreachable,
    /// One server has all slots.
    Single(Arc<RedisServerHealth>),
    /// The slots are distributed.
    Cluster { servers: Vec<Arc<RedisServerHealth>>, slots: Box<[u16]> },
}

/// Where a call goes.
#[derive(Clone, Debug)]
pub(super) enum SlotRoute {
    Server(Arc<RedisServerHealth>),
    /// Not known yet.
    Wait,
    /// No server has the slot.
    Nowhere,
}

impl RouteTable {
    pub(super) fn route(&self, slot: u16) -> SlotRoute {
        match self {
            Self::Unknown => SlotRoute::Wait,
            Self::Unreachable => SlotRoute::Nowhere,
            Self::Single(server) => SlotRoute::Server(Arc::clone(server)),
            Self::Cluster { servers, slots } => {
                let index = slots.get(usize::from(slot)).copied().unwrap_or(NO_SERVER);
                servers
                    .get(usize::from(index))
                    .map_or(SlotRoute::Nowhere, |server| SlotRoute::Server(Arc::clone(server)))
            }
        }
    }

    pub(super) fn servers(&self) -> &[Arc<RedisServerHealth>] {
        match self {
            Self::Unknown | Self::Unreachable => &[],
            Self::Single(server) => std::slice::from_ref(server),
            Self::Cluster { servers, .. } => servers,
        }
    }

    /// The table for ranges of slots; servers that are `known` keep their state.
    pub(super) fn cluster(
        ranges: &[(u16, u16, ServerAddress)],
        mut known: impl FnMut(&ServerAddress) -> Arc<RedisServerHealth>,
    ) -> Self {
        let mut servers: Vec<Arc<RedisServerHealth>> = Vec::new();
        let mut slots = vec![NO_SERVER; usize::from(SLOTS)].into_boxed_slice();
        for (first, last, address) in ranges {
            let index = servers.iter().position(|server| server.address == *address).unwrap_or_else(|| {
                servers.push(known(address));
                servers.len() - 1
            });
            let range = usize::from(*first)..=usize::from(*last);
            if let Some(range) = slots.get_mut(range) {
                range.fill(u16::try_from(index).unwrap_or(NO_SERVER));
            }
        }
        Self::Cluster { servers, slots }
    }

    /// The table after `slot` was moved to `server`; `None` if it was there.
    pub(super) fn moved(&self, slot: u16, server: &Arc<RedisServerHealth>) -> Option<Self> {
        let Self::Cluster { servers, slots } = self else { return None };
        let (mut servers, mut slots) = (servers.clone(), slots.clone());
        let index = servers.iter().position(|known| known.address == server.address).unwrap_or_else(|| {
            servers.push(Arc::clone(server));
            servers.len() - 1
        });
        let index = u16::try_from(index).ok()?;
        let entry = slots.get_mut(usize::from(slot)).filter(|entry| **entry != index)?;
        *entry = index;
        Some(Self::Cluster { servers, slots })
    }

    /// A hash tag in a slot of this server, for probes; any tag if it has no slots.
    pub(super) fn probe_tag(&self, address: &ServerAddress) -> String {
        let is_there = |tag: &String| match self.route(slot_of(tag.as_bytes())) {
            SlotRoute::Server(server) => server.address == *address,
            SlotRoute::Wait | SlotRoute::Nowhere => false,
        };
        let mut tags = (0..u32::from(SLOTS)).map(|number| number.to_string());
        tags.find(is_there).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> ServerAddress {
        ServerAddress { host: "localhost".to_owned(), port }
    }

    fn port(table: &RouteTable, slot: u16) -> Option<u16> {
        match table.route(slot) {
            SlotRoute::Server(server) => Some(server.address.port),
            SlotRoute::Wait | SlotRoute::Nowhere => None,
        }
    }

    #[test]
    fn cluster_table_routes_every_slot_of_a_range_and_follows_a_move() {
        let new = |address: &ServerAddress| Arc::new(RedisServerHealth::new(address.clone()));
        let table = RouteTable::cluster(&[(0, 99, address(1)), (100, 16_000, address(2))], new);
        assert_eq!(
            [0, 99, 100, 16_000, 16_001].map(|slot| port(&table, slot)),
            [Some(1), Some(1), Some(2), Some(2), None]
        );
        let third = new(&address(3));
        let moved = table.moved(99, &third).unwrap();
        assert_eq!([98, 99, 100].map(|slot| port(&moved, slot)), [Some(1), Some(3), Some(2)]);
        assert!(moved.moved(99, &third).is_none(), "it is there");
        assert_eq!(port(&table, slot_of(table.probe_tag(&address(1)).as_bytes())), Some(1));
    }

    #[test]
    fn server_opens_after_three_failures_in_a_row_and_closes_after_a_probe() {
        let server = RedisServerHealth::new(address(1));
        let now = Timestamp::from_secs(1);
        for outcome in
            [CallOutcome::Failure, CallOutcome::Failure, CallOutcome::Success, CallOutcome::Failure]
        {
            server.record(outcome, now);
        }
        assert!(server.is_available());
        assert!(!server.record(CallOutcome::Failure, now));
        assert!(server.record(CallOutcome::Failure, now));
        assert!(!server.is_available());
        assert!(server.close(now), "an attempt from before");
        assert!(server.open(now), "at once");
        assert!(server.close(now + OPEN_FOR + OPEN_FOR));
        assert!(server.is_available());
    }
}
