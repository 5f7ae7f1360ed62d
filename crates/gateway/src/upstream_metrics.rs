//! The metrics of breakers, retries, bulkheads, load shedding and ejections.

use tidegate_core::{BreakerState, BreakerStatus};
use tidegate_telemetry::{Exposition, Family};

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
    let mut family =
        page.gauge("tidegate_breaker_state", "1 for the state that the circuit breaker is in, otherwise 0.");
    for (upstream, server, breaker) in breakers(upstreams) {
        for state in BreakerState::ALL {
            let labels = [("upstream", upstream), ("server", server), ("state", state.name())];
            family.sample(&labels, u8::from(breaker.state == state));
        }
    }
    let mut family =
        page.counter("tidegate_breaker_opened_total", "How often the circuit breaker has opened.");
    for (upstream, server, breaker) in breakers(upstreams) {
        family.sample(&[("upstream", upstream), ("server", server)], breaker.opened);
    }
}

fn write_retries(page: &mut Exposition, upstreams: &[UpstreamStatus]) {
    let mut family = page.counter("tidegate_retries_total", "Retries sent to the upstream.");
    for upstream in upstreams {
        family.sample(&[("upstream", &upstream.name)], upstream.retries);
    }
    let mut family =
        page.gauge("tidegate_retry_budget_remaining", "Retries that the budget of the upstream allows now.");
    for upstream in upstreams {
        family.sample(&[("upstream", &upstream.name)], upstream.retry_budget_left);
    }
}

fn write_ejections(page: &mut Exposition, upstreams: &[UpstreamStatus]) {
    let mut family = page.gauge(
        "tidegate_upstream_ejected",
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
    let write = |mut family: Family<'_>, value: &dyn Fn(&BulkheadStatus) -> u64| {
        for (upstream, route, bulkhead) in each() {
            family.sample(&[("upstream", upstream), ("route", route)], value(&bulkhead));
        }
    };
    let help = "Requests that hold a permit of the bulkhead.";
    write(page.gauge("tidegate_bulkhead_in_use", help), &|status| status.in_use as u64);
    let help = "The most requests that may hold a permit of the bulkhead.";
    write(page.gauge("tidegate_bulkhead_limit", help), &|status| status.limit as u64);
    let help = "Requests that wait for a permit of the bulkhead.";
    write(page.gauge("tidegate_bulkhead_waiting", help), &|status| status.waiting as u64);
    let help = "Requests that the bulkhead has rejected.";
    write(page.counter("tidegate_bulkhead_rejected_total", help), &|status| status.rejected);
}

fn write_shedding(page: &mut Exposition, upstreams: &[UpstreamStatus]) {
    let each = || upstreams.iter().filter_map(|upstream| Some((&*upstream.name, upstream.shed?)));
    let write = |mut family: Family<'_>, value: &dyn Fn(&ShedStatus) -> u64| {
        for (upstream, shed) in each() {
            family.sample(&[("upstream", upstream)], value(&shed));
        }
    };
    let help = "The adaptive concurrency limit of the upstream.";
    write(page.gauge("tidegate_shed_limit", help), &|status| status.limit);
    let help = "Requests in flight under the adaptive concurrency limit.";
    write(page.gauge("tidegate_shed_in_flight", help), &|status| status.in_flight);
    let help = "Requests rejected because the upstream is overloaded.";
    write(page.counter("tidegate_shed_rejected_total", help), &|status| status.rejected);
}
