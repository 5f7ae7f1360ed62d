//! A table that forgets what was not used for the longest time.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_core::Timestamp;

/// A table that is full forgets at least this part of its capacity, so that it is not searched for each new entry.
const SMALLEST_PART: usize = 16;

/// A value that may know something that must not be forgotten.
pub(crate) trait Forgettable {
    /// Whether requests are held back at `now` because of what the value knows.
    fn is_blocked(&self, now: Timestamp) -> bool;
}

/// At most `capacity` values by name. Values that are in use are kept beyond it: their number is that of the requests.
#[derive(Debug)]
pub(crate) struct RecentTable<T> {
    capacity: usize,
    entries: Mutex<RecentEntries<T>>,
}

#[derive(Debug)]
struct RecentEntries<T> {
    /// The values, and when each was last used.
    values: HashMap<Box<str>, (Arc<T>, u64)>,
    uses: u64,
}

impl<T: Forgettable> RecentTable<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        let entries = RecentEntries { values: HashMap::new(), uses: 0 };
        Self { capacity, entries: Mutex::new(entries) }
    }

    /// The value with this name, or a new one.
    pub(crate) fn get(&self, name: &str, now: impl FnOnce() -> Timestamp, new: impl FnOnce() -> T) -> Arc<T> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.uses += 1;
        let last_use = entries.uses;
        if let Some((value, used)) = entries.values.get_mut(name) {
            *used = last_use;
            return Arc::clone(value);
        }
        if entries.values.len() >= self.capacity {
            entries.forget(now(), self.capacity.div_ceil(SMALLEST_PART));
        }
        let value = Arc::new(new());
        entries.values.insert(name.into(), (Arc::clone(&value), last_use));
        value
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.lock().unwrap().values.len()
    }
}

impl<T: Forgettable> RecentEntries<T> {
    /// Forgets the older half of the values that are neither in use nor blocked. Blocked ones are forgotten only if these
    /// are fewer than `at_least`.
    fn forget(&mut self, now: Timestamp, at_least: usize) {
        let idle = self.values.values().filter(|(value, _)| Arc::strong_count(value) == 1);
        let mut idle: Vec<_> = idle.map(|(value, used)| (value.is_blocked(now), *used)).collect();
        idle.sort_unstable();
        let free = idle.partition_point(|(is_blocked, _)| !is_blocked);
        idle.truncate(free.div_ceil(2).max(at_least));
        let forgotten: HashSet<_> = idle.into_iter().map(|(_, used)| used).collect();
        self.values.retain(|_, (_, used)| !forgotten.contains(used));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocked until a time.
    struct Block(Timestamp);

    impl Forgettable for Block {
        fn is_blocked(&self, now: Timestamp) -> bool {
            now < self.0
        }
    }

    const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

    fn get(table: &RecentTable<Block>, name: &str, until: Timestamp) -> Arc<Block> {
        table.get(name, || NOW, || Block(until))
    }

    /// Whether the table knows the name. A value that was forgotten returns with another time.
    fn knows(table: &RecentTable<Block>, name: &str) -> bool {
        get(table, name, Timestamp::ZERO).0 != Timestamp::ZERO
    }

    #[test]
    fn full_table_forgets_the_older_half_and_keeps_what_is_in_use_or_blocked() {
        let table = RecentTable::new(64);
        let _used = get(&table, "used", NOW);
        get(&table, "blocked", Timestamp::MAX);
        for number in 0..63 {
            get(&table, &number.to_string(), NOW);
        }
        assert_eq!(table.len(), 64 - 31 + 1);
        assert!(knows(&table, "used") && knows(&table, "blocked"));
        assert!(knows(&table, "31") && knows(&table, "62"), "the newer half");
        assert!(!knows(&table, "0") && !knows(&table, "30"), "the older half");
    }

    #[test]
    fn full_table_of_blocked_values_forgets_the_oldest() {
        let table = RecentTable::new(64);
        for number in 0..1_000 {
            get(&table, &number.to_string(), Timestamp::MAX);
            assert!(table.len() <= 64);
        }
        assert!(knows(&table, "999") && knows(&table, "960") && !knows(&table, "900"));
    }
}
