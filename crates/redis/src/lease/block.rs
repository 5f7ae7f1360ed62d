//! What a node knows of one counter: the units it may spend, and what Redis said last. No I/O and no clock.

mod refund;
mod rejection;
mod release;

use std::num::NonZeroU32;

use tidegate_core::{AlgorithmKind, Cost, Limit, Outcome, Role, TimeSpan, Timestamp, Verdict};

use super::demand::Demand;
use super::request::{LeaseAction, LeaseReply, LeaseStatus};
use crate::nodes::NodeId;
use crate::support::shows_override;

/// More than any limit: as much as the fair share allows.
const WHOLE_SHARE: u64 = 1 << 53;
/// The clocks of a node and of Redis differ in speed by at most one part in this many.
const DRIFT: u64 = 100;
/// The longest delay between the check of a lease and the use of its unit.
const DELAY: TimeSpan = TimeSpan::from_millis(50);
/// The same for a window, which may be short.
const WINDOW_DELAY: TimeSpan = TimeSpan::from_millis(1);
/// The bounds of the time between two settlements.
const HORIZON: (TimeSpan, TimeSpan) = (TimeSpan::from_millis(50), TimeSpan::from_secs(5));
/// The longest time between two settlements of a window that is rarely used. A bucket drains only what is settled, but for a
/// window a settlement only returns units.
const RARE_HORIZON: TimeSpan = TimeSpan::from_secs(15);
/// When a block that is spent fast is settled for the first time. An unused bucket drains only from then on.
const FIRST_SETTLEMENT: TimeSpan = TimeSpan::from_millis(200);
/// A block is spent fast if this part of it is spent by then. A counter is rarely used if less is spent between settlements.
const FIRST_PART: u64 = 8;
/// The shortest time between two requests that are rejected.
const ASK_INTERVAL: TimeSpan = TimeSpan::from_millis(2);
/// The same while other nodes hold units, and the wait of a request about which Redis has said nothing.
const BACKOFF: TimeSpan = TimeSpan::from_millis(100);
/// The least number of units asked for in advance.
const SMALLEST_WANT: u64 = 4;

/// A counter on a node. All times are those of the node's clock, except where `store` time is mentioned.
///
/// The fields that decisions use are first, so that they share few cache lines.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct LeaseBlock {
    /// The units of the lease.
    granted: u64,
    /// The units of it that are spent.
    spent: u64,
    /// From here on no unit of the lease may be spent.
    usable_until: Timestamp,
    contact: Option<LastContact>,
    /// The store time of the last decision: the estimate never goes back.
    latest: Timestamp,
    /// With this many units left the next block is requested; 0 for never.
    low_water: u64,
    /// With this many units spent, a bucket reports them.
    report_at: u64,
    /// The fingerprint of `limit`.
    fingerprint: u64,
    /// The time in which one unit is refilled; 0 for windows.
    refill: TimeSpan,
    /// Units charged beyond the lease (overage), not yet sent.
    debt: u64,
    demand: Demand,
    rejection: Option<LocalRejection>,
    pending: Option<PendingRequest>,
    limit: Limit,
    /// The newest lease that the node knows; `granted` and `spent` belong to it. Before the first lease, a number smaller
    /// than that of every lease to come.
    epoch: u64,
    /// The units reported as spent in the last request, and the store time up to which they were spent. Later spending is
    /// refunded here, earlier spending in Redis.
    reported: u64,
    reported_at: Timestamp,
    settle_at: Timestamp,
    /// A window that is rarely used is settled only then.
    settle_latest: Timestamp,
    horizon: TimeSpan,
    /// Until then Redis may hold units for this node that it will never spend: it must say so.
    held_until: Timestamp,
    /// Until then another limit than the rule's may be in force; `MAX` if none is.
    overridden_until: Timestamp,
    rejections_in_a_row: u32,
    /// The counter in Redis at the last contact, with all leased units charged; unknown while an override applies.
    occupied: Option<[u64; 3]>,
}

/// What Redis said last.
#[derive(Clone, Copy, Debug)]
struct LastContact {
    received: Timestamp,
    /// Store time.
    at: Timestamp,
    available: u64,
    capacity: u64,
    /// When the counter equals an unused one, if all leased units are spent.
    reset_at: Timestamp,
}

