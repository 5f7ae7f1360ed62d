//! Writes the rate-limit headers of a response.

use http::header::{HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use smallvec::SmallVec;
use tidegate_core::{LimitReport, TimeSpan, Timestamp};

use crate::names;
use crate::retry_after::HeaderTarget;
use crate::structured_list::{LARGEST_INTEGER, ListWriter};
use crate::style::HeaderStyle;
use crate::value_cache::HeaderValueCache;

/// The rate-limit headers of one response.
#[derive(Debug, Default)]
pub struct RateLimitHeaders(SmallVec<[(HeaderName, HeaderValue); 6]>);

impl RateLimitHeaders {
    /// Removes all of them.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Moves them into `headers`, replacing those of the same name.
    pub fn insert_into(&mut self, headers: &mut HeaderMap) {
        headers.reserve(self.0.len());
        for (name, value) in self.0.drain(..) {
            headers.insert(name, value);
        }
    }

    /// Iterates over the names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        self.0.iter().map(|(name, value)| (name, value))
    }

    fn push(&mut self, name: HeaderName, value: HeaderValue) {
        self.0.push((name, value));
    }
}

impl HeaderTarget for RateLimitHeaders {
    fn set(&mut self, name: HeaderName, value: HeaderValue) {
        self.push(name, value);
    }
}

/// Writes rate-limit headers in the chosen styles.
#[derive(Debug)]
pub struct HeaderWriter<'w> {
    /// The styles, in this order.
    pub styles: &'w [HeaderStyle],
    /// Values written before.
    pub cache: &'w mut HeaderValueCache,
}

impl HeaderWriter<'_> {
    /// Writes the headers of a decision at `at`: single-value styles report `single`, the structured style reports `all` limits.
    pub fn write_limits(
        &mut self,
        headers: &mut RateLimitHeaders,
        at: Timestamp,
        single: &LimitReport<'_>,
        all: &[LimitReport<'_>],
    ) {
        for style in self.styles {
            match style {
                HeaderStyle::XRateLimit | HeaderStyle::XRateLimitMs => {
                    headers.push(names::X_LIMIT, self.cache.limit(single.quota));
                    headers.push(names::X_REMAINING, remaining(single));
                    let reset = if *style == HeaderStyle::XRateLimit {
                        self.cache.reset(reset_second(at, single))
                    } else {
                        reset_millisecond(at, single).into()
                    };
                    headers.push(names::X_RESET, reset);
                }
                HeaderStyle::RateLimitEpoch | HeaderStyle::RateLimitDelta => {
                    headers.push(names::LIMIT, self.cache.limit(single.quota));
                    headers.push(names::REMAINING, remaining(single));
                    let seconds = if *style == HeaderStyle::RateLimitEpoch {
                        reset_second(at, single)
                    } else {
                        single.announced_reset().as_secs_ceil()
                    };
                    headers.push(names::RESET, self.cache.reset(seconds));
                }
                HeaderStyle::RateLimit => {
                    headers.push(names::POLICY, self.cache.policy(all));
                    headers.push(names::RATELIMIT, ratelimit_value(all));
                }
            }
        }
    }
}

/// The Unix second of a limit's reset.
pub(crate) fn reset_second(at: Timestamp, report: &LimitReport<'_>) -> u64 {
    (at + report.announced_reset()).as_secs_ceil()
}

/// The Unix millisecond of a limit's reset, rounded up.
pub(crate) fn reset_millisecond(at: Timestamp, report: &LimitReport<'_>) -> u64 {
    (at + report.announced_reset()).as_micros().div_ceil(1_000)
}

fn remaining(report: &LimitReport<'_>) -> HeaderValue {
    // Nearly every rejection has 0 left.
    if report.remaining == 0 { HeaderValue::from_static("0") } else { report.remaining.into() }
}

