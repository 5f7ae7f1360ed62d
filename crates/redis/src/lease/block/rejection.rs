//! Rejections by what Redis said, and how long they last.

use tidegate_core::{Cost, TimeSpan, Timestamp};

use super::{ASK_INTERVAL, BACKOFF, LastContact, LeaseBlock, LocalRejection};
use crate::lease::request::LeaseReply;

/// While other nodes hold units, the time between two requests that are rejected doubles from [`BACKOFF`] up to a quarter of the
/// longest time between their settlements, at least three times.
const MAX_DOUBLINGS: u32 = 5;
const MIN_DOUBLINGS: u32 = 3;
/// Other nodes hold a relevant number of units if it is more than one part in this many of the limit.
const RELEVANT: u64 = 50;

impl LeaseBlock {
    /// The first moment at which `cost` can be admitted, if nothing else is charged meanwhile and no other node returns units.
    pub(super) fn retry_at(&self, contact: &LastContact, cost: u64, now: Timestamp) -> Timestamp {
        let Some(rejection) = &self.rejection else { return now + BACKOFF };
        let units = self.units(now);
        // Redis has said when this cost fits: most rejections need no calculation.
        if cost == rejection.least && units == 0 && self.unsettled_debt() == 0 {
            return rejection.retry_at;
        }
        self.fits_at(contact, cost, units).unwrap_or(rejection.retry_at)
    }

    /// When `cost` fits what Redis said last, if `units` of the lease are not spent. `None` if that is unknown, or if it fits:
    /// Redis has granted less than was free, because of other nodes.
    #[cold]
    fn fits_at(&self, contact: &LastContact, cost: u64, units: u64) -> Option<Timestamp> {
        let (limit, at) = (&self.limit, contact.at);
        let mut state = limit.state_from_numbers(self.occupied?);
        // What is left of the lease counts for the cost itself: it is spent on it, or returned.
        limit.refund(&mut state, at, at, Cost::new(units));
        limit.charge(&mut state, at, Cost::new(self.unsettled_debt()));
        let wait = limit.evaluate(&state, at, Cost::new(cost)).verdict.retry_after()?;
        Some(contact.received + wait)
    }

    /// The debt that Redis did not include in its last reply.
    fn unsettled_debt(&self) -> u64 {
        self.debt.saturating_add(self.pending.map_or(0, |pending| pending.debt))
    }

    /// Remembers that Redis has granted less than `least`.
    pub(super) fn reject(&mut self, least: u64, reply: &LeaseReply, now: Timestamp) {
        let retry_at = now + reply.retry_after;
        let mut ask_at = retry_at.min(self.overridden_until);
        if reply.held_elsewhere.saturating_mul(RELEVANT) > reply.capacity {
            let longest =
                (BACKOFF.as_micros() << MIN_DOUBLINGS).max(self.settle_latest.since(now).as_micros() / 4);
            let backoff = BACKOFF.as_micros() << self.rejections_in_a_row.min(MAX_DOUBLINGS);
            ask_at = ask_at.min(now + TimeSpan::from_micros(backoff.min(longest)));
            self.rejections_in_a_row += 1;
        }
        self.rejection = Some(LocalRejection { least, retry_at, ask_at: ask_at.max(now + ASK_INTERVAL) });
        // What is left is spent before Redis is asked again.
        self.low_water = 0;
    }

    /// Brings the time of a rejection up to date with a reply to a report: the counter may have changed since then.
    pub(super) fn renew_rejection(&mut self) {
        if let (Some(contact), Some(rejection)) = (self.contact, self.rejection) {
            let retry_at = self.fits_at(&contact, rejection.least, 0).unwrap_or(rejection.retry_at);
            self.rejection = Some(LocalRejection { retry_at, ..rejection });
        }
    }

    /// Asks Redis before the next rejection: units were given back there.
    pub(crate) fn end_rejection(&mut self) {
        self.rejection = None;
        self.rejections_in_a_row = 0;
    }
}
