//! What a token bucket lends beyond its burst.
//!
//! Up to the burst a unit takes a unit of the bucket. Beyond it each unit takes `repay` units, so the bucket takes longer to
//! be full again. The state is the same as without lending: the fill level says how much is borrowed. All amounts are
//! subunits.

use core::num::NonZeroU64;

/// Units that a token bucket lends beyond its burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Borrow {
    /// How many units.
    pub units: u64,
    /// How many units each of them costs.
    pub repay: u64,
}

/// The shape of a bucket that lends: the fill level as a function of the units that were spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lending {
    /// The level from which on units are borrowed.
    own: u64,
    /// What can be borrowed.
    lent: u64,
    repay: NonZeroU64,
}

impl Lending {
    /// The terms of a bucket with this burst. None of its products overflows if those of a bucket of `burst + units × repay` do
    /// not.
    pub(crate) fn new(burst: u64, borrow: Borrow, unit: NonZeroU64) -> Option<Self> {
        let own = burst.checked_mul(unit.get())?;
        let lent = borrow.units.checked_mul(unit.get())?;
        Some(Self { own, lent, repay: NonZeroU64::new(borrow.repay)? })
    }

    /// The terms as the operator wrote them.
    pub(crate) fn borrow(&self, unit: NonZeroU64) -> Borrow {
        Borrow { units: self.lent / unit, repay: self.repay.get() }
    }

    /// The level of a bucket of which `spent` was spent.
    pub(crate) fn level_of(&self, spent: u64) -> u64 {
        self.after(0, spent)
    }

    /// What was spent of a bucket with this level, rounded up.
    pub(crate) fn spent(&self, level: u64) -> u64 {
        let borrowed = level.saturating_sub(self.own).div_ceil(self.repay.get());
        level.min(self.own).saturating_add(borrowed)
    }

    /// What can still be spent at this level, rounded down.
    pub(crate) fn left(&self, level: u64) -> u64 {
        self.own.saturating_add(self.lent).saturating_sub(self.spent(level))
    }

    /// The level after `amount` was spent at `level`.
    pub(crate) fn after(&self, level: u64, amount: u64) -> u64 {
        let own = self.own.saturating_sub(level).min(amount);
        let borrowed = amount.saturating_sub(own).saturating_mul(self.repay.get());
        level.saturating_add(own).saturating_add(borrowed)
    }

    /// The largest level at which `amount` can be spent; `None` if it never can.
    pub(crate) fn room_for(&self, amount: u64) -> Option<u64> {
        match self.lent.checked_sub(amount) {
            Some(rest) => Some(self.after(self.own, rest)),
            None => self.own.saturating_add(self.lent).checked_sub(amount),
        }
    }

    /// The level without `amount`, rounded up. What was borrowed is given back first.
    pub(crate) fn without(&self, level: u64, amount: u64) -> u64 {
        let debt = level.saturating_sub(self.own);
        match debt.checked_sub(amount.saturating_mul(self.repay.get())) {
            Some(rest) if debt > 0 => self.own.saturating_add(rest),
            _ => self.spent(level).saturating_sub(amount),
        }
    }
}
