//! The catalogue of refusals: what clients are told about requests that are not served.
//!
//! Every refusal that more than one interface can report is here, so that all of them report it alike. A crate that has
//! refusals of its own makes them with [`RefusalEntry::new`].

use http::StatusCode;

use crate::body::{ErrorBody, ProblemType, ReportedLimit};

/// `Retry-After` of a refusal that is likely to be over soon: it may end as soon as any request does.
const SOON: u64 = 1;

/// Why a request is not served: status, code and message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusalEntry {
    /// The status of the response. That of a gRPC call corresponds to it.
    pub status: StatusCode,
    /// The code for programs, in flat bodies, logs and traces: letters and underscores.
    pub code: &'static str,
    /// The code of nested bodies, if it is not `code` in upper case.
    nested_code: Option<&'static str>,
    /// The message for people.
    message: &'static str,
    /// The message if it is not known when the refusal ends: that of a limit never does.
    final_message: &'static str,
    problem: Option<ProblemType>,
    /// The seconds after which the client may retry, if nothing else determines them.
    pub retry_after: Option<u64>,
}

/// The problem type of exceeded limits, as the draft of the rate-limit headers registers it.
const QUOTA_EXCEEDED: ProblemType = ProblemType {
    uri: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "Request cannot be satisfied as assigned quota has been exceeded",
};

const ABNORMAL_USAGE: ProblemType = ProblemType {
    uri: "https://iana.org/assignments/http-problem-types#abnormal-usage-detected",
    title: "Request not satisfied due to detection of abnormal request pattern",
};

const COST_EXCEEDS_LIMIT: &str = "Request cost exceeds the limit. Retrying will not help.";

impl RefusalEntry {
    /// A rate limit is exceeded.
    pub const RATE_LIMIT_EXCEEDED: Self = Self {
        nested_code: Some("RATE_LIMITED"),
        final_message: COST_EXCEEDS_LIMIT,
        ..Self::by_limit("rate_limit_exceeded", "Too many requests.", QUOTA_EXCEEDED)
    };
    /// The client is locked out.
    pub const LOCKED_OUT: Self = Self::by_limit(
        "locked_out",
        "Client is locked out after too many rejected requests.",
        ABNORMAL_USAGE,
    );
    /// A concurrency limit is exceeded.
    pub const CONCURRENCY_EXCEEDED: Self = Self {
        final_message: COST_EXCEEDS_LIMIT,
        ..Self::by_limit("concurrency_exceeded", "Too many concurrent requests.", QUOTA_EXCEEDED)
    };
    /// The client or its network is banned.
    pub const BANNED: Self = Self::new(StatusCode::FORBIDDEN, "banned", "Client is banned.");
    /// Only some networks are served, and the client is in none of them.
    pub const NOT_ALLOWED: Self =
        Self::new(StatusCode::FORBIDDEN, "not_allowed", "Requests from this address are not served.");
    /// The store returned no decision.
    pub const STORE_UNAVAILABLE: Self =
        Self::unavailable("store_unavailable", "Rate limit store unavailable.");
    /// Too many requests are delayed already.
    pub const TOO_MANY_WAITING: Self = Self::unavailable("too_many_waiting", "Too many delayed requests.");
    /// A circuit breaker is open.
    pub const BREAKER_OPEN: Self = Self::unavailable("breaker_open", "Service is failing.");
    /// A bulkhead is full.
    pub const BULKHEAD_FULL: Self = Self::unavailable("bulkhead_full", "Too many requests in progress.");
    /// A thread pool is full.
    pub const THREAD_POOL_FULL: Self =
        Self::unavailable("thread_pool_full", "Too many requests in progress.");
    /// The service is overloaded, and the request is not important enough.
    pub const OVERLOADED: Self = Self::unavailable("overloaded", "Service is overloaded.");
    /// The deadline of the client has passed.
    pub const DEADLINE_EXCEEDED: Self = Self::new(
        StatusCode::GATEWAY_TIMEOUT,
        "deadline_exceeded",
        "The deadline of the request has passed.",
    )
    .soon();
    /// A service did not respond in time.
    pub const UPSTREAM_TIMEOUT: Self =
        Self::new(StatusCode::GATEWAY_TIMEOUT, "upstream_timeout", "Upstream timed out.").soon();
    /// A rule counts the bytes of the body, and the request does not state them.
    pub const LENGTH_REQUIRED: Self =
        Self::new(StatusCode::LENGTH_REQUIRED, "length_required", "Request needs a Content-Length.");
    /// The body is too large.
    pub const BODY_TOO_LARGE: Self =
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", "Request body is too large.");
    /// The client sends the body too slowly.
    pub const BODY_TOO_SLOW: Self =
        Self::new(StatusCode::REQUEST_TIMEOUT, "body_too_slow", "Request body was sent too slowly.");
    /// The body is malformed or incomplete.
    pub const BAD_BODY: Self =
        Self::new(StatusCode::BAD_REQUEST, "bad_body", "Request body is malformed or incomplete.");

    /// A refusal after which a retry is not known to help.
    pub const fn new(status: StatusCode, code: &'static str, message: &'static str) -> Self {
        let (nested_code, problem, retry_after) = (None, None, None);
        Self { status, code, nested_code, message, final_message: message, problem, retry_after }
    }

    /// A refusal with 503 that is likely to be over soon.
    pub const fn unavailable(code: &'static str, message: &'static str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message).soon()
    }

    const fn by_limit(code: &'static str, message: &'static str, problem: ProblemType) -> Self {
        Self { problem: Some(problem), ..Self::new(StatusCode::TOO_MANY_REQUESTS, code, message) }
    }

    const fn soon(self) -> Self {
        Self { retry_after: Some(SOON), ..self }
    }

    /// The message without the time after which to retry. Without such a time, a limit refuses the request for good.
    const fn sentence(&self, retry_after: Option<u64>) -> &'static str {
        if retry_after.is_none() { self.final_message } else { self.message }
    }

    /// The error body, with the limit that refuses the request.
    pub const fn body<'a>(
        &self,
        retry_after: Option<u64>,
        limit: Option<ReportedLimit<'a>>,
    ) -> ErrorBody<'a> {
        let Self { status, code, nested_code, problem, .. } = *self;
        ErrorBody {
            status,
            code,
            nested_code,
            message: self.sentence(retry_after),
            problem,
            retry_after,
            limit,
            is_rejection: self.is_rejection(),
        }
    }

    /// Whether a limit rejects the request. A rule may choose another status for that.
    pub const fn is_rejection(&self) -> bool {
        self.status.as_u16() == StatusCode::TOO_MANY_REQUESTS.as_u16()
    }
}
