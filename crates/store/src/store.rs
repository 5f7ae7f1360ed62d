//! The trait of every store, its errors, and overrides.

use std::error::Error;

use thiserror::Error;
use tidegate_core::{
    Algorithm, Check, Coordination, CounterKey, Decision, Limit, Refund, RuleId, StoreFailureMode, TimeSpan,
    Timestamp,
};

use crate::memory::RetainedLimits;
use crate::permits::PermitGrant;

/// Keeps counters and decides checks.
///
/// Decisions of one store are atomic: all checks of a decision are charged together or none is, and no other decision sees
/// a part of it. The caller reads `now` once. A store with its own clock (so that several nodes agree) returns the time in
/// [`Decision::at`].
pub trait Store: Send + Sync {
    /// Decides `checks` and charges them if the request is admitted.
    fn decide(
        &self,
        checks: &[Check<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// Decides `checks` like [`decide`](Self::decide), if that needs no wait. `None` if the caller has to await `decide`; nothing
    /// is charged then.
    fn try_decide(&self, _checks: &[Check<'_>], _now: Timestamp) -> Option<Result<Decision, StoreError>> {
        None
    }

    /// Decides several requests in order at one `now` and appends their decisions. On an error nothing is appended or charged.
    /// Implemented by stores that are faster than with single calls.
    fn decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        decide_in_order(self, batch, now, decisions)
    }

    /// Decides like [`decide_batch`](Self::decide_batch), if no decision of the batch needs a wait. `None` if the caller has to
    /// await `decide_batch`; nothing is charged or appended then.
    fn try_decide_batch(
        &self,
        _batch: &[&[Check<'_>]],
        _now: Timestamp,
        _decisions: &mut Vec<Decision>,
    ) -> Option<Result<(), StoreError>> {
        None
    }

    /// Evaluates `checks` like [`decide`](Self::decide) without charging; `remaining` is the current value.
    fn peek(
        &self,
        checks: &[Check<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// Evaluates `checks` like [`peek`](Self::peek), if that needs no wait. `None` if the caller has to await `peek`.
    fn try_peek(&self, _checks: &[Check<'_>], _now: Timestamp) -> Option<Result<Decision, StoreError>> {
        None
    }

    /// Refunds what was charged for a request that was not served: see [`Decision::refunds`]. Returns whether any counter
    /// contained any of it; otherwise nothing has changed.
    fn refund(
        &self,
        refunds: &[Refund<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// The time that a charge under `rule` gets at `now` of the caller's clock: the store may have a clock of its own.
    fn charge_time(&self, _rule: RuleId, now: Timestamp) -> Timestamp {
        now
    }

    /// Refunds like [`refund`](Self::refund), if that needs no wait. `None` if the caller has to await `refund`; nothing is
    /// refunded then.
    fn try_refund(&self, _refunds: &[Refund<'_>], _now: Timestamp) -> Option<Result<bool, StoreError>> {
        None
    }

    /// Resets the counter of `key`; its override stays.
    fn reset(&self, key: CounterKey<'_>) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Sets an override for `key`, or ends it now with `None`. The spent units stay spent.
    fn override_limit(
        &self,
        key: CounterKey<'_>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Acquires one of `max` permits of `key` that all nodes share. If the future is dropped before it is ready, the permit is
    /// released.
    ///
    /// A store of one process leaves the decision to the caller, which counts its own requests.
    fn acquire_permit(
        &self,
        _key: CounterKey<'_>,
        max: u32,
        _now: Timestamp,
    ) -> impl Future<Output = Result<PermitGrant, StoreError>> + Send {
        std::future::ready(Ok(PermitGrant::Local { max }))
    }

    /// Reserves each of `limits` for decisions until the result is dropped, or changes nothing. A policy retains its limits
    /// before it is activated, so that their counters do not depend on how many other limits requests carry.
    ///
    /// A store that keeps each limit with its counter has nothing to retain.
    fn retain_limits(&self, _limits: &[Limit], _now: Timestamp) -> Result<RetainedLimits, StoreError> {
        Ok(RetainedLimits::default())
    }

    /// Applies the settings of `rules` from now on, in place of all earlier ones. Other rules have the store's own settings.
    ///
    /// A store of one process has no such settings.
    fn apply_settings(&self, _rules: &[RuleSettings]) {}
}

/// Decides the requests of a batch one after another. An error refunds those before it.
pub async fn decide_in_order<S: Store + ?Sized>(
    store: &S,
    batch: &[&[Check<'_>]],
    now: Timestamp,
    decisions: &mut Vec<Decision>,
) -> Result<(), StoreError> {
    let first = decisions.len();
    for checks in batch {
        match store.decide(checks, now).await {
            Ok(decision) => decisions.push(decision),
            Err(error) => {
                for (checks, decision) in batch.iter().zip(decisions.drain(first..)) {
                    store.refund(&decision.refunds(checks), now).await?;
                }
                return Err(error);
            }
        }
    }
    Ok(())
}

/// How a store that several nodes share handles a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleSettings {
    /// The rule.
    pub rule: RuleId,
    /// How nodes share the limit.
    pub coordination: Coordination,
    /// What happens while the shared store fails.
    pub on_store_failure: StoreFailureMode,
}

/// Why a store failed. A request must not be treated as decided then.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The store is unreachable or timed out; whether it charged is unknown.
    #[error("the store is unavailable")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
    /// The store sent an invalid reply.
    #[error("invalid reply from the store: {reason}")]
    Protocol {
        /// What is wrong with the reply.
        reason: String,
    },
    /// The store cannot handle this many distinct limits at once.
    #[error(
        "too many different limits: {in_use} of at most {max} are in use (by the active policy, by overrides and by \
         counters that have not expired), and {new} more are needed; use the same limit for several rules, remove \
         overrides, or wait until counters of earlier limits expire"
    )]
    TooManyLimits {
        /// The number of new limits.
        new: usize,
        /// The number of limits in use.
        in_use: usize,
        /// The maximum in use at once.
        max: usize,
    },
    /// The store does not support this algorithm.
    #[error("this store does not support the algorithm {algorithm}")]
    Unsupported {
        /// The algorithm.
        algorithm: Algorithm,
    },
}

/// A limit that temporarily replaces the rule's limit for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// The replacement limit.
    pub limit: Limit,
    /// When the rule's own limit applies again.
    pub until: Timestamp,
}

/// Refunds arrive soon after their decisions: this long after its end, an override no longer affects them.
const REFUNDS_END: TimeSpan = TimeSpan::from_secs(60);

impl Override {
    /// Whether the override is irrelevant now, even if time goes back a little.
    pub fn has_expired(&self, now: Timestamp) -> bool {
        self.until + REFUNDS_END + REFUNDS_END <= now
    }

    /// Whether the refunded charge may have been made, or have drained, under this override.
    pub fn may_affect(&self, refund: &Refund<'_>, now: Timestamp) -> bool {
        refund.charged < self.until && now < self.until + REFUNDS_END
    }
}

/// An override as a store keeps it: with its beginning, so that refunds of charges under it are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredOverride {
    /// The override.
    pub replacement: Override,
    /// When it began.
    pub since: Timestamp,
}

impl StoredOverride {
    /// An override that begins at `now`, unless `earlier` is the same limit and still in force.
    pub fn begin(replacement: Override, earlier: Option<Self>, now: Timestamp) -> Self {
        let same = |earlier: &Self| {
            earlier.replacement.limit == replacement.limit && now < earlier.replacement.until
        };
        let since = earlier.filter(same).map_or(now, |earlier| earlier.since);
        Self { replacement, since }
    }

    /// The limit under which a charge was made and its counter still counts; `None` if that is unknown. Under another limit than
    /// that of the charge, the departures of a leaky bucket are other moments.
    pub fn limit_of_charge(&self, refund: &Refund<'_>, now: Timestamp) -> Option<Limit> {
        let Override { limit, until } = self.replacement;
        let is_leaky = |limit: &Limit| limit.algorithm() == Algorithm::LeakyBucket;
        if !self.replacement.may_affect(refund, now) {
            Some(*refund.limit)
        } else if refund.charged > self.since && now < until && !is_leaky(&limit) && !is_leaky(refund.limit) {
            Some(limit)
        } else {
            None
        }
    }
}
