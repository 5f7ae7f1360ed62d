//! Performs the actions that take the place of rejections.

pub(crate) mod cached;
mod wait;

use tidegate_core::{ActionKind, ActionSet, Timestamp};
use tidegate_limiter::{ActRuling, ChargeUse, RefuseRuling, WaitPlace, WaitTerms};
use tidegate_policy::{ExceedAction, Route};
use tidegate_store::Store;
use tidegate_tower::deadline::Deadline;

use crate::error::ServeError;
use crate::limit::{AdmittedRequest, LimitOutcome};
use crate::service::Exchange;
use crate::upstream::UpstreamGroup;
use crate::worker::WorkerSnapshot;

/// The actions that the gateway performs.
pub(crate) const PERFORMED: ActionSet =
    ActionSet::of(&[ActionKind::Cached, ActionKind::Wait, ActionKind::Degrade, ActionKind::Slow]);

/// What follows from an action.
pub(crate) enum Acted {
    /// The request is served, now or from the memory.
    Done(LimitOutcome),
    /// It waits.
    Waiting(WaitPlace),
}

/// How a degraded request is served.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Degradation {
    /// By the upstream of its route, which a header tells.
    Marked,
    /// By the upstream with this index. It is told too.
    Upstream {
        index: usize,
        /// The upstream of the route, which never serves the request, whatever the fallback of the other one is.
        usual: usize,
    },
}

impl Degradation {
    /// The upstream that serves the request, instead of `usual`.
    pub(crate) fn upstream<'s>(
        self,
        snapshot: &'s WorkerSnapshot,
        usual: &'s UpstreamGroup,
    ) -> Result<&'s UpstreamGroup, ServeError> {
        match self {
            Self::Marked => Ok(usual),
            Self::Upstream { index, .. } => snapshot.upstreams().get(index).ok_or(ServeError::NoServer),
        }
    }
}

impl<S: Store + 'static> Exchange<'_, S> {
    /// Performs the action of a ruling. What cannot be performed is refused.
    pub(crate) async fn act(
        &mut self,
        act: Box<ActRuling<'_>>,
        (route, upstream): (&Route, &UpstreamGroup),
        now: Timestamp,
    ) -> Result<Acted, ServeError> {
        match act.action() {
            ExceedAction::Wait { .. } => {
                let deadline = self.deadline.map(Deadline::instant);
                let terms = WaitTerms { arrived: now, deadline, performs: PERFORMED };
                let joined = self.worker.limiter.join(act, terms).await;
                joined.map(Acted::Waiting).map_err(|refuse| self.recorded_refusal(&refuse))
            }
            ExceedAction::Cached { max_age } => match self.stored_response(*max_age, now) {
                Some(response) => {
                    let limits = act.report.limits();
                    self.record_decision(&limits, act.recorded(&limits));
                    Ok(Acted::Done(LimitOutcome::Stored(response)))
                }
                None => Err(self.refuse_action(*act)),
            },
            ExceedAction::Degrade { upstream: None } => {
                self.degrade(act, upstream, Degradation::Marked, now).await.map(Acted::Done)
            }
            ExceedAction::Degrade { upstream: Some(cheaper) } => {
                let snapshot = self.snapshot;
                match snapshot.upstreams().get(cheaper.index) {
                    Some(upstream) => {
                        let degradation =
                            Degradation::Upstream { index: cheaper.index, usual: route.upstream };
                        self.degrade(act, upstream, degradation, now).await.map(Acted::Done)
                    }
                    None => Err(self.refuse_action(*act)),
                }
            }
            ExceedAction::Reject
            | ExceedAction::Defer(_)
            | ExceedAction::Slow(_)
            | ExceedAction::Borrow(_) => Err(self.refuse_action(*act)),
        }
    }

    /// Admits a request that is served in a cheaper way.
    async fn degrade(
        &mut self,
        mut act: Box<ActRuling<'_>>,
        upstream: &UpstreamGroup,
        degradation: Degradation,
        now: Timestamp,
    ) -> Result<LimitOutcome, ServeError> {
        let limits = act.report.limits();
        self.record_decision(&limits, act.recorded(&limits));
        let charge = act.charge(&self.worker.limiter, ChargeUse::Refundable);
        let at = now + act.delay;
        let delayed = (!act.delay.is_zero()).then(|| self.delay(act.report.client(), at));
        let admitted = AdmittedRequest {
            sticky_key: upstream.sticky_key(|| act.report.client()),
            permits: std::mem::take(&mut act.permits),
            charge,
            at,
            degradation: Some(degradation),
        };
        if let Some(place) = delayed {
            self.depart(place?).await?;
        }
        Ok(LimitOutcome::Admitted(admitted))
    }

    /// The refusal of a request whose action cannot be performed.
    fn refuse_action(&mut self, act: ActRuling<'_>) -> ServeError {
        let refuse = act.refuse(&self.worker.limiter);
        self.recorded_refusal(&refuse)
    }

    /// The error of a request that is refused, after it was recorded.
    fn recorded_refusal(&mut self, refuse: &RefuseRuling<'_>) -> ServeError {
        let limits = refuse.report.limits();
        self.record_decision(&limits, refuse.recorded(&limits));
        self.refusal(refuse, &limits)
    }
}
