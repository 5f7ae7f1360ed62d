//! What the limiter's ruling means for a request: errors, rate-limit headers, records, waiting.

use smallvec::SmallVec;
use tidegate_core::Span;
use tidegate_headers::{BodyStyle, HeaderWriter, ReportedLimit, retry_after_seconds};
use tidegate_limiter::{
    Admitted, BodyMeter, RefundGuard, Rejected, Report, Reservations, Ruling, StoreFailed,
};
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
        let (admitted, delay) = match core.limiter.check(&live.policy, facts, &mut scratch, now).await {
            Ruling::Admitted(admitted) => {
                self.record_admitted(&admitted.report);
                let Admitted { report, permits, reservations, delay } = admitted;
                let stand = upstream.sticky_key(|| report.client());
                let delay = (!delay.is_zero()).then(|| (core.limiter.refund_guard(&report), delay));
                (AdmittedRequest { stand, permits, reservations }, delay)
            }
            Ruling::Rejected(rejected) => return Err(self.reject(&rejected)),
            Ruling::Banned => {
                self.story.decided(Decided::Banned);
                return Err(ServeError::Banned);
            }
            Ruling::Exempt(_) => {
                self.story.decided(Decided::Exempt);
                let addresses = live.plan().identities.addresses();
                let stand = upstream.sticky_key(|| addresses.client(facts.headers, facts.peer));
                (AdmittedRequest::new(stand), None)
            }
            Ruling::StoreFailed(StoreFailed { report, permits, is_binding: false }) => {
                self.record(Decided::Undecided, &report);
                let stand = upstream.sticky_key(|| report.client());
                (AdmittedRequest { permits, ..AdmittedRequest::new(stand) }, None)
            }
            Ruling::StoreFailed(StoreFailed { report, .. }) => {
                self.record(Decided::Undecided, &report);
                return Err(ServeError::StoreUnavailable);
            }
            // A request names no rule.
            Ruling::NoRule => return Err(ServeError::StoreUnavailable),
        };
        if let Some((refund, delay)) = delay {
            Box::pin(self.wait(refund, delay)).await?;
        }
        Ok(admitted)
    }

    fn record_admitted(&mut self, report: &Report<'_>) {
        self.record(Decided::Passed, report);
        let limits = report.limits();
        if let Some(limit) = limits.primary() {
            self.story.judged(limit.name, limit.quota, limit.remaining);
            let cache = &mut self.core.header_values.borrow_mut();
            let mut writer = HeaderWriter { styles: self.live.styles(), cache };
            writer.write_limits(&mut self.headers, report.at(), limit, &limits);
        }
    }

    /// Waits until the request may pass. If its client does not, what was charged is given back.
    async fn wait(&self, refund: RefundGuard<S>, delay: Span) -> Result<(), ServeError> {
        let Some(_waiting) = self.core.begin_waiting() else { return Err(ServeError::TooManyWaiting) };
        tokio::time::sleep(delay.into()).await;
        refund.keep();
        Ok(())
    }

    fn reject(&mut self, rejected: &Rejected<'_>) -> ServeError {
        let Rejected { report, reason, rule, retry_after } = rejected;
        let (client, live) = (report.client(), self.live);
        self.record(Decided::Refused, report);
        self.story.refused(&live.counted, *rule, client);
        let limits = report.limits();
        let Some(limit) = limits.primary() else { return ServeError::StoreUnavailable };
        self.story.judged(limit.name, limit.quota, limit.remaining);
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

    fn record(&mut self, decided: Decided, report: &Report<'_>) {
        self.story.decided(decided);
        self.story.client(report.client());
        for rule in report.shadow_rejections() {
            self.story.would_refuse(&self.live.counted, rule);
        }
    }
}

impl<S: Store + 'static> Metering for BodyMeter<S> {
    fn saw(&mut self, bytes: usize) {
        self.add(bytes);
    }
}
