//! The state of a breaker in one word: kind, generation, payload.

use super::BreakerState;
use crate::time::Timestamp;

const PAYLOAD_BITS: u32 = 42;
const PAYLOAD_MAX: u64 = (1 << PAYLOAD_BITS) - 1;
const GENERATION_MAX: u64 = (1 << 19) - 1;
const KIND_SHIFT: u32 = 61;
pub(super) const MICROS_PER_MILLI: u64 = 1_000;

/// The word of a breaker, unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StateWord {
    pub(super) state: BreakerState,
    pub(super) generation: u64,
    /// Closed: failures in a row. Open: the end of the open time in milliseconds. Half-open: successful probes.
    pub(super) payload: u64,
}

impl StateWord {
    pub(super) fn unpack(word: u64) -> Self {
        let state = match word >> KIND_SHIFT {
            0 => BreakerState::Closed,
            1 => BreakerState::Open,
            2 => BreakerState::HalfOpen,
            3 => BreakerState::ForcedClosed,
            _ => BreakerState::ForcedOpen,
        };
        let generation = (word >> PAYLOAD_BITS) & GENERATION_MAX;
        Self { state, generation, payload: word & PAYLOAD_MAX }
    }

    pub(super) fn pack(self) -> u64 {
        let kind = match self.state {
            BreakerState::Closed => 0_u64,
            BreakerState::Open => 1,
            BreakerState::HalfOpen => 2,
            BreakerState::ForcedClosed => 3,
            BreakerState::ForcedOpen => 4,
        };
        (kind << KIND_SHIFT) | (self.generation << PAYLOAD_BITS) | self.payload.min(PAYLOAD_MAX)
    }

    pub(super) const fn with_payload(self, payload: u64) -> Self {
        Self { payload, ..self }
    }

    /// The next generation, in another state.
    pub(super) const fn becomes(self, state: BreakerState, payload: u64) -> Self {
        Self { state, generation: self.generation.wrapping_add(1) & GENERATION_MAX, payload }
    }

    pub(super) const fn open_until(self) -> Timestamp {
        Timestamp::from_micros(self.payload.saturating_mul(MICROS_PER_MILLI))
    }
}
