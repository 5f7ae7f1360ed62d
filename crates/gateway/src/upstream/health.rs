//! Active health checks: detect unhealthy servers before requests are sent to them. The same task finds the ends of outages.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{HOST, USER_AGENT};
use http::{HeaderValue, Request};
use http_body_util::Empty;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use tidegate_policy::HealthCheckPlan;
use tidegate_store::Clock;
use tidegate_telemetry::Log;
use tokio::time::Instant;

use super::connect::Connector;
use super::outage::OutageNotice;
use super::server::{Server, UpstreamGroup};
use crate::executor::LocalExecutor;
use crate::snapshot::Snapshot;

/// How often a changed policy is looked for.
const POLICY_INTERVAL: Duration = Duration::from_millis(500);

/// Checks every server of every upstream that has a health check. Runs forever, on one worker for all.
#[expect(clippy::disallowed_methods, reason = "timers run on the runtime's clock")]
pub(crate) async fn watch(snapshot: Arc<ArcSwap<Snapshot>>, connector: Connector, log: Log) {
    let shared = Rc::new((connector, log));
    let mut due: HashMap<*const Server, Instant> = HashMap::new();
    loop {
        let now = Instant::now();
        let mut next = now + POLICY_INTERVAL;
        let current = snapshot.load_full();
        for upstream in current.upstreams() {
            log_ended_outages(upstream, &shared.1);
            let Some(health) = &upstream.health else { continue };
            for server in &upstream.servers {
                let at = due.entry(Arc::as_ptr(server)).or_insert(now);
                if *at <= now {
                    *at = now + Duration::from(health.every);
                    let check = HealthCheck {
                        upstream: upstream.name.clone(),
                        server: Arc::clone(server),
                        plan: health.clone(),
                        connect_timeout: upstream.resilience.timeouts.connect,
                        clock: Arc::clone(&upstream.clock),
                    };
                    tokio::task::spawn_local(check.run(Rc::clone(&shared)));
                }
                next = next.min(*at);
            }
        }
        drop(current);
        tokio::time::sleep_until(next).await;
    }
}

/// Logs that servers work again.
fn log_ended_outages(upstream: &UpstreamGroup, log: &Log) {
    for server in &upstream.servers {
        if let Some(OutageNotice { cause, failures, lasted }) = server.outage.check_end(upstream.clock.now())
        {
            let (name, address) = (&upstream.name, &server.addr);
            let message = format!(
                "server {address} of upstream `{name}` works again; {failures} failures in {lasted}, the last one: {cause}"
            );
            log.event("server_recovered", &message, &[("upstream", name), ("server", address)]);
        }
    }
}

/// One check of one server.
struct HealthCheck {
    upstream: String,
    server: Arc<Server>,
    plan: HealthCheckPlan,
    connect_timeout: Duration,
    clock: Arc<dyn Clock>,
}

impl HealthCheck {
    async fn run(self, shared: Rc<(Connector, Log)>) {
        let Self { upstream, server, plan, connect_timeout, clock } = self;
        let (connector, log) = &*shared;
        let checking = is_healthy((connector, connect_timeout), &server, &plan.path);
        let is_healthy = tokio::time::timeout(Duration::from(plan.every), checking).await.unwrap_or_default();
        if server.set_healthy(is_healthy, clock.now()) {
            let (event, result) =
                if is_healthy { ("upstream_up", "passed") } else { ("upstream_down", "failed") };
            let message = format!("health check {result}: server {} of upstream `{upstream}`", server.addr);
            log.event(event, &message, &[("upstream", &upstream), ("server", &server.addr)]);
        }
    }
}

/// Whether the server responds with success or a redirect.
async fn is_healthy(
    (connector, connect_timeout): (&Connector, Duration),
    server: &Server,
    path: &str,
) -> bool {
    let Ok((stream, is_http2)) = connector.connect(server, connect_timeout).await else { return false };
    let uri = http::Uri::builder()
        .scheme(server.scheme.clone())
        .authority(server.authority.clone())
        .path_and_query(path)
        .build();
    let Ok(uri) = uri else { return false };
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.uri_mut() =
        if is_http2 { uri } else { uri.path_and_query().cloned().map(Into::into).unwrap_or(uri) };
    request.headers_mut().insert(HOST, server.host_header.clone());
    request.headers_mut().insert(USER_AGENT, HeaderValue::from_static("tidegate-health"));
    let io = TokioIo::new(stream);
    let response = if is_http2 {
        request.headers_mut().remove(HOST);
        let Ok((mut sender, connection)) = http2::handshake(LocalExecutor, io).await else { return false };
        tokio::task::spawn_local(connection);
        sender.send_request(request).await
    } else {
        let Ok((mut sender, connection)) = http1::handshake(io).await else { return false };
        tokio::task::spawn_local(connection);
        sender.send_request(request).await
    };
    response.is_ok_and(|response| response.status().is_success() || response.status().is_redirection())
}
