//! Waits for the turn of a request. It holds neither permits nor a body meanwhile: both are taken when its turn has come.

use tidegate_core::Timestamp;
use tidegate_limiter::{ChargeUse, Ruling, Turn, WaitPlace};
use tidegate_policy::{Facts, Route};
use tidegate_store::Store;

use super::Acted;
use crate::error::ServeError;
use crate::limit::{AdmittedRequest, LimitOutcome};
use crate::service::Exchange;
use crate::upstream::UpstreamGroup;

impl<S: Store + 'static> Exchange<'_, S> {
    /// Waits until the request is admitted or refused.
    pub(crate) async fn wait_for_turn(
        &mut self,
        facts: &Facts<'_>,
        (route, upstream): (&Route, &UpstreamGroup),
        mut place: WaitPlace,
    ) -> Result<LimitOutcome, ServeError> {
        let worker = self.worker;
        let _watch = self.conn_info.activity.watch_hangup();
        loop {
            place.turn(&**worker.limiter.clock()).await;
            let now = self.record.start_decision();
            let mut scratch = worker.scratch();
            let policy = &self.snapshot.policy;
            let checked = worker.limiter.check_at_turn(policy, facts, &mut scratch, (&mut place, now)).await;
            let Some(mut ruling) = checked else { continue };
            if let Ruling::Act(act) = ruling {
                match self.act(act, (route, upstream), now).await? {
                    Acted::Done(outcome) => return Ok(outcome),
                    Acted::Waiting(joined) => {
                        place = joined;
                        continue;
                    }
                }
            }
            let limits = ruling.report().limits();
            self.record_decision(&limits, ruling.recorded(&limits));
            let serve = match &mut ruling {
                Ruling::Serve(serve) => serve,
                Ruling::Refuse(refuse) => return Err(self.refusal(refuse, &limits)),
                Ruling::Act(_) => continue,
            };
            if self.reuse.is_some() {
                self.note_admission(&serve.report, now);
            }
            let at = now + serve.delay;
            let delayed = (!serve.delay.is_zero()).then(|| self.delay(serve.report.client(), at));
            let admitted = AdmittedRequest {
                sticky_key: self.sticky_key(serve, facts, upstream),
                permits: std::mem::take(&mut serve.permits),
                charge: serve.charge(&worker.limiter, ChargeUse::Refundable),
                at,
                degradation: None,
            };
            if let Some(delayed) = delayed {
                self.depart(delayed?).await?;
            }
            return Ok(LimitOutcome::Admitted(admitted));
        }
    }

    /// A place for a request that departs at `turn`, if that is before its deadline.
    pub(crate) fn delay(&self, client: &[u8], turn: Timestamp) -> Result<WaitPlace, ServeError> {
        if self.deadline.is_some_and(|deadline| deadline.instant() <= turn) {
            return Err(ServeError::DeadlineExceeded);
        }
        self.worker.limiter.waits().delay(client, turn).ok_or(ServeError::TooManyWaiting)
    }

    /// Waits until a delayed request departs.
    pub(crate) async fn depart(&self, mut place: WaitPlace) -> Result<(), ServeError> {
        let _watch = self.conn_info.activity.watch_hangup();
        match place.turn(&**self.worker.limiter.clock()).await {
            Turn::Come => Ok(()),
            Turn::Over => Err(ServeError::TooManyWaiting),
        }
    }
}
