//! The responses that can be served in place of rejections: one bounded memory for all workers.
//!
//! A response that was asked for once is first in a short queue, *probation*, an eighth of the memory. Only one that was asked for
//! again before it would leave that queue moves to the main queue. So a flood of different queries displaces itself, and nothing
//! that is used. In the main queue, a response that was used since its last turn gets another one.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use foldhash::quality::RandomState;
use http::{HeaderMap, HeaderName, HeaderValue};
use slab::Slab;
use std::hash::BuildHasher;
use tidegate_core::{TimeSpan, Timestamp};

/// The part of the memory for responses that were asked for once, and for those that are being received.
const PROBATION_PART: usize = 8;
/// A response that is longer than this part of the memory is not stored.
const LARGEST_PART: usize = 16;
/// The number of times that a response can have been used since its last turn.
const MAX_USES: u8 = 3;
/// How many groups of resources are told apart when one is changed.
const GROUPS: usize = 1 << 16;
/// What a response occupies beside its key, its headers and its body.
const ENTRY_BYTES: usize = 512;
/// What a header occupies beside its name and its value.
const HEADER_BYTES: usize = 96;

/// The responses of this process.
#[derive(Debug)]
pub(crate) struct ResponseMemory {
    table: Mutex<MemoryTable>,
    /// What is being received.
    pending: AtomicUsize,
    /// How often a resource of each group may have been changed.
    changes: Box<[AtomicU32]>,
    hasher: RandomState,
}

/// The state of a group of resources: a response from before a change is not served after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResourceVersion {
    group: usize,
    changes: u32,
}

/// A complete response.
#[derive(Debug)]
pub(super) struct StoredResponse {
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// Those of the request that `Vary` names.
    pub(super) varying: Vec<(HeaderName, Vec<HeaderValue>)>,
    pub(super) received: Timestamp,
    /// When it was generated, as far as its `Age` says that.
    pub(super) generated: Timestamp,
    /// How long it stays fresh.
    pub(super) fresh_for: TimeSpan,
    /// Whether it may be served when it is no longer fresh.
    pub(super) allows_stale: bool,
    pub(super) version: ResourceVersion,
}

#[derive(Debug, Default)]
struct MemoryTable {
    index: HashMap<Arc<[u8]>, usize, RandomState>,
    entries: Slab<MemoryEntry>,
    probation: VecDeque<usize>,
    main: VecDeque<usize>,
    probation_bytes: usize,
    bytes: usize,
}

#[derive(Debug)]
struct MemoryEntry {
    key: Arc<[u8]>,
    response: Arc<StoredResponse>,
    size: usize,
    uses: u8,
    is_main: bool,
}

impl Default for ResponseMemory {
    fn default() -> Self {
        let changes = (0..GROUPS).map(|_| AtomicU32::new(0)).collect();
        Self {
            table: Mutex::default(),
            pending: AtomicUsize::new(0),
            changes,
            hasher: RandomState::default(),
        }
    }
}

impl ResponseMemory {
    /// The largest response in a memory of `max_bytes`.
    pub(super) fn largest(max_bytes: usize) -> usize {
        max_bytes / LARGEST_PART
    }

    /// The state of the resource with this name now.
    pub(crate) fn version(&self, resource: &[u8]) -> ResourceVersion {
        let group = usize::try_from(self.hasher.hash_one(resource)).unwrap_or_default() % GROUPS;
        ResourceVersion {
            group,
            changes: self.changes.get(group).map_or(0, |changes| changes.load(Ordering::Acquire)),
        }
    }

    /// The resource may have been changed: its responses are not served any more.
    pub(crate) fn change(&self, version: ResourceVersion) {
        if let Some(changes) = self.changes.get(version.group) {
            changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn is_current(&self, version: ResourceVersion) -> bool {
        let changes = self.changes.get(version.group);
        changes.is_some_and(|changes| changes.load(Ordering::Acquire) == version.changes)
    }

    /// The response with this key.
    pub(super) fn get(&self, key: &[u8]) -> Option<Arc<StoredResponse>> {
        let mut table = self.table();
        let slot = *table.index.get(key)?;
        let entry = table.entries.get_mut(slot)?;
        entry.uses = (entry.uses + 1).min(MAX_USES);
        let response = Arc::clone(&entry.response);
        drop(table);
        self.is_current(response.version).then_some(response)
    }

    /// Stores a response in place of an earlier one, unless its resource was changed since it was requested.
    pub(super) fn insert(&self, key: Box<[u8]>, response: StoredResponse, max_bytes: usize) {
        let size = size_of_response(&key, &response);
        if size <= Self::largest(max_bytes) && self.is_current(response.version) {
            self.table().insert(key.into(), Arc::new(response), size, max_bytes);
        }
    }

    /// Whether there is room for `bytes` more of a response that is being received. They are taken until they are released.
    pub(super) fn reserve(&self, bytes: usize, max_bytes: usize) -> bool {
        let has_room = self.pending.fetch_add(bytes, Ordering::Relaxed) + bytes <= max_bytes / PROBATION_PART;
        if !has_room {
            self.release(bytes);
        }
        has_room
    }

    pub(super) fn release(&self, bytes: usize) {
        self.pending.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn table(&self) -> MutexGuard<'_, MemoryTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryTable {
    fn insert(&mut self, key: Arc<[u8]>, response: Arc<StoredResponse>, size: usize, max_bytes: usize) {
        if let Some(entry) = self.index.get(&key).and_then(|slot| self.entries.get_mut(*slot)) {
            // A request for it is a use.
            entry.uses = (entry.uses + 1).min(MAX_USES);
            let before = std::mem::replace(&mut entry.size, size);
            entry.response = response;
            self.bytes = self.bytes - before + size;
            if !entry.is_main {
                self.probation_bytes = self.probation_bytes - before + size;
            }
        } else {
            let slot = self.entries.insert(MemoryEntry {
                key: Arc::clone(&key),
                response,
                size,
                uses: 0,
                is_main: false,
            });
            self.index.insert(key, slot);
            self.probation.push_back(slot);
            self.probation_bytes += size;
            self.bytes += size;
        }
        // The rest is for responses that are being received.
        self.shrink(max_bytes - max_bytes / PROBATION_PART, max_bytes / PROBATION_PART);
    }

    /// Removes responses until the others fit. Each turn removes one, or takes one of its uses.
    fn shrink(&mut self, max_bytes: usize, max_probation: usize) {
        while self.bytes > max_bytes {
            let is_probation = self.probation_bytes > max_probation || self.main.is_empty();
            let queue = if is_probation { &mut self.probation } else { &mut self.main };
            let Some(slot) = queue.pop_front() else { return };
            let Some(entry) = self.entries.get_mut(slot) else { continue };
            if is_probation {
                self.probation_bytes -= entry.size;
            }
            if entry.uses > 0 {
                entry.uses = if is_probation { 0 } else { entry.uses - 1 };
                entry.is_main = true;
                self.main.push_back(slot);
            } else {
                let entry = self.entries.remove(slot);
                self.bytes -= entry.size;
                self.index.remove(&entry.key);
            }
        }
    }
}

/// What a response occupies.
fn size_of_response(key: &[u8], response: &StoredResponse) -> usize {
    let values =
        response.varying.iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
    let headers = response.headers.iter().chain(values);
    let headers: usize = headers.map(|(name, value)| HEADER_BYTES + name.as_str().len() + value.len()).sum();
    ENTRY_BYTES + key.len() + headers + response.body.len()
}

#[cfg(test)]
mod tests;
