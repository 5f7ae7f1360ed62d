//! What the limiter's ruling means for a request: rate-limit headers, the record, waiting, or an error.

use http::Response;
use tidegate_core::{RecordedDecision, RuleAction, Timestamp};
use tidegate_limiter::{
    Charge, ChargeUse, CheckContext, RefuseRuling, ReportedLimits, Ruling, ServeReason, ServeRuling,
};
use tidegate_policy::{Facts, Route};
use tidegate_store::{Permit, Store};
use tidegate_telemetry::DecisionSink;

use crate::act::{Acted, Degradation, PERFORMED};
use crate::error::{RefusedRequest, ServeError};
use crate::http::response_body::ResponseBody;
use crate::service::Exchange;
use crate::upstream::{StickyKey, UpstreamGroup};

/// State of an admitted request that forwarding needs.
#[derive(Debug)]
pub(crate) struct AdmittedRequest {
    /// Selects the server.
    pub(crate) sticky_key: StickyKey,
    /// Kept until the request has ended.
    pub(crate) permits: Vec<Permit>,
    /// Unserved while anything can prevent that the request is sent; `None` if nothing can, and nothing is settled later.
    pub(crate) charge: Option<Charge>,
    /// When it may be sent.
    pub(crate) at: Timestamp,
    /// How it is served in a cheaper way, if a limit requires that.
    pub(crate) degradation: Option<Degradation>,
}

/// What the limits of a request mean for it.
#[derive(Debug)]
pub(crate) enum LimitOutcome {
    /// It is sent to a server.
    Admitted(AdmittedRequest),
    /// It gets a response from the memory.
    Stored(Box<Response<ResponseBody>>),
}

impl<S: Store + 'static> Exchange<'_, S> {
    /// Checks the limits, and delays the request if its limit requires that. `may_be_refunded` is whether the request can be
    /// rejected afterwards.
    pub(crate) async fn limit(
        &mut self,
        facts: &Facts<'_>,
        (route, upstream): (&Route, &UpstreamGroup),
        may_be_refunded: bool,
    ) -> Result<LimitOutcome, ServeError> {
        let worker = self.worker;
        let now = self.record.start_decision();
        let decided = 'decide: {
            let mut scratch = worker.scratch();
            let context = CheckContext { now, performs: PERFORMED };
            let mut ruling = worker.limiter.check(&self.snapshot.policy, facts, &mut scratch, context).await;
            let limits = ruling.report().limits();
            if !matches!(ruling, Ruling::Act(_)) {
                self.record_decision(&limits, ruling.recorded(&limits));
            }
            let serve = match ruling {
                Ruling::Serve(ref mut serve) => serve,
                Ruling::Refuse(ref refuse) => return Err(self.refusal(refuse, &limits)),
                Ruling::Act(act) => match Box::pin(self.act(act, (route, upstream), now)).await? {
                    Acted::Done(outcome) => return Ok(outcome),
                    // What waits keeps nothing of the decision.
                    Acted::Waiting(place) => break 'decide Err(place),
                },
            };
            if self.reuse.is_some() {
                self.note_admission(&serve.report, now);
            }
            let sticky_key = self.sticky_key(serve, facts, upstream);
            let (delay, permits) = (serve.delay, std::mem::take(&mut serve.permits));
            let is_refundable = may_be_refunded || !delay.is_zero();
            let usage = if is_refundable { ChargeUse::Refundable } else { ChargeUse::Served };
            let charge = serve.charge(&worker.limiter, usage);
            let at = now + delay;
            let delayed = (!delay.is_zero()).then(|| self.delay(serve.report.client(), at));
            Ok((AdmittedRequest { sticky_key, permits, charge, at, degradation: None }, delayed))
        };
        let (mut admitted, delayed) = match decided {
            Ok(decided) => decided,
            Err(place) => return Box::pin(self.wait_for_turn(facts, (route, upstream), place)).await,
        };
        if let Some(place) = delayed {
            Box::pin(self.depart(place?)).await?;
            if !may_be_refunded && let Some(charge) = &mut admitted.charge {
                charge.serve();
            }
        }
        Ok(LimitOutcome::Admitted(admitted))
    }

    /// What selects the server of an admitted request.
    #[inline]
    pub(crate) fn sticky_key(
        &self,
        serve: &ServeRuling<'_>,
        facts: &Facts<'_>,
        upstream: &UpstreamGroup,
    ) -> StickyKey {
        match serve.reason {
            ServeReason::WithinLimits | ServeReason::StoreFailed => {
                upstream.sticky_key(|| serve.report.client())
            }
            ServeReason::Exempt(_) => {
                let addresses = self.snapshot.plan().identities.addresses();
                upstream.sticky_key(|| addresses.client(facts.headers, facts.peer))
            }
        }
    }

    /// Records a decision and writes its headers. `limits` are those of its report.
    pub(crate) fn record_decision<I: Iterator<Item = RuleAction>>(
        &mut self,
        limits: &ReportedLimits<'_>,
        recorded: RecordedDecision<'_, I>,
    ) {
        let (worker, snapshot) = (self.worker, self.snapshot);
        DecisionSink::Request(&mut self.record).record(&snapshot.counted, recorded);
        let cache = &mut worker.header_values.borrow_mut();
        limits.write_headers(snapshot.styles(), cache, &mut self.headers);
    }

    /// The error of a request that is refused. `limits` are those of its report.
    pub(crate) fn refusal(&self, refuse: &RefuseRuling<'_>, limits: &ReportedLimits<'_>) -> ServeError {
        refuse.describe(limits, self.snapshot.plan(), |body, format| {
            ServeError::Refused(RefusedRequest {
                refusal: refuse.reason.refusal(),
                retry_after: body.retry_after,
                status: body.status,
                body: format.encode(body),
                format: format.clone(),
            })
        })
    }
}
