//! Bans and overrides. A change is first written to the durable store, then applied, then shared with other nodes, then
//! acknowledged.

mod change_clock;
mod encoding;
mod sharing;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{CounterKey, Limit, OwnedKey, RuleId, Timestamp};
use tidegate_policy::{Ban, Bans, Subject, SubjectError};
use tidegate_store::durable::{
    BackupError, BanRecord, Contents, Durable, DurableChange, DurableError, OverrideKey, OverrideRecord,
};
use tidegate_store::{Clock, Override, PenaltyChanges, PenaltyEntry, Store, StoreError};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::backend::Backend;
use sharing::Sharing;

/// The most bans and overrides at a time.
const MAX_BANS: usize = 100_000;
const MAX_OVERRIDES: usize = 10_000;
/// How often changed penalties are written.
const PENALTY_INTERVAL: Duration = Duration::from_secs(1);

/// The bans, overrides and penalties of one gateway. Changes are made one at a time.
#[derive(Debug)]
pub struct AdminState<R: Backend> {
    backend: Arc<R>,
    clock: Arc<dyn Clock>,
    durable: Durable,
    /// The durable file; `None` if nothing is persisted.
    path: Option<PathBuf>,
    records: Arc<Mutex<AdminRecords>>,
    /// Locked while penalties are written.
    penalties: Mutex<PenaltySync>,
    /// `None` if this node shares nothing.
    sharing: Mutex<Option<Sharing>>,
}

/// Which penalties are in the durable store.
#[derive(Debug, Default)]
struct PenaltySync {
    version: u64,
    /// Changes were taken but not written, so the next write must replace all penalties.
    is_incomplete: bool,
}

/// The bans and overrides by subject and key.
#[derive(Debug, Default)]
struct AdminRecords {
    bans: BTreeMap<Subject, Ban>,
    overrides: BTreeMap<OverrideKey, OverrideRecord>,
}

