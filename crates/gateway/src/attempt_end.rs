//! How an attempt ended: what that says about the server, whether another attempt may follow, and the error for the client.

use std::io;
use std::time::Duration;

use http::Response;
use http::header::RETRY_AFTER;
use tidegate_core::{CallEnd, CallOutcome, TimeSpan};
use tidegate_policy::{RequestError, RetryPlan};
use tidegate_telemetry::AttemptResult;

use crate::error::ServeError;
use crate::http::request_body::UploadFailure;
use crate::http::response_body::UpstreamBody;
use crate::upstream::{RetryCause, SendError, describe_connect_error};

/// Why an attempt failed.
#[derive(Debug)]
pub(crate) struct AttemptFailure {
    pub(crate) result: AttemptResult,
    /// What it says about the server.
    pub(crate) end: CallEnd,
    /// Why it may be repeated; `None` if it may not.
    pub(crate) cause: Option<RetryCause>,
    /// The server may have received the request.
    pub(crate) may_have_arrived: bool,
    /// Any client of a connection may have caused it.
    pub(crate) is_of_several: bool,
    pub(crate) error: ServeError,
    /// What operators are told.
    pub(crate) description: String,
}

impl AttemptFailure {
    /// No response started in time. `is_deadline` is whether the deadline of the client was the shorter time.
    pub(crate) fn timeout(is_deadline: bool) -> Self {
        if is_deadline {
            return Self::neutral(ServeError::DeadlineExceeded);
        }
        let (result, end) = (AttemptResult::TimedOut, CallEnd::Timeout);
        let (cause, error) = (Some(RetryCause::Timeout), ServeError::UpstreamTimeout);
        let description = "no response in time".to_owned();
        Self { result, end, cause, may_have_arrived: true, is_of_several: false, error, description }
    }

    /// A failed exchange. `upload` is why the request body failed, if it did.
    pub(crate) fn new(error: &SendError, upload: Option<UploadFailure>) -> Self {
        let description = match error {
            SendError::Connect(source) => describe_connect_error(source),
            error => error.to_string(),
        };
        Self { description, ..Self::classify(error, upload) }
    }

    fn classify(error: &SendError, upload: Option<UploadFailure>) -> Self {
        let description = String::new();
        if let (SendError::Connect(source), None) = (error, upload) {
            let end = if is_local(source) { CallEnd::Cancelled } else { CallEnd::ConnectError };
            let (result, cause) = (AttemptResult::Unreachable, Some(RetryCause::Connect));
            let error = connect_error(source);
            return Self {
                result,
                end,
                cause,
                may_have_arrived: false,
                is_of_several: false,
                error,
                description,
            };
        }
        if let (SendError::Refused, None) = (error, upload) {
            // Another server may accept it. A client may cause it, so it does not count as a failed connect.
            let (result, cause) = (AttemptResult::Unreachable, Some(RetryCause::Connect));
            let (end, error) = (CallEnd::Reset, ServeError::Unreachable);
            return Self {
                result,
                end,
                cause,
                may_have_arrived: false,
                is_of_several: false,
                error,
                description,
            };
        }
        if matches!(error, SendError::NotRepeatable) {
            let failure = Self::neutral(ServeError::BadUpstreamResponse);
            return Self { may_have_arrived: false, ..failure };
        }
        let is_unsent =
            matches!(error, SendError::Connect(_) | SendError::Refused | SendError::Host | SendError::NoSlot);
        let failure = match exchange_error(error, upload) {
            error_of @ ServeError::BadUpstreamResponse => {
                use SendError::{
                    NoResponse, NoResponseOfSeveral, NoResponseShared, ResponseHead, UnusualHead,
                };
                let is_reset = matches!(error, NoResponse | NoResponseOfSeveral | NoResponseShared);
                let cause = is_reset.then_some(RetryCause::Reset);
                let is_counted = !matches!(error, NoResponseShared | UnusualHead | ResponseHead);
                let end = if is_counted { CallEnd::Reset } else { CallEnd::Cancelled };
                let is_of_several = matches!(error, NoResponseOfSeveral);
                let result = AttemptResult::Broken;
                Self {
                    result,
                    end,
                    cause,
                    may_have_arrived: true,
                    is_of_several,
                    error: error_of,
                    description,
                }
            }
            error => Self::neutral(error),
        };
        Self { may_have_arrived: !is_unsent, ..failure }
    }

