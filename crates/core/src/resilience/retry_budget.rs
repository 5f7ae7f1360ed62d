//! A retry budget: retries stay a small share of requests, so that they cannot multiply the load on a failing service.
//!
//! Requests and retries of the last ten seconds are counted in slots of one second. A retry is allowed while retries are
//! below `share` of the requests. Beyond that, `min_per_second` retries are allowed in each second, so that a caller with
//! little traffic can retry too.
//!
//! Law: over all time there are at most `share × requests + min_per_second × seconds` retries, and the retries of any ten
//! slots are paid by the requests of these and the nine slots before, on every interleaving. A retry is counted first and
//! then compared with the sums; if it does not fit, it is taken back. So retries at the same instant may reject each
//! other, but together they never exceed the budget.

use super::atomic::{AtomicU64, Ordering};
use super::ratio::Ratio;
use super::slots::{SlotCounts, TimeSlot};
use crate::time::Timestamp;

/// The window of a budget, in slots of one second. Under loom it is small, so that all interleavings can be tried.
const WINDOW_SLOTS: u64 = if cfg!(loom) { 2 } else { 10 };
/// A power of two above the window, so that a slot is not reused while it is in the window.
const RING_SLOTS: usize = 16;
const MICROS_PER_SLOT: u64 = 1_000_000;

/// Limits retries to a share of requests. Shared by all callers of one service.
#[derive(Debug)]
pub struct RetryBudget {
    share: Ratio,
    min_per_second: u32,
    /// Requests and the retries that are paid by them.
    slots: [TimeSlot; RING_SLOTS],
    /// The retries of the current second that are not paid by requests.
    minimum: TimeSlot,
    /// The latest second of any retry. A caller with an earlier time counts in this one, because sums do not look ahead.
    latest: AtomicU64,
}

/// A retry that was allowed. [`RetryBudget::refund`] returns it if the retry is not sent.
#[derive(Debug)]
#[must_use]
pub struct RetryGrant {
    second: u64,
    is_minimum: bool,
}

impl RetryBudget {
    /// The default share of requests.
    pub const SHARE: Ratio = Ratio::from_percent(10);
    /// The default number of retries per second that need no requests.
    pub const MIN_PER_SECOND: u32 = 10;

    /// Retries up to `share` of the requests, plus `min_per_second`.
    pub fn new(share: Ratio, min_per_second: u32) -> Self {
        Self {
            share,
            min_per_second,
            slots: core::array::from_fn(|_| TimeSlot::default()),
            minimum: TimeSlot::default(),
            latest: AtomicU64::new(0),
        }
    }

    /// The share of requests.
    pub const fn share(&self) -> Ratio {
        self.share
    }

    /// The retries per second that need no requests.
    pub const fn min_per_second(&self) -> u32 {
        self.min_per_second
    }

    /// Counts a request. Retries are not counted as requests.
    pub fn record_request(&self, now: Timestamp) {
        let second = second_of(now);
        self.slot(second).add(second, SlotCounts::FIRST);
    }

    /// Allows one retry, if the budget has one left.
    pub fn try_withdraw(&self, now: Timestamp) -> Option<RetryGrant> {
        let mut second = second_of(now);
        loop {
            second = self.latest.fetch_max(second, Ordering::AcqRel).max(second);
            let slot = self.slot(second);
            if !slot.add(second, SlotCounts::SECOND) {
                return None;
            }
            // A retry in a later second may not have seen this one, so this one must see it.
            let latest = self.latest.fetch_max(0, Ordering::AcqRel);
            if latest != second {
                slot.take_second(second);
                continue;
            }
            let sum = self.sum(second, TimeSlot::counts_in_order);
            if sum.second <= self.share.of(sum.first) {
                return Some(RetryGrant { second, is_minimum: false });
            }
            slot.take_second(second);
            let is_minimum = self.minimum.try_add_second(second, u64::from(self.min_per_second));
            return is_minimum.then_some(RetryGrant { second, is_minimum: true });
        }
    }

