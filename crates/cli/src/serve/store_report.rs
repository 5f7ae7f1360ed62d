//! The state of the shared store: metrics, status and log events.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_core::TimeSpan;
use tidegate_redis::{
    BATCH_BOUNDS, LATENCY_BOUNDS, LeaseReport, LinkReport, RedisStore, StoreReport, SyncReport,
};
use tidegate_telemetry::Exposition;

/// How often the state is compared with the one before, for the log.
const LOG_INTERVAL: Duration = Duration::from_millis(200);
/// A start without Redis is logged after this time: a connection takes a moment.
const START_GRACE: u32 = 5;

/// Writes the metrics of the shared store.
pub(super) fn write_metrics(page: &mut Exposition, store: &RedisStore) {
    let report = store.report();
    write_link(page, &report.link);
    let mut modes = page.gauge("tidegate_store_mode", "1 for the current mode, else 0.");
    for (mode, is_current) in [("normal", !report.is_in_fallback), ("fallback", report.is_in_fallback)] {
        modes.sample(&[("mode", mode)], u8::from(is_current));
    }
    let help = "Time in which Redis failed and the failure modes of the rules decided.";
    page.counter("tidegate_store_fallback_seconds_total", help)
        .value(seconds(report.fallback_time.as_micros()));
    let help = "Decisions while Redis failed, by failure mode.";
    let mut decisions = page.counter("tidegate_store_fallback_decisions_total", help);
    let by_mode = report.fallback_decisions;
    for (mode, count) in [("local", by_mode.local), ("allow", by_mode.allow), ("deny", by_mode.deny)] {
        decisions.sample(&[("mode", mode)], count);
    }
    let help = "Units admitted while Redis failed that were charged when it returned.";
    page.counter("tidegate_store_fallback_units_charged_total", help).value(report.fallback_units_charged);
    let help = "Units admitted while Redis failed of which it is unknown whether they were charged later.";
    page.counter("tidegate_store_fallback_units_uncharged_total", help)
        .value(report.fallback_units_uncharged);
    page.gauge("tidegate_store_nodes", "Live nodes that share the limits, as this node knows them.")
        .value(report.nodes);
    let help = "Live nodes whose secret differs, so that they share no limits with this node.";
    page.gauge("tidegate_store_nodes_with_other_secret", help).value(report.nodes_with_other_secret);
    page.counter("tidegate_store_lost_writes_total", "How often Redis was found to have lost writes.")
        .value(report.lost_writes);
    let help = "Rejections that were repeated without asking Redis.";
    page.counter("tidegate_store_cached_rejections_total", help).value(report.cached_rejections_served);
    page.gauge("tidegate_store_cached_rejections", "Counters whose rejection is cached.")
        .value(report.cached_rejections);
    write_leases(page, report.lease);
    write_sync(page, report.sync);
}

/// Writes the metrics of `coordination: sync`.
fn write_sync(page: &mut Exposition, sync: SyncReport) {
    let help =
        "The most units beyond a limit that all nodes can admit: (nodes - 1) x the most units per interval.";
    page.gauge("tidegate_store_overshoot_bound", help).value(sync.overshoot_bound);
    let help = "The most units beyond a limit that an exchange of counts found.";
    page.gauge("tidegate_store_overshoot_measured", help).value(sync.largest_overshoot);
    page.counter("tidegate_store_overshoot_total", "Units beyond limits that this node admitted.")
        .value(sync.total_overshoot);
    page.counter("tidegate_store_sync_failures_total", "Exchanges of counts that failed.")
        .value(sync.failed_exchanges);
}

/// Writes the metrics of `coordination: lease`.
fn write_leases(page: &mut Exposition, leases: LeaseReport) {
    page.gauge("tidegate_store_leases", "Counters of which this node has leased units to spend.")
        .value(leases.counters);
    page.gauge("tidegate_store_leased_units", "Leased units that this node can spend without asking Redis.")
        .value(leases.units);
    page.counter("tidegate_store_lease_grants_total", "Blocks of units that Redis granted to this node.")
        .value(leases.grants);
    let help = "Leases that expired before they were settled; their units count as spent.";
    page.counter("tidegate_store_leases_expired_total", help).value(leases.expired);
}

