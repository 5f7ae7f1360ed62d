//! What the limiter's ruling means for a request: errors, rate-limit headers, records, waiting.

use smallvec::SmallVec;
use tidegate_headers::{BodyStyle, HeaderWriter, ReportedLimit, retry_after_seconds};
use tidegate_limiter::{Admitted, BodyMeter, Rejected, Reservations, Ruling, StoreFailed};
use tidegate_policy::Facts;
use tidegate_store::{Permit, Store};
use tidegate_telemetry::Decided;

use crate::error::{RejectedRequest, ServeError};
use crate::http::request_body::Metering;
use crate::service::Exchange;
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
    ) -> Result<AdmittedRequest, ServeError> {
        let (core, live) = (self.core, self.live);
        let mut scratch = core.scratch();
        let now = self.story.deciding();
        match core.limiter.check(&live.policy, facts, &mut scratch, now).await {
            Ruling::Admitted(admitted) => self.admit(admitted, upstream).await,
            Ruling::Rejected(rejected) => Err(self.reject(&rejected)),
            Ruling::Banned => {
                self.story.decided(Decided::Banned);
                Err(ServeError::Banned)
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
                    return Err(ServeError::StoreUnavailable);
                }
                Ok(AdmittedRequest {
                    permits,
                    ..AdmittedRequest::new(upstream.sticky_key(|| report.client()))
                })
            }
        }
    }

    async fn admit(
        &mut self,
        admitted: Admitted<'_>,
        upstream: &Upstream,
    ) -> Result<AdmittedRequest, ServeError> {
        let Admitted { report, limit, permits, reservations, delay } = admitted;
        self.story.decided(Decided::Passed);
        self.story.client(report.client());
        self.record_shadow(report.shadow_rejections());
        if let Some(limit) = limit {
            self.story.judged(limit.name, limit.quota, limit.remaining);
            let limits: SmallVec<[_; 4]> = report.limits().collect();
            let cache = &mut self.core.header_values.borrow_mut();
            HeaderWriter { styles: self.live.styles(), cache }.write_limits(
                &mut self.headers,
                report.at(),
                &limit,
                &limits,
            );
        }
        if !delay.is_zero() {
            let refund = self.core.limiter.refund_guard(&report);
            Box::pin(async {
                let Some(_waiting) = self.core.begin_waiting() else {
                    return Err(ServeError::TooManyWaiting);
                };
                tokio::time::sleep(delay.into()).await;
                refund.keep();
                Ok(())
            })
            .await?;
        }
        Ok(AdmittedRequest { stand: upstream.sticky_key(|| report.client()), permits, reservations })
    }

    fn reject(&mut self, rejected: &Rejected<'_>) -> ServeError {
        let Rejected { report, reason, rule, limit, retry_after } = rejected;
        let (client, live) = (report.client(), self.live);
        self.story.decided(Decided::Refused);
        self.story.client(client);
        self.record_shadow(report.shadow_rejections());
        self.story.refused(&live.counted, *rule, client);
        self.story.judged(limit.name, limit.quota, limit.remaining);
        let limits: SmallVec<[_; 4]> = report.limits().collect();
        let cache = &mut self.core.header_values.borrow_mut();
        let mut writer = HeaderWriter { styles: live.styles(), cache };
        writer.write_limits(&mut self.headers, report.at(), limit, &limits);
        let retry_after = retry_after.map(|wait| retry_after_seconds(wait, client));
        if let Some(seconds) = retry_after {
            writer.write_retry_after(&mut self.headers, seconds);
        }
        let style = live.error_body();
        let mut violated = SmallVec::<[&str; 4]>::new();
        // Other bodies do not list them.
        if style == BodyStyle::Problem {
            violated.extend(report.violated());
        }
        let limit = ReportedLimit { at: report.at(), report: limit, violated: &violated };
        ServeError::Rejected(RejectedRequest::new(style, *reason, retry_after, limit))
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
