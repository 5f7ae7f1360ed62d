//! Refunds of a node: of units that it has not reported, and in Redis of the others.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tidegate_core::{Refund, Timestamp};
use tidegate_store::StoreError;
use tokio::sync::oneshot;

use super::contact::{ContactFailure, LeaseNode};
use super::request::{LeaseAction, LeaseRequest};
use super::table::{LeaseTable, SlotAddress};
use crate::config::TimeSource;
use crate::invalidation::CounterChange;

/// How long other nodes have to report what they have spent, before a refund of it is tried again.
const REPORT_PAUSES: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(40), Duration::from_millis(160)];

/// Units that only Redis can give back.
struct RemoteRefund {
    address: SlotAddress,
    request: LeaseRequest,
    /// The end of the request that reports the units, if it has no reply yet.
    report: Option<oneshot::Receiver<Result<(), ContactFailure>>>,
}

impl RemoteRefund {
    fn units(&self) -> u64 {
        match self.request.action {
            LeaseAction::Refund { units, .. } => units,
            _ => 0,
        }
    }
}

/// A refund that has begun.
#[derive(Debug)]
pub(crate) enum LeaseRefund {
    /// The node itself has made it. Whether there was anything to give back.
    Local(bool),
    /// Redis has to make a part of it. Whether anything was given back is known when it has replied.
    Remote(oneshot::Receiver<Result<bool, StoreError>>),
}

impl LeaseNode {
    /// Refunds what this node has not reported at once, and the rest in Redis, even if the result is dropped.
    pub(super) fn start_refund(self: &Arc<Self>, refunds: &[Refund<'_>], now: Timestamp) -> LeaseRefund {
        let local = self.local_time(now);
        let (mut contained, mut remote) = (false, Vec::new());
        for refund in refunds {
            let rest = self.refund_locally(refund, local);
            contained |= rest.as_ref().is_none_or(|rest| rest.units() < refund.cost.get());
            remote.extend(rest);
        }
        if remote.is_empty() {
            return LeaseRefund::Local(contained);
        }
        let (sender, receiver) = oneshot::channel();
        let node = Arc::clone(self);
        self.link.spawn(async move {
            let results = join_all(remote.into_iter().map(|refund| node.refund_in_redis(refund, now))).await;
            let any = |any, result: Result<bool, StoreError>| result.map(|contained| any || contained);
            let _ = sender.send(results.into_iter().try_fold(contained, any));
        });
        LeaseRefund::Remote(receiver)
    }

    /// Refunds what was not reported. Returns what is left.
    fn refund_locally(&self, refund: &Refund<'_>, now: Timestamp) -> Option<RemoteRefund> {
        let hash = self.table.hash(refund.key);
        let mut shard = self.table.lock(LeaseTable::shard_index(hash))?;
        let (mut units, mut report) = (refund.cost.get(), None);
        if let Some(slot) = shard.find(hash, refund.key) {
            units = slot.block.refund(refund, now);
            if units > 0 && slot.block.is_pending() {
                let (sender, receiver) = oneshot::channel();
                slot.waiters.push(sender);
                report = Some(receiver);
            }
        }
        (units > 0).then(|| {
            let action = LeaseAction::Refund { node: self.id, units, charged: refund.charged };
            let request =
                LeaseRequest { limit: Some(*refund.limit), ..self.bare_request(refund.key, action) };
            RemoteRefund { address: SlotAddress::new(hash, refund.key), request, report }
        })
    }

    /// Returns whether the counter contained anything to give back.
    async fn refund_in_redis(&self, refund: RemoteRefund, now: Timestamp) -> Result<bool, StoreError> {
        if let Some(report) = refund.report {
            // A bucket gives back only what is settled. If the report fails, Redis charges the units later.
            let _ = report.await;
        }
        let mut request = refund.request;
        let name = request.key.clone();
        let is_live = self.link.config().time == TimeSource::Server;
        let mut contained = false;
        for pause in REPORT_PAUSES.map(Some).into_iter().chain([None]) {
            let replies = self.call(vec![request.clone()], now).await?;
            let Some(reply) = replies.first() else { break };
            if let Some(failure) = ContactFailure::of_status(reply.status) {
                return Err(failure.into());
            }
            contained |= reply.available > 0;
            let (Some(pause), LeaseAction::Refund { units, .. }) = (pause, &mut request.action) else {
                break;
            };
            if reply.held_elsewhere == 0 || !is_live {
                break;
            }
            // Another node has spent them, and knows it alone.
            *units = reply.held_elsewhere;
            if let (Some(changes), Some((_, central))) = (&self.changes, name.as_bytes().split_last()) {
                changes.push(CounterChange::LeaseUnreported, central);
            }
            tokio::time::sleep(pause).await;
        }
        self.table.with_slot(&refund.address, |slot| slot.block.end_rejection());
        if let (Some(changes), Some((_, central))) = (&self.changes, name.as_bytes().split_last()) {
            changes.push(CounterChange::LeaseRefunded, central);
        }
        Ok(contained)
    }
}
