//! The state of the upstreams in the admin API, and the commands to their breakers.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_admin::{BreakerAction, BreakerError};
use tidegate_core::{BreakerState, BreakerStatus, TimeSpan};
use tidegate_gateway::{
    BreakerCommand, BreakerCommandError, BulkheadStatus, Gateway, OutageStatus, RouteStatus, ServerStatus,
    ShedStatus, UnreachableUpstream, UpstreamStatus,
};

use super::store::SelectedStore;

/// How long the start message waits for the servers of upstreams.
const REACHABILITY_TIMEOUT: Duration = Duration::from_secs(1);

/// The state of every upstream.
pub(super) fn upstreams(gateway: &Gateway<SelectedStore>) -> Vec<Value> {
    gateway.upstream_status().iter().map(upstream).collect()
}

/// Lines of the start message for upstreams none of whose servers can be reached. They are logged, too.
pub(super) async fn reachability_notice(gateway: &Gateway<SelectedStore>) -> String {
    let describe = |UnreachableUpstream { name, server, cause }| {
        tracing::warn!(
            event = "upstream_unreachable",
            "no server of upstream `{name}` can be reached ({server}: {cause}); requests get 502 until one can"
        );
        format!(
            "  warning    no server of upstream `{name}` can be reached ({server}: {cause}); check `upstreams.{name}.servers`\n"
        )
    };
    gateway.unreachable_upstreams(REACHABILITY_TIMEOUT).await.into_iter().map(describe).collect()
}

/// The bulkheads of the routes.
pub(super) fn routes(gateway: &Gateway<SelectedStore>) -> Vec<Value> {
    let route = |RouteStatus { route, bulkhead: bounds }: &RouteStatus| json!({ "route": route, "bulkhead": bulkhead(bounds) });
    gateway.route_status().iter().map(route).collect()
}

pub(super) fn change_breaker(
    gateway: &Gateway<SelectedStore>,
    upstream: &str,
    server: Option<&str>,
    action: BreakerAction,
) -> Result<(), BreakerError> {
    let command = match action {
        BreakerAction::Open => BreakerCommand::Open,
        BreakerAction::Close => BreakerCommand::Closed,
        BreakerAction::Reset => BreakerCommand::Reset,
    };
    gateway.force_breaker(upstream, server, command).map_err(|error| match error {
        BreakerCommandError::UnknownUpstream { .. } | BreakerCommandError::UnknownServer { .. } => {
            BreakerError::Unknown { reason: error.to_string() }
        }
        BreakerCommandError::NoBreaker { .. } | BreakerCommandError::SharedBreaker { .. } => {
            BreakerError::NoBreaker { reason: error.to_string() }
        }
    })
}

fn upstream(status: &UpstreamStatus) -> Value {
    json!({
        "name": status.name,
        "retries": { "sent": status.retries, "remaining": status.retry_budget_left },
        "breaker": status.breaker.as_ref().map(breaker),
        "bulkhead": status.bulkhead.as_ref().map(bulkhead),
        "connections": status.connections.as_ref().map(bulkhead),
        "shed": status.shed.as_ref().map(|ShedStatus { limit, in_flight, rejected }| {
            json!({ "limit": limit, "in_flight": in_flight, "rejected": rejected })
        }),
        "servers": status.servers.iter().map(server).collect::<Vec<_>>(),
    })
}

fn server(status: &ServerStatus) -> Value {
    let lasts = status.last_failure.as_ref().and_then(|failure| failure.lasts);
    json!({
        "address": status.address,
        "healthy": status.is_healthy && lasts.is_none(),
        "last_failure": status.last_failure.as_ref().map(last_failure),
        "ejected_for": status.ejected_for.map(TimeSpan::as_secs_ceil),
        "breaker": status.breaker.as_ref().map(breaker),
        "in_flight": status.in_flight,
        "connections": status.connections,
    })
}

/// `failing_seconds` is since when requests fail, and `null` once the server has responded.
fn last_failure(failure: &OutageStatus) -> Value {
    let OutageStatus { cause, age, lasts, failures } = failure;
    let seconds = |span: TimeSpan| span.as_micros() / 1_000_000;
    json!({
        "cause": cause,
        "seconds_ago": seconds(*age),
        "failing_seconds": lasts.map(seconds),
        "failures": failures,
    })
}

/// `open_for` is the rest of the open time in seconds.
fn breaker(status: &BreakerStatus) -> Value {
    let is_open = status.state == BreakerState::Open;
    json!({
        "state": status.state.name(),
        "open_for": is_open.then(|| status.open_for.as_secs_ceil()),
        "consecutive_failures": status.consecutive_failures,
        "probes": status.probes,
        "opened": status.opened,
        "rejected": status.rejected,
    })
}

fn bulkhead(status: &BulkheadStatus) -> Value {
    let BulkheadStatus { in_use, waiting, limit, rejected } = status;
    json!({ "in_use": in_use, "limit": limit, "waiting": waiting, "rejected": rejected })
}
