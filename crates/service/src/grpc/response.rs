//! Builds the response: the statuses in the order of the descriptors, and the headers that Envoy adds.

use prost_types::value::Kind;
use prost_types::{Duration, Struct};
use smallvec::SmallVec;
use tidegate_core::{ActionKind, LimitReport, LimitUnit, TimeSpan, Timestamp};
use tidegate_headers::{DEGRADE, HeaderWriter, RateLimitHeaders, RetryAfter, write_retry_after};
use tidegate_store::Store;
use tidegate_telemetry::RequestRecord;

use super::message::{AddedHeader, DescriptorStatus, RateLimitResponse, ResponseCode};
use crate::worker::ServiceWorker;

/// A response that is being built.
pub(super) struct ResponseBuilder<'n> {
    at: Timestamp,
    statuses: Vec<DescriptorStatus>,
    /// The limits that headers announce.
    announced: SmallVec<[LimitReport<'n>; 4]>,
    /// The announced limit that rejects the call.
    rejecting: Option<usize>,
    is_over: bool,
    retry_after: Option<RetryAfter>,
    /// The action of the limit that is exceeded, and the name of its rule.
    action: Option<(ActionKind, &'n str)>,
    request_headers: Vec<AddedHeader>,
}

/// What the status of a descriptor says and does.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatusEffect {
    /// Its code is `OVER_LIMIT`.
    pub(super) is_over: bool,
    /// The call is rejected because of it.
    pub(super) rejects: bool,
    /// Headers announce its limit.
    pub(super) is_announced: bool,
}

impl<'n> ResponseBuilder<'n> {
    pub(super) fn new(at: Timestamp, descriptors: usize) -> Self {
        Self {
            at,
            statuses: Vec::with_capacity(descriptors),
            announced: SmallVec::new(),
            rejecting: None,
            is_over: false,
            retry_after: None,
            action: None,
            request_headers: Vec::new(),
        }
    }

    /// Sets the time of the decision by the store's clock, from which the headers compute times.
    pub(super) fn set_time(&mut self, at: Timestamp) {
        self.at = at;
    }

    /// The time of the decision.
    pub(super) fn time(&self) -> Timestamp {
        self.at
    }

    /// Adds the status of a descriptor. Sets its code.
    pub(super) fn add(&mut self, status: DescriptorStatus, report: Option<LimitReport<'n>>, is_over: bool) {
        self.add_limit(status, report, StatusEffect { is_over, rejects: is_over, is_announced: true });
    }

    /// Like [`add`](Self::add), for a limit that headers announce only if the effect says so.
    pub(super) fn add_limit(
        &mut self,
        mut status: DescriptorStatus,
        report: Option<LimitReport<'n>>,
        StatusEffect { is_over, rejects, is_announced }: StatusEffect,
    ) {
        status.code = if is_over { ResponseCode::OverLimit } else { ResponseCode::Ok }.into();
        self.is_over |= rejects;
        if let Some(report) = report {
            // Whole seconds, as the reference server sends them: Envoy rounds down, which would be too early.
            let seconds = i64::try_from(report.announced_reset().as_secs_ceil()).unwrap_or(i64::MAX);
            status.duration_until_reset = Some(Duration { seconds, nanos: 0 });
            if is_announced {
                // The one that sets `Retry-After`; one that never admits has none.
                let time = |report: &LimitReport<'_>| report.retry_after.unwrap_or(TimeSpan::MAX);
                let so_far = self.rejecting.and_then(|index| self.announced.get(index)).map(time);
                if rejects && so_far.is_none_or(|so_far| so_far < time(&report)) {
                    self.rejecting = Some(self.announced.len());
                }
                self.announced.push(report);
            }
        }
        self.statuses.push(status);
    }

    /// Sets when a rejected client may retry, if that is known.
    pub(super) fn set_retry_after(&mut self, retry_after: Option<RetryAfter>) {
        self.retry_after = retry_after;
    }

    /// Names the action of a limit that is exceeded.
    pub(super) fn set_action(&mut self, action: ActionKind, rule: &'n str) {
        self.action = Some((action, rule));
    }

