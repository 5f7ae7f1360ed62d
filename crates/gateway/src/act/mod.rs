//! Performs the actions that take the place of rejections.

pub(crate) mod cached;

use tidegate_core::{ActionKind, ActionSet, Timestamp};
use tidegate_limiter::{ActRuling, ChargeUse};
use tidegate_policy::{ExceedAction, Route};
use tidegate_store::Store;

use crate::error::ServeError;
use crate::limit::{AdmittedRequest, LimitOutcome};
use crate::service::Exchange;
use crate::upstream::UpstreamGroup;
use crate::worker::WorkerSnapshot;

/// The actions that the gateway performs.
pub(crate) const PERFORMED: ActionSet =
    ActionSet::of(&[ActionKind::Cached, ActionKind::Degrade, ActionKind::Slow]);

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
    ) -> Result<LimitOutcome, ServeError> {
        match act.action() {
            ExceedAction::Cached { max_age } => match self.stored_response(*max_age, now) {
                Some(response) => {
                    let limits = act.report.limits();
                    self.record_decision(&limits, act.recorded(&limits));
                    Ok(LimitOutcome::Stored(response))
                }
                None => Err(self.refuse_action(*act)),
            },
            ExceedAction::Degrade { upstream: None } => {
                self.degrade(act, upstream, Degradation::Marked, now).await
            }
            ExceedAction::Degrade { upstream: Some(cheaper) } => {
                let snapshot = self.snapshot;
                match snapshot.upstreams().get(cheaper.index) {
                    Some(upstream) => {
                        let degradation =
                            Degradation::Upstream { index: cheaper.index, usual: route.upstream };
                        self.degrade(act, upstream, degradation, now).await
                    }
                    None => Err(self.refuse_action(*act)),
                }
            }
            ExceedAction::Reject
            | ExceedAction::Wait { .. }
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
        let admitted = AdmittedRequest {
            sticky_key: upstream.sticky_key(|| act.report.client()),
            permits: std::mem::take(&mut act.permits),
            charge,
            at: now + act.delay,
            degradation: Some(degradation),
        };
        if !act.delay.is_zero() {
            self.wait(act.delay).await?;
        }
        Ok(LimitOutcome::Admitted(admitted))
    }

    /// The refusal of a request whose action cannot be performed.
    fn refuse_action(&mut self, act: ActRuling<'_>) -> ServeError {
        let refuse = act.refuse(&self.worker.limiter);
        let limits = refuse.report.limits();
        self.record_decision(&limits, refuse.recorded(&limits));
        self.refusal(&refuse, &limits)
    }
}
