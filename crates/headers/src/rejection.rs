//! The codes and messages of rejections with 429.

use http::StatusCode;

use crate::body::{ErrorBody, ProblemType, ReportedLimit, write_retry_sentence};

/// Why a request is rejected with 429.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionReason {
    /// A rate limit is exceeded.
    Limit,
    /// The client is locked out.
    LockOut,
    /// A concurrency limit is exceeded.
    Concurrency,
}

impl RejectionReason {
    /// The code of flat bodies, of logs and of traces.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Limit => "rate_limit_exceeded",
            Self::LockOut => "locked_out",
            Self::Concurrency => "concurrency_exceeded",
        }
    }

    /// The message for people.
    pub fn message(self, retry_after: Option<u64>) -> String {
        let mut message = self.sentence(retry_after).to_owned();
        write_retry_sentence(retry_after, |part| message.push_str(part));
        message
    }

    /// The error body of a rejection. `retry_after` is in seconds.
    pub fn error_body(self, retry_after: Option<u64>, limit: ReportedLimit<'_>) -> ErrorBody<'_> {
        ErrorBody {
            status: StatusCode::TOO_MANY_REQUESTS,
            code: self.code(),
            nested_code: Some(match self {
                Self::Limit => "RATE_LIMITED",
                Self::LockOut => "LOCKED_OUT",
                Self::Concurrency => "CONCURRENCY_EXCEEDED",
            }),
            message: self.sentence(retry_after),
            problem: Some(self.problem()),
            retry_after,
            limit: Some(limit),
        }
    }

    /// The message without the time.
    const fn sentence(self, retry_after: Option<u64>) -> &'static str {
        match self {
            Self::LockOut => "Client is locked out after too many rejected requests.",
            _ if retry_after.is_none() => "Request cost exceeds the limit. Retrying will not help.",
            Self::Limit => "Too many requests.",
            Self::Concurrency => "Too many concurrent requests.",
        }
    }

    /// The problem type, as the draft of the rate-limit headers registers it.
    const fn problem(self) -> ProblemType {
        match self {
            Self::LockOut => ProblemType {
                uri: "https://iana.org/assignments/http-problem-types#abnormal-usage-detected",
                title: "Request not satisfied due to detection of abnormal request pattern",
            },
            Self::Limit | Self::Concurrency => ProblemType {
                uri: "https://iana.org/assignments/http-problem-types#quota-exceeded",
                title: "Request cannot be satisfied as assigned quota has been exceeded",
            },
        }
    }
}
