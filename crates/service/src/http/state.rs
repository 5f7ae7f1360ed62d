//! What the HTTP connections of a worker share.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use tidegate_headers::HeaderValueCache;
use tidegate_policy::Scratch;

use crate::reservations::ReservationTable;

/// The most requests that a worker delays at once.
const MAX_DELAYED: usize = 1_000;
/// The most buffers that are kept: only decisions that wait for a store need several at once.
const MAX_SCRATCHES: usize = 16;

/// The state of a worker for its HTTP connections.
#[derive(Debug)]
pub(crate) struct HttpState {
    pub(super) header_values: RefCell<HeaderValueCache>,
    pub(super) reservations: Arc<ReservationTable>,
    scratches: RefCell<Vec<Scratch>>,
    delayed: Cell<usize>,
}

impl HttpState {
    pub(crate) fn new(reservations: Arc<ReservationTable>) -> Self {
        Self {
            header_values: RefCell::default(),
            reservations,
            scratches: RefCell::default(),
            delayed: Cell::new(0),
        }
    }

    /// Takes the buffers for a decision from the pool.
    pub(super) fn scratch(&self) -> SharedScratch<'_> {
        let scratch = self.scratches.borrow_mut().pop().unwrap_or_default();
        SharedScratch { pool: &self.scratches, scratch }
    }

    /// A slot for a delayed request; `None` if all are taken.
    pub(super) fn delay_slot(&self) -> Option<DelaySlot<'_>> {
        let delayed = self.delayed.get();
        (delayed < MAX_DELAYED).then(|| {
            self.delayed.set(delayed + 1);
            DelaySlot(&self.delayed)
        })
    }
}

/// Buffers for a decision, returned to the pool on drop.
#[derive(Debug)]
pub(super) struct SharedScratch<'s> {
    pool: &'s RefCell<Vec<Scratch>>,
    scratch: Scratch,
}

impl Deref for SharedScratch<'_> {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        &self.scratch
    }
}

impl DerefMut for SharedScratch<'_> {
    fn deref_mut(&mut self) -> &mut Scratch {
        &mut self.scratch
    }
}

impl Drop for SharedScratch<'_> {
    fn drop(&mut self) {
        let mut pool = self.pool.borrow_mut();
        if pool.len() < MAX_SCRATCHES {
            pool.push(std::mem::take(&mut self.scratch));
        }
    }
}

/// The slot of a delayed request, returned on drop.
#[derive(Debug)]
pub(super) struct DelaySlot<'s>(&'s Cell<usize>);

impl Drop for DelaySlot<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratches_of_many_decisions_at_once_are_not_all_kept() {
        let state = HttpState::new(Arc::default());
        let scratches: Vec<_> = (0..100).map(|_| state.scratch()).collect();
        drop(scratches);
        assert_eq!(state.scratches.borrow().len(), MAX_SCRATCHES);
    }

    #[test]
    fn delay_slots_are_bounded_and_returned() {
        let state = HttpState::new(Arc::default());
        let slots: Vec<_> = (0..MAX_DELAYED).map_while(|_| state.delay_slot()).collect();
        assert_eq!(slots.len(), MAX_DELAYED);
        assert!(state.delay_slot().is_none());
        drop(slots);
        assert!(state.delay_slot().is_some());
    }
}
