//! What the limiter's ruling means for a request: errors, rate-limit headers, records, waiting.

use tidegate_limiter::{Admitted, BodyMeter, Rejected, Reservations, Ruling, StoreFailed};
use tidegate_policy::Facts;
use tidegate_store::{Permit, Store};
use tidegate_telemetry::Decided;

use crate::error::Cause;
use crate::http::request_body::Metering;
use crate::refusal::{self, Refusal};
use crate::service::Exchange;
use crate::told::{tell, tell_when};
use crate::upstream::{StickyKey, Upstream};

/// What an admitted request takes along.
#[derive(Debug)]
pub(crate) struct AdmittedRequest {
    /// By what a server is chosen.
    pub(crate) stand: StickyKey,
    /// Held until the request has ended.
    pub(crate) permits: Vec<Permit>,
    /// To be settled.
    pub(crate) reservations: Reservations,
}

impl AdmittedRequest {
    fn new(stand: StickyKey) -> Self {
        Self { stand, permits: Vec::new(), reservations: Reservations::default() }
    }
}

impl<S: Store + 'static> Exchange<'_, S> {
    /// Asks the limiter. A request that must wait waits here.
    pub(crate) async fn limit(
        &mut self,
        facts: &Facts<'_>,
        upstream: &Upstream,
    ) -> Result<AdmittedRequest, Cause> {
        let (core, live) = (self.core, self.live);
        let mut scratch = core.scratch();
        let now = self.story.deciding();
        match core.limiter.check(&live.policy, facts, &mut scratch, now).await {
            Ruling::Admitted(admitted) => self.admit(admitted, upstream).await,
            Ruling::Rejected(rejected) => Err(self.reject(&rejected)),
            Ruling::Banned => {
                self.story.decided(Decided::Banned);
                Err(Cause::Banned)
            }
            Ruling::Exempt(_) => {
                self.story.decided(Decided::Exempt);
                let addresses = live.plan().identities.addresses();
                let stand = upstream.sticky_key(|| addresses.client(facts.headers, facts.peer));
                Ok(AdmittedRequest::new(stand))
            }
            Ruling::StoreFailed(StoreFailed { report, permits, is_binding }) => {
                self.story.decided(Decided::Undecided);
                self.story.client(report.client());
                self.record_shadow(report.shadow_rejections());
                // Nobody is rejected for limits in shadow mode.
                if is_binding {
                    return Err(Cause::Undecided);
                }
                Ok(AdmittedRequest {
                    permits,
                    ..AdmittedRequest::new(upstream.sticky_key(|| report.client()))
                })
            }
        }
    }

    async fn admit(&mut self, admitted: Admitted<'_>, upstream: &Upstream) -> Result<AdmittedRequest, Cause> {
        let Admitted { report, limit, permits, reservations, delay } = admitted;
        self.story.decided(Decided::Passed);
        self.story.client(report.client());
        self.record_shadow(report.shadow_rejections());
        if let Some(limit) = limit {
            self.story.judged(limit.name, limit.quota, limit.remaining);
            let said = &mut self.core.said.borrow_mut();
            tell((&mut self.headers, said), self.live.styles(), report.at(), &limit, || report.limits());
        }
        if !delay.is_zero() {
            let refund = self.core.limiter.refund_guard(&report);
            Box::pin(async {
                let Some(_waiting) = self.core.begin_waiting() else { return Err(Cause::TooManyWaiting) };
                tokio::time::sleep(delay.into()).await;
                refund.keep();
                Ok(())
            })
            .await?;
        }
        Ok(AdmittedRequest { stand: upstream.sticky_key(|| report.client()), permits, reservations })
    }

    fn reject(&mut self, rejected: &Rejected<'_>) -> Cause {
        let Rejected { report, reason, rule, limit, retry_after } = rejected;
        let (client, live) = (report.client(), self.live);
        self.story.decided(Decided::Refused);
        self.story.client(client);
        self.record_shadow(report.shadow_rejections());
        self.story.refused(&live.counted, *rule, client);
        self.story.judged(limit.name, limit.quota, limit.remaining);
        let said = &mut self.core.said.borrow_mut();
        tell((&mut self.headers, said), live.styles(), report.at(), limit, || report.limits());
        let retry_after = retry_after.map(|longest| refusal::retry_after(longest, client));
        if let Some(seconds) = retry_after {
            tell_when(&mut self.headers, live.styles(), seconds);
        }
        let why = ((*reason).into(), retry_after);
        Cause::Refused(Refusal::new(live.error_body(), why, (report.at(), limit), report.violated()))
    }

    fn record_shadow(&mut self, rules: impl Iterator<Item = tidegate_core::RuleId>) {
        for rule in rules {
            self.story.would_refuse(&self.live.counted, rule);
        }
    }
}

impl<S: Store + 'static> Metering for BodyMeter<S> {
    fn saw(&mut self, bytes: usize) {
        self.add(bytes);
    }
}
