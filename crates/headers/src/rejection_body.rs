//! Parses the body of a 429: which policy rejected the request.
//!
//! Understood are the bodies that [`ErrorBody`](crate::ErrorBody) writes, and problems (RFC 9457) with
//! `violated-policies`. The server may be wrong or hostile: anything else is ignored.

use std::time::Duration;

use serde_json::Value;
use tidegate_core::TimeSpan;

/// A longer name is not one of a policy.
const LONGEST_NAME: usize = 256;

/// What the body of a 429 says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RejectionBody {
    /// The policy that rejected the request.
    pub policy: Option<String>,
    /// Units per window of the policy.
    pub limit: Option<u64>,
    /// The time after which the client may retry.
    pub retry_after: Option<TimeSpan>,
}

impl RejectionBody {
    /// Reads a body. One that is not understood says nothing.
    pub fn parse(body: &[u8]) -> Self {
        let Ok(json) = serde_json::from_slice::<Value>(body) else { return Self::default() };
        let members = match json.get("error") {
            Some(nested @ Value::Object(_)) => nested,
            _ => &json,
        };
        let violated = members.get("violated-policies").and_then(|policies| policies.get(0));
        let policy = violated.or_else(|| members.get("rule")).and_then(Value::as_str);
        let number = |name| members.get(name).and_then(Value::as_u64);
        Self {
            policy: policy.filter(|name| name.len() <= LONGEST_NAME).map(str::to_owned),
            limit: number("limit"),
            retry_after: members.get("retry_after").and_then(seconds),
        }
    }
}

/// A number of seconds. One beyond the range is the longest time.
fn seconds(value: &Value) -> Option<TimeSpan> {
    let fraction = || value.as_f64().filter(|seconds| *seconds >= 0.0);
    let from_fraction = |seconds| Duration::try_from_secs_f64(seconds).map_or(TimeSpan::MAX, TimeSpan::from);
    value.as_u64().map(TimeSpan::from_secs).or_else(|| fraction().map(from_fraction))
}

#[cfg(test)]
mod tests {
    use tidegate_core::{LimitReport, LimitUnit, Timestamp};

    use super::*;
    use crate::{BodyStyle, RefusalEntry, ReportedLimit};

    #[test]
    fn rejection_body_of_each_style_names_the_policy() {
        let report = LimitReport {
            name: "search \"quick\"",
            quota: 30,
            window: Some(TimeSpan::from_secs(60)),
            remaining: 0,
            reset_after: TimeSpan::from_secs(60),
            retry_after: Some(TimeSpan::from_secs(7)),
            unit: LimitUnit::Requests,
        };
        let limit = ReportedLimit { at: Timestamp::ZERO, report: &report, violated: &[report.name] };
        for style in [BodyStyle::Flat, BodyStyle::Nested, BodyStyle::Problem] {
            let body = RefusalEntry::RATE_LIMIT_EXCEEDED.body(Some(7), Some(limit)).encode(style);
            let expected = RejectionBody {
                policy: Some(report.name.to_owned()),
                limit: Some(30),
                retry_after: Some(TimeSpan::from_secs(7)),
            };
            assert_eq!(RejectionBody::parse(&body), expected, "{style:?}");
        }
    }

    #[test]
    fn rejection_body_time_with_a_fraction_or_beyond_the_range_is_kept() {
        let time =
            |value| RejectionBody::parse(format!(r#"{{"retry_after":{value}}}"#).as_bytes()).retry_after;
        assert_eq!(time("0.65"), Some(TimeSpan::from_millis(650)));
        assert_eq!(time("7.0"), Some(TimeSpan::from_secs(7)));
        for huge in ["1e300", "18446744073709551616"] {
            assert_eq!(time(huge), Some(TimeSpan::MAX), "{huge}");
        }
        assert_eq!(time("-1.5"), None);
    }

    #[test]
    fn rejection_body_that_is_not_understood_says_nothing() {
        let deep = "[".repeat(100_000);
        let long = format!(r#"{{"rule":"{}"}}"#, "x".repeat(LONGEST_NAME + 1));
        let bodies =
            ["", "Slow down", "null", "[]", r#"{"error":7}"#, r#"{"rule":7,"limit":-1}"#, &deep, &long];
        for body in bodies {
            assert_eq!(RejectionBody::parse(body.as_bytes()), RejectionBody::default(), "{body:.40}");
        }
    }
}
