//! Where bans and overrides are made and taken back: first written down, then put in force, then acknowledged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{CounterKey, Limit, RuleId, Timestamp};
use tidegate_policy::{Ban, Bans, Subject, SubjectError};
use tidegate_store::durable::{
    BackupError, BanRecord, Contents, Durable, DurableChange, DurableError, OverrideKey, OverrideRecord,
};
use tidegate_store::{Clock, Override, PenaltyChanges, PenaltyEntry, Store, StoreError};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::backend::Backend;

/// What all of them together may come to.
const MOST_BANS: usize = 100_000;
const MOST_OVERRIDES: usize = 10_000;
/// How often penalties are written down.
const KEEPING: Duration = Duration::from_secs(1);

/// The books of one gateway. One change is made at a time.
#[derive(Debug)]
pub struct AdminState<R: Backend> {
    backend: Arc<R>,
    clock: Arc<dyn Clock>,
    durable: Durable,
    /// Where it is written down; `None` is nowhere.
    path: Option<PathBuf>,
    books: Arc<Mutex<Records>>,
    /// LogSampling changes of penalties are written down; held while more are.
    penalties: Mutex<Written>,
}

/// How far the copy of the penalties goes.
#[derive(Debug, Default)]
struct Written {
    version: u64,
    /// Some changes were taken and not written: only a whole copy will do.
    is_behind: bool,
}

#[derive(Debug, Default)]
struct Records {
    bans: BTreeMap<Subject, Ban>,
    overrides: BTreeMap<OverrideKey, OverrideRecord>,
}

