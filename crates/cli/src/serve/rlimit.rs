//! How many files may be open, and so how many clients there is room for.
//!
//! A client takes a descriptor, and so does the connection to the service that answers it. Where they run out, clients
//! that were let in could not be served. Most clients are idle most of the time, and connections to services are
//! kept and shared: a quarter is for those, and no more clients are let in than the rest has room for.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidegate_gateway::ResourceLimits;

/// What the process itself needs, and what each of its cores does.
const OWN: usize = 32;
const OF_A_CORE: usize = 8;

/// Room for fewer clients than this is worth a word.
const FEW: usize = 5_000;

/// Raises what may be open to what is allowed, and bounds the clients by it. Says so if they are few.
pub(super) fn fitting(cores: usize) -> ResourceLimits {
    let limit = getrlimit(Resource::Nofile);
    // What cannot be raised stays as it is.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let open = getrlimit(Resource::Nofile)
        .current
        .map_or(usize::MAX, |open| usize::try_from(open).unwrap_or(usize::MAX));
    let usual = ResourceLimits::default();
    let room = room(open, cores);
    let bounds = ResourceLimits { connections: usual.connections.min(room), ..usual };
    if room < FEW {
        tracing::warn!(
            event = "few_descriptors",
            "only {open} files may be open at once, which is room for {room} clients; raise it with `ulimit -n` or \
             LimitNOFILE="
        );
    }
    bounds
}

/// How many clients can be served with so many descriptors.
fn room(open: usize, cores: usize) -> usize {
    let own = OWN.saturating_add(cores.saturating_mul(OF_A_CORE));
    (open.saturating_sub(own) / 4).saturating_mul(3).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_is_for_services_and_there_is_always_room_for_one() {
        assert_eq!(room(1_024, 2), 732);
        assert_eq!((room(0, 1), room(40, 1), room(44, 1)), (1, 1, 3));
        assert!(room(usize::MAX, usize::MAX) >= 1);
    }
}
