//! A rate limit call: which part of the configuration decides it.

use std::fmt::Write as _;
use std::net::IpAddr;

use tidegate_core::RecordedDecision;
use tidegate_store::Store;
use tidegate_telemetry::{DecisionKind, DecisionSink, RequestRecord};
use tidegate_tower::deadline::Deadline;

use super::bad_descriptor::{BadDescriptor, RlsError};
use super::descriptors;
use super::message::{DescriptorStatus, RateLimitRequest, RateLimitResponse, ResponseCode};
use super::policy_domain;
use super::status::{GrpcCode, GrpcError};
use crate::worker::ServiceWorker;

/// The domain whose descriptors name rules and requests of the policy, unless an Envoy configuration has it.
pub(super) const POLICY_DOMAIN: &str = "tidegate";
/// The largest number of descriptors of a call. They are one decision, so more would delay other clients.
const MAX_DESCRIPTORS: usize = 128;
/// The largest number of entries of all descriptors of a call. In memory, an entry is far larger than in a message.
const MAX_ENTRIES: usize = 1024;

/// Decides a call of `peer`. Nothing is decided after the deadline.
pub(super) async fn decide<S: Store + 'static>(
    worker: &ServiceWorker<S>,
    request: &RateLimitRequest,
    peer: IpAddr,
    deadline: Option<Deadline>,
    record: &mut RequestRecord<'_>,
) -> Result<RateLimitResponse, RlsError> {
    // The reference server returns these two errors with this code.
    if request.domain.is_empty() {
        return Err(GrpcError::new(GrpcCode::Unknown, "rate limit domain must not be empty").into());
    }
    if request.descriptors.is_empty() {
        return Err(GrpcError::new(GrpcCode::Unknown, "rate limit descriptor list must not be empty").into());
    }
    if request.descriptors.len() > MAX_DESCRIPTORS {
        let message = format!("the call has more than {MAX_DESCRIPTORS} descriptors");
        return Err(GrpcError::invalid(message).into());
    }
    if request.descriptors.iter().map(|descriptor| descriptor.entries.len()).sum::<usize>() > MAX_ENTRIES {
        if request.domain == POLICY_DOMAIN {
            // A caller may pass all headers of its client on.
            return Err(BadDescriptor::too_large().into());
        }
        let message = format!("the call has more than {MAX_ENTRIES} entries of descriptors");
        return Err(GrpcError::invalid(message).into());
    }
    let now = record.start_decision();
    if deadline.is_some_and(|deadline| deadline.has_passed(now)) {
        let message = "the deadline has passed; nothing was decided";
        return Err(GrpcError::new(GrpcCode::DeadlineExceeded, message).into());
    }
    let envoy = worker.envoy();
    let domain = envoy.as_ref().and_then(|envoy| Some((envoy.limits().domain(&request.domain)?, &**envoy)));
    match domain {
        Some((domain, envoy)) => Ok(descriptors::decide(worker, request, domain, envoy, now, record).await?),
        None if request.domain == POLICY_DOMAIN => {
            Box::pin(policy_domain::decide(worker, request, peer, now, record)).await
        }
        None => {
            worker.grpc.log_unknown(&request.domain);
            let decision = RecordedDecision::new(DecisionKind::Admitted);
            DecisionSink::Request(record).record(&worker.policy().counted, decision);
            Ok(unlimited(request))
        }
    }
}

/// The response of an unknown domain.
fn unlimited(request: &RateLimitRequest) -> RateLimitResponse {
    let status = DescriptorStatus { code: ResponseCode::Ok.into(), ..DescriptorStatus::default() };
    RateLimitResponse {
        overall_code: ResponseCode::Ok.into(),
        statuses: vec![status; request.descriptors.len()],
        ..RateLimitResponse::default()
    }
}

/// The call in logs and traces: the domain and the keys of the descriptors.
pub(super) fn path(request: &RateLimitRequest) -> String {
    const MAX_SHOWN: usize = 256;
    let mut path = format!("/{}", request.domain);
    for descriptor in &request.descriptors {
        for (position, entry) in descriptor.entries.iter().enumerate() {
            let separator = if position == 0 { '/' } else { '.' };
            // Writing to a `String` cannot fail.
            let _ = write!(path, "{separator}{}", entry.key);
        }
        if path.len() > MAX_SHOWN {
            break;
        }
    }
    if let Some((end, _)) = path.char_indices().find(|(position, _)| *position >= MAX_SHOWN) {
        path.truncate(end);
    }
    path
}
