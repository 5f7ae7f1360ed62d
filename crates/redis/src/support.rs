//! Which limits each coordination supports.

use tidegate_core::{Algorithm, Coordination};

/// Whether nodes can share a limit with this algorithm in this way. A lease and an exchange of counts add up units, which needs
/// a counter that is a number of units; the others keep when requests were, or are scheduled.
pub(crate) const fn supports(coordination: Coordination, algorithm: Algorithm) -> bool {
    match coordination {
        Coordination::Central | Coordination::Static => true,
        Coordination::Lease | Coordination::Sync => match algorithm {
            Algorithm::TokenBucket | Algorithm::FixedWindow | Algorithm::SlidingCounter => true,
            Algorithm::LeakyBucket | Algorithm::SlidingLog => false,
        },
    }
}