/// Writes the metrics of the connection.
fn write_link(page: &mut Exposition, link: &LinkReport) {
    let help = "Failed attempts to connect to Redis, lost connections and calls without a reply in time.";
    let errors = link.connection_errors + link.timeouts;
    page.counter("redis_connection_errors", help).value(errors);
    let help = "Time that decisions waited for Redis, in seconds.";
    let bounds = LATENCY_BOUNDS.map(seconds);
    let sum = seconds(link.latency_micros);
    page.histogram("tidegate_store_latency_seconds", help).buckets(&bounds, &link.latency, sum);
    let help = "Operations that one script call carried.";
    #[expect(clippy::cast_precision_loss, reason = "a sum of counts need not be exact")]
    let (bounds, sum) = (BATCH_BOUNDS.map(|bound| bound as f64), link.operations as f64);
    page.histogram("tidegate_store_batch_size", help).buckets(&bounds, &link.batch_sizes, sum);
    page.counter("tidegate_store_timeouts_total", "Calls to Redis without a reply within the timeout.")
        .value(link.timeouts);
    let help =
        "Calls that Redis did not execute and that were sent again: failover, reshard, unknown script.";
    page.counter("tidegate_store_retries_total", help).value(link.retries);
    page.counter("tidegate_store_error_replies_total", "Calls that Redis answered with an error.")
        .value(link.error_replies);
    page.gauge("tidegate_store_servers", "Servers of Redis that are in use.").value(link.servers);
    let help = "Servers of Redis that are considered failed: their circuit breaker is open.";
    page.gauge("tidegate_store_servers_failed", help).value(link.servers_open);
}

#[expect(clippy::cast_precision_loss, reason = "a duration need not be exact")]
fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

/// A duration in whole seconds, or in milliseconds if it is short.
fn readable(micros: u64) -> TimeSpan {
    let unit = if micros < 1_000_000 { 1_000 } else { 1_000_000 };
    TimeSpan::from_micros(micros - micros % unit)
}

/// The state for `/v1/status`.
pub(super) fn status(store: &RedisStore, url: &str) -> Value {
    let report = store.report();
    let link = &report.link;
    json!({
        "url": url,
        "available": store.is_available(),
        "mode": mode(&report),
        "nodes": report.nodes,
        "nodes_with_other_secret": report.nodes_with_other_secret,
        "fallback_seconds": seconds(report.fallback_time.as_micros()),
        "lost_writes": report.lost_writes,
        "connection_errors": link.connection_errors + link.timeouts,
        "error_replies": link.error_replies,
        "last_error": link.last_error_reply.as_ref().map(|error| {
            json!({ "text": error.text, "seconds_ago": error.age.as_micros() / 1_000_000 })
        }),
    })
}

fn mode(report: &StoreReport) -> &'static str {
    if report.is_in_fallback { "fallback" } else { "normal" }
}

/// Logs when Redis fails and when it works again, until the runtime is dropped.
pub(super) async fn log_changes(store: RedisStore, url: String) {
    let mut ticks = tokio::time::interval(LOG_INTERVAL);
    let mut was_available = None;
    let mut grace = START_GRACE;
    let mut fallback = TimeSpan::ZERO;
    loop {
        ticks.tick().await;
        let link = store.report().link;
        let is_available = match was_available {
            // A lost connection is made again at once; a failure opens the breaker.
            Some(true) => store.is_available() && link.servers > link.servers_open,
            // Only a server that has answered works.
            None | Some(false) => link.servers_connected > 0,
        };
        if was_available.is_none() && !is_available && grace > 0 {
            grace -= 1;
            continue;
        }
        match (was_available, is_available) {
            (None, true) => {
                tracing::info!(event = "store_available", "limits are shared through {url}");
            }
            (Some(false), true) => {
                let total = store.report().fallback_time;
                let lasted = readable(total.as_micros().saturating_sub(fallback.as_micros()));
                tracing::info!(event = "store_available", "{url} works again; fallback lasted {lasted}");
                fallback = total;
            }
            (None | Some(true), false) => {
                tracing::warn!(
                    event = "store_unavailable",
                    "{url} does not work; limits are enforced as `on_store_failure` says until it does"
                );
            }
            (Some(true), true) | (Some(false), false) => {}
        }
        was_available = Some(is_available);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_in_a_message_is_in_seconds_or_milliseconds() {
        let texts = [43_183_574, 999_999, 60_000_001].map(|micros| readable(micros).to_string());
        assert_eq!(texts, ["43s", "999ms", "1m"]);
    }
}
