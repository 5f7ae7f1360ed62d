//! Raises the limit of open files and derives the maximum number of client connections from it.
//!
//! A client connection uses one descriptor, and so does the upstream connection that serves it. If descriptors run out,
//! accepted clients cannot be served. Most clients are idle and upstream connections are shared, so a quarter of the
//! descriptors is reserved for upstream connections and the rest is for clients.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidegate_gateway::ResourceLimits;

/// Descriptors that the process and each of its workers need.
const RESERVED_PROCESS: usize = 32;
const RESERVED_PER_WORKER: usize = 8;

/// A lower maximum of client connections is logged as a warning.
const FEW_CONNECTIONS: usize = 5_000;

/// Raises the soft limit of open files to the hard limit and limits client connections accordingly.
pub(super) fn raise_and_derive(cores: usize) -> ResourceLimits {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, the current limit applies.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let open = getrlimit(Resource::Nofile)
        .current
        .map_or(usize::MAX, |open| usize::try_from(open).unwrap_or(usize::MAX));
    let defaults = ResourceLimits::default();
    let max_connections = max_connections(open, cores);
    let limits = ResourceLimits { connections: defaults.connections.min(max_connections), ..defaults };
    if max_connections < FEW_CONNECTIONS {
        tracing::warn!(
            event = "few_descriptors",
            "the limit of {open} open files allows only {max_connections} client connections; raise it with `ulimit -n` or \
             LimitNOFILE="
        );
    }
    limits
}

/// Divides the client connections between the gateway and the decision service, so that neither can use up the descriptors of
/// the other. Returns the limits of the gateway and the number of connections of the service.
pub(super) fn divide(
    limits: ResourceLimits,
    has_gateway: bool,
    has_service: bool,
) -> (ResourceLimits, usize) {
    match (has_gateway, has_service) {
        (true, true) => {
            let service = (limits.connections / 4).max(1);
            let connections = limits.connections.saturating_sub(service).max(1);
            (ResourceLimits { connections, ..limits }, service)
        }
        _ => (limits, limits.connections),
    }
}

/// The maximum number of client connections with `open` descriptors.
fn max_connections(open: usize, cores: usize) -> usize {
    let reserved = RESERVED_PROCESS.saturating_add(cores.saturating_mul(RESERVED_PER_WORKER));
    (open.saturating_sub(reserved) / 4).saturating_mul(3).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_divided_only_between_a_gateway_and_a_service() {
        let limits = ResourceLimits { connections: 1_000, ..ResourceLimits::default() };
        let divided = |gateway, service| {
            let (limits, service) = divide(limits, gateway, service);
            (limits.connections, service)
        };
        assert_eq!(divided(true, true), (750, 250));
        assert_eq!(divided(true, false).0, 1_000);
        assert_eq!(divided(false, true).1, 1_000);
    }

    #[test]
    fn max_connections_reserves_a_quarter_for_upstreams_and_is_at_least_one() {
        assert_eq!(max_connections(1_024, 2), 732);
        assert_eq!((max_connections(0, 1), max_connections(40, 1), max_connections(44, 1)), (1, 1, 3));
        assert!(max_connections(usize::MAX, usize::MAX) >= 1);
    }
}
