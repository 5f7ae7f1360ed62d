//! Joining a queue, and the decision about a request whose turn has come.

use std::hash::BuildHasher;

use futures_util::future::join;
use tidegate_core::{
    ActionKind, ActionSet, Check, Decision, Outcome, OwnedKey, TimeSpan, Timestamp, Verdict,
};
use tidegate_policy::{ActivePolicy, ExceedAction, Facts, MatchedRequest, Scratch};
use tidegate_store::{Store, StoreError};

use super::queues::{JoinError, WaitRequest};
use super::{Turn, WaitPlace};
use crate::conclusion::{refusal, refuse_without, serve, skip, store_failed};
use crate::concurrency::AcquiredPermits;
use crate::decision::{Charging, LocalContext, StoreStep};
use crate::limiter::{CheckContext, Limiter};
use crate::report::RulingReport;
use crate::ruling::{ActRuling, RefuseReason, RefuseRuling, Ruling, ServeReason};

/// The shortest time after which a request that is refused may come again.
const SOON: TimeSpan = TimeSpan::from_micros(1);

/// How long a request may wait, and at what.
#[derive(Clone, Copy, Debug)]
pub struct WaitTerms {
    /// When it was checked first.
    pub arrived: Timestamp,
    /// When its client stops waiting.
    pub deadline: Option<Timestamp>,
    /// The actions that its interface performs.
    pub performs: ActionSet,
}

