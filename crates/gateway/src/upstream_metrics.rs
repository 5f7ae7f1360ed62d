//! The metrics of breakers, retries, bulkheads, load shedding and ejections.

use tidegate_core::{BreakerState, BreakerStatus};
use tidegate_telemetry::{Exposition, MetricKind};

use crate::status::{BulkheadStatus, RouteStatus, ShedStatus, UpstreamStatus};

/// Writes the metrics of all upstreams.
pub(crate) fn write(page: &mut Exposition, upstreams: &[UpstreamStatus], routes: &[RouteStatus]) {
    write_breakers(page, upstreams);
    write_retries(page, upstreams);
    write_ejections(page, upstreams);
    write_bulkheads(page, upstreams, routes);
    write_shedding(page, upstreams);
}

/// Every breaker with its upstream and server; a breaker of all servers has an empty server.
fn breakers(upstreams: &[UpstreamStatus]) -> impl Iterator<Item = (&str, &str, &BreakerStatus)> {
    upstreams.iter().flat_map(|upstream| {
        let shared = upstream.breaker.iter().map(|breaker| ("", breaker));
        let own =
            upstream.servers.iter().filter_map(|server| Some((&*server.address, server.breaker.as_ref()?)));
        shared.chain(own).map(|(server, breaker)| (&*upstream.name, server, breaker))
    })
}

fn write_breakers(page: &mut Exposition, upstreams: &[UpstreamStatus]) {
    let mut family = page.family(
        "tidegate_breaker_state",
        MetricKind::Gauge,
        "1 for the state that the circuit breaker is in, otherwise 0.",
    );
    for (upstream, server, breaker) in breakers(upstreams) {
        for state in BreakerState::ALL {
            let labels = [("upstream", upstream), ("server", server), ("state", state.name())];
            family.sample(&labels, u8::from(breaker.state == state));
        }
    }
    let mut family = page.family(
        "tidegate_breaker_opened_total",
        MetricKind::Counter,
        "How often the circuit breaker has opened.",
    );
    for (upstream, server, breaker) in breakers(upstreams) {
        family.sample(&[("upstream", upstream), ("server", server)], breaker.opened);
    }
}

fn write_retries(page: &mut Exposition, upstreams: &[UpstreamStatus]) {
    let mut family =
        page.family("tidegate_retries_total", MetricKind::Counter, "Retries sent to the upstream.");
    for upstream in upstreams {
        family.sample(&[("upstream", &upstream.name)], upstream.retries);
    }
    let mut family = page.family(
        "tidegate_retry_budget_remaining",
        MetricKind::Gauge,
        "Retries that the budget of the upstream allows now.",
    );
    for upstream in upstreams {
        family.sample(&[("upstream", &upstream.name)], upstream.retry_budget_left);
    }
}

fn write_ejections(page: &mut Exposition, upstreams: &[UpstreamStatus]) {
    let mut family = page.family(
        "tidegate_upstream_ejected",
        MetricKind::Gauge,
        "1 if the server gets no requests because it failed, otherwise 0.",
    );
    for upstream in upstreams {
        for server in &upstream.servers {
            let labels = [("upstream", &*upstream.name), ("server", &*server.address)];
            family.sample(&labels, u8::from(server.ejected_for.is_some()));
        }
    }
}

/// Every bulkhead with its upstream and route; one of the two is empty.
fn write_bulkheads(page: &mut Exposition, upstreams: &[UpstreamStatus], routes: &[RouteStatus]) {
    let each = || {
        let of_upstreams =
            upstreams.iter().filter_map(|upstream| Some((&*upstream.name, "", upstream.bulkhead?)));
        of_upstreams.chain(routes.iter().map(|route| ("", &*route.route, route.bulkhead)))
    };
    let mut write = |name, kind, help, value: &dyn Fn(&BulkheadStatus) -> u64| {
        let mut family = page.family(name, kind, help);
        for (upstream, route, bulkhead) in each() {
            family.sample(&[("upstream", upstream), ("route", route)], value(&bulkhead));
        }
    };
    let help = "Requests that hold a permit of the bulkhead.";
    write("tidegate_bulkhead_in_use", MetricKind::Gauge, help, &|status| status.in_use as u64);
    let help = "The most requests that may hold a permit of the bulkhead.";
    write("tidegate_bulkhead_limit", MetricKind::Gauge, help, &|status| status.limit as u64);
    let help = "Requests that wait for a permit of the bulkhead.";
    write("tidegate_bulkhead_waiting", MetricKind::Gauge, help, &|status| status.waiting as u64);
    let help = "Requests that the bulkhead has rejected.";
    write("tidegate_bulkhead_rejected_total", MetricKind::Counter, help, &|status| status.rejected);
}

fn write_shedding(page: &mut Exposition, upstreams: &[UpstreamStatus]) {
    let each = || upstreams.iter().filter_map(|upstream| Some((&*upstream.name, upstream.shed?)));
    let mut write = |name, kind, help, value: &dyn Fn(&ShedStatus) -> u64| {
        let mut family = page.family(name, kind, help);
        for (upstream, shed) in each() {
            family.sample(&[("upstream", upstream)], value(&shed));
        }
    };
    let help = "The adaptive concurrency limit of the upstream.";
    write("tidegate_shed_limit", MetricKind::Gauge, help, &|status| status.limit);
    let help = "Requests in flight under the adaptive concurrency limit.";
    write("tidegate_shed_in_flight", MetricKind::Gauge, help, &|status| status.in_flight);
    let help = "Requests rejected because the upstream is overloaded.";
    write("tidegate_shed_rejected_total", MetricKind::Counter, help, &|status| status.rejected);
}
