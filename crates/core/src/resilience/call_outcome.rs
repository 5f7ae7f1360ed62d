//! What the end of a call says about the service that was called.

/// What a call says about the health of the service that was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallOutcome {
    /// The service works.
    Success,
    /// The service failed.
    Failure,
    /// The service responded that the request is wrong. Closed breakers ignore it; a probe with it is a success, because the
    /// service responds.
    ClientError,
    /// The call says nothing about the service: the caller cancelled it, or the service limits the caller.
    Neutral,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallEnd {
    /// No connection was made.
    ConnectError,
    /// No response arrived in time.
    Timeout,
    /// The connection broke before the response was complete, or the response was invalid.
    Reset,
    /// A response with this HTTP status.
    Status(u16),
    /// A gRPC call that ended with this status code.
    GrpcStatus(u16),
    /// The caller gave up or disconnected, or its request was invalid.
    Cancelled,
}

impl CallEnd {
    /// Connect errors, timeouts, resets and 5xx are failures. 4xx and cancellation never are. Neither are 501 and 505: they say
    /// that the request asks for something the service does not have, so a client could cause them on purpose. gRPC codes count
    /// like the HTTP statuses that they correspond to: `UNKNOWN`, `DEADLINE_EXCEEDED`, `INTERNAL`, `UNAVAILABLE`,
    /// `DATA_LOSS` and unknown codes are failures.
    pub const fn outcome(self) -> CallOutcome {
        match self {
            // 1 is CANCELLED, 8 is RESOURCE_EXHAUSTED.
            Self::Status(408 | 429) | Self::GrpcStatus(1 | 8) | Self::Cancelled => CallOutcome::Neutral,
            Self::Status(400..=499 | 501 | 505) | Self::GrpcStatus(3 | 5..=7 | 9..=12 | 16) => {
                CallOutcome::ClientError
            }
            Self::Status(..500) | Self::GrpcStatus(0) => CallOutcome::Success,
            Self::ConnectError | Self::Timeout | Self::Reset | Self::Status(500..) | Self::GrpcStatus(_) => {
                CallOutcome::Failure
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_errors_and_cancellation_are_no_failures() {
        for status in (400..500).chain([501, 505]) {
            let expected =
                if [408, 429].contains(&status) { CallOutcome::Neutral } else { CallOutcome::ClientError };
            assert_eq!(CallEnd::Status(status).outcome(), expected, "{status}");
        }
        assert_eq!(CallEnd::Cancelled.outcome(), CallOutcome::Neutral);
    }

    #[test]
    fn grpc_codes_count_like_their_http_statuses() {
        let with = |outcome| (0..20).filter(move |code| CallEnd::GrpcStatus(*code).outcome() == outcome);
        assert!(with(CallOutcome::Success).eq([0]));
        assert!(with(CallOutcome::Neutral).eq([1, 8]));
        assert!(with(CallOutcome::Failure).eq([2, 4, 13, 14, 15, 17, 18, 19]));
    }

    #[test]
    fn server_errors_and_broken_connections_are_failures() {
        for end in [CallEnd::ConnectError, CallEnd::Timeout, CallEnd::Reset] {
            assert_eq!(end.outcome(), CallOutcome::Failure, "{end:?}");
        }
        for status in [500, 502, 503, 504, 599] {
            assert_eq!(CallEnd::Status(status).outcome(), CallOutcome::Failure, "{status}");
        }
        for status in [200, 204, 304] {
            assert_eq!(CallEnd::Status(status).outcome(), CallOutcome::Success, "{status}");
        }
    }
}