/// The contents of the durable store cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The subject of a ban is invalid.
    #[error("invalid ban in the durable store: {0}")]
    Subject(#[from] SubjectError),
    /// An override cannot be applied.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A change was not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdminStateError {
    #[error(transparent)]
    Durable(#[from] DurableError),
    #[error("limit of {max} {what} reached")]
    Full { max: usize, what: &'static str },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the gateway is shutting down")]
    Ended,
}

impl<R: Backend> AdminState<R> {
    /// Applies the contents of the durable store.
    pub async fn restore(
        backend: Arc<R>,
        clock: Arc<dyn Clock>,
        (durable, path): (Durable, Option<PathBuf>),
        contents: Contents,
    ) -> Result<Arc<Self>, RestoreError> {
        let mut records = AdminRecords { bans: BTreeMap::new(), overrides: contents.overrides };
        for (subject, BanRecord { reason, since, until }) in contents.bans {
            // Stored networks have a prefix length, so the default prefix is not used.
            let subject = Subject::parse(&subject, 128)?;
            records.bans.insert(subject.clone(), Ban { subject, reason, since, until });
        }
        let (none, penalties, sharing) = (Arc::default(), Mutex::default(), Mutex::default());
        let state = Self { backend, clock, durable, path, records: none, penalties, sharing };
        let now = state.now();
        state.backend.limiter().penalties().restore(contents.penalties.into_values(), now);
        for (key, record) in &records.overrides {
            match state.apply_override(key, Some(record), now).await {
                // A start without the shared store is a normal start; the override is applied when it is attached.
                Err(StoreError::Unavailable(_) | StoreError::Protocol { .. }) => {}
                applied => applied?,
            }
        }
        state.publish(&records, now);
        *state.records.lock().await = records;
        Ok(Arc::new(state))
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The durable file, if there is one.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    pub(crate) async fn bans(&self) -> Vec<Ban> {
        let now = self.now();
        self.records.lock().await.bans.values().filter(|ban| !ban.is_over(now)).cloned().collect()
    }

    pub(crate) async fn overrides(&self) -> Vec<(OverrideKey, OverrideRecord)> {
        let now = self.now();
        let records = self.records.lock().await;
        let active = records.overrides.iter().filter(|(_, replacement)| !is_over(replacement.until, now));
        active.map(|(key, replacement)| (key.clone(), replacement.clone())).collect()
    }

    /// Adds a ban. Returns whether the subject had no active ban.
    pub(crate) async fn ban(self: &Arc<Self>, ban: Ban) -> Result<bool, AdminStateError> {
        self.change(|state, mut records, now| async move {
            let is_new = records.bans.get(&ban.subject).is_none_or(|earlier| earlier.is_over(now));
            let mut changes = records.remove_expired(now);
            if records.bans.len() >= MAX_BANS && !records.bans.contains_key(&ban.subject) {
                return Err(AdminStateError::Full { max: MAX_BANS, what: "bans" });
            }
            let Ban { reason, since, until, .. } = ban.clone();
            changes.push(DurableChange::Ban(ban.subject.to_string(), BanRecord { reason, since, until }));
            state.durable.apply(changes).await?;
            records.bans.insert(ban.subject.clone(), ban.clone());
            state.publish(&records, now);
            let id = encoding::ban_id(&ban.subject);
            state.publish_change(id, |at| encoding::ban_record(&ban, at)).await;
            Ok(is_new)
        })
        .await
    }

    /// Removes a ban. Returns whether the subject had an active ban.
    pub(crate) async fn unban(self: &Arc<Self>, subject: Subject) -> Result<bool, AdminStateError> {
        self.change(|state, mut records, now| async move {
            let was_banned = records.bans.get(&subject).is_some_and(|ban| !ban.is_over(now));
            let mut changes = records.remove_expired(now);
            if was_banned {
                changes.push(DurableChange::Unban(subject.to_string()));
            }
            if !changes.is_empty() {
                state.durable.apply(changes).await?;
            }
            records.bans.remove(&subject);
            state.publish(&records, now);
            if was_banned {
                let id = encoding::ban_id(&subject);
                state.publish_change(id.clone(), |at| encoding::removal(id, at, now)).await;
            }
            Ok(was_banned)
        })
        .await
    }

    /// Adds an override. Returns whether the client had no active override under the rule.
    pub(crate) async fn override_limit(
        self: &Arc<Self>,
        key: OverrideKey,
        replacement: OverrideRecord,
    ) -> Result<bool, AdminStateError> {
        self.change(|state, mut records, now| async move {
            let is_new = records.overrides.get(&key).is_none_or(|earlier| is_over(earlier.until, now));
            // Reserve the limit before writing: if the store is full, nothing changes.
            let limits: Vec<_> = Limit::new(replacement.algorithm, replacement.spec).into_iter().collect();
            let _retained = state.backend.limiter().store().retain_limits(&limits, now)?;
            let mut changes = records.remove_expired(now);
            if records.overrides.len() >= MAX_OVERRIDES && !records.overrides.contains_key(&key) {
                return Err(AdminStateError::Full { max: MAX_OVERRIDES, what: "overrides" });
            }
            changes.push(DurableChange::Override(key.clone(), replacement.clone()));
            state.durable.apply(changes).await?;
            if let Err(error) = state.apply_override(&key, Some(&replacement), now).await {
                let before = match records.overrides.get(&key) {
                    Some(earlier) => DurableChange::Override(key, earlier.clone()),
                    None => DurableChange::RemoveOverride(key),
                };
                state.durable.apply(vec![before]).await?;
                return Err(error.into());
            }
            records.overrides.insert(key.clone(), replacement.clone());
            let id = encoding::override_id(&key);
            state.publish_change(id, |at| encoding::override_record(&key, &replacement, at)).await;
            Ok(is_new)
        })
        .await
    }

    /// Removes an override. Returns whether it was active.
    pub(crate) async fn remove_override(self: &Arc<Self>, key: OverrideKey) -> Result<bool, AdminStateError> {
        self.change(|state, mut records, now| async move {
            let was_active =
                records.overrides.get(&key).is_some_and(|replacement| !is_over(replacement.until, now));
            let mut changes = records.remove_expired(now);
            if was_active {
                changes.push(DurableChange::RemoveOverride(key.clone()));
            }
            if !changes.is_empty() {
                state.durable.apply(changes).await?;
            }
            if let Err(error) = state.apply_override(&key, None, now).await {
                if was_active && let Some(earlier) = records.overrides.get(&key) {
                    // It stays in force.
                    state.durable.apply(vec![DurableChange::Override(key, earlier.clone())]).await?;
                }
                return Err(error.into());
            }
            records.overrides.remove(&key);
            if was_active {
                let id = encoding::override_id(&key);
                state.publish_change(id.clone(), |at| encoding::removal(id, at, now)).await;
            }
            Ok(was_active)
        })
        .await
    }

    /// The penalties of all clients that are locked out.
    pub(crate) fn locked_out(&self) -> Vec<PenaltyEntry> {
        self.backend.limiter().penalties().locked_out(self.now())
    }

    /// Ends the lock-outs of all clients whose counter key `is_named` accepts. Returns their keys.
    pub(crate) async fn end_lock_outs(&self, is_named: impl Fn(&[u8]) -> bool) -> Vec<OwnedKey> {
        let penalties = self.backend.limiter().penalties();
        let locked_out = self.locked_out().into_iter().map(|penalty| penalty.key);
        let named = locked_out.filter(|key| is_named(&key.client));
        let ended: Vec<_> = named.filter(|key| penalties.remove(key.as_key())).collect();
        self.publish_lifted(&ended).await;
        ended
    }

    /// Writes changed penalties once a second, until the future is dropped. Rejections do not wait for the write, so a
    /// crash can lose the lock-outs of the last second.
    pub async fn persist_penalties(self: Arc<Self>) {
        loop {
            tokio::time::sleep(PENALTY_INTERVAL).await;
            // After an error, the next write contains all penalties.
            let _ = self.write_penalties().await;
        }
    }

    /// Writes the penalties that have changed.
    pub async fn write_penalties(&self) -> Result<(), DurableError> {
        let mut sync = self.penalties.lock().await;
        let penalties = self.backend.limiter().penalties();
        let version = penalties.version();
        if version == sync.version && !sync.is_incomplete {
            return Ok(());
        }
        let PenaltyChanges { set, removed, is_partial } = penalties.take_changes();
        self.publish_penalties(&set).await;
        let changes = if is_partial || sync.is_incomplete {
            let all = penalties.snapshot(self.now()).into_iter().map(DurableChange::SetPenalty);
            std::iter::once(DurableChange::ClearPenalties).chain(all).collect()
        } else {
            let removed = removed.into_iter().map(DurableChange::RemovePenalty);
            removed.chain(set.into_iter().map(DurableChange::SetPenalty)).collect()
        };
        // Stays set if the write fails or this future is dropped.
        sync.is_incomplete = true;
        self.durable.apply(changes).await?;
        *sync = PenaltySync { version, is_incomplete: false };
        Ok(())
    }

    pub(crate) async fn back_up(&self, path: &Path) -> Result<(), BackupError> {
        self.durable.back_up(path).await
    }

    /// Closes the durable file, for a process that takes over. Until [`resume`](Self::resume) all changes fail.
    pub async fn release(&self) -> Result<(), DurableError> {
        // If the penalties cannot be written, the other process gets the file all the same.
        let _ = self.write_penalties().await;
        self.durable.release().await
    }

    /// Opens the durable file again after a takeover failed.
    pub async fn resume(&self) -> Result<(), DurableError> {
        // The contents are known: the other process has changed nothing.
        let resumed = self.durable.resume().await?;
        resumed.map(drop).map_err(|error| DurableError::Write { reason: error.to_string() })
    }

    /// Runs a change to its end in a task of its own, even if the client disconnects.
    async fn change<T, F>(
        self: &Arc<Self>,
        change: impl FnOnce(Arc<Self>, OwnedMutexGuard<AdminRecords>, Timestamp) -> F + Send + 'static,
    ) -> Result<T, AdminStateError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, AdminStateError>> + Send,
    {
        let state = Arc::clone(self);
        let task = tokio::spawn(async move {
            let records = Arc::clone(&state.records).lock_owned().await;
            let now = state.now();
            change(state, records, now).await
        });
        task.await.map_err(|_| AdminStateError::Ended)?
    }

    fn publish(&self, records: &AdminRecords, now: Timestamp) {
        self.backend.limiter().ban(Bans::new(records.bans.values().filter(|ban| !ban.is_over(now)).cloned()));
    }

    async fn apply_override(
        &self,
        key: &OverrideKey,
        replacement: Option<&OverrideRecord>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let rule = RuleId::named(&key.rule);
        let replacement = replacement.and_then(|record| {
            let until = record.until.unwrap_or(Timestamp::MAX);
            // Invalid limits are rejected by the API and by the durable store.
            let limit = Limit::new(record.algorithm, record.spec).ok()?;
            Some(Override { limit: self.part_of(limit, rule), until })
        });
        let key = CounterKey::new(rule, &key.client);
        self.backend.limiter().override_limit(key, replacement, now).await
    }

    /// The part of the limit of an override that this process enforces, as for the limit of the rule.
    fn part_of(&self, limit: Limit, rule: RuleId) -> Limit {
        let policy = self.backend.limiter().policy();
        let plan = policy.matcher.plan();
        let rule = plan.rate_limits.iter().find(|known| known.id == rule);
        plan.store.part_of(limit, rule.and_then(|rule| rule.sharing))
    }
}

impl AdminRecords {
    /// Removes expired bans and overrides. Returns the changes that remove them from the durable store.
    fn remove_expired(&mut self, now: Timestamp) -> Vec<DurableChange> {
        let bans = self.bans.extract_if(.., |_, ban| ban.is_over(now));
        let mut changes: Vec<_> =
            bans.map(|(subject, _)| DurableChange::Unban(subject.to_string())).collect();
        let overrides = self.overrides.extract_if(.., |_, replacement| is_over(replacement.until, now));
        changes.extend(overrides.map(|(key, _)| DurableChange::RemoveOverride(key)));
        changes
    }
}

fn is_over(until: Option<Timestamp>, now: Timestamp) -> bool {
    until.is_some_and(|until| until <= now)
}
