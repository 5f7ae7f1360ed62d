//! Writes and parses rate-limit headers, `Retry-After` and error bodies.
//!
//! A server describes each limit as a [`LimitReport`](tidegate_core::LimitReport). [`HeaderWriter`] writes the reports in
//! every [`HeaderStyle`], [`RefusalEntry`] lists why requests are not served, [`ErrorBody`] writes the body of an error in every
//! [`BodyStyle`] or by a [`BodyTemplate`], and [`AdvertisedLimits`] parses the headers of other servers, [`RejectionBody`] their bodies. No other crate of the workspace names these headers.
//!
//! ```
//! use http::HeaderMap;
//! use tidegate_core::{LimitReport, LimitUnit, TimeSpan, Timestamp};
//! use tidegate_headers::{AdvertisedLimits, HeaderStyle, HeaderValueCache, HeaderWriter, RateLimitHeaders};
//!
//! let now = Timestamp::from_secs(1_700_000_000);
//! let report = LimitReport {
//!     name: "default",
//!     quota: 100,
//!     window: Some(TimeSpan::from_secs(60)),
//!     remaining: 50,
//!     reset_after: TimeSpan::from_secs(30),
//!     retry_after: None,
//!     unit: LimitUnit::Requests,
//! };
//!
//! let mut headers = RateLimitHeaders::default();
//! let mut cache = HeaderValueCache::default();
//! let mut writer = HeaderWriter { styles: &[HeaderStyle::XRateLimit, HeaderStyle::RateLimit], cache: &mut cache };
//! writer.write_limits(&mut headers, now, &report, &[report]);
//! let mut response = HeaderMap::new();
//! headers.insert_into(&mut response);
//! assert_eq!(response["x-ratelimit-remaining"], "50");
//! assert_eq!(response["ratelimit-policy"], r#""default";q=100;w=60"#);
//! assert_eq!(response["ratelimit"], r#""default";r=50;t=30"#);
//!
//! let advertised = AdvertisedLimits::parse(&response, now);
//! assert_eq!(advertised.limits[0].name.as_deref(), Some("default"));
//! assert_eq!(advertised.limits[0].remaining, Some(50));
//! assert_eq!(advertised.limits[0].reset_after, Some(TimeSpan::from_secs(30)));
//! ```

#![forbid(unsafe_code)]

mod advertised;
mod body;
#[cfg(feature = "cache")]
mod cache;
mod grpc;
mod names;
mod quota;
mod refusal;
mod rejection_body;
mod request_id;
mod retry_after;
mod scan;
mod structured_list;
mod style;
mod template;
mod value_cache;
mod write;

pub use advertised::{AdvertisedLimit, AdvertisedLimits};
pub use body::{ErrorBody, ProblemType, ReportedLimit};
#[cfg(feature = "cache")]
pub use cache::{
    CacheKind, SharedUse, cache_policy, clamp_age, normal_request, owned_headers, varying_headers,
};
pub use grpc::{grpc_content_type, grpc_status, percent_encoded, write_grpc_status};
pub use names::{DEGRADE, REQUEST_ID};
pub use quota::Quota;
pub use refusal::RefusalEntry;
pub use rejection_body::RejectionBody;
pub use request_id::random_request_id;
pub use retry_after::{HeaderTarget, RetryAfter, write_retry_after};
pub use style::{BodyFormat, BodyStyle, HeaderStyle};
pub use template::{BodyTemplate, TemplateError, TemplateField};
pub use value_cache::HeaderValueCache;
pub use write::{HeaderWriter, RateLimitHeaders, is_limit_header, is_rejected_by_upstream};

/// The examples of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
