//! A node's copy of the shared records.

use std::collections::{BTreeSet, HashMap};

use tidegate_core::Timestamp;
use tidegate_store::SharedRecord;

use super::script::RecordCursor;
use super::seal::Field;
use crate::server_time::ServerTime;

/// Records of a copy that expire, at most. Clients cause penalties, so their number must be bounded. Records without an expiry
/// are made by operators only and always kept.
const MAX_EXPIRING: usize = 100_000;

/// All records that this node knows, and which of them Redis may lack. Records expire by the clock of Redis, as soon as it is
/// known; what was published before is converted then.
#[derive(Debug)]
pub(super) struct RecordCopy {
    records: HashMap<Field, SharedRecord>,
    /// The records that expire, the first one first.
    expiring: BTreeSet<(Timestamp, Field)>,
    max_expiring: usize,
    /// Not pushed since they were changed.
    unpushed: BTreeSet<Field>,
    cursor: RecordCursor,
    /// Whether the records have the time of Redis.
    has_server_time: bool,
}

impl Default for RecordCopy {
    fn default() -> Self {
        Self {
            records: HashMap::new(),
            expiring: BTreeSet::new(),
            max_expiring: MAX_EXPIRING,
            unpushed: BTreeSet::new(),
            cursor: RecordCursor::default(),
            has_server_time: false,
        }
    }
}

impl RecordCopy {
    /// Takes a record that this node changed, with the node's time. Returns whether it is newer than the known one.
    pub(super) fn publish(&mut self, field: Field, mut record: SharedRecord, time: &ServerTime) -> bool {
        if self.has_server_time {
            record.expires = record.expires.map(|at| time.at_server(at));
        }
        self.change(field, record)
    }

    /// Converts all records to the time of Redis, which is known now.
    pub(super) fn use_server_time(&mut self, time: &ServerTime) {
        if self.has_server_time {
            return;
        }
        self.has_server_time = true;
        self.expiring.clear();
        for (field, record) in &mut self.records {
            record.expires = record.expires.map(|at| time.at_server(at));
            self.expiring.extend(record.expires.map(|at| (at, *field)));
        }
    }

    /// Takes a record that this node changed. Returns whether it is newer than the known one.
    pub(super) fn change(&mut self, field: Field, record: SharedRecord) -> bool {
        let is_newer = self.records.get(&field).is_none_or(|known| known.changed < record.changed);
        if is_newer {
            self.unpushed.insert(field);
            self.insert(field, record);
        }
        is_newer
    }

    /// Takes a record of Redis at `now`. Returns it if it differs from the known one and is not older. Of two versions of
    /// the same time, that of Redis counts, on every node. An expired record is of use only if it replaces a known one.
    pub(super) fn accept(
        &mut self,
        field: Field,
        record: SharedRecord,
        now: Timestamp,
    ) -> Option<SharedRecord> {
        if let Some(known) = self.records.get(&field) {
            if record.changed < known.changed {
                return None;
            }
            self.unpushed.remove(&field);
            if *known == record {
                return None;
            }
        } else if record.expires.is_some_and(|at| at <= now) {
            return None;
        }
        self.insert(field, record.clone());
        Some(record)
    }

    /// Inserts or replaces a record. If too many expire, the one that expires first is dropped.
    fn insert(&mut self, field: Field, record: SharedRecord) {
        if let Some(expires) = record.expires {
            self.expiring.insert((expires, field));
        }
        let expires = record.expires;
        if let Some(known) = self.records.insert(field, record)
            && let Some(before) = known.expires.filter(|before| Some(*before) != expires)
        {
            self.expiring.remove(&(before, field));
        }
        while self.expiring.len() > self.max_expiring {
            self.remove_first();
        }
    }

    fn remove_first(&mut self) {
        if let Some((_, field)) = self.expiring.pop_first() {
            self.records.remove(&field);
            self.unpushed.remove(&field);
        }
    }

