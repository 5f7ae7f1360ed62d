//! `grpc.health.v1.Health`.

use std::future::poll_fn;

use bytes::Bytes;
use h2::server::SendResponse;
use tokio::sync::watch;

use super::call::begin_reply;
use super::frame;
use super::status::{GrpcCode, GrpcError, ok_trailers, shown};

pub(super) const CHECK: &str = "/grpc.health.v1.Health/Check";
pub(super) const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// `HealthCheckRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HealthCheckRequest {
    /// The service; empty for the server as a whole.
    #[prost(string, tag = "1")]
    pub(super) service: String,
}

/// `HealthCheckResponse`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub(super) status: i32,
}

/// `HealthCheckResponse.ServingStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
pub(super) enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

/// The names under which clients ask for the health of the rate limit service.
const SERVICES: [&str; 3] = ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"];

/// Whether a service is served. A server that stops accepts no calls, so one that answers is serving.
pub(super) fn check(request: &HealthCheckRequest) -> Result<HealthCheckResponse, GrpcError> {
    if SERVICES.contains(&request.service.as_str()) {
        return Ok(HealthCheckResponse { status: ServingStatus::Serving.into() });
    }
    Err(GrpcError::new(GrpcCode::NotFound, format!("unknown service `{}`", shown(&request.service))))
}

/// Sends the status, and the next one when the service stops.
pub(super) async fn watch(
    request: &HealthCheckRequest,
    respond: &mut SendResponse<Bytes>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), GrpcError> {
    let is_known = SERVICES.contains(&request.service.as_str());
    let status = if is_known { ServingStatus::Serving } else { ServingStatus::ServiceUnknown };
    let message = |status: ServingStatus| frame::encode(&HealthCheckResponse { status: status.into() });
    // The client has gone if sending fails.
    let Ok(mut stream) = begin_reply(respond) else { return Ok(()) };
    if stream.send_data(message(status), false).is_err() {
        return Ok(());
    }
    let is_stopping = tokio::select! {
        _ = stop.wait_for(|stop| *stop) => true,
        _ = poll_fn(|context| stream.poll_reset(context)) => false,
    };
    if is_stopping && (!is_known || stream.send_data(message(ServingStatus::NotServing), false).is_ok()) {
        let _ = stream.send_trailers(ok_trailers());
    }
    Ok(())
}