    /// Returns a retry that was not sent.
    #[expect(clippy::needless_pass_by_value, reason = "a grant is used once")]
    pub fn refund(&self, grant: RetryGrant) {
        let RetryGrant { second, is_minimum } = grant;
        let slot = if is_minimum { &self.minimum } else { self.slot(second) };
        slot.take_second(second);
    }

    /// The retries that are allowed at `now`.
    pub fn remaining(&self, now: Timestamp) -> u64 {
        let second = second_of(now);
        let sum = self.sum(second, TimeSlot::counts);
        let paid = self.share.of(sum.first).saturating_sub(sum.second);
        let minimum = u64::from(self.min_per_second).saturating_sub(self.minimum.counts(second).second);
        paid.saturating_add(minimum)
    }

    fn sum(&self, second: u64, read: impl Fn(&TimeSlot, u64) -> SlotCounts) -> SlotCounts {
        let oldest = second.saturating_sub(WINDOW_SLOTS.saturating_sub(1));
        (oldest..=second).fold(SlotCounts::default(), |sum, second| sum.plus(read(self.slot(second), second)))
    }

    #[expect(clippy::indexing_slicing, reason = "the remainder is below the length")]
    fn slot(&self, second: u64) -> &TimeSlot {
        &self.slots[usize::try_from(second).unwrap_or_default() % RING_SLOTS]
    }
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self::new(Self::SHARE, Self::MIN_PER_SECOND)
    }
}

const fn second_of(now: Timestamp) -> u64 {
    now.as_micros() / MICROS_PER_SLOT
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::TimeSpan;

    const START: Timestamp = Timestamp::from_secs(1_700_000_000);

    fn withdraw_all(budget: &RetryBudget, now: Timestamp) -> usize {
        (0..100_000).map_while(|_| budget.try_withdraw(now)).count()
    }

    #[test]
    fn budget_of_a_thousand_requests_allows_a_hundred_retries_plus_the_minimum() {
        let budget = RetryBudget::default();
        for _ in 0..1_000 {
            budget.record_request(START);
        }
        assert_eq!(budget.remaining(START), 110);
        assert_eq!(withdraw_all(&budget, START), 110);
        assert_eq!(budget.remaining(START), 0);
        let next = START + TimeSpan::from_secs(1);
        assert_eq!(withdraw_all(&budget, next), 10, "only the minimum of the next second");
    }

    #[test]
    fn budget_forgets_requests_and_retries_after_its_window() {
        let budget = RetryBudget::new(RetryBudget::SHARE, 0);
        for _ in 0..100 {
            budget.record_request(START);
        }
        assert_eq!(withdraw_all(&budget, START + TimeSpan::from_secs(9)), 10);
        assert_eq!(withdraw_all(&budget, START + TimeSpan::from_secs(10)), 0);
    }

    #[test]
    fn budget_without_requests_allows_only_the_minimum() {
        assert_eq!(withdraw_all(&RetryBudget::default(), START), 10);
        assert_eq!(withdraw_all(&RetryBudget::new(Ratio::ONE, 0), START), 0);
    }

    #[test]
    fn refunded_grant_can_be_withdrawn_again() {
        let budget = RetryBudget::new(RetryBudget::SHARE, 1);
        for _ in 0..10 {
            budget.record_request(START);
        }
        let [first, second] = [budget.try_withdraw(START).unwrap(), budget.try_withdraw(START).unwrap()];
        assert!(budget.try_withdraw(START).is_none());
        budget.refund(first);
        budget.refund(second);
        assert_eq!(withdraw_all(&budget, START), 2);
    }

    #[test]
    fn budget_at_an_earlier_time_allows_nothing_extra() {
        let budget = RetryBudget::default();
        assert_eq!(withdraw_all(&budget, START), 10);
        let earlier = START - TimeSpan::from_secs(16);
        assert_eq!(withdraw_all(&budget, earlier), 0);
    }
}
