//! Charges whose final cost a client sets later.
//!
//! A reservation is removed when it is committed, so it is committed at most once. Its number is random: a client cannot
//! guess those of others. The table is in the memory of this process, so a reservation can be committed only at the node
//! that issued it, and not after a restart. One that is not committed stays charged.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aws_lc_rs::rand;
use tidegate_core::Timestamp;
use tidegate_limiter::RuleReservation;

/// The most reservations at once. Each needs about 300 bytes, and the bytes of the client's name twice.
const MAX_RESERVATIONS: usize = 100_000;

/// The open reservations of all workers.
#[derive(Debug, Default)]
pub(crate) struct ReservationTable(Mutex<OpenReservations>);

#[derive(Debug, Default)]
struct OpenReservations {
    by_id: HashMap<ReservationId, OpenReservation>,
    by_expiry: BTreeSet<(Timestamp, ReservationId)>,
}

/// A reservation until it is committed or expires.
#[derive(Debug)]
pub(crate) struct OpenReservation {
    /// The name of its rule.
    pub(crate) rule: Box<str>,
    /// The charge; `None` if nothing was charged.
    pub(crate) charge: Option<RuleReservation>,
    /// When it expires.
    pub(crate) expires: Timestamp,
}

/// The random number of a reservation. As text, 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ReservationId(u128);

impl ReservationId {
    /// A new number; `None` if the random number generator of the system fails.
    pub(crate) fn random() -> Option<Self> {
        let mut bytes = [0; 16];
        rand::fill(&mut bytes).ok()?;
        Some(Self(u128::from_be_bytes(bytes)))
    }
}

impl fmt::Display for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The text is not the number of a reservation.
#[derive(Debug)]
pub(crate) struct ReservationIdError;

impl FromStr for ReservationId {
    type Err = ReservationIdError;

    fn from_str(text: &str) -> Result<Self, ReservationIdError> {
        let is_valid = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_valid);
        number.map(Self).ok_or(ReservationIdError)
    }
}

impl ReservationTable {
    /// Whether another reservation can be added at `now`.
    pub(crate) fn has_space(&self, now: Timestamp) -> bool {
        let mut open = self.lock();
        open.remove_expired(now);
        open.by_id.len() < MAX_RESERVATIONS
    }

    /// Adds a reservation. Workers that have found space at the same time may each exceed the maximum by one.
    pub(crate) fn add(&self, id: ReservationId, reservation: OpenReservation) {
        let mut open = self.lock();
        open.by_expiry.insert((reservation.expires, id));
        open.by_id.insert(id, reservation);
    }

    /// Removes a reservation to commit it; `None` if there is none, or if it has expired.
    pub(crate) fn take(&self, id: ReservationId, now: Timestamp) -> Option<OpenReservation> {
        let mut open = self.lock();
        open.remove_expired(now);
        let taken = open.by_id.remove(&id)?;
        open.by_expiry.remove(&(taken.expires, id));
        Some(taken)
    }

    fn lock(&self) -> MutexGuard<'_, OpenReservations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenReservations {
    fn remove_expired(&mut self, now: Timestamp) {
        while let Some(&(expires, id)) = self.by_expiry.first()
            && expires <= now
        {
            self.by_expiry.pop_first();
            self.by_id.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    fn open(expires: u64) -> OpenReservation {
        OpenReservation { rule: "default".into(), charge: None, expires: Timestamp::from_secs(expires) }
    }

    #[test]
    fn reservation_is_taken_once() {
        let table = ReservationTable::default();
        let id = ReservationId::random().unwrap();
        table.add(id, open(1_060));
        assert!(table.take(ReservationId(id.0 ^ 1), NOW).is_none());
        assert!(table.take(id, NOW).is_some());
        assert!(table.take(id, NOW).is_none());
    }

    #[test]
    fn reservation_expired_is_removed() {
        let table = ReservationTable::default();
        for (number, expires) in [(1, 1_001), (2, 1_003), (3, 1_002)] {
            table.add(ReservationId(number), open(expires));
        }
        let later = Timestamp::from_secs(1_002);
        assert!(table.take(ReservationId(1), later).is_none());
        assert!(table.take(ReservationId(3), later).is_none());
        assert_eq!(table.lock().by_id.len(), 1);
        assert!(table.take(ReservationId(2), later).is_some());
    }

    #[test]
    fn reservation_table_full_has_space_once_one_expires() {
        let table = ReservationTable::default();
        for number in 0..MAX_RESERVATIONS as u128 {
            table.add(ReservationId(number), open(if number == 7 { 1_001 } else { 2_000 }));
        }
        assert!(!table.has_space(NOW));
        assert!(table.has_space(Timestamp::from_secs(1_001)));
    }

    #[test]
    fn reservation_id_text_is_parsed_strictly() {
        let id = ReservationId::random().unwrap();
        assert_eq!(id.to_string().parse::<ReservationId>().unwrap(), id);
        for text in ["", "+0000000000000000000000000000001", "0", "é", &"0".repeat(33), &"F".repeat(32)] {
            assert!(text.parse::<ReservationId>().is_err(), "{text}");
        }
    }
}