impl<S: Store + 'static> Limiter<S> {
    /// A place for a request that has to wait, or its refusal if its turn cannot come in time.
    pub async fn join<'a>(
        &self,
        act: Box<ActRuling<'a>>,
        terms: WaitTerms,
    ) -> Result<WaitPlace, Box<RefuseRuling<'a>>> {
        let now = self.clock().now();
        let turn = act.report.decision.as_ref().map_or(now, |it| self.turn_of(it, act.index, terms.arrived));
        match self.try_join(&act.matched, (act.index, turn), terms, now) {
            Ok(place) => Ok(place),
            Err(_) if act.report.decision.is_some() => Err(Box::new(act.refuse(self))),
            Err(error) => {
                let ActRuling { index, matched, .. } = *act;
                Err(Box::new(self.refuse_behind(matched, (index, error.turn(now)), now).await))
            }
        }
    }

    /// Checks a request whose wait has ended, like [`check`](Self::check). `None` if it has to wait again: `place` says where.
    pub async fn check_at_turn<'a>(
        &self,
        policy: &'a ActivePolicy,
        facts: &Facts<'_>,
        scratch: &'a mut Scratch,
        (place, now): (&mut WaitPlace, Timestamp),
    ) -> Option<Ruling<'a>> {
        let context = CheckContext { now, performs: place.terms.performs };
        let mut matched = match self.match_request(policy, facts, scratch, now) {
            Ok(matched) => matched,
            Err(reason) => {
                place.leave(None);
                return Some(skip(policy, reason, now));
            }
        };
        matched.perform(context.performs);
        let Some(waited) = place.key.as_ref().and_then(|key| position(&matched, key)) else {
            // The rule no longer applies, such as one that depends on the time.
            place.leave(None);
            return Some(Box::pin(self.decide(policy, context, Charging::On, || Ok(matched))).await);
        };
        if place.turn == Turn::Over {
            return Some(self.refuse_over(policy, matched, (place, waited), now).await);
        }
        let local = LocalContext { now, charging: Charging::On, place: place.key.as_ref() };
        let (ruling, next) = match self.decide_locally(policy, &matched, local) {
            StoreStep::Decide(acquired) => {
                let (decided, next) = self.decide_with_next(&matched, (place, waited), now).await;
                let ruling = match decided {
                    Ok(decision) => self.conclude_with_actions(policy, &matched, (acquired, false), decision),
                    Err(_) => store_failed(&matched, acquired, now),
                };
                (ruling, next)
            }
            StoreStep::AcquirePermits => (self.decide_with_shared_permits(policy, &matched, now).await, None),
            StoreStep::Refuse(report) => (self.refuse_uncharged(&matched, report).await, None),
            StoreStep::Behind(index) => {
                (Ruling::Act(Box::new(ActRuling::behind(&matched, index, now))), None)
            }
            // Only a check that charges nothing peeks.
            StoreStep::Peek => (store_failed(&matched, AcquiredPermits::default(), now), None),
            StoreStep::Serve(acquired) => (serve(&matched, acquired, now, ServeReason::WithinLimits), None),
        };
        self.conclude_turn(ruling, (place, waited), next, now).await
    }

    /// What a ruling means for a request at its turn.
    async fn conclude_turn<'a>(
        &self,
        ruling: Ruling<'a>,
        (place, waited): (&mut WaitPlace, usize),
        next: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<Ruling<'a>> {
        match ruling {
            Ruling::Act(act) if act.is_wait() => {
                let turn =
                    act.report.decision.as_ref().map(|decision| self.turn_of(decision, act.index, now));
                if act.index == waited
                    && let Some(turn) = turn
                {
                    if place.postpone(turn) {
                        return None;
                    }
                    place.leave(None);
                    return Some(Ruling::Refuse(act.refuse(self)));
                }
                // It waits at another counter, behind all that wait there, and those behind it here move up.
                place.leave(next);
                match self.join(act, place.terms).await {
                    Ok(joined) => {
                        *place = joined;
                        None
                    }
                    Err(refuse) => Some(Ruling::Refuse(*refuse)),
                }
            }
            mut ruling => {
                place.leave(next);
                if let Ruling::Serve(serve) = &mut ruling
                    && serve.action.is_none()
                {
                    serve.action = serve.report.action(waited);
                }
                Some(ruling)
            }
        }
    }

    /// Decides, and asks in the same call when the place behind may depart.
    async fn decide_with_next(
        &self,
        matched: &MatchedRequest<'_>,
        (place, waited): (&WaitPlace, usize),
        now: Timestamp,
    ) -> (Result<Decision, StoreError>, Option<Timestamp>) {
        let own = matched.checks().get(waited).zip(place.next_cost());
        let probe = own.map(|(own, cost)| Check::new(own.key, own.limit).cost(cost));
        let peek = async {
            match &probe {
                Some(check) => self.store().peek(std::slice::from_ref(check), now).await.ok(),
                None => None,
            }
        };
        // Polled in this order, so that the store sees the decision first.
        let (decided, peeked) = join(self.store().decide(matched.checks(), now), peek).await;
        (decided, peeked.map(|peeked| self.turn_of(&peeked, 0, now)))
    }

    /// Refuses a request whose turn does not come in time.
    async fn refuse_over<'a>(
        &self,
        policy: &ActivePolicy,
        matched: MatchedRequest<'a>,
        (place, waited): (&WaitPlace, usize),
        now: Timestamp,
    ) -> Ruling<'a> {
        place.leave(None);
        if let Some(report) = self.locked_out(policy, &matched, now) {
            return self.refuse_uncharged(&matched, report).await;
        }
        let turn = self.turn_behind(&matched, waited).unwrap_or(now);
        Ruling::Refuse(self.refuse_behind(matched, (waited, turn), now).await)
    }

    /// The refusal of a request that would have to wait for others at check number `index`, until `turn`. Nothing is charged.
    pub(crate) async fn refuse_behind<'a>(
        &self,
        mut matched: MatchedRequest<'a>,
        (index, turn): (usize, Timestamp),
        now: Timestamp,
    ) -> RefuseRuling<'a> {
        matched.reject();
        let mut report = RulingReport::new(matched.applied(), now);
        let Ok(mut peeked) = self.store().peek(matched.checks(), now).await else {
            return refuse_without(report, RefuseReason::StoreUnavailable);
        };
        if let Some(outcome) = peeked.outcomes.get_mut(index)
            && outcome.verdict != Verdict::Never
        {
            let own = outcome.verdict.retry_after().unwrap_or(SOON);
            let retry_after = turn.since(now).max(own);
            let verdict = Verdict::NotUntil { retry_after };
            *outcome = Outcome {
                verdict,
                remaining: 0,
                reset_after: outcome.reset_after.max(retry_after),
                ..*outcome
            };
        }
        report.at = peeked.at;
        report.decision = Some(matched.rebind(peeked));
        refusal(self.with_violations(&matched, report))
    }

    /// The first check of a request for whose counter others wait, so that it has to wait behind them. `place` is the counter for
    /// which it has waited.
    pub(crate) fn behind(&self, matched: &MatchedRequest<'_>, place: Option<&OwnedKey>) -> Option<usize> {
        if self.waits.is_empty() {
            return None;
        }
        let mut checks = matched.checks().iter().enumerate();
        let found = checks.find(|(index, check)| {
            check.role.is_enforced()
                && matches!(matched.on_exceed(*index), Some(ExceedAction::Wait { .. }))
                && place.is_none_or(|place| place.as_key() != check.key)
                && self.waits.turn_behind(check.key, check.cost).is_some()
        });
        found.map(|(index, _)| index)
    }

    /// The earliest turn of a request that would wait at check number `index`.
    pub(crate) fn turn_behind(&self, matched: &MatchedRequest<'_>, index: usize) -> Option<Timestamp> {
        let check = matched.checks().get(index)?;
        self.waits.turn_behind(check.key, check.cost)
    }

    fn try_join(
        &self,
        matched: &MatchedRequest<'_>,
        (index, turn): (usize, Timestamp),
        terms: WaitTerms,
        now: Timestamp,
    ) -> Result<WaitPlace, JoinError> {
        let (Some(check), Some(ExceedAction::Wait { max })) =
            (matched.checks().get(index), matched.on_exceed(index))
        else {
            return Err(JoinError::Full);
        };
        if check.cost.get() > check.limit.capacity() {
            return Err(JoinError::TooLate(Timestamp::MAX));
        }
        let expires = terms.arrived + *max;
        let expires = terms.deadline.map_or(expires, |deadline| deadline.min(expires));
        let locking = matched
            .checks()
            .iter()
            .enumerate()
            .filter(|(index, check)| check.role.is_enforced() && matched.penalty(*index).is_some());
        let request = WaitRequest {
            key: check.key,
            limit: check.limit,
            cost: check.cost,
            client: self.waits.hasher.hash_one(matched.client()),
            is_shared: check.key.client != matched.client(),
            turn,
            expires,
            lock_outs: locking.map(|(_, check)| OwnedKey::from(check.key)).collect(),
            signal: (),
        };
        self.waits.join(request, terms, now)
    }

    /// When a request may depart that check number `index` of `decision` rejects. `asked` is the time that the store was given: one
    /// with a clock of its own returns another, and its answer is about the time at which it arrives.
    fn turn_of(&self, decision: &Decision, index: usize, asked: Timestamp) -> Timestamp {
        let verdict = decision.outcomes.get(index).map(|outcome| outcome.verdict);
        let after = verdict.and_then(Verdict::retry_after).unwrap_or(TimeSpan::ZERO);
        let at = if decision.at == asked { asked } else { self.clock().now() };
        at + after
    }
}

impl JoinError {
    /// The earliest turn, if it is known.
    fn turn(self, now: Timestamp) -> Timestamp {
        match self {
            Self::TooLate(turn) => turn,
            Self::Full => now,
        }
    }
}

impl<'a> ActRuling<'a> {
    /// A request that has to wait behind others at check number `index`, before anything is decided about it.
    pub(crate) fn behind(matched: &MatchedRequest<'a>, index: usize, now: Timestamp) -> Self {
        Self {
            report: RulingReport::new(matched.applied(), now),
            permits: Vec::new(),
            delay: TimeSpan::ZERO,
            index,
            may_be_settled: false,
            matched: matched.clone(),
        }
    }

    /// Whether the request has to wait for its turn: see [`Limiter::join`].
    pub fn is_wait(&self) -> bool {
        self.action().kind() == ActionKind::Wait
    }
}

impl Ruling<'_> {
    /// Whether the request has to wait for its turn.
    pub fn is_wait(&self) -> bool {
        matches!(self, Self::Act(act) if act.is_wait())
    }
}

/// The position of the check of a counter.
fn position(matched: &MatchedRequest<'_>, key: &OwnedKey) -> Option<usize> {
    matched.checks().iter().position(|check| check.key == key.as_key())
}
