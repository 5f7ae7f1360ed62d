//! Units that this node will not spend, and that Redis does not know of yet.
//!
//! For a window Redis counts them as spent until it ends. So a counter that was forgotten, or whose last request has no reply,
//! is kept until Redis was told what the node still knows.

use tidegate_core::{AlgorithmKind, Limit, TimeSpan, Timestamp};

use super::{LeaseBlock, PendingRequest};

/// Leases of a token bucket live no longer. See `lua/lease_format.lua`.
const LONGEST_LIFE_OF_BUCKET: TimeSpan = TimeSpan::from_secs(10);

impl LeaseBlock {
    /// Stops spending the lease, and asks Redis before the next decision. A request without a reply is given up. What Redis
    /// still holds for the lease is released with the next request, without waiting for a decision.
    pub(crate) fn forget(&mut self) {
        self.keep(0);
        self.contact = None;
        self.occupied = None;
        self.rejection = None;
        if let Some(pending) = self.pending.take() {
            self.note_unknown_grant(&pending);
        }
        self.low_water = 0;
        self.report_at = u64::MAX;
        self.rejections_in_a_row = 0;
    }

    /// Gives up all but `units` of the lease. They are released with the next request; if it is not sent, with the one after it.
    pub(super) fn keep(&mut self, units: u64) {
        let granted = self.spent.saturating_add(units);
        if granted < self.granted {
            self.granted = granted;
            self.held_until = self.held_until.max(self.usable_until);
        }
    }

    /// Whether a node that stops at `now` has something to report or to release.
    pub(crate) fn must_close(&self, now: Timestamp) -> bool {
        self.debt > 0
            || self.must_release(now)
            || self.granted > self.spent
            // Redis counts what is left of a lease that is over as spent.
            || self.spent > self.reported && now < self.usable_until
    }

    /// Redis may have granted what `pending` asked for.
    pub(super) fn note_unknown_grant(&mut self, pending: &PendingRequest) {
        self.held_until = self.held_until.max(pending.sent + longest_life(&self.limit));
    }

    /// Whether Redis may hold units that this node will not spend.
    pub(super) fn must_release(&self, now: Timestamp) -> bool {
        now < self.held_until
    }

    /// Gives up request `sequence`: its result is unknown. Units that it may have been granted are never spent.
    pub(crate) fn give_up(&mut self, sequence: u64) {
        if let Some(pending) = self.pending.take_if(|pending| pending.sequence == sequence) {
            self.note_unknown_grant(&pending);
        }
    }

    /// Takes back request `sequence`: it was not sent, so its debt goes into the next one.
    pub(crate) fn take_back(&mut self, sequence: u64) {
        if let Some(pending) = self.pending.take_if(|pending| pending.sequence == sequence) {
            self.debt = self.debt.saturating_add(pending.debt);
        }
    }
}

/// How long units of a lease may be spent, at most.
fn longest_life(limit: &Limit) -> TimeSpan {
    match limit.kind() {
        AlgorithmKind::FixedWindow(window) => window.window(),
        AlgorithmKind::SlidingCounter(counter) => counter.window(),
        _ => LONGEST_LIFE_OF_BUCKET,
    }
}
