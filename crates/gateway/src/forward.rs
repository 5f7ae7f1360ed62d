//! Sends a request to a server of its upstream and builds the response.

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
use crate::upstream::{ForwardedRequest, PooledConn, SendError, StickyKey, UpstreamGroup};
use crate::worker::Worker;

/// A request to a server, and the upgrade that it asks for.
pub(crate) struct OutboundRequest {
    pub(crate) request: ForwardedRequest,
    pub(crate) upgrade: Option<PendingUpgrade>,
}

/// The upgrade of a client connection, pending until the server agrees.
pub(crate) struct PendingUpgrade {
    client: OnUpgrade,
    conn_info: Rc<ConnInfo>,
}

impl PendingUpgrade {
    pub(crate) fn take_from(parts: &mut Parts, flags: HeaderFlags, conn_info: &Rc<ConnInfo>) -> Option<Self> {
        let is_wanted = hop_headers::wants_upgrade(parts.version, &parts.headers, flags);
        let client = is_wanted.then(|| parts.extensions.remove::<OnUpgrade>()).flatten()?;
        Some(Self { client, conn_info: Rc::clone(conn_info) })
    }
}

impl<S: Store + 'static> Exchange<'_, S> {
    /// Returns the response of the upstream. Tries the next server if one is unreachable, since nothing was sent to it.
    pub(crate) async fn send(
        &mut self,
        outbound: &mut OutboundRequest,
        (upstream, sticky_key): (&UpstreamGroup, StickyKey),
        mut permits: Vec<Permit>,
    ) -> Result<Response<ResponseBody>, ServeError> {
        let (worker, record) = (self.worker, &mut self.record);
        let OutboundRequest { request, upgrade } = outbound;
        let mut server = upstream.choose(sticky_key, &[]).cloned().ok_or(ServeError::NoServer)?;
        let mut tried = Vec::new();
        let upload = request.upload().clone();
        let (response, conn) = loop {
            let trial = record.start_attempt(&upstream.counts);
            let sent = {
                let sending = pin!(worker.transport.send(&server, request, &mut permits));
                worker
                    .timeouts
                    .run_within(worker.limits.response_timeout, sending, || upload.has_progress())
                    .await
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
                        upstream.choose(sticky_key, &tried).cloned().ok_or_else(|| connect_error(&error))?;
                }
                Err(error) => {
                    let cause = exchange_error(&error, upload.failure());
                    // A bad request body is not a failure of the server.
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
        let min_rate = worker.limits.response_min_rate;
        let body = |source| ResponseBody::Upstream(Box::new(ForwardedBody::new(source, conn, min_rate)));
        let mut response = response.map(body);
        hop_headers::prepare_response(response.headers_mut(), false);
        *response.version_mut() = Version::HTTP_11;
        Ok(response)
    }

    /// Settles reserved charges by the response, or refunds them if no server received the request.
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
            // No server received the request.
            Err(ServeError::NoServer | ServeError::Unreachable | ServeError::Untrusted(_)) => {
                limiter.release(reservations).await;
            }
            Err(_) => {}
        }
    }
}

impl<S: Store + 'static> Worker<S> {
    /// Relays between client and server after the server has agreed to switch protocols.
    fn upgrade(
        &self,
        mut response: Response<UpstreamBody>,
        conn: PooledConn,
        upgrade: Option<PendingUpgrade>,
    ) -> Result<Response<ResponseBody>, ServeError> {
        let Some(PendingUpgrade { client, conn_info }) = upgrade else {
            return Err(ServeError::BadUpstreamResponse);
        };
        let server = hyper::upgrade::on(&mut response);
        let relay =
            upgrade::relay((client, server), conn, conn_info, self.limits.tunnel_timeout, self.stop());
        tokio::task::spawn_local(relay);
        let mut response = response.map(|_| ResponseBody::empty());
        hop_headers::prepare_response(response.headers_mut(), true);
        Ok(response)
    }
}

/// Maps a connect error: TLS certificate errors are reported with their reason.
fn connect_error(error: &std::io::Error) -> ServeError {
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
        (Some(UploadFailure::Malformed), _) => ServeError::BadBody,
        (Some(UploadFailure::TooLarge), _) => ServeError::TooLarge,
        (Some(UploadFailure::TooSlow), _) => ServeError::SlowBody,
        (None, SendError::Host) => ServeError::Framing("invalid Host header"),
        (None, _) => ServeError::BadUpstreamResponse,
    }
}