    /// Removes the records that have expired at the node's time `now`.
    pub(super) fn remove_expired(&mut self, now: Timestamp, time: &ServerTime) {
        let now = if self.has_server_time { time.at_server(now) } else { now };
        while self.expiring.first().is_some_and(|(expires, _)| *expires <= now) {
            self.remove_first();
        }
    }

    /// What is known of Redis.
    pub(super) fn cursor(&self) -> RecordCursor {
        self.cursor
    }

    /// Notes up to where records were pulled. If nothing was known of Redis, all records must be pushed.
    pub(super) fn advance(&mut self, reached: RecordCursor) {
        if self.cursor.mark == 0 {
            self.push_all();
        }
        self.cursor = reached;
    }

    /// Notes the mark of a push.
    pub(super) fn set_mark(&mut self, mark: u64) {
        self.cursor.mark = mark;
    }

    /// The records that were removed. A store that has lost writes may have what they say is gone.
    pub(super) fn removed(&self) -> Vec<SharedRecord> {
        self.records.values().filter(|record| record.body.is_none()).cloned().collect()
    }

    /// Redis has lost some of what was known: all records must be pulled and pushed.
    pub(super) fn forget_cursor(&mut self) {
        self.cursor = RecordCursor::default();
    }

    /// Marks all records as not pushed.
    pub(super) fn push_all(&mut self) {
        self.unpushed = self.records.keys().copied().collect();
    }

    /// Up to `count` records to push; `None` if there are none.
    pub(super) fn next_batch(&self, count: usize) -> Option<Vec<(Field, SharedRecord)>> {
        let record = |field: &Field| Some((*field, self.records.get(field)?.clone()));
        let batch: Vec<_> = self.unpushed.iter().filter_map(record).take(count).collect();
        Some(batch).filter(|batch| !batch.is_empty())
    }

