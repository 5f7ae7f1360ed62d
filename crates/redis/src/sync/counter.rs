//! A node's copy of one counter.

use tidegate_core::{
    Cost, CounterDelta, CounterKey, CounterState, Limit, Outcome, OwnedKey, Refund, TimeSpan, Timestamp,
};

use super::{CounterExchange, ExchangeReply, ExchangedCounter};
use crate::key::KeyName;
use crate::nodes::NodeId;

/// The counter as of the last exchange, with all charges of this node.
#[derive(Debug)]
pub(super) struct SyncCounter {
    key: OwnedKey,
    name: KeyName,
    /// The limit under which `view` and `pending` are counted.
    limit: Limit,
    view: CounterState,
    /// The node's changes since `sent`.
    pending: CounterDelta,
    pending_units: u64,
    /// Changes that were sent and not confirmed. They are sent again as they are, so that Redis can recognise them.
    sent: Option<SentDelta>,
    /// The epoch of the node's changes: those made before a reset are dropped.
    epoch: u64,
    /// Whether the counter was used since the last exchange.
    is_touched: bool,
    /// When it was last used.
    used_at: Timestamp,
    /// Whether it was unused for so long that exchanges leave it out.
    is_resting: bool,
    /// When the first use after `sent` happened.
    waiting_since: Option<Timestamp>,
    /// Whether the entry in Redis has a newer format.
    is_newer: bool,
    /// When the last finished exchange began; `None` if there was none.
    viewed_at: Option<Timestamp>,
}

#[derive(Debug)]
struct SentDelta {
    ticket: u64,
    limit: Limit,
    delta: CounterDelta,
    epoch: u64,
    units: u64,
    /// When the first use happened that this exchange covers.
    waiting_since: Option<Timestamp>,
}

/// What an exchange showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ExchangeFindings {
    /// The units that this node had admitted and Redis did not know.
    pub(super) units: u64,
    /// The units beyond the limit.
    pub(super) excess: u64,
    /// The units beyond the limit that this node's changes added.
    pub(super) added_excess: u64,
}

impl SyncCounter {
    /// A copy of a counter that no exchange has covered: it starts unused at `now`, which is not before the last reset.
    pub(super) fn new(key: CounterKey<'_>, name: KeyName, limit: &Limit, now: Timestamp) -> Self {
        Self {
            key: key.into(),
            name,
            limit: *limit,
            view: CounterState::default(),
            pending: CounterDelta::default(),
            pending_units: 0,
            sent: None,
            epoch: now.as_micros(),
            is_touched: false,
            used_at: Timestamp::ZERO,
            is_resting: false,
            waiting_since: None,
            is_newer: false,
            viewed_at: None,
        }
    }

    pub(super) fn is(&self, key: CounterKey<'_>) -> bool {
        self.key.as_key() == key
    }

    /// Whether `ticket` is that of the unconfirmed exchange.
    pub(super) fn awaits(&self, ticket: u64) -> bool {
        self.sent.as_ref().is_some_and(|sent| sent.ticket == ticket)
    }

    /// Whether this is a copy of the counter with this name under central coordination.
    pub(super) fn has_central_name(&self, name: &[u8]) -> bool {
        self.name.as_bytes().split_last().is_some_and(|(_, central)| central == name)
    }

    pub(super) fn is_newer(&self) -> bool {
        self.is_newer
    }

    /// When the first use happened that no exchange has covered.
    pub(super) fn waiting_since(&self) -> Option<Timestamp> {
        let sent = self.sent.as_ref().and_then(|sent| sent.waiting_since);
        sent.or(self.waiting_since)
    }

    /// Whether it must be renewed before it is used at `local`: there was no exchange, the last one is longer than `max_age` ago, or
    /// exchanges leave it out and the last one is longer ago than `period`.
    pub(super) fn is_outdated(&self, local: Timestamp, max_age: TimeSpan, period: TimeSpan) -> bool {
        let max_age = if self.is_resting { period.min(max_age) } else { max_age };
        self.viewed_at.is_none_or(|viewed_at| local.since(viewed_at) > max_age)
    }

    /// Whether an exchange has covered the copy.
    pub(super) fn has_view(&self) -> bool {
        self.viewed_at.is_some()
    }

    /// Notes that the copy was renewed at `local`, in case it was unused and has been forgotten since.
    pub(super) fn note_view(&mut self, local: Timestamp) {
        self.viewed_at.get_or_insert(local);
    }

