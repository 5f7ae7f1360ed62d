//! What the limiter's ruling means for a request: errors, rate-limit headers, records, waiting.

use smallvec::SmallVec;
use tidegate_core::{TimeSpan, Timestamp};
use tidegate_headers::{BodyStyle, HeaderWriter, ReportedLimit, retry_after_seconds};
use tidegate_limiter::{
    Charge, ChargeUse, FailedRuling, RejectedRuling, Ruling, RulingReport,
};
use tidegate_policy::Facts;
use tidegate_store::{Permit, Store};
use tidegate_telemetry::DecisionKind;

use crate::error::{RejectedRequest, ServeError};
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
}

impl AdmittedRequest {
    fn new(sticky_key: StickyKey, at: Timestamp) -> Self {
        Self { sticky_key, permits: Vec::new(), charge: None, at }
    }
}

impl<S: Store + 'static> Exchange<'_, S> {
    /// Checks the limits, and delays the request if its limit requires that. `may_be_refunded` is whether the request can be
    /// rejected afterwards.
    pub(crate) async fn limit(
        &mut self,
        facts: &Facts<'_>,
        upstream: &UpstreamGroup,
        may_be_refunded: bool,
    ) -> Result<AdmittedRequest, ServeError> {
        let (worker, snapshot) = (self.worker, self.snapshot);
        let mut scratch = worker.scratch();
        let now = self.record.start_decision();
        let (mut admitted, delay) =
            match worker.limiter.check(&snapshot.policy, facts, &mut scratch, now).await {
                Ruling::Admitted(admitted) => {
                    self.record_admitted(&admitted.report);
                    let sticky_key = upstream.sticky_key(|| admitted.report.client());
                    let delay = admitted.delay;
                    let is_refundable = may_be_refunded || !delay.is_zero();
                    let usage = if is_refundable { ChargeUse::Refundable } else { ChargeUse::Served };
                    let charge = admitted.charge(&worker.limiter, usage);
                    let permits = admitted.permits;
                    (AdmittedRequest { sticky_key, permits, charge, at: now + delay }, delay)
                }
                Ruling::Rejected(rejected) => return Err(self.reject(&rejected)),
                Ruling::Banned => {
                    self.record.finish_decision(DecisionKind::Banned);
                    return Err(ServeError::Banned);
                }
                Ruling::Exempt(_) => {
                    self.record.finish_decision(DecisionKind::Exempt);
                    let addresses = snapshot.plan().identities.addresses();
                    let sticky_key = upstream.sticky_key(|| addresses.client(facts.headers, facts.peer));
                    (AdmittedRequest::new(sticky_key, now), TimeSpan::ZERO)
                }
                Ruling::StoreFailed(FailedRuling { report, permits, is_binding: false }) => {
                    self.record(DecisionKind::StoreFailed, &report);
                    let sticky_key = upstream.sticky_key(|| report.client());
                    (AdmittedRequest { permits, ..AdmittedRequest::new(sticky_key, now) }, TimeSpan::ZERO)
                }
                Ruling::StoreFailed(FailedRuling { report, .. }) => {
                    self.record(DecisionKind::StoreFailed, &report);
                    return Err(ServeError::StoreUnavailable);
                }
                // Unreachable: `check` does not take a rule name.
                Ruling::NoRule => return Err(ServeError::StoreUnavailable),
            };
        if !delay.is_zero() {
            Box::pin(self.wait(delay)).await?;
            if !may_be_refunded && let Some(charge) = &mut admitted.charge {
                charge.serve();
            }
        }
        Ok(admitted)
    }

    fn record_admitted(&mut self, report: &RulingReport<'_>) {
        self.record(DecisionKind::Admitted, report);
        let limits = report.limits();
        if let Some(limit) = limits.primary() {
            self.record.set_limit(limit.name, limit.quota, limit.remaining);
            let cache = &mut self.worker.header_values.borrow_mut();
            let mut writer = HeaderWriter { styles: self.snapshot.styles(), cache };
            writer.write_limits(&mut self.headers, report.at(), limit, &limits);
        }
    }

    /// Delays the request, but not beyond its deadline.
    async fn wait(&self, delay: TimeSpan) -> Result<(), ServeError> {
        let now = || self.worker.limiter.clock().now();
        if self.deadline.is_some_and(|deadline| deadline.remaining(now()) <= delay) {
            return Err(ServeError::DeadlineExceeded);
        }
        let Some(_waiting) = self.worker.join_wait_queue() else { return Err(ServeError::TooManyWaiting) };
        tokio::time::sleep(delay.into()).await;
        Ok(())
    }

    fn reject(&mut self, rejected: &RejectedRuling<'_>) -> ServeError {
        let RejectedRuling { report, reason, rule, retry_after } = rejected;
        let (client, snapshot) = (report.client(), self.snapshot);
        self.record(DecisionKind::Rejected, report);
        self.record.set_rejected(&snapshot.counted, *rule, client);
        let limits = report.limits();
        let Some(limit) = limits.primary() else { return ServeError::StoreUnavailable };
        self.record.set_limit(limit.name, limit.quota, limit.remaining);
        let cache = &mut self.worker.header_values.borrow_mut();
        let mut writer = HeaderWriter { styles: snapshot.styles(), cache };
        writer.write_limits(&mut self.headers, report.at(), limit, &limits);
        let retry_after = retry_after.map(|wait| retry_after_seconds(wait, client));
        if let Some(seconds) = retry_after {
            writer.write_retry_after(&mut self.headers, seconds);
        }
        let style = snapshot.error_body();
        let mut violated = SmallVec::<[&str; 4]>::new();
        // Only problem bodies list them.
        if style == BodyStyle::Problem {
            violated.extend(report.violated());
        }
        let limit = ReportedLimit { at: report.at(), report: limit, violated: &violated };
        ServeError::Rejected(RejectedRequest::new(style, *reason, retry_after, limit))
    }

    fn record(&mut self, decided: DecisionKind, report: &RulingReport<'_>) {
        self.record.finish_decision(decided);
        self.record.set_client(report.client());
        for rule in report.shadow_rejections() {
            self.record.count_shadow_rejection(&self.snapshot.counted, rule);
        }
    }
}
