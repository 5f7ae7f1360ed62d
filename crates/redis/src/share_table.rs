//! The parts of limits that this node enforces, computed once each.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use smallvec::SmallVec;
use tidegate_core::{Check, CounterKey, Limit};

/// More limits than a policy has. Beyond this the table starts again.
const MAX_ENTRIES: usize = 4_096;

/// A part of a whole: `part / of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeShare {
    pub(crate) part: u64,
    pub(crate) of: u64,
}

/// The parts of limits by the limit's fingerprint.
#[derive(Debug, Default)]
pub(crate) struct ShareTable(RwLock<HashMap<(u64, NodeShare), SharedLimit>>);

#[derive(Debug)]
struct SharedLimit {
    /// The whole limit: two limits may have the same fingerprint.
    whole: Limit,
    share: Limit,
}

impl ShareTable {
    /// The part of `limit`.
    pub(crate) fn share(&self, limit: &Limit, node: NodeShare) -> Limit {
        let key = (limit.fingerprint(), node);
        if let Some(found) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&key)
            && found.whole == *limit
        {
            return found.share;
        }
        let share = limit.share(node.part, node.of);
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if table.len() >= MAX_ENTRIES {
            table.clear();
        }
        table.insert(key, SharedLimit { whole: *limit, share });
        share
    }
}

/// Checks with these keys and limits in place of their own.
pub(crate) fn with_limits<'a>(
    checks: &[Check<'a>],
    limits: &'a [Limit],
    key: impl Fn(CounterKey<'a>) -> CounterKey<'a>,
) -> SmallVec<[Check<'a>; 4]> {
    checks.iter().zip(limits).map(|(check, limit)| Check { key: key(check.key), limit, ..*check }).collect()
}
