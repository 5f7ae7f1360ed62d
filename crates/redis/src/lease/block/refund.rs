//! Refunds, as far as the node itself can make them.

use tidegate_core::{Refund, Timestamp};

use super::LeaseBlock;

impl LeaseBlock {
    /// Makes units spendable again whose spending was not reported: those of this lease, spent since the last request. Returns
    /// the other units, which only Redis can give back.
    pub(crate) fn refund(&mut self, refund: &Refund<'_>, now: Timestamp) -> u64 {
        let cost = refund.cost.get();
        // A lease that is over counts as spent, whatever is reported.
        if refund.charged <= self.reported_at || now >= self.usable_until || !self.has_limit(refund.limit) {
            return cost;
        }
        let units = cost.min(self.spent.saturating_sub(self.reported));
        self.spent = self.spent.saturating_sub(units);
        cost.saturating_sub(units)
    }

    /// Whether units were spent that Redis does not know of.
    pub(crate) fn has_unreported(&self) -> bool {
        self.pending.is_none() && self.spent > self.reported
    }
}
