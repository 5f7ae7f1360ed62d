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
use tidegate_limiter::Charge;

/// The most reservations at once.
const MAX_RESERVATIONS: usize = 100_000;
/// The most memory of all reservations.
const MAX_BYTES: usize = 64 << 20;
/// What a reservation needs besides the names of its rule and its client: its entries in both indexes, with the spare capacity
/// of these.
const ENTRY_BYTES: usize = 512;

/// The open reservations of all workers.
#[derive(Default)]
pub(crate) struct ReservationTable(Mutex<OpenReservations>);

#[derive(Default)]
struct OpenReservations {
    by_id: HashMap<ReservationId, StoredReservation>,
    by_expiry: BTreeSet<(Timestamp, ReservationId)>,
    /// How many reservations there are, with the slots that are taken for others.
    count: usize,
    /// The memory of these.
    bytes: usize,
}

/// A reservation with the memory that it needs.
struct StoredReservation {
    open: OpenReservation,
    bytes: usize,
}

/// A place in the table for a reservation that is being made. Without a reservation it is free again on drop.
#[derive(Debug)]
#[must_use]
pub(crate) struct ReservationSlot<'t> {
    table: &'t ReservationTable,
    bytes: usize,
}

/// A reservation until it is committed or expires.
#[derive(Debug)]
pub(crate) struct OpenReservation {
    /// The names of its rules.
    pub(crate) rules: Box<[Box<str>]>,
    /// The charge; `None` if nothing was charged.
    pub(crate) charge: Option<Charge>,
    /// When it expires.
    pub(crate) expires: Timestamp,
}

/// The random number of a reservation. As text, 32 hexadecimal digits. Who knows it can commit the reservation, so it has no
/// `Debug` form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// Takes a slot at `now` for a reservation whose rules and clients have names of `names` bytes; `None` if the table is full.
    pub(crate) fn slot(&self, names: usize, now: Timestamp) -> Option<ReservationSlot<'_>> {
        let bytes = ENTRY_BYTES.saturating_add(names);
        let mut open = self.lock();
        open.remove_expired(now);
        if open.count >= MAX_RESERVATIONS || bytes > MAX_BYTES - open.bytes {
            return None;
        }
        open.count += 1;
        open.bytes += bytes;
        Some(ReservationSlot { table: self, bytes })
    }

    /// Removes a reservation to commit it, unless `check` rejects that; `None` if there is none, or if it has expired.
    pub(crate) fn take<E>(
        &self,
        id: ReservationId,
        now: Timestamp,
        check: impl FnOnce(&OpenReservation) -> Result<(), E>,
    ) -> Option<Result<OpenReservation, E>> {
        let mut open = self.lock();
        open.remove_expired(now);
        if let Err(error) = check(&open.by_id.get(&id)?.open) {
            return Some(Err(error));
        }
        let StoredReservation { open: taken, bytes } = open.by_id.remove(&id)?;
        open.by_expiry.remove(&(taken.expires, id));
        open.release(bytes);
        Some(Ok(taken))
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
            if let Some(expired) = self.by_id.remove(&id) {
                self.release(expired.bytes);
            }
        }
    }

    fn release(&mut self, bytes: usize) {
        self.count -= 1;
        self.bytes -= bytes;
    }
}

impl ReservationSlot<'_> {
    /// Opens the reservation for which the slot was taken.
    pub(crate) fn open(self, id: ReservationId, reservation: OpenReservation) {
        let mut open = self.table.lock();
        open.by_expiry.insert((reservation.expires, id));
        open.by_id.insert(id, StoredReservation { open: reservation, bytes: self.bytes });
        drop(open);
        // The slot is that of the reservation now.
        std::mem::forget(self);
    }
}

impl Drop for ReservationSlot<'_> {
    fn drop(&mut self) {
        self.table.lock().release(self.bytes);
    }
}

impl fmt::Debug for ReservationTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.lock();
        f.debug_struct("ReservationTable").field("count", &open.count).field("bytes", &open.bytes).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The length of `default` and `bob`.
    const NAMES: usize = 10;
    const NOW: Timestamp = Timestamp::from_secs(1_000);

    fn open(expires: u64) -> OpenReservation {
        OpenReservation {
            rules: Box::new(["default".into()]),
            charge: None,
            expires: Timestamp::from_secs(expires),
        }
    }

    fn add(table: &ReservationTable, number: u128, expires: u64) {
        table.slot(NAMES, NOW).unwrap().open(ReservationId(number), open(expires));
    }

    fn take(table: &ReservationTable, number: u128, now: Timestamp) -> Option<OpenReservation> {
        table.take(ReservationId(number), now, |_| Ok::<_, ()>(())).map(Result::unwrap)
    }

    #[test]
    fn reservation_is_taken_once() {
        let table = ReservationTable::default();
        add(&table, 7, 1_060);
        assert!(take(&table, 8, NOW).is_none());
        let refused = table.take(ReservationId(7), NOW, |_| Err("several rules"));
        assert!(refused.is_some_and(|refused| refused.is_err()), "it stays open");
        assert!(take(&table, 7, NOW).is_some());
        assert!(take(&table, 7, NOW).is_none());
    }

    #[test]
    fn reservation_expired_is_removed() {
        let table = ReservationTable::default();
        for (number, expires) in [(1, 1_001), (2, 1_003), (3, 1_002)] {
            add(&table, number, expires);
        }
        let later = Timestamp::from_secs(1_002);
        assert!(take(&table, 1, later).is_none());
        assert!(take(&table, 3, later).is_none());
        assert_eq!(table.lock().by_id.len(), 1);
        assert!(take(&table, 2, later).is_some());
        let open = table.lock();
        assert_eq!((open.count, open.bytes), (0, 0));
    }

    #[test]
    fn reservation_table_full_has_a_slot_once_one_expires() {
        let table = ReservationTable::default();
        for number in 0..MAX_RESERVATIONS as u128 {
            add(&table, number, if number == 7 { 1_001 } else { 2_000 });
        }
        assert!(table.slot(NAMES, NOW).is_none());
        let later = Timestamp::from_secs(1_001);
        let slot = table.slot(NAMES, later).unwrap();
        assert!(table.slot(NAMES, later).is_none(), "a slot that is taken counts");
        drop(slot);
        assert!(table.slot(NAMES, later).is_some());
    }

    #[test]
    fn reservation_table_memory_is_bounded() {
        let table = ReservationTable::default();
        let slots: Vec<_> = std::iter::from_fn(|| table.slot(1 << 20, NOW)).collect();
        assert_eq!(slots.len(), 63);
        assert!(table.slot(NAMES, NOW).is_some());
        drop(slots);
        let open = table.lock();
        assert_eq!((open.count, open.bytes), (0, 0));
    }

    #[test]
    fn reservation_id_text_is_parsed_strictly() {
        let id = ReservationId::random().unwrap();
        assert!(id.to_string().parse::<ReservationId>().is_ok_and(|parsed| parsed == id));
        for text in ["", "+0000000000000000000000000000001", "0", "é", &"0".repeat(33), &"F".repeat(32)] {
            assert!(text.parse::<ReservationId>().is_err(), "{text}");
        }
    }
}
