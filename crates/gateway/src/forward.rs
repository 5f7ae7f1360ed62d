//! Sends a request to a server of its upstream and makes the response of what comes back.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use http::request::Parts;
use http::{Response, StatusCode, Version};
use hyper::upgrade::OnUpgrade;
use tidegate_limiter::Reservations;
use tidegate_store::{Permit, Store};
use tidegate_telemetry::AttemptResult;

use crate::error::ServeError;
use crate::http::header_flags::HeaderFlags;
use crate::http::hop_headers::{self, ConnInfo};
use crate::http::request_body::UploadFailure;
use crate::http::response_body::{ForwardedBody, ResponseBody, UpstreamBody};
use crate::http::upgrade;
use crate::service::Exchange;
use crate::upstream::{ForwardedRequest, PooledConn, SendError, StickyKey, Upstream};
use crate::worker::Worker;

/// A request on its way to a server.
pub(crate) struct Outbound {
    pub(crate) request: ForwardedRequest,
    pub(crate) upgrade: Option<Upgrade>,
}

/// What a client's connection becomes if the upstream agrees.
pub(crate) struct Upgrade {
    client: OnUpgrade,
    conn_info: Rc<ConnInfo>,
}

impl Upgrade {
    pub(crate) fn wanted(parts: &mut Parts, flags: HeaderFlags, conn_info: &Rc<ConnInfo>) -> Option<Self> {
        let is_wanted = hop_headers::wants_upgrade(parts.version, &parts.headers, flags);
        let client = is_wanted.then(|| parts.extensions.remove::<OnUpgrade>()).flatten()?;
        Some(Self { client, conn_info: Rc::clone(conn_info) })
    }
}

impl<S: Store + 'static> Exchange<'_, S> {
    /// The response of the upstream. A server that cannot be reached is passed over: nothing was sent to it.
    pub(crate) async fn send(
        &mut self,
        outbound: &mut Outbound,
        (upstream, sticky_key): (&Upstream, StickyKey),
        mut permits: Vec<Permit>,
    ) -> Result<Response<ResponseBody>, ServeError> {
        let (worker, record) = (self.worker, &mut self.record);
        let Outbound { request, upgrade } = outbound;
        let mut server = upstream.choose(sticky_key, &[]).cloned().ok_or(ServeError::NoServer)?;
        let mut tried = Vec::new();
        let upload = request.upload().clone();
        let (response, conn) = loop {
            let trial = record.start_attempt(&upstream.counts);
            let sent = {
                let sending = pin!(worker.transport.send(&server, request, &mut permits));
                worker.timeouts.run_within(worker.bounds.answer, sending, || upload.has_moved()).await
            };
            let Some(sent) = sent else {
                record.finish_attempt(trial, &server.addr, AttemptResult::TimedOut);
                return Err(ServeError::UpstreamTimeout);
            };
            match sent {
                Ok(answer) => {
                    record.finish_attempt(
                        trial,
                        &server.addr,
                        AttemptResult::Response(answer.0.status().as_u16()),
                    );
                    break answer;
                }
                Err(SendError::Connect(error)) => {
                    record.finish_attempt(trial, &server.addr, AttemptResult::Unreachable);
                    tried.push(Arc::as_ptr(&server));
                    server =
                        upstream.choose(sticky_key, &tried).cloned().ok_or_else(|| unreachable(&error))?;
                }
                Err(error) => {
                    let cause = broken(&error, upload.failure());
                    // What a client sends wrongly is not the server's failure.
                    let result = if matches!(cause, ServeError::BadUpstreamResponse) {
                        AttemptResult::Broken
                    } else {
                        AttemptResult::Abandoned
                    };
                    record.finish_attempt(trial, &server.addr, result);
                    return Err(cause);
                }
            }
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return worker.upgrade(response, conn, upgrade.take());
        }
        let pace = worker.bounds.response_min_rate;
        let body = |source| ResponseBody::Upstream(Box::new(ForwardedBody::new(source, conn, pace)));
        let mut response = response.map(body);
        hop_headers::prepare_response(response.headers_mut(), false);
        *response.version_mut() = Version::HTTP_11;
        Ok(response)
    }

    /// Settlement what was charged for the time being, by the response or the lack of one.
    pub(crate) async fn settle(
        &self,
        reservations: Reservations,
        response: &Result<Response<ResponseBody>, ServeError>,
    ) {
        let limiter = &self.worker.limiter;
        match response {
            Ok(response) => {
                limiter.settle(reservations, response.status().as_u16(), response.headers()).await;
            }
            // Nothing was sent to anybody.
            Err(ServeError::NoServer | ServeError::Unreachable | ServeError::Untrusted(_)) => {
                limiter.release(reservations).await;
            }
            Err(_) => {}
        }
    }
}

impl<S: Store + 'static> Worker<S> {
    /// Connects the client with the server, which has agreed to switch protocols.
    fn upgrade(
        &self,
        mut response: Response<UpstreamBody>,
        conn: PooledConn,
        upgrade: Option<Upgrade>,
    ) -> Result<Response<ResponseBody>, ServeError> {
        let Some(Upgrade { client, conn_info }) = upgrade else {
            return Err(ServeError::BadUpstreamResponse);
        };
        let server = hyper::upgrade::on(&mut response);
        let passing = upgrade::relay((client, server), conn, conn_info, self.bounds.tunnel, self.stop());
        tokio::task::spawn_local(passing);
        let mut response = response.map(|_| ResponseBody::empty());
        hop_headers::prepare_response(response.headers_mut(), true);
        Ok(response)
    }
}

/// Why there is no connection.
fn unreachable(error: &std::io::Error) -> ServeError {
    use rustls::CertificateError as Bad;
    let tls = error.get_ref().and_then(|error| error.downcast_ref());
    let Some(rustls::Error::InvalidCertificate(bad)) = tls else { return ServeError::Unreachable };
    ServeError::Untrusted(match bad {
        Bad::UnknownIssuer => "nobody whom this machine trusts has issued it",
        Bad::NotValidForName | Bad::NotValidForNameContext { .. } => "it is for another name",
        Bad::Expired | Bad::ExpiredContext { .. } => "it has expired",
        Bad::NotValidYet | Bad::NotValidYetContext { .. } => "it is not valid yet",
        _ => "it cannot be verified",
    })
}

/// Whose fault it is that nothing came back. A body that its client sent wrongly ends the exchange, however the server
/// and hyper call that.
fn broken(error: &SendError, upload: Option<UploadFailure>) -> ServeError {
    match (upload, error) {
        (Some(UploadFailure::Malformed), _) => ServeError::BadBody,
        (Some(UploadFailure::TooLarge), _) => ServeError::TooLarge,
        (Some(UploadFailure::TooSlow), _) => ServeError::SlowBody,
        (None, SendError::Host) => ServeError::Framing("its Host is not a host"),
        (None, _) => ServeError::BadUpstreamResponse,
    }
}