    /// Marks the counter for the next exchange.
    pub(super) fn touch(&mut self, local: Timestamp) {
        (self.is_touched, self.is_resting) = (true, false);
        self.used_at = self.used_at.max(local);
        self.waiting_since.get_or_insert(local);
    }

    /// Converts the copy to `limit`, if it is counted under another.
    pub(super) fn adopt(&mut self, limit: &Limit, now: Timestamp) {
        if self.limit != *limit {
            self.view = limit.rebase(&self.limit, std::mem::take(&mut self.view), now);
            self.pending = limit.rebase_delta(&self.limit, self.pending, now);
            self.limit = *limit;
        }
    }

    /// Evaluates `cost` under `limit` without changing the copy.
    pub(super) fn evaluate(&self, limit: &Limit, now: Timestamp, cost: Cost) -> Outcome {
        if self.limit == *limit {
            return limit.evaluate(&self.view, now, cost);
        }
        limit.evaluate(&limit.rebase(&self.limit, self.view.clone(), now), now, cost)
    }

    /// Charges `cost` under the limit of the copy.
    pub(super) fn charge(&mut self, now: Timestamp, cost: Cost) {
        self.limit.charge_with_delta(&mut self.view, &mut self.pending, now, cost);
        self.pending_units = self.pending_units.saturating_add(cost.get());
    }

    /// Refunds a charge, if the copy is still counted under the limit of the charge. Returns whether it contained any of it.
    pub(super) fn refund(&mut self, refund: &Refund<'_>, now: Timestamp, local: Timestamp) -> bool {
        if self.limit != *refund.limit {
            return false;
        }
        self.touch(local);
        self.limit.refund_with_delta(&mut self.view, &mut self.pending, refund.charged, now, refund.cost)
    }

    /// Starts the epoch of a reset.
    pub(super) fn reset(&mut self, epoch: Timestamp) {
        self.view = CounterState::default();
        self.pending = CounterDelta::default();
        self.epoch = epoch.as_micros();
    }

    /// Whether the copy has changes to send or must be renewed.
    fn needs_exchange(&self) -> bool {
        self.is_touched || self.sent.is_some()
    }

    /// Whether the exchange at `local` includes the copy. One that is unused for longer than `keep` is left out from then on.
    pub(super) fn joins_exchange(&mut self, local: Timestamp, keep: TimeSpan) -> bool {
        self.is_resting = !self.needs_exchange() && local.since(self.used_at) > keep;
        !self.is_resting
    }

    /// Whether the copy can be forgotten: it equals an unused one, and nothing has to be sent.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        !self.needs_exchange() && self.limit.is_fresh(&self.view, now)
    }

    /// The exchange to send with its ticket: `ticket`, unless an earlier one is not confirmed.
    pub(super) fn start_exchange(&mut self, node: NodeId, ticket: u64) -> (u64, CounterExchange) {
        let sent = self.sent.get_or_insert_with(|| {
            self.is_touched = false;
            SentDelta {
                ticket,
                limit: self.limit,
                delta: std::mem::take(&mut self.pending),
                epoch: self.epoch,
                units: std::mem::take(&mut self.pending_units),
                waiting_since: self.waiting_since.take(),
            }
        });
        let exchange = CounterExchange {
            key: self.name.clone(),
            limit: sent.limit,
            node,
            number: if sent.delta.is_empty() { 0 } else { sent.ticket },
            epoch: sent.epoch,
            delta: sent.delta,
        };
        (sent.ticket, exchange)
    }

    /// Adopts the counter that Redis returned at `at`, its own time. The exchange began at `local`.
    pub(super) fn finish_exchange(
        &mut self,
        reply: ExchangeReply,
        at: Timestamp,
        local: Timestamp,
    ) -> ExchangeFindings {
        let Some(sent) = self.sent.take() else { return ExchangeFindings::default() };
        self.viewed_at = Some(local);
        let ExchangeReply::Counter(ExchangedCounter { epoch, before, after }) = reply else {
            self.is_newer = true;
            return ExchangeFindings::default();
        };
        self.is_newer = false;
        let [excess_before, excess] =
            [&before, &after].map(|state| sent.limit.used(state, at).saturating_sub(sent.limit.capacity()));
        self.view = self.limit.rebase(&sent.limit, after, at);
        self.limit.merge(&mut self.view, &self.pending, at);
        self.epoch = epoch;
        ExchangeFindings {
            units: sent.units.saturating_add(self.pending_units),
            excess,
            added_excess: excess.saturating_sub(excess_before),
        }
    }
}