/// Redis has no units to grant.
#[derive(Clone, Copy, Debug)]
struct LocalRejection {
    /// At least this many units beyond those of the lease were requested.
    least: u64,
    retry_at: Timestamp,
    /// When to ask again; earlier than `retry_at` while other nodes hold units that they may release.
    ask_at: Timestamp,
}

/// A request without a reply.
#[derive(Clone, Copy, Debug)]
struct PendingRequest {
    sequence: u64,
    sent: Timestamp,
    least: u64,
    /// The debt that it carries.
    debt: u64,
}

/// Why a node contacts Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContactReason {
    /// A decision of this cost waits.
    Decision { cost: u64 },
    /// The block will soon be used up, after a decision of this cost.
    LowWater { cost: u64 },
    /// Much of a bucket's block is spent, and drains only once it is reported; after a decision of this cost.
    Report { cost: u64 },
    /// It is time to report, to renew and to release.
    Settlement,
    /// The node stops: everything is reported and released.
    Close,
}

/// The identity of a request: who asks, in which order, among how many nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestOrigin {
    pub(crate) node: NodeId,
    pub(crate) sequence: u64,
    pub(crate) nodes: NonZeroU32,
}

impl LeaseBlock {
    /// A counter of which nothing is known. Earlier requests of the node have smaller sequence numbers than `sequence`, later
    /// ones have larger ones.
    pub(crate) fn new(limit: Limit, sequence: u64) -> Self {
        Self {
            limit,
            fingerprint: limit.fingerprint(),
            refill: refill_of(&limit),
            epoch: sequence,
            granted: 0,
            spent: 0,
            reported: 0,
            reported_at: Timestamp::ZERO,
            debt: 0,
            usable_until: Timestamp::ZERO,
            contact: None,
            rejection: None,
            demand: Demand::default(),
            pending: None,
            low_water: 0,
            report_at: u64::MAX,
            settle_at: Timestamp::MAX,
            horizon: HORIZON.1,
            settle_latest: Timestamp::ZERO,
            latest: Timestamp::ZERO,
            held_until: Timestamp::ZERO,
            overridden_until: Timestamp::MAX,
            rejections_in_a_row: 0,
            occupied: None,
        }
    }

    /// A counter without a lease, as Redis evaluated it at `now`.
    pub(crate) fn from_peek(limit: Limit, cost: Cost, reply: &LeaseReply, now: Timestamp) -> Self {
        let pending = PendingRequest { sequence: 0, sent: now, least: cost.get(), debt: 0 };
        let mut block = Self { pending: Some(pending), ..Self::new(limit, 0) };
        block.receive(0, reply, now);
        block
    }

    /// Whether Redis has replied since the lease was last forgotten.
    pub(crate) fn is_known(&self) -> bool {
        self.contact.is_some()
    }

    /// Whether units of the lease were left when it expired.
    pub(crate) fn has_expired(&self, now: Timestamp) -> bool {
        self.granted > self.spent && now >= self.usable_until
    }

    /// The rule's limit.
    pub(crate) fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Whether the rule's limit is `limit`.
    #[inline]
    pub(crate) fn has_limit(&self, limit: &Limit) -> bool {
        self.fingerprint == limit.fingerprint()
    }

    /// Uses another limit of the rule from now on. The lease is released with the next request.
    pub(crate) fn set_limit(&mut self, limit: &Limit) {
        if !self.has_limit(limit) {
            (self.limit, self.fingerprint, self.refill) = (*limit, limit.fingerprint(), refill_of(limit));
            self.forget();
        }
    }

    /// Whether the node may reject by what Redis said earlier: it has no units left, or knows that Redis has none.
    pub(crate) fn may_reject(&self, now: Timestamp) -> bool {
        self.rejection.is_some() || self.units(now) == 0
    }

    /// The units that may be spent at `now`.
    pub(crate) fn units(&self, now: Timestamp) -> u64 {
        if now < self.usable_until { self.granted.saturating_sub(self.spent) } else { 0 }
    }

    /// Whether a request has no reply yet.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Whether units were charged beyond the lease that Redis does not know.
    pub(crate) fn has_debt(&self) -> bool {
        self.debt > 0
    }

