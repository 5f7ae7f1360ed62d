//! Shares bans, overrides and penalties with other nodes.
//!
//! A change of this node is published after it was made here. A change of another node is made here as if an operator had
//! made it, but is not published again. Violations are sent to all nodes as they happen, so that a client is locked out
//! after `after` violations in total; a lock-out is published as a record, so that it also reaches nodes that were away.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate_core::{OwnedKey, Timestamp};
use tidegate_store::durable::{BanRecord, DurableChange, OverrideKey};
use tidegate_store::{PenaltyEntry, RecordExchange, SharedEvent, SharedRecord};
use tokio::sync::mpsc;

use super::change_clock::ChangeClock;
use super::encoding::{self, RemoteChange};
use super::{AdminRecords, AdminState};
use crate::backend::Backend;

/// The exchange, and when each record was last changed.
#[derive(Debug)]
pub(super) struct Sharing {
    exchange: Arc<dyn RecordExchange>,
    clock: Arc<ChangeClock>,
    /// By the id of the record.
    changed: HashMap<Vec<u8>, Timestamp>,
    /// The penalties that came from other nodes since penalties were last written; they are not published again.
    received: HashMap<OwnedKey, PenaltyEntry>,
}

impl Sharing {
    /// The stamp of a change of the record `id` that is made now.
    fn stamp(&mut self, id: &[u8]) -> Timestamp {
        let stamp = self.clock.stamp();
        self.changed.insert(id.to_vec(), stamp);
        stamp
    }

    /// Whether a version of another node is not older than the known one. Notes its time.
    fn accepts(&mut self, record: &SharedRecord) -> bool {
        let is_new = self.changed.get(&record.id).is_none_or(|known| *known <= record.changed);
        if is_new {
            self.changed.insert(record.id.clone(), record.changed);
        }
        is_new
    }
}

impl<R: Backend> AdminState<R> {
    /// Shares all changes through `exchange` from now on, and applies those of other nodes until `events` ends.
    pub async fn share(
        self: Arc<Self>,
        exchange: Arc<dyn RecordExchange>,
        mut events: mpsc::Receiver<SharedEvent>,
    ) {
        self.begin_sharing(&exchange).await;
        while let Some(event) = events.recv().await {
            match event {
                SharedEvent::Attached => self.restore_overrides().await,
                SharedEvent::Records(records) => self.apply_records(records).await,
                SharedEvent::Message(message) => self.apply_message(&message),
            }
        }
    }

    /// Publishes what this node knows from before.
    async fn begin_sharing(&self, exchange: &Arc<dyn RecordExchange>) {
        let now = self.now();
        let records = self.records.lock().await;
        let changes = Arc::new(ChangeClock::new(Arc::clone(&self.clock)));
        let mut sharing = Sharing {
            exchange: Arc::clone(exchange),
            clock: Arc::clone(&changes),
            changed: HashMap::new(),
            received: HashMap::new(),
        };
        let mut known: Vec<SharedRecord> = Vec::new();
        // The stored records do not say when they were changed; they were not changed after they were set.
        known.extend(records.bans.values().map(|ban| encoding::ban_record(ban, ban.since)));
        known.extend(
            records
                .overrides
                .iter()
                .map(|(key, record)| encoding::override_record(key, record, record.since)),
        );
        sharing.changed.extend(known.iter().map(|record| (record.id.clone(), record.changed)));
        let penalties = self.backend.limiter().penalties();
        known.extend(
            penalties
                .snapshot(now)
                .iter()
                .map(|entry| encoding::penalty_record(entry, entry.record.since.min(now))),
        );
        for record in &known {
            changes.observe(record.changed);
        }
        exchange.publish(known);
        *self.sharing.lock().await = Some(sharing);
        drop(records);
        let (lifted, clock) = (Arc::clone(exchange), Arc::clone(&changes));
        penalties.on_lift(Box::new(move |key| {
            lifted.publish(vec![encoding::penalty_removal(key, clock.stamp(), clock.now())]);
        }));
        let (exchange, clock) = (Arc::clone(exchange), changes);
        penalties.on_violation(Box::new(move |entry| {
            if entry.record.lock_out(clock.now()).is_some() {
                exchange.publish(vec![encoding::penalty_record(entry, clock.stamp())]);
            } else {
                exchange.broadcast(encoding::violation_message(entry.key.as_key()));
            }
        }));
    }

    /// Publishes a change of the record `id`; `record` makes the record of that time.
    pub(super) async fn publish_change(&self, id: Vec<u8>, record: impl FnOnce(Timestamp) -> SharedRecord) {
        if let Some(sharing) = self.sharing.lock().await.as_mut() {
            let at = sharing.stamp(&id);
            sharing.exchange.publish(vec![record(at)]);
        }
    }

    /// Publishes penalties that changed on this node.
    pub(super) async fn publish_penalties(&self, changed: &[PenaltyEntry]) {
        if let Some(sharing) = self.sharing.lock().await.as_mut() {
            let received = std::mem::take(&mut sharing.received);
            let own = changed.iter().filter(|entry| received.get(&entry.key) != Some(*entry));
            let records: Vec<_> =
                own.map(|entry| encoding::penalty_record(entry, sharing.clock.stamp())).collect();
            if !records.is_empty() {
                sharing.exchange.publish(records);
            }
        }
    }

