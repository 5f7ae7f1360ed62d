//! How the gateway treats an upstream that fails or is slow.

mod describe;

use tidegate_core::{AdaptiveConfig, Backoff, BreakerConfig, Jitter, Ratio, RetryBudget, TimeSpan};

/// The resilience settings of an upstream. The default is what an upstream without any of these keys gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResiliencePlan {
    /// How long things may take.
    pub timeouts: TimeoutsPlan,
    /// Which requests are sent again.
    pub retry: RetryPlan,
    /// When requests are rejected without being sent; `None` without the key `breaker`.
    pub breaker: Option<BreakerPlan>,
    /// How many requests may be in flight; `None` without the key `bulkhead`.
    pub bulkhead: Option<BulkheadPlan>,
    /// When a failing server gets no requests; `None` if it is off.
    pub eject: Option<EjectPlan>,
    /// Load shedding with an adaptive concurrency limit; `None` without the key `shed`.
    pub shed: Option<AdaptiveConfig>,
    /// The response while the breaker is open; `None` is the usual 503.
    pub fallback: Option<FallbackPlan>,
}

impl Default for ResiliencePlan {
    fn default() -> Self {
        Self {
            timeouts: TimeoutsPlan::default(),
            retry: RetryPlan::default(),
            breaker: None,
            bulkhead: None,
            eject: Some(EjectPlan::default()),
            shed: None,
            fallback: None,
        }
    }
}

/// The timeouts of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeoutsPlan {
    /// How long connecting to a server may take, TLS handshake included.
    pub connect: TimeSpan,
    /// How long a server may take until its response starts, in each attempt.
    pub request: TimeSpan,
    /// How long a pooled connection may be idle before it is closed.
    pub idle: TimeSpan,
    /// How long all attempts together may take until the response starts.
    pub total: TimeSpan,
    /// Whether a request without a deadline gets one: the policy sets `total`.
    pub starts_deadline: bool,
}

impl Default for TimeoutsPlan {
    fn default() -> Self {
        Self {
            connect: TimeSpan::from_secs(5),
            request: TimeSpan::from_secs(30),
            idle: TimeSpan::from_secs(60),
            total: TimeSpan::from_secs(30),
            starts_deadline: false,
        }
    }
}

/// Which failed requests are sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPlan {
    /// Attempts in all, the first included. 1 is no retry.
    pub attempts: u32,
    /// The failures that are retried.
    pub on: RetryCauses,
    /// The methods that may be sent again after the server may have received the request.
    pub methods: Vec<String>,
    /// The waits between attempts.
    pub backoff: Backoff,
    /// How many retries there may be.
    pub budget: RetryBudgetPlan,
    /// Request bodies up to this size are kept for retries, in bytes.
    pub buffer: u64,
}

impl RetryPlan {
    /// The methods that are idempotent by their definition.
    pub const IDEMPOTENT: [&str; 6] = ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"];
}

impl Default for RetryPlan {
    /// Idempotent requests without a response byte are sent once more.
    fn default() -> Self {
        let (base, cap) = (TimeSpan::from_millis(25), TimeSpan::from_secs(1));
        let Ok(backoff) = Backoff::new(base, cap, Jitter::Decorrelated) else {
            unreachable!("the cap is above the base")
        };
        Self {
            attempts: 2,
            on: RetryCauses { connect: true, reset: true, timeout: false, statuses: Vec::new() },
            methods: Self::IDEMPOTENT.map(str::to_owned).to_vec(),
            backoff,
            budget: RetryBudgetPlan::default(),
            buffer: 64 << 10,
        }
    }
}

/// How many retries there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryBudgetPlan {
    /// Retries as a share of requests.
    pub share: Ratio,
    /// Retries per second that are allowed besides.
    pub floor: u32,
}

impl Default for RetryBudgetPlan {
    fn default() -> Self {
        Self { share: RetryBudget::SHARE, floor: RetryBudget::MIN_PER_SECOND }
    }
}

/// The failures that are retried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetryCauses {
    /// No connection was made.
    pub connect: bool,
    /// The connection broke before the first byte of a response.
    pub reset: bool,
    /// No response started in time.
    pub timeout: bool,
    /// The server responded with one of these statuses; ascending.
    pub statuses: Vec<u16>,
}

/// A circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPlan {
    /// When it opens and closes.
    pub config: BreakerConfig,
    /// What it covers.
    pub scope: BreakerScope,
}

tidegate_core::named_enum! {
    /// What a breaker covers.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum BreakerScope {
        /// Each server has its own breaker.
        #[default]
        Server = "server",
        /// One breaker for all servers of the upstream.
        Upstream = "upstream",
    }
}

/// A bound on requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkheadPlan {
    /// Requests in flight, response bodies included.
    pub concurrent: u32,
    /// Requests that may wait for one of them to end.
    pub queue: u32,
    /// How long a request may wait.
    pub wait: TimeSpan,
    /// Open connections to all servers of the upstream; `None` is unlimited. Not for routes.
    pub connections: Option<u32>,
}

/// Passive health checks: a server that fails in a row gets no requests for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EjectPlan {
    /// Failures in a row that eject a server.
    pub after: u32,
    /// How long it is ejected at first; doubles up to ten times with each ejection that follows.
    pub duration: TimeSpan,
    /// The largest share of servers that is ejected at a time, rounded down.
    pub at_most: Ratio,
}

impl Default for EjectPlan {
    fn default() -> Self {
        Self { after: 5, duration: TimeSpan::from_secs(10), at_most: Ratio::from_percent(50) }
    }
}

/// The response while a breaker is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FallbackPlan {
    /// A fixed response.
    Response {
        /// The status.
        status: u16,
        /// The body; `None` is the usual error body.
        body: Option<FallbackBody>,
    },
    /// The request is sent to another upstream, given by its index in [`Plan::upstreams`](super::Plan::upstreams).
    Upstream(usize),
}

/// The body of a fallback response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FallbackBody {
    /// The name of the file, as in the policy.
    pub file: String,
    /// The content.
    pub content: Vec<u8>,
    /// `Content-Type`, by the extension of the file.
    pub content_type: &'static str,
}