fn ratelimit_value(reports: &[LimitReport<'_>]) -> HeaderValue {
    let mut list = ListWriter::default();
    for report in reports {
        list.member(report.name);
        list.integer(";r=", report.remaining);
        // No `t` is longer than its `w`.
        let longest = report.window.map_or(LARGEST_INTEGER, TimeSpan::as_secs_ceil);
        list.integer(";t=", report.announced_reset().as_secs_ceil().min(longest));
    }
    list.finish()
}

/// Whether an upstream rejected a request by its own limit and sent rate-limit headers. They are forwarded without ours, which
/// would contradict them.
pub fn is_rejected_by_upstream(status: StatusCode, headers: &HeaderMap) -> bool {
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
        && headers.keys().any(|name| is_limit_header(name) || name == RETRY_AFTER)
}

/// Whether a header reports limits, in any style.
pub fn is_limit_header(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("ratelimit") || name.starts_with("x-ratelimit")
}

#[cfg(test)]
mod tests {
    use tidegate_core::LimitUnit;

    use super::*;

    const AT: Timestamp = Timestamp::from_secs(1_705_334_370);

    fn report() -> LimitReport<'static> {
        LimitReport {
            name: "default",
            quota: 100,
            window: Some(TimeSpan::from_secs(60)),
            remaining: 50,
            reset_after: TimeSpan::from_millis(29_500),
            retry_after: None,
            unit: LimitUnit::Requests,
        }
    }

    fn written(
        style: HeaderStyle,
        single: &LimitReport<'_>,
        all: &[LimitReport<'_>],
    ) -> Vec<(String, String)> {
        let mut headers = RateLimitHeaders::default();
        let mut cache = HeaderValueCache::default();
        HeaderWriter { styles: &[style], cache: &mut cache }.write_limits(&mut headers, AT, single, all);
        headers
            .0
            .into_iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect()
    }

    #[test]
    fn write_limits_each_style_has_its_names_and_values() {
        let pairs = |pairs: &[(&str, &str)]| -> Vec<_> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let full = LimitReport::exhausted_concurrency("exports", 2);
        let of = |style| written(style, &report(), &[report(), full]);
        assert_eq!(
            of(HeaderStyle::XRateLimit),
            pairs(&[
                ("x-ratelimit-limit", "100"),
                ("x-ratelimit-remaining", "50"),
                ("x-ratelimit-reset", "1705334400"),
            ])
        );
        assert_eq!(
            of(HeaderStyle::XRateLimitMs),
            pairs(&[
                ("x-ratelimit-limit", "100"),
                ("x-ratelimit-remaining", "50"),
                ("x-ratelimit-reset", "1705334399500"),
            ])
        );
        assert_eq!(
            of(HeaderStyle::RateLimitEpoch),
            pairs(&[
                ("ratelimit-limit", "100"),
                ("ratelimit-remaining", "50"),
                ("ratelimit-reset", "1705334400"),
            ])
        );
        assert_eq!(
            of(HeaderStyle::RateLimitDelta),
            pairs(&[("ratelimit-limit", "100"), ("ratelimit-remaining", "50"), ("ratelimit-reset", "30")])
        );
        let policy = r#""default";q=100;w=60, "exports";q=2;qu="concurrent-requests""#;
        assert_eq!(
            of(HeaderStyle::RateLimit),
            pairs(&[
                ("ratelimit-policy", policy),
                ("ratelimit", r#""default";r=50;t=30, "exports";r=0;t=1"#),
            ])
        );
    }

    #[test]
    fn write_limits_rejecting_limit_has_the_time_until_it_admits() {
        let retry_after = Some(TimeSpan::from_secs(90));
        let rejecting =
            LimitReport { remaining: 0, retry_after, reset_after: TimeSpan::from_secs(120), ..report() };
        assert_eq!(written(HeaderStyle::RateLimitDelta, &rejecting, &[])[2].1, "90");
        // No longer than the window.
        assert_eq!(written(HeaderStyle::RateLimit, &rejecting, &[rejecting])[1].1, r#""default";r=0;t=60"#);
    }

    #[test]
    fn upstream_rejection_is_429_or_503_with_rate_limit_headers() {
        let rejected = |status, name| {
            let headers =
                HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static("1"))]);
            is_rejected_by_upstream(status, &headers)
        };
        for name in
            ["retry-after", "x-ratelimit-limit", "x-ratelimit-retry-after", "ratelimit", "ratelimit-policy"]
        {
            assert!(rejected(StatusCode::TOO_MANY_REQUESTS, name), "{name}");
            assert!(rejected(StatusCode::SERVICE_UNAVAILABLE, name), "{name}");
            assert!(!rejected(StatusCode::OK, name), "{name}");
        }
        assert!(!rejected(StatusCode::TOO_MANY_REQUESTS, "content-type"));
    }
}