    /// The client or the gateway has ended it, which says nothing about the server.
    fn neutral(error: ServeError) -> Self {
        let (result, end, description) = (AttemptResult::Abandoned, CallEnd::Cancelled, String::new());
        Self { result, end, cause: None, may_have_arrived: true, is_of_several: false, error, description }
    }
}

/// What an attempt says about the server. A failure that the client `is_at_fault` for says nothing: the server has waited for
/// the rest of the body, or obeyed a short deadline. A server that cannot be reached has failed, whatever the client does.
pub(crate) fn outcome_of(end: CallEnd, is_at_fault: impl FnOnce() -> bool) -> CallOutcome {
    match end.outcome() {
        CallOutcome::Failure if end != CallEnd::ConnectError && is_at_fault() => CallOutcome::Neutral,
        outcome => outcome,
    }
}

/// What an attempt says about the latency of the server. A response that a client may cause on purpose says nothing, and a
/// failure is often quicker than the work would have been: either would make the usual latency look high.
pub(crate) fn latency_sample(end: CallEnd, elapsed: TimeSpan, timeout: TimeSpan) -> Option<TimeSpan> {
    match (end, end.outcome()) {
        (CallEnd::Timeout, _) => Some(elapsed.max(timeout)),
        (_, CallOutcome::Success) => Some(elapsed),
        (_, CallOutcome::Failure | CallOutcome::ClientError | CallOutcome::Neutral) => None,
    }
}

/// Whether a connect error is due to a lack of descriptors or ports of this machine.
fn is_local(error: &io::Error) -> bool {
    /// `ENFILE` and `EMFILE` of all Unix systems.
    const TOO_MANY_FILES: [i32; 2] = [23, 24];
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.raw_os_error().is_some_and(|code| TOO_MANY_FILES.contains(&code))
}

/// Why a response may be replaced by that of another attempt.
pub(crate) fn status_cause(response: &Response<UpstreamBody>, plan: &RetryPlan) -> Option<RetryCause> {
    if plan.on.statuses.is_empty() {
        return None;
    }
    let cause = RetryCause::Status(response.status().as_u16(), None);
    if !cause.is_in(&plan.on) {
        return None;
    }
    let seconds =
        response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    Some(RetryCause::Status(response.status().as_u16(), seconds.map(Duration::from_secs)))
}

/// Maps a connect error: TLS certificate errors are reported with their reason.
fn connect_error(error: &io::Error) -> ServeError {
    use rustls::CertificateError as Bad;
    let tls = error.get_ref().and_then(|error| error.downcast_ref());
    let Some(rustls::Error::InvalidCertificate(bad)) = tls else { return ServeError::Unreachable };
    ServeError::Untrusted(match bad {
        Bad::UnknownIssuer => "unknown issuer",
        Bad::NotValidForName | Bad::NotValidForNameContext { .. } => "not valid for this host name",
        Bad::Expired | Bad::ExpiredContext { .. } => "expired",
        Bad::NotValidYet | Bad::NotValidYetContext { .. } => "not valid yet",
        _ => "verification failed",
    })
}

/// Maps a failed exchange. A failed upload takes precedence: it ends the exchange, whatever error the server or hyper
/// reports.
fn exchange_error(error: &SendError, upload: Option<UploadFailure>) -> ServeError {
    match (upload, error) {
        (Some(failure), _) => upload_error(failure),
        (None, SendError::NoSlot) => ServeError::BulkheadFull,
        (None, SendError::Host) => ServeError::Request(RequestError::Host),
        (None, _) => ServeError::BadUpstreamResponse,
    }
}