/// Why what was written down cannot be put in force.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// Nobody is called so.
    #[error("the durable store holds a ban of nobody: {0}")]
    Subject(#[from] SubjectError),
    /// The counters do not take an override.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdminStateError {
    #[error(transparent)]
    Durable(#[from] DurableError),
    #[error("there are {most} {what} already")]
    Full { most: usize, what: &'static str },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the process is ending")]
    Ended,
}

impl<R: Backend> AdminState<R> {
    /// Puts `contents` in force.
    pub async fn restore(
        backend: Arc<R>,
        clock: Arc<dyn Clock>,
        (durable, path): (Durable, Option<PathBuf>),
        contents: Contents,
    ) -> Result<Arc<Self>, RestoreError> {
        let mut books = Records { bans: BTreeMap::new(), overrides: contents.overrides };
        for (subject, BanRecord { reason, since, until }) in contents.bans {
            // A network is written with its length, so this one counts for nothing.
            let subject = Subject::parse(&subject, 128)?;
            books.bans.insert(subject.clone(), Ban { subject, reason, since, until });
        }
        let (none, penalties) = (Arc::default(), Mutex::default());
        let state = Self { backend, clock, durable, path, books: none, penalties };
        let now = state.now();
        state.backend.limiter().penalties().restore(contents.penalties.into_values(), now);
        for (key, record) in &books.overrides {
            state.put_in_force(key, Some(record), now).await?;
        }
        state.publish(&books, now);
        *state.books.lock().await = books;
        Ok(Arc::new(state))
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Where it is written down.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    pub(crate) async fn bans(&self) -> Vec<Ban> {
        let now = self.now();
        self.books.lock().await.bans.values().filter(|ban| !ban.is_over(now)).cloned().collect()
    }

    pub(crate) async fn overrides(&self) -> Vec<(OverrideKey, OverrideRecord)> {
        let now = self.now();
        let books = self.books.lock().await;
        let lasting = books.overrides.iter().filter(|(_, replacement)| !is_over(replacement.until, now));
        lasting.map(|(key, replacement)| (key.clone(), replacement.clone())).collect()
    }

    /// Whether it is new.
    pub(crate) async fn ban(self: &Arc<Self>, ban: Ban) -> Result<bool, AdminStateError> {
        self.change(|state, mut books, now| async move {
            let is_new = books.bans.get(&ban.subject).is_none_or(|earlier| earlier.is_over(now));
            let mut changes = books.forget(now);
            if books.bans.len() >= MOST_BANS && !books.bans.contains_key(&ban.subject) {
                return Err(AdminStateError::Full { most: MOST_BANS, what: "bans" });
            }
            let Ban { reason, since, until, .. } = ban.clone();
            changes.push(DurableChange::Ban(ban.subject.to_string(), BanRecord { reason, since, until }));
            state.durable.apply(changes).await?;
            books.bans.insert(ban.subject.clone(), ban);
            state.publish(&books, now);
            Ok(is_new)
        })
        .await
    }

    /// Whether there was one.
    pub(crate) async fn unban(self: &Arc<Self>, subject: Subject) -> Result<bool, AdminStateError> {
        self.change(|state, mut books, now| async move {
            let was_banned = books.bans.get(&subject).is_some_and(|ban| !ban.is_over(now));
            let mut changes = books.forget(now);
            if was_banned {
                changes.push(DurableChange::Unban(subject.to_string()));
            }
            if !changes.is_empty() {
                state.durable.apply(changes).await?;
            }
            books.bans.remove(&subject);
            state.publish(&books, now);
            Ok(was_banned)
        })
        .await
    }

    /// Whether it is new.
    pub(crate) async fn override_limit(
        self: &Arc<Self>,
        key: OverrideKey,
        replacement: OverrideRecord,
    ) -> Result<bool, AdminStateError> {
        self.change(|state, mut books, now| async move {
            let is_new = books.overrides.get(&key).is_none_or(|earlier| is_over(earlier.until, now));
            // Before anything is written: if the store has no room for the limit, nothing changes.
            let limits: Vec<_> = Limit::new(replacement.algorithm, replacement.spec).into_iter().collect();
            let _retained = state.backend.limiter().store().retain_limits(&limits, now)?;
            let mut changes = books.forget(now);
            if books.overrides.len() >= MOST_OVERRIDES && !books.overrides.contains_key(&key) {
                return Err(AdminStateError::Full { most: MOST_OVERRIDES, what: "overrides" });
            }
            changes.push(DurableChange::Override(key.clone(), replacement.clone()));
            state.durable.apply(changes).await?;
            if let Err(error) = state.put_in_force(&key, Some(&replacement), now).await {
                let before = match books.overrides.get(&key) {
                    Some(earlier) => DurableChange::Override(key, earlier.clone()),
                    None => DurableChange::RemoveOverride(key),
                };
                state.durable.apply(vec![before]).await?;
                return Err(error.into());
            }
            books.overrides.insert(key, replacement);
            Ok(is_new)
        })
        .await
    }

    /// Whether there was one.
    pub(crate) async fn end_override(self: &Arc<Self>, key: OverrideKey) -> Result<bool, AdminStateError> {
        self.change(|state, mut books, now| async move {
            let was_there =
                books.overrides.get(&key).is_some_and(|replacement| !is_over(replacement.until, now));
            let mut changes = books.forget(now);
            if was_there {
                changes.push(DurableChange::RemoveOverride(key.clone()));
            }
            if !changes.is_empty() {
                state.durable.apply(changes).await?;
            }
            state.put_in_force(&key, None, now).await?;
            books.overrides.remove(&key);
            Ok(was_there)
        })
        .await
    }

    /// Whose lock-outs there are.
    pub(crate) fn locked_out(&self) -> Vec<PenaltyEntry> {
        self.backend.limiter().penalties().locked_out(self.now())
    }

    /// Lets everybody go whom `subject` names; how many were locked out.
    pub(crate) fn forgive(&self, subject: &Subject) -> usize {
        let named = |penalised: &PenaltyEntry| subject.names(&penalised.key.client);
        let locked = self.locked_out().into_iter().filter(named);
        locked.filter(|penalised| self.backend.limiter().penalties().remove(penalised.key.as_key())).count()
    }

    /// Writes penalties down as they change, until it is dropped. Nobody waits for it: after a crash a lock-out of the
    /// last second may be forgotten.
    pub async fn keep_penalties(self: Arc<Self>) {
        loop {
            tokio::time::sleep(KEEPING).await;
            // What could not be written now is written next time.
            let _ = self.write_penalties().await;
        }
    }

    /// Writes down what has changed of the penalties.
    pub async fn write_penalties(&self) -> Result<(), DurableError> {
        let mut written = self.penalties.lock().await;
        let penalties = self.backend.limiter().penalties();
        let version = penalties.version();
        if version == written.version && !written.is_behind {
            return Ok(());
        }
        let PenaltyChanges { set, removed, is_partial } = penalties.take_changes();
        let changes = if is_partial || written.is_behind {
            let whole = penalties.snapshot(self.now()).into_iter().map(DurableChange::SetPenalty);
            std::iter::once(DurableChange::ClearPenalties).chain(whole).collect()
        } else {
            let removed = removed.into_iter().map(DurableChange::RemovePenalty);
            removed.chain(set.into_iter().map(DurableChange::SetPenalty)).collect()
        };
        // Until it is known to be written, it is not.
        written.is_behind = true;
        self.durable.apply(changes).await?;
        *written = Written { version, is_behind: false };
        Ok(())
    }

    pub(crate) async fn back_up(&self, path: &Path) -> Result<(), BackupError> {
        self.durable.back_up(path).await
    }

    /// Lets go of the durable file, for a process that takes over: until [`resume`](Self::resume) nothing is changed.
    pub async fn release(&self) -> Result<(), DurableError> {
        // Penalties that cannot be written are no reason to keep the file from whoever takes over.
        let _ = self.write_penalties().await;
        self.durable.release().await
    }

    /// Takes the durable file back: whoever was to take over did not.
    pub async fn resume(&self) -> Result<(), DurableError> {
        // Who did not take over has changed nothing.
        let resumed = self.durable.resume().await?;
        resumed.map(drop).map_err(|error| DurableError::Write { reason: error.to_string() })
    }

    /// Makes a change from beginning to end, even if whoever asked for it leaves half-way.
    async fn change<T, F>(
        self: &Arc<Self>,
        change: impl FnOnce(Arc<Self>, OwnedMutexGuard<Records>, Timestamp) -> F + Send + 'static,
    ) -> Result<T, AdminStateError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, AdminStateError>> + Send,
    {
        let state = Arc::clone(self);
        let made = tokio::spawn(async move {
            let books = Arc::clone(&state.books).lock_owned().await;
            let now = state.now();
            change(state, books, now).await
        });
        made.await.map_err(|_| AdminStateError::Ended)?
    }

    fn publish(&self, books: &Records, now: Timestamp) {
        self.backend.limiter().ban(Bans::new(books.bans.values().filter(|ban| !ban.is_over(now)).cloned()));
    }

    async fn put_in_force(
        &self,
        key: &OverrideKey,
        replacement: Option<&OverrideRecord>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let replacement = replacement.and_then(|record| {
            let until = record.until.unwrap_or(Timestamp::MAX);
            // What cannot be a limit is neither taken nor found in the file.
            let limit = Limit::new(record.algorithm, record.spec).ok()?;
            Some(Override { limit, until })
        });
        let key = CounterKey::new(RuleId::named(&key.rule), &key.client);
        self.backend.limiter().store().override_limit(key, replacement, now).await
    }
}

impl Records {
    /// Drops what is over, and says how to drop it elsewhere.
    fn forget(&mut self, now: Timestamp) -> Vec<DurableChange> {
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
