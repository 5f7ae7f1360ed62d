//! The scratches of a thread.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use super::Scratch;

/// More decisions at once, which wait for a store, allocate.
const MAX_KEPT: usize = 64;

/// Keeps the scratches of a thread between decisions.
#[derive(Debug, Default)]
pub struct ScratchPool(RefCell<Vec<Scratch>>);

impl ScratchPool {
    /// A scratch, until the returned value is dropped.
    pub fn take(&self) -> PooledScratch<'_> {
        let scratch = self.0.borrow_mut().pop().unwrap_or_default();
        PooledScratch { pool: self, scratch }
    }
}

/// A scratch that returns to its pool.
#[derive(Debug)]
pub struct PooledScratch<'p> {
    pool: &'p ScratchPool,
    scratch: Scratch,
}

impl Deref for PooledScratch<'_> {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        &self.scratch
    }
}

impl DerefMut for PooledScratch<'_> {
    fn deref_mut(&mut self) -> &mut Scratch {
        &mut self.scratch
    }
}

impl Drop for PooledScratch<'_> {
    fn drop(&mut self) {
        let mut kept = self.pool.0.borrow_mut();
        if kept.len() < MAX_KEPT {
            kept.push(std::mem::take(&mut self.scratch));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratches_of_many_decisions_at_once_are_not_all_kept() {
        let pool = ScratchPool::default();
        let scratches: Vec<_> = (0..2 * MAX_KEPT).map(|_| pool.take()).collect();
        drop(scratches);
        assert_eq!(pool.0.borrow().len(), MAX_KEPT);
    }
}