    /// Whether Redis must be asked before a decision of this cost.
    #[inline]
    pub(crate) fn must_ask(&self, cost: Cost, now: Timestamp) -> bool {
        let Some(contact) = &self.contact else { return true };
        let missing = cost.get().saturating_sub(self.units(now));
        if cost == Cost::ZERO {
            return now.since(contact.received) > self.horizon && self.units(now) == 0;
        }
        missing > 0
            && (cost.get() <= contact.capacity || now >= self.overridden_until)
            && self.rejection.is_none_or(|rejection| {
                missing < rejection.least
                    || now >= rejection.ask_at
                    // How long a larger cost has to wait is known only to Redis.
                    || missing > rejection.least && self.occupied.is_none()
            })
    }

    /// Why Redis should be contacted after a decision of this cost, if it should.
    #[inline]
    pub(crate) fn reason_to_ask(&self, cost: u64, now: Timestamp) -> Option<ContactReason> {
        if self.is_low(now) {
            return Some(ContactReason::LowWater { cost });
        }
        (self.spent >= self.report_at && self.pending.is_none()).then_some(ContactReason::Report { cost })
    }

    /// Whether the next block should be requested now.
    fn is_low(&self, now: Timestamp) -> bool {
        let is_low = self.low_water > 0
            && self.units(now) <= self.low_water
            && self.rejection.is_none_or(|rejection| now >= rejection.ask_at);
        (is_low || self.debt > 0) && self.pending.is_none()
    }

    /// The store time at `now`, at most: it is never later than the server's clock, apart from drift.
    pub(crate) fn store_time(&mut self, now: Timestamp) -> Timestamp {
        if let Some(contact) = &self.contact {
            self.latest = self.latest.max(contact.at + now.since(contact.received));
        }
        self.latest
    }

    /// Records a decision at store time `at`.
    pub(crate) fn observe(&mut self, at: Timestamp) {
        self.latest = self.latest.max(at);
    }

    /// Evaluates `cost` as of the last contact. If it fits, `remaining` is that after the charge.
    pub(crate) fn evaluate(&self, cost: Cost, now: Timestamp) -> Outcome {
        let (cost, units) = (cost.get(), self.units(now));
        let Some(contact) = &self.contact else {
            let verdict = if cost == 0 { Verdict::PASS } else { Verdict::NotUntil { retry_after: BACKOFF } };
            let limit = self.limit.capacity();
            return Outcome::new(verdict, limit, 0, TimeSpan::ZERO);
        };
        let (verdict, left) = if cost > contact.capacity {
            (Verdict::Never, units)
        } else if cost <= units {
            (Verdict::PASS, units.saturating_sub(cost))
        } else {
            let retry_after = self.retry_at(contact, cost, now).since(now).max(ASK_INTERVAL);
            (Verdict::NotUntil { retry_after }, units)
        };
        let unspent = TimeSpan::from_micros(left.saturating_mul(self.refill.as_micros()));
        Outcome::new(
            verdict,
            contact.capacity,
            left.saturating_add(contact.available).min(contact.capacity),
            (contact.reset_at - unspent).since(now),
        )
    }

    /// Evaluates `cost` like [`evaluate`](Self::evaluate), but units that no node has leased fit too.
    pub(crate) fn peek(&self, cost: Cost, now: Timestamp) -> Outcome {
        let outcome = self.evaluate(cost, now);
        let free = self.contact.map_or(0, |contact| contact.available);
        let fits = cost.get() <= self.units(now).saturating_add(free) && cost.get() <= outcome.limit;
        if fits && !outcome.verdict.is_pass() {
            let remaining = outcome.remaining.saturating_sub(cost.get());
            return Outcome { verdict: Verdict::PASS, remaining, ..outcome };
        }
        outcome
    }

    /// Spends `cost`; what exceeds the lease becomes a debt.
    pub(crate) fn charge(&mut self, cost: Cost, now: Timestamp) {
        let from_lease = cost.get().min(self.units(now));
        self.spent = self.spent.saturating_add(from_lease);
        self.debt = self.debt.saturating_add(cost.get().saturating_sub(from_lease));
    }

    /// Counts the demand for `cost`, admitted or not.
    pub(crate) fn add_demand(&mut self, cost: Cost) {
        self.demand.add(cost.get());
    }

    /// Decides a single check.
    pub(crate) fn decide(&mut self, cost: Cost, role: Role, now: Timestamp) -> Outcome {
        self.add_demand(cost);
        let outcome = self.evaluate(cost, now);
        if outcome.verdict.is_pass() {
            self.charge(cost, now);
        } else if role == Role::Overage {
            self.charge(cost, now);
            return Outcome { verdict: outcome.verdict, ..self.evaluate(Cost::ZERO, now) };
        }
        outcome
    }