/// Maps a failed upload.
pub(crate) fn upload_error(failure: UploadFailure) -> ServeError {
    match failure {
        UploadFailure::Malformed => ServeError::BadBody,
        UploadFailure::TooLarge => ServeError::TooLarge,
        UploadFailure::TooSlow => ServeError::SlowBody,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_counts_for_successes_and_timeouts_only() {
        let (elapsed, timeout) = (TimeSpan::from_millis(3), TimeSpan::from_secs(1));
        let sample = |end| latency_sample(end, elapsed, timeout);
        for status in [200, 204, 304] {
            assert_eq!(sample(CallEnd::Status(status)), Some(elapsed));
        }
        assert_eq!(sample(CallEnd::Timeout), Some(timeout));
        for status in [400, 404, 429, 500, 501, 503] {
            assert_eq!(sample(CallEnd::Status(status)), None, "{status}");
        }
        for end in [CallEnd::ConnectError, CallEnd::Reset, CallEnd::Cancelled] {
            assert_eq!(sample(end), None, "{end:?}");
        }
    }

    #[test]
    fn failure_that_the_client_is_at_fault_for_says_nothing_unless_no_connection_was_made() {
        for end in [CallEnd::Timeout, CallEnd::Reset, CallEnd::Status(500), CallEnd::Status(504)] {
            assert_eq!(outcome_of(end, || true), CallOutcome::Neutral, "{end:?}");
            assert_eq!(outcome_of(end, || false), CallOutcome::Failure, "{end:?}");
        }
        assert_eq!(outcome_of(CallEnd::ConnectError, || true), CallOutcome::Failure);
        for end in [CallEnd::Status(200), CallEnd::Status(404), CallEnd::Cancelled] {
            assert_eq!(outcome_of(end, || true), end.outcome(), "{end:?}");
        }
    }

    fn connect(error: impl Into<io::Error>) -> SendError {
        SendError::Connect(error.into())
    }

    #[test]
    fn failures_of_the_server_count_and_those_of_client_and_gateway_do_not() {
        let outcome = |error, upload| AttemptFailure::new(&error, upload).end.outcome();
        let failures = [connect(io::ErrorKind::ConnectionRefused), SendError::NoResponse, SendError::Framing];
        for error in failures {
            assert_eq!(outcome(error, None), CallOutcome::Failure);
        }
        for error in [SendError::Host, SendError::NoSlot, connect(io::ErrorKind::AddrNotAvailable)] {
            assert_eq!(outcome(error, None), CallOutcome::Neutral);
        }
        for error in [SendError::NoResponseShared, SendError::UnusualHead, SendError::ResponseHead] {
            assert_eq!(outcome(error, None), CallOutcome::Neutral);
        }
        assert_eq!(outcome(connect(io::Error::from_raw_os_error(24)), None), CallOutcome::Neutral);
        for upload in [UploadFailure::Malformed, UploadFailure::TooLarge, UploadFailure::TooSlow] {
            assert_eq!(outcome(SendError::NoResponse, Some(upload)), CallOutcome::Neutral, "{upload:?}");
        }
        assert_eq!(AttemptFailure::timeout(false).end.outcome(), CallOutcome::Failure);
        assert_eq!(AttemptFailure::timeout(true).end.outcome(), CallOutcome::Neutral);
    }

    #[test]
    fn request_may_have_arrived_unless_nothing_was_sent() {
        let may_have_arrived = |error, upload| AttemptFailure::new(&error, upload).may_have_arrived;
        for error in [SendError::NoResponse, SendError::Framing] {
            assert!(may_have_arrived(error, None));
        }
        let unsent =
            [connect(io::ErrorKind::TimedOut), SendError::Host, SendError::NoSlot, SendError::NotRepeatable];
        for error in unsent {
            assert!(!may_have_arrived(error, None));
        }
        assert!(may_have_arrived(SendError::NoResponse, Some(UploadFailure::TooSlow)));
        assert!(
            AttemptFailure::timeout(false).may_have_arrived && AttemptFailure::timeout(true).may_have_arrived
        );
    }

    #[test]
    fn only_connect_errors_resets_and_timeouts_have_a_cause_to_retry() {
        let cause = |error, upload| AttemptFailure::new(&error, upload).cause;
        assert_eq!(cause(connect(io::ErrorKind::TimedOut), None), Some(RetryCause::Connect));
        assert_eq!(cause(SendError::NoResponse, None), Some(RetryCause::Reset));
        assert_eq!(cause(SendError::NoResponseShared, None), Some(RetryCause::Reset));
        assert_eq!(cause(SendError::UnusualHead, None), None);
        assert_eq!(cause(SendError::NoResponse, Some(UploadFailure::TooSlow)), None);
        assert_eq!(cause(SendError::Framing, None), None);
        assert_eq!(AttemptFailure::timeout(false).cause, Some(RetryCause::Timeout));
        assert_eq!(AttemptFailure::timeout(true).cause, None);
    }
}