    /// Tells the service that the request is served in a cheaper way.
    pub(super) fn mark_degraded(&mut self) {
        if self.request_headers.is_empty() {
            let header = AddedHeader { key: DEGRADE.as_str().to_owned(), value: "1".to_owned() };
            self.request_headers.push(header);
        }
    }

    /// The response with its headers. Records the limit that they report.
    pub(super) fn finish<S: Store + 'static>(
        self,
        worker: &ServiceWorker<S>,
        record: &mut RequestRecord<'_>,
    ) -> RateLimitResponse {
        let response_headers_to_add = self.headers(worker, record);
        let overall_code = if self.is_over { ResponseCode::OverLimit } else { ResponseCode::Ok }.into();
        let dynamic_metadata =
            self.action.map(|(action, rule)| metadata(&[("action", action.name()), ("rule", rule)]));
        RateLimitResponse {
            overall_code,
            statuses: self.statuses,
            response_headers_to_add,
            // A request that is rejected is not forwarded.
            request_headers_to_add: if self.is_over { Vec::new() } else { self.request_headers },
            dynamic_metadata,
            ..RateLimitResponse::default()
        }
    }

    fn headers<S: Store + 'static>(
        &self,
        worker: &ServiceWorker<S>,
        record: &mut RequestRecord<'_>,
    ) -> Vec<AddedHeader> {
        let rejecting = self.rejecting.and_then(|index| self.announced.get(index));
        let Some(primary) = rejecting.or_else(|| tightest(&self.announced)) else { return Vec::new() };
        record.set_limit(primary.name, primary.quota, primary.remaining);
        let policy = worker.policy();
        let styles = &policy.active.matcher.plan().headers;
        let mut headers = RateLimitHeaders::default();
        let cache = &mut worker.grpc.header_values.borrow_mut();
        let mut writer = HeaderWriter { styles, cache };
        writer.write_limits(&mut headers, self.at, primary, &self.announced);
        if let Some(RetryAfter { seconds, .. }) = self.retry_after {
            write_retry_after(&mut headers, seconds, styles);
        }
        let added = headers.iter().map(|(name, value)| AddedHeader {
            key: name.as_str().to_owned(),
            // These values are ASCII.
            value: value.to_str().unwrap_or_default().to_owned(),
        });
        added.collect()
    }
}

/// Metadata of these texts.
fn metadata(texts: &[(&str, &str)]) -> Struct {
    let value = |text: &str| prost_types::Value { kind: Some(Kind::StringValue(text.to_owned())) };
    Struct { fields: texts.iter().map(|(key, text)| ((*key).to_owned(), value(text))).collect() }
}

/// The limit of which the smallest fraction is left.
fn tightest<'r, 'n>(limits: &'r [LimitReport<'n>]) -> Option<&'r LimitReport<'n>> {
    // Compares a/b with c/d by cross-multiplication; the products fit 128 bits. Nothing is left of a quota of zero.
    let product = |remaining: u64, quota: u64| u128::from(remaining) * u128::from(quota.max(1));
    limits
        .iter()
        .min_by(|one, other| product(one.remaining, other.quota).cmp(&product(other.remaining, one.quota)))
}

/// The report of a limit that admits no request. Its window ends nevertheless, like that of any other number of requests.
pub(super) fn blocked_report(name: &str, window: TimeSpan, at: Timestamp) -> LimitReport<'_> {
    let elapsed = at.as_micros().checked_rem(window.as_micros()).unwrap_or_default();
    LimitReport {
        name,
        quota: 0,
        window: Some(window),
        remaining: 0,
        reset_after: TimeSpan::from_micros(window.as_micros() - elapsed),
        retry_after: None,
        unit: LimitUnit::Requests,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tightest_limit_has_the_smallest_remaining_fraction() {
        let report = |name, remaining, quota| LimitReport {
            remaining,
            quota,
            ..blocked_report(name, TimeSpan::from_secs(60), Timestamp::from_secs(60))
        };
        let limits = [report("second", 5, 10), report("day", 40, 10_000), report("most", u64::MAX, u64::MAX)];
        assert_eq!(tightest(&limits).map(|limit| limit.name), Some("day"));
        let with_zero = [limits[1], report("blocked", 0, 0), limits[2]];
        assert_eq!(tightest(&with_zero).map(|limit| limit.name), Some("blocked"));
        assert_eq!(tightest(&[]), None);
    }
}