    /// Whether it is time to settle.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        if self.pending.is_some() {
            return false;
        }
        if self.debt > 0 || self.must_release(now) {
            return true;
        }
        match self.limit.kind() {
            AlgorithmKind::TokenBucket(_) => {
                self.is_first_settlement_due(now)
                    || now >= self.settle_at && (self.granted > self.spent || self.spent > self.reported)
            }
            // Window units are charged when they are granted: there is only something to report if units are given back.
            AlgorithmKind::FixedWindow(_) => now >= self.settle_at && self.units(now) > 0,
            _ => now >= self.settle_at.min(self.usable_until) && self.granted > self.spent,
        }
    }

    fn is_first_settlement_due(&self, now: Timestamp) -> bool {
        self.reported == 0
            && self.spent >= (self.granted / FIRST_PART).max(SMALLEST_WANT)
            && self.contact.is_some_and(|contact| now.since(contact.received) >= FIRST_SETTLEMENT)
    }

    /// Whether nothing is lost if the block is dropped at `now`.
    pub(crate) fn is_idle(&self, now: Timestamp) -> bool {
        self.pending.is_none()
            && self.debt == 0
            && self.units(now) == 0
            && !self.must_release(now)
            && (self.spent == self.reported || is_windowed(&self.limit))
            && self.rejection.is_none_or(|rejection| now >= rejection.retry_at)
            && (self.contact.is_none() || now >= self.settle_at)
    }

    /// Starts a request. `None` if there is nothing to tell Redis.
    pub(crate) fn request(
        &mut self,
        origin: RequestOrigin,
        reason: ContactReason,
        now: Timestamp,
    ) -> Option<LeaseAction> {
        if reason == ContactReason::Settlement && self.can_settle_later(now) {
            self.settle_at = self.settle_latest.min(now + self.horizon);
            return None;
        }
        if now >= self.usable_until {
            self.granted = self.spent;
        }
        let is_idle = self.demand.since_sample() == 0;
        self.demand.sample(now);
        let expected =
            self.demand.within(self.horizon).map(|units| units.saturating_mul(2).max(SMALLEST_WANT));
        let units = self.units(now);
        let (least, want) = match reason {
            ContactReason::Decision { cost } => {
                let least = cost.saturating_sub(units);
                (least, expected.unwrap_or(WHOLE_SHARE).saturating_sub(units).max(least))
            }
            ContactReason::LowWater { .. } => {
                (1, expected.unwrap_or(WHOLE_SHARE).saturating_sub(units).max(SMALLEST_WANT))
            }
            ContactReason::Report { .. } => (0, 0),
            ContactReason::Settlement => {
                let kept = if is_idle { 0 } else { expected.unwrap_or(units).min(units) };
                if kept == units && self.debt == 0 && is_windowed(&self.limit) && !self.must_release(now) {
                    self.settle_at = now + self.horizon;
                    return None;
                }
                self.keep(kept);
                (0, 0)
            }
            ContactReason::Close => {
                self.keep(0);
                (0, 0)
            }
        };
        self.report(reason, now);
        self.report_at = u64::MAX;
        let RequestOrigin { node, sequence, nodes } = origin;
        let debt = std::mem::take(&mut self.debt);
        self.pending = Some(PendingRequest { sequence, sent: now, least, debt });
        Some(LeaseAction::Acquire {
            node,
            sequence,
            epoch: self.epoch,
            spent: self.reported,
            granted: self.granted,
            want,
            least,
            nodes,
            debt,
        })
    }

    /// Whether little would change if the window is settled later: it is far from used up here.
    fn can_settle_later(&self, now: Timestamp) -> bool {
        let (units, demand) = (self.units(now), self.demand.since_sample());
        is_windowed(&self.limit)
            && self.debt == 0
            && !self.must_release(now)
            && now < self.settle_latest
            && demand.saturating_mul(FIRST_PART) < units.saturating_add(demand)
    }

    /// Reports what is spent, except by the decision that caused the request: it can still be refunded, and is reported with
    /// the next request. Redis charges what is reported late no earlier than when it was spent.
    fn report(&mut self, reason: ContactReason, now: Timestamp) {
        let at = self.store_time(now);
        let unreported = match reason {
            ContactReason::LowWater { cost } | ContactReason::Report { cost } => {
                cost.min(self.spent.saturating_sub(self.reported))
            }
            ContactReason::Decision { .. } | ContactReason::Settlement | ContactReason::Close => 0,
        };
        self.reported = self.spent.saturating_sub(unreported);
        self.reported_at = if unreported > 0 { at - TimeSpan::from_micros(1) } else { at };
    }

    /// Applies the reply to request `sequence`, received at `now`. A reply that the node does not wait for has no effect.
    pub(crate) fn receive(&mut self, sequence: u64, reply: &LeaseReply, now: Timestamp) {
        let Some(pending) = self.pending.take_if(|pending| pending.sequence == sequence) else { return };
        self.held_until = Timestamp::ZERO;
        if reply.status != LeaseStatus::Done {
            self.forget();
            // Redis has left the entry alone, and would do so again.
            self.held_until = Timestamp::ZERO;
            return;
        }
        if reply.epoch == self.epoch {
            self.granted = self.granted.saturating_add(reply.granted);
        } else {
            // Without a lease, the reply names none (0).
            (self.epoch, self.granted) = (reply.epoch.max(self.epoch), reply.granted);
            (self.spent, self.reported) = (0, 0);
            // What was spent so far belongs to another lease. Nothing of this one is spent before its grant.
            self.reported_at = self.latest.max(reply.now - TimeSpan::from_micros(1));
        }
        let delay = if is_windowed(&self.limit) { WINDOW_DELAY } else { DELAY };
        let margin = TimeSpan::from_micros(reply.life.as_micros() / DRIFT);
        self.usable_until = pending.sent + reply.life - margin - delay;
        self.contact = Some(LastContact {
            received: now,
            at: reply.now,
            available: reply.available,
            capacity: reply.capacity,
            reset_at: now + reply.reset_after,
        });
        self.occupied = reply.occupied;
        self.overridden_until = self.end_of_override(pending.least, reply, now);
        let parts = if is_windowed(&self.limit) { 4 } else { 2 };
        let interval = TimeSpan::from_micros(reply.life.as_micros() / parts);
        self.horizon = interval.clamp(HORIZON.0, HORIZON.1);
        self.settle_at = now + self.horizon;
        self.settle_latest = now + interval.clamp(HORIZON.0, RARE_HORIZON);
        // Without units that no node has leased, only another node can make a window grant more, and seldom does.
        let may_grow = reply.available > 0 || !is_windowed(&self.limit);
        self.low_water = if may_grow { self.units(now) / 4 } else { 0 };
        self.report_at = self.next_report(reply.capacity, now);
        if reply.granted < pending.least {
            self.reject(pending.least, reply, now);
        } else if pending.least > 0 {
            self.rejection = None;
            self.rejections_in_a_row = 0;
        } else {
            self.renew_rejection();
        }
    }

    /// A bucket does not drain while most of it is leased and nothing is reported. So the first units of a large block are
    /// reported soon, and the next ones when twice as many are spent.
    fn next_report(&self, capacity: u64, now: Timestamp) -> u64 {
        let units = self.units(now);
        if is_windowed(&self.limit) || units.saturating_mul(FIRST_PART) < capacity {
            return u64::MAX;
        }
        self.reported.saturating_mul(2).max(units / FIRST_PART).max(SMALLEST_WANT)
    }

    /// Until when the override lasts under which Redis has replied; `MAX` if there is none. It ends without a message.
    fn end_of_override(&self, least: u64, reply: &LeaseReply, now: Timestamp) -> Timestamp {
        let verdict = Verdict::NotUntil { retry_after: reply.retry_after };
        let outcome = Outcome::new(verdict, reply.capacity, reply.available, reply.reset_after);
        let is_overridden = shows_override(&self.limit, Cost::new(least), &outcome, reply.now);
        if is_overridden { now + reply.life } else { Timestamp::MAX }
    }
}

/// The time in which one unit is refilled; 0 for windows.
fn refill_of(limit: &Limit) -> TimeSpan {
    match limit.kind() {
        AlgorithmKind::TokenBucket(bucket) => {
            let rate = bucket.rate();
            TimeSpan::from_micros(rate.unit().get().saturating_mul(rate.tick().micros()) / rate.drain())
        }
        _ => TimeSpan::ZERO,
    }
}

/// Whether the limit counts in aligned windows.
fn is_windowed(limit: &Limit) -> bool {
    !matches!(limit.kind(), AlgorithmKind::TokenBucket(_))
}