    /// Publishes that operators removed penalties.
    pub(super) async fn publish_lifted(&self, keys: &[OwnedKey]) {
        if let Some(sharing) = self.sharing.lock().await.as_ref() {
            let now = self.now();
            let removal = |key| encoding::penalty_removal(key, sharing.clock.stamp(), now);
            let removals = keys.iter().map(removal);
            sharing.exchange.publish(removals.collect());
        }
    }

    /// Applies all overrides to a shared store that may have lost them.
    async fn restore_overrides(&self) {
        let now = self.now();
        for (key, record) in self.overrides().await {
            // If the store fails again, it is attached again later.
            if self.apply_override(&key, Some(&record), now).await.is_err() {
                return;
            }
        }
    }

    async fn apply_records(self: &Arc<Self>, remote: Vec<SharedRecord>) {
        let applied = self.change(|state, mut records, now| async move {
            let mut changes = Vec::new();
            let mut overrides = Vec::new();
            if let Some(sharing) = state.sharing.lock().await.as_ref() {
                for record in &remote {
                    sharing.clock.observe(record.changed);
                }
            }
            for record in remote {
                let Some(change) = encoding::read(&record) else { continue };
                match change {
                    RemoteChange::Penalty(entry) => state.merge_penalty(entry, now).await,
                    RemoteChange::RemovePenalty(key, lifted) => state.lift_penalty(&key, lifted),
                    change => {
                        let mut sharing = state.sharing.lock().await;
                        if sharing.as_mut().is_some_and(|sharing| sharing.accepts(&record)) {
                            overrides.extend(records.apply(change, &mut changes));
                        }
                    }
                }
            }
            if changes.is_empty() && overrides.is_empty() {
                return Ok(());
            }
            // Enforced even if it cannot be written: the other nodes have it.
            let written = if changes.is_empty() { Ok(()) } else { state.durable.apply(changes).await };
            state.publish(&records, now);
            for key in overrides {
                let record = records.overrides.get(&key);
                let _ = state.apply_override(&key, record, now).await;
            }
            Ok(written?)
        });
        if let Err(error) = applied.await {
            let message = format!("a change of another node is not saved: {error}");
            self.backend.log_event("shared_change_not_saved", &message, "");
        }
    }

    async fn merge_penalty(&self, entry: PenaltyEntry, now: Timestamp) {
        let penalties = self.backend.limiter().penalties();
        if penalties.merge(&entry, now)
            && let Some(merged) = penalties.find(entry.key.as_key())
            && let Some(sharing) = self.sharing.lock().await.as_mut()
        {
            sharing.received.insert(merged.key.clone(), merged);
        }
    }

    /// Removes a penalty that another node lifted at `lifted`, unless the client violated the rule since.
    fn lift_penalty(&self, key: &OwnedKey, lifted: Timestamp) {
        let penalties = self.backend.limiter().penalties();
        let is_earlier = |entry: &PenaltyEntry| {
            let record = &entry.record;
            let is_lock_out = record.since == record.locked_until;
            let last = if is_lock_out { record.locked_until - record.locked_for } else { record.since };
            last <= lifted
        };
        if penalties.find(key.as_key()).as_ref().is_some_and(is_earlier) {
            penalties.remove(key.as_key());
        }
    }

    /// Counts a violation of another node.
    fn apply_message(&self, message: &[u8]) {
        let Some(key) = encoding::read_violation(message) else { return };
        let limiter = self.backend.limiter();
        let policy = limiter.policy();
        let rule = policy.matcher.plan().rate_limits.iter().find(|rule| rule.id == key.rule);
        if let Some(penalty) = rule.and_then(|rule| rule.penalty.as_ref()) {
            limiter.penalties().count_violation(key.as_key(), penalty, self.now());
        }
    }
}

impl AdminRecords {
    /// Applies a change of another node and adds it to the durable `changes`. Returns the override that it changed.
    fn apply(&mut self, change: RemoteChange, changes: &mut Vec<DurableChange>) -> Option<OverrideKey> {
        match change {
            RemoteChange::Ban(ban) => {
                let record = BanRecord { reason: ban.reason.clone(), since: ban.since, until: ban.until };
                changes.push(DurableChange::Ban(ban.subject.to_string(), record));
                self.bans.insert(ban.subject.clone(), ban);
                None
            }
            RemoteChange::Unban(subject) => {
                self.bans.remove(&subject)?;
                changes.push(DurableChange::Unban(subject.to_string()));
                None
            }
            RemoteChange::Override(key, record) => {
                changes.push(DurableChange::Override(key.clone(), record.clone()));
                self.overrides.insert(key.clone(), record);
                Some(key)
            }
            RemoteChange::RemoveOverride(key) => {
                if self.overrides.remove(&key).is_some() {
                    changes.push(DurableChange::RemoveOverride(key.clone()));
                }
                // Even if it is not known here: a shared store that went back to older contents may apply it again.
                Some(key)
            }
            RemoteChange::Penalty(_) | RemoteChange::RemovePenalty(..) => None,
        }
    }
}
