//! Charges a body as its bytes arrive.

use std::fmt;
use std::sync::Arc;

use tidegate_core::Cost;

use super::part::ChargedPart;
use super::settlement::ChargedStore;

/// A body of unknown length is charged in steps of this many units: few enough that a client cannot exceed a limit by much
/// with an endless body, enough that not every frame needs a store call.
const UNITS_PER_CHARGE: u64 = 64;

/// The parts of a charge that the bytes of a body settle, in either direction. Dropping it charges the rest.
#[must_use]
pub struct ChargeMeter {
    store: Arc<dyn ChargedStore>,
    /// How much of each part has been charged.
    open: Vec<(Cost, Arc<ChargedPart>)>,
    bytes: u64,
}

impl fmt::Debug for ChargeMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChargeMeter").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl ChargeMeter {
    pub(super) fn new(store: Arc<dyn ChargedStore>, parts: Vec<ChargedPart>) -> Self {
        let open = parts.into_iter().map(|part| (part.cost, Arc::new(part))).collect();
        Self { store, open, bytes: 0 }
    }

    /// Adds received bytes.
    pub fn add(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        self.charge(UNITS_PER_CHARGE);
    }

    /// Charges the units since the last charge, if there are at least `at_least`.
    fn charge(&mut self, at_least: u64) {
        for (charged, part) in &mut self.open {
            let cost = part.cost_by_body(self.bytes);
            let more = cost.get().saturating_sub(charged.get());
            if more >= at_least {
                // Without a runtime the process is ending.
                let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
                *charged = cost;
                runtime.spawn(Arc::clone(&self.store).add(Arc::clone(part), Cost::new(more)));
            }
        }
    }
}

impl Drop for ChargeMeter {
    fn drop(&mut self) {
        self.charge(1);
    }
}
