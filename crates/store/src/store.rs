//! The one trait of every store.

use std::error::Error;

use thiserror::Error;
use tidegate_core::{Algorithm, Check, CounterKey, Decision, Limit, Refund, TimeSpan, Timestamp};

use crate::memory::RetainedLimits;

/// Remembers counters and answers checks.
///
/// Within one store a decision is atomic: all of its checks are charged together or none is, and no other
/// decision sees it half done. `now` is read once by the caller; a store that keeps time itself (so that
/// several nodes agree) says in [`Decision::at`] what time it took.
pub trait Store: Send + Sync {
    /// Decides `checks` and charges what is to be charged.
    fn decide(
        &self,
        checks: &[Check<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// Decides several requests, one after the other at one `now`, and appends their decisions. Worth it
    /// wherever more than one request is at hand. On an error nothing is appended.
    fn decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Answers `checks` as [`decide`](Self::decide) would and charges nothing; `remaining` is what is left
    /// as it is.
    fn peek(
        &self,
        checks: &[Check<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// Gives back what was charged and not served: see [`Decision::refunds`].
    fn refund(
        &self,
        refunds: &[Refund<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Forgets what `key` has spent; its override stays.
    fn reset(&self, key: CounterKey<'_>) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Puts another limit in force for `key` until it ends, or with `None` ends it now. What is spent stays
    /// spent.
    fn override_limit(
        &self,
        key: CounterKey<'_>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Makes sure that decisions can use each of `limits` until the result is dropped, or changes nothing. A policy
    /// retains its limits before it is put in force, so that its decisions never fail for want of room.
    ///
    /// A store that keeps every limit pending_cost its counter has nothing to retain.
    fn retain_limits(&self, _limits: &[Limit], _now: Timestamp) -> Result<RetainedLimits, StoreError> {
        Ok(RetainedLimits::default())
    }
}

/// Why a store could not answer. It never means that a request may pass.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The store cannot be reached, or did not answer in time; whether it charged is not known.
    #[error("the store is unavailable")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
    /// The store answered something that is not an answer.
    #[error("the store's answer makes no sense: {reason}")]
    Protocol {
        /// What is wrong with it.
        reason: String,
    },
    /// The store cannot tell so many different limits apart at once.
    #[error(
        "too many different limits: {in_use} of at most {max} are in use (by the policy in force, by overrides and by \
         counters that have not expired), and this needs {new} more; give several rules the same limit, remove \
         overrides, or wait until counters of earlier limits expire"
    )]
    TooManyLimits {
        /// How many limits are new.
        new: usize,
        /// How many are in use.
        in_use: usize,
        /// How many can be in use at once.
        max: usize,
    },
    /// The store does not know this algorithm.
    #[error("this store cannot count a {algorithm}")]
    Unsupported {
        /// The algorithm asked for.
        algorithm: Algorithm,
    },
}

/// Another limit in force for one key, for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// The limit in force replacement of the rule's.
    pub limit: Limit,
    /// From then on the rule's own limit is in force again.
    pub until: Timestamp,
}

/// Refunds come soon after their decisions: so long after its end an override no longer concerns them.
const REFUNDS_END: TimeSpan = TimeSpan::from_secs(60);

impl Override {
    /// Whether it concerns nobody any more, even if time goes back a little.
    pub(crate) fn has_expired(&self, now: Timestamp) -> bool {
        self.until + REFUNDS_END + REFUNDS_END <= now
    }

    /// Whether what is to be refunded may have been charged, or drained, under this override.
    pub(crate) fn may_affect(&self, refund: &Refund<'_>, now: Timestamp) -> bool {
        refund.charged < self.until && now < self.until + REFUNDS_END
    }
}
