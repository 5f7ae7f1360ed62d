//! A node's copy of the shared records.

use std::collections::{BTreeSet, HashMap};

use tidegate_store::SharedRecord;

use super::seal::Field;

/// All records that this node knows, and which of them Redis may lack.
#[derive(Debug, Default)]
pub(super) struct RecordCopy {
    records: HashMap<Field, SharedRecord>,
    /// Not pushed since they were changed.
    unpushed: BTreeSet<Field>,
    epoch: Option<Vec<u8>>,
    /// The version up to which records were pulled.
    version: u64,
}

impl RecordCopy {
    /// Takes a record that this node changed. Returns whether it is newer than the known one.
    pub(super) fn change(&mut self, field: Field, record: SharedRecord) -> bool {
        let is_newer = self.records.get(&field).is_none_or(|known| known.changed < record.changed);
        if is_newer {
            self.records.insert(field, record);
            self.unpushed.insert(field);
        }
        is_newer
    }

    /// Takes a record of Redis. Returns it if it differs from the known one and is not older. Of two versions of the same
    /// time, that of Redis counts, on every node.
    pub(super) fn accept(&mut self, field: Field, record: SharedRecord) -> Option<SharedRecord> {
        if let Some(known) = self.records.get(&field) {
            if record.changed < known.changed {
                return None;
            }
            self.unpushed.remove(&field);
            if *known == record {
                return None;
            }
        }
        self.records.insert(field, record.clone());
        Some(record)
    }

    /// The epoch and the version up to which records were pulled.
    pub(super) fn cursor(&self) -> (&[u8], u64) {
        (self.epoch.as_deref().unwrap_or_default(), self.version)
    }

    /// Notes the epoch of Redis. Returns whether it is another one: then all records must be pushed.
    pub(super) fn enter_epoch(&mut self, epoch: &[u8]) -> bool {
        let is_new = self.epoch.as_deref() != Some(epoch);
        if is_new {
            self.epoch = Some(epoch.to_vec());
            self.version = 0;
            self.push_all();
        }
        is_new
    }

    /// Notes the version up to which records were pulled. If Redis has gone back, all records must be pushed.
    pub(super) fn advance(&mut self, version: u64) {
        if version < self.version {
            self.push_all();
        }
        self.version = version;
    }

    /// Marks all records as not pushed.
    pub(super) fn push_all(&mut self) {
        self.unpushed = self.records.keys().copied().collect();
    }

    /// Up to `count` records to push; `None` if there are none.
    pub(super) fn next_batch(&self, count: usize) -> Option<Vec<Field>> {
        let batch: Vec<_> = self.unpushed.iter().take(count).copied().collect();
        Some(batch).filter(|batch| !batch.is_empty())
    }

    pub(super) fn get(&self, field: &Field) -> Option<&SharedRecord> {
        self.records.get(field)
    }

    pub(super) fn mark_pushed(&mut self, fields: &[Field]) {
        for field in fields {
            self.unpushed.remove(field);
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Timestamp;

    use super::*;

    const FIELD: Field = [7; 16];

    fn record(changed: u64, body: &[u8]) -> SharedRecord {
        let (id, changed) = (b"id".to_vec(), Timestamp::from_secs(changed));
        SharedRecord { id, changed, expires: None, body: Some(body.to_vec()) }
    }

    #[test]
    fn copy_keeps_the_version_that_was_changed_last() {
        let mut copy = RecordCopy::default();
        assert!(copy.change(FIELD, record(5, b"own")));
        assert_eq!(copy.accept(FIELD, record(4, b"older")), None);
        assert_eq!(copy.accept(FIELD, record(6, b"newer")), Some(record(6, b"newer")));
        assert_eq!(copy.accept(FIELD, record(6, b"newer")), None);
        assert!(!copy.change(FIELD, record(5, b"own")));
        assert_eq!(copy.next_batch(10), None, "nothing of this node is newer");
    }

    #[test]
    fn copy_of_the_same_time_gives_way_to_redis() {
        let mut copy = RecordCopy::default();
        copy.change(FIELD, record(5, b"own"));
        assert_eq!(copy.accept(FIELD, record(5, b"other")), Some(record(5, b"other")));
        assert_eq!(copy.next_batch(10), None);
    }

    #[test]
    fn copy_in_a_new_epoch_pushes_all_records_again() {
        let mut copy = RecordCopy::default();
        copy.change(FIELD, record(5, b"own"));
        assert!(copy.enter_epoch(b"one"));
        copy.mark_pushed(&[FIELD]);
        assert!(!copy.enter_epoch(b"one"));
        assert_eq!(copy.next_batch(10), None);
        assert!(copy.enter_epoch(b"two"));
        assert_eq!(copy.next_batch(10), Some(vec![FIELD]));
    }

    #[test]
    fn copy_pushes_all_records_again_if_redis_has_gone_back() {
        let mut copy = RecordCopy::default();
        copy.change(FIELD, record(5, b"own"));
        copy.enter_epoch(b"one");
        copy.mark_pushed(&[FIELD]);
        copy.advance(3);
        copy.advance(4);
        assert_eq!(copy.next_batch(10), None);
        copy.advance(2);
        assert_eq!(copy.next_batch(10), Some(vec![FIELD]));
    }
}