    /// Notes that a batch was pushed. Records that were changed meanwhile stay marked.
    pub(super) fn mark_pushed(&mut self, batch: &[(Field, SharedRecord)]) {
        for (field, pushed) in batch {
            if self.records.get(field).is_none_or(|record| record.changed <= pushed.changed) {
                self.unpushed.remove(field);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELD: Field = [7; 16];
    const NOW: Timestamp = Timestamp::from_secs(10);

    fn record(changed: u64, body: &[u8]) -> SharedRecord {
        let (id, changed) = (b"id".to_vec(), Timestamp::from_secs(changed));
        SharedRecord { id, changed, expires: None, body: Some(body.to_vec()) }
    }

    #[test]
    fn copy_keeps_the_version_that_was_changed_last() {
        let mut copy = RecordCopy::default();
        assert!(copy.change(FIELD, record(5, b"own")));
        assert_eq!(copy.accept(FIELD, record(4, b"older"), NOW), None);
        assert_eq!(copy.accept(FIELD, record(6, b"newer"), NOW), Some(record(6, b"newer")));
        assert_eq!(copy.accept(FIELD, record(6, b"newer"), NOW), None);
        assert!(!copy.change(FIELD, record(5, b"own")));
        assert_eq!(copy.next_batch(10), None, "nothing of this node is newer");
    }

    #[test]
    fn copy_of_the_same_time_gives_way_to_redis() {
        let mut copy = RecordCopy::default();
        copy.change(FIELD, record(5, b"own"));
        assert_eq!(copy.accept(FIELD, record(5, b"other"), NOW), Some(record(5, b"other")));
        assert_eq!(copy.next_batch(10), None);
    }

    #[test]
    fn copy_that_knows_nothing_of_redis_pushes_all_records() {
        let mut copy = RecordCopy::default();
        let pushed = [(FIELD, record(5, b"own"))];
        for mark in [1, 7] {
            copy.change(FIELD, record(5, b"own"));
            copy.advance(RecordCursor { mark, version: 3 });
            assert_eq!(copy.next_batch(10), Some(pushed.to_vec()));
            copy.mark_pushed(&pushed);
            copy.advance(RecordCursor { mark, version: 4 });
            assert_eq!(copy.next_batch(10), None);
            copy.forget_cursor();
            assert_eq!(copy.cursor(), RecordCursor::default());
        }
    }

    fn expiring(changed: u64, expires: u64) -> SharedRecord {
        SharedRecord { expires: Some(Timestamp::from_secs(expires)), ..record(changed, b"") }
    }

    #[test]
    fn copy_forgets_expired_records_and_does_not_push_them() {
        let mut copy = RecordCopy::default();
        copy.change(FIELD, expiring(5, 11));
        copy.change([8; 16], record(5, b"own"));
        copy.accept([9; 16], expiring(5, 12), NOW);
        copy.remove_expired(NOW, &ServerTime::equal());
        assert_eq!((copy.records.len(), copy.expiring.len()), (3, 2));
        copy.remove_expired(Timestamp::from_secs(12), &ServerTime::equal());
        copy.push_all();
        assert_eq!(copy.next_batch(10), Some(vec![([8; 16], record(5, b"own"))]));
        assert_eq!((copy.records.len(), copy.expiring.len()), (1, 0));
    }

    #[test]
    fn copy_converts_the_expiry_of_its_own_records_once() {
        let time = ServerTime::unknown();
        let mut copy = RecordCopy::default();
        copy.publish(FIELD, expiring(1, 100), &time);
        // The node's clock is 10 s behind.
        time.observe(Timestamp::from_secs(30), Timestamp::from_secs(20));
        copy.remove_expired(Timestamp::from_secs(99), &time);
        for _ in 0..2 {
            copy.use_server_time(&time);
        }
        copy.publish([8; 16], expiring(1, 100), &time);
        let batch = copy.next_batch(10).unwrap();
        assert_eq!(batch, [(FIELD, expiring(1, 110)), ([8; 16], expiring(1, 110))]);
        copy.remove_expired(Timestamp::from_secs(99), &time);
        assert_eq!(copy.expiring.len(), 2);
        copy.remove_expired(Timestamp::from_secs(100), &time);
        assert!(copy.records.is_empty() && copy.expiring.is_empty());
    }

    #[test]
    fn copy_accepts_an_expired_record_only_to_replace_another() {
        let mut copy = RecordCopy::default();
        assert_eq!(copy.accept(FIELD, expiring(5, 10), NOW), None);
        assert!(copy.records.is_empty());
        copy.change(FIELD, expiring(5, 100));
        assert_eq!(copy.accept(FIELD, expiring(6, 10), NOW), Some(expiring(6, 10)));
        copy.remove_expired(NOW, &ServerTime::equal());
        assert!(copy.records.is_empty() && copy.expiring.is_empty());
    }

    #[test]
    fn copy_that_is_full_drops_the_record_that_expires_first() {
        let mut copy = RecordCopy { max_expiring: 2, ..RecordCopy::default() };
        copy.change([1; 16], record(1, b"forever"));
        for (number, expires) in [(2, 30), (3, 20), (4, 40), (4, 50)] {
            copy.change([number; 16], expiring(expires, expires));
        }
        let mut kept: Vec<_> = copy.records.keys().map(|field| field[0]).collect();
        kept.sort_unstable();
        assert_eq!(kept, [1, 2, 4]);
        assert_eq!((copy.expiring.len(), copy.unpushed.len()), (2, 3));
    }

    #[test]
    fn copy_changed_during_a_push_is_pushed_again() {
        let mut copy = RecordCopy::default();
        copy.change(FIELD, record(5, b"own"));
        let batch = copy.next_batch(10).unwrap();
        copy.change(FIELD, record(6, b"later"));
        copy.mark_pushed(&batch);
        assert_eq!(copy.next_batch(10), Some(vec![(FIELD, record(6, b"later"))]));
    }
}
