//! `CL.THROTTLE`: a limit that the command carries, with the replies of redis-cell.

use std::net::IpAddr;

use smallvec::SmallVec;
use tidegate_core::{Check, Decision, Timestamp, Verdict};
use tidegate_store::{ClockReading, Store};
use tidegate_telemetry::{CommandClient, CommandFailure, CommandLog, CommandRecord, DecisionKind, Protocol};

use super::command::CommandOrigin;
use super::limit_cache::RULE;
use super::reply::{ReplyWriter, saturated};
use super::throttle_batch::ThrottleBatch;
use crate::worker::ServiceWorker;

/// The name of the rule in metrics and logs, which is that of the command.
const RULE_NAME: &str = "CL.THROTTLE";

/// Batches up to this length need no allocation.
const INLINE_CHECKS: usize = 32;

/// The reply if there is no decision. What the store says is for the operator, not for clients.
pub(super) const STORE_FAILED: &str = "STOREFAILED the store is unavailable, so there is no decision";

/// Decides all commands of `batch`, writes their replies and records the decisions. `decisions` is empty before and after.
pub(super) async fn decide<S: Store + 'static>(
    batch: &mut ThrottleBatch,
    decisions: &mut Vec<Decision>,
    origin: &CommandOrigin<'_, S>,
    replies: &mut ReplyWriter<'_>,
) {
    let worker = origin.worker;
    let start = worker.limiter.clock().read();
    if !try_decide(batch, worker, start.at, decisions) {
        Box::pin(decide_later(batch, worker, start.at, decisions)).await;
    }
    let admitted = write_decisions(decisions, replies);
    // Either all commands have a decision or none.
    for _ in decisions.len()..batch.len() {
        replies.error(STORE_FAILED);
    }
    record(batch, decisions, admitted, origin, start);
    batch.clear();
    decisions.clear();
}

/// Decides if the store need not be awaited; returns whether that is so. Not a part of a future, which would contain all checks.
fn try_decide<S: Store + 'static>(
    batch: &ThrottleBatch,
    worker: &ServiceWorker<S>,
    now: Timestamp,
    decisions: &mut Vec<Decision>,
) -> bool {
    // Filled in place: a move would copy the room for all checks.
    let mut checks = SmallVec::<[Check<'_>; INLINE_CHECKS]>::new();
    checks.extend(batch.checks());
    let mut requests = SmallVec::<[&[Check<'_>]; INLINE_CHECKS]>::new();
    requests.extend(checks.chunks(1));
    // After an error there is no decision.
    worker.limiter.try_check_limits_batch(&requests, now, decisions).is_some()
}

/// Decides and waits for the store.
async fn decide_later<S: Store + 'static>(
    batch: &ThrottleBatch,
    worker: &ServiceWorker<S>,
    now: Timestamp,
    decisions: &mut Vec<Decision>,
) {
    let checks: Vec<_> = batch.checks().collect();
    let requests: Vec<_> = checks.chunks(1).collect();
    // After an error there is no decision.
    let _ = worker.limiter.check_limits_batch(&requests, now, decisions).await;
}

/// Counts the decisions, `admitted` of which admit their command, and logs them.
fn record<S: Store + 'static>(
    batch: &ThrottleBatch,
    decisions: &[Decision],
    admitted: usize,
    origin: &CommandOrigin<'_, S>,
    start: ClockReading,
) {
    let CommandOrigin { client, worker, .. } = origin;
    let recorder = worker.recorder(Protocol::Resp);
    let Some(counters) = recorder.counters() else { return };
    // Each decision of a batch is recorded with an equal part of its time.
    let nanos = worker.limiter.clock().read().nanos_since(start) / (batch.len().max(1) as u64);
    let (rejected, failed) = (decisions.len() - admitted, batch.len() - decisions.len());
    if rejected > 0 {
        let slots = worker.resp.slots.get_or_init(|| worker.register_rule(RULE, RULE_NAME));
        for _ in 0..rejected {
            // Keys are no clients of the policy and are not listed.
            counters.record_rejection(slots, RULE, b"", start.at);
        }
    }
    let counts = [
        (DecisionKind::Admitted, admitted),
        (DecisionKind::Rejected, rejected),
        (DecisionKind::StoreFailed, failed),
    ];
    for (kind, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        counters.record_decisions(kind, nanos, count as u64);
    }
    if let Some(log) = recorder.command_log() {
        let commands = batch.keys().enumerate().map(|(index, key)| (key, decisions.get(index)));
        log_decisions(&log, commands, client.peer, start, nanos);
    }
}

/// Logs and traces the commands that are sampled, given their keys and decisions. There are no decisions if the store failed.
#[cold]
fn log_decisions<'a>(
    log: &CommandLog<'_>,
    commands: impl Iterator<Item = (&'a [u8], Option<&'a Decision>)>,
    peer: IpAddr,
    start: ClockReading,
    nanos: u64,
) {
    for (key, decision) in commands {
        let kind = match decision {
            Some(decision) if decision.passes() => DecisionKind::Admitted,
            Some(_) => DecisionKind::Rejected,
            None => DecisionKind::StoreFailed,
        };
        log.record(Some(kind), || CommandRecord {
            client: Some(CommandClient::Chosen(key)),
            rule: Some(RULE_NAME),
            decision: Some((kind, nanos)),
            limit: decision
                .and_then(|decision| decision.outcomes.first())
                .map(|outcome| (outcome.limit, outcome.remaining)),
            retry_after: decision.and_then(|decision| match decision.verdict {
                Verdict::NotUntil { retry_after } => Some(retry_after.as_secs_ceil()),
                Verdict::Pass { .. } | Verdict::Never => None,
            }),
            failure: decision.is_none().then_some(CommandFailure::StoreFailed),
            ..CommandRecord::new(RULE_NAME, peer, start)
        });
    }
}

/// Logs a command that was not decided because it is invalid.
pub(crate) fn log_invalid<S: Store + 'static>(peer: IpAddr, worker: &ServiceWorker<S>) {
    if let Some(log) = worker.recorder(Protocol::Resp).command_log() {
        let start = worker.limiter.clock().read();
        log.record(None, || CommandRecord {
            failure: Some(CommandFailure::BadRequest),
            ..CommandRecord::new(RULE_NAME, peer, start)
        });
    }
}

/// Writes the replies. Returns the number of decisions that admit their command.
fn write_decisions(decisions: &[Decision], replies: &mut ReplyWriter<'_>) -> usize {
    let mut admitted = 0;
    for decision in decisions {
        admitted += usize::from(decision.passes());
        write_decision(decision, replies);
    }
    admitted
}

/// Whether the command is limited, the limit, what remains, and the seconds until a retry and until the key is unused, rounded
/// up.
fn write_decision(decision: &Decision, replies: &mut ReplyWriter<'_>) {
    let retry_after = match decision.verdict {
        Verdict::NotUntil { retry_after } => i64::try_from(retry_after.as_secs_ceil()).unwrap_or(i64::MAX),
        Verdict::Pass { .. } | Verdict::Never => -1,
    };
    let (limit, remaining, reset_after) = decision
        .outcomes
        .first()
        .map_or((0, 0, 0), |outcome| (outcome.limit, outcome.remaining, outcome.reset_after.as_secs_ceil()));
    let [limit, remaining, reset_after] = [limit, remaining, reset_after].map(saturated);
    replies.integers([i64::from(!decision.passes()), limit, remaining, retry_after, reset_after]);
}
