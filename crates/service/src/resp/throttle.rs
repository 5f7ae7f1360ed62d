//! `CL.THROTTLE`: a limit that the command carries, with the replies of redis-cell.

use std::cell::RefCell;
use std::net::IpAddr;

use smallvec::SmallVec;
use thiserror::Error;
use tidegate_core::{Check, Cost, CounterKey, Decision, Timestamp, Verdict};
use tidegate_store::{ClockReading, Store};
use tidegate_telemetry::{CommandClient, CommandFailure, CommandLog, CommandRecord, DecisionKind, Protocol};

use super::command::parse_integer;
use super::frame::{Arguments, Span};
use super::limit_cache::{CarriedLimit, LimitCache, LimitParameters, LimitParametersError, RULE};
use super::reply::{ReplyWriter, saturated};
use crate::immediate::poll_immediate;
use crate::worker::ServiceWorker;

/// The name of the rule in metrics and logs, which is that of the command.
const RULE_NAME: &str = "CL.THROTTLE";

/// The reply if there is no decision. What the store says is for the operator, not for clients.
pub(super) const STORE_FAILED: &str = "STOREFAILED the store is unavailable, so there is no decision";

/// The most commands that are decided together.
const MAX_BATCH: usize = 256;

/// Batches up to this length need no allocation.
const INLINE_CHECKS: usize = 32;

/// Why a `CL.THROTTLE` command has no decision.
#[derive(Debug, Error)]
pub(crate) enum ThrottleError {
    #[error("ERR wrong number of arguments for 'cl.throttle' command")]
    Arity,
    #[error("ERR {name} is not an integer or out of range")]
    NoInteger { name: &'static str },
    #[error("ERR {name} must not be negative")]
    Negative { name: &'static str },
    #[error("ERR {0}")]
    Limit(#[from] LimitParametersError),
}

/// A command that waits for its batch.
#[derive(Clone, Copy, Debug)]
struct PendingThrottle {
    key: Span,
    /// The index of its limit.
    limit: usize,
    cost: Cost,
    /// The client that sent it.
    peer: IpAddr,
}

impl PendingThrottle {
    fn check<'c>(&self, bytes: &'c [u8], carried: &'c CarriedLimit) -> Check<'c> {
        Check::new(CounterKey::new(carried.rule, self.key.of(bytes)), &carried.limit).cost(self.cost)
    }
}

/// The limit of the last command. Most commands have the same one, and need not be read to their last digit.
#[derive(Debug)]
struct LastLimit {
    /// The arguments as they were sent, with the framing between them.
    text: Box<[u8]>,
    parameters: LimitParameters,
    limit: CarriedLimit,
}

/// Consecutive `CL.THROTTLE` commands that are decided together.
#[derive(Debug, Default)]
pub(crate) struct ThrottleBatch {
    pending: Vec<PendingThrottle>,
    /// The limits of the commands. Successive commands with the same limit share one.
    limits: Vec<(LimitParameters, CarriedLimit)>,
    decisions: Vec<Decision>,
    last: Option<LastLimit>,
}

impl ThrottleBatch {
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.pending.len() >= MAX_BATCH
    }

    /// Adds a command of `peer`; not if it is invalid. `offset` is the position of its bytes in those given to
    /// [`decide`](Self::decide).
    pub(crate) fn push(
        &mut self,
        arguments: &Arguments<'_>,
        (offset, peer): (usize, IpAddr),
        cache: &RefCell<LimitCache>,
    ) -> Result<(), ThrottleError> {
        let (5..=6, Some(key)) = (arguments.len(), arguments.span(1)) else {
            return Err(ThrottleError::Arity);
        };
        let number = |index, name| match arguments.get(index).map(parse_integer) {
            Some(Some(number)) => u64::try_from(number).map_err(|_| ThrottleError::Negative { name }),
            Some(None) => Err(ThrottleError::NoInteger { name }),
            None => Ok(1),
        };
        let text = arguments.framed_text(2, 4);
        if text.is_none() || self.last.as_ref().is_none_or(|last| text != Some(&*last.text)) {
            let parameters = LimitParameters {
                max_burst: number(2, "max_burst")?,
                count: number(3, "count")?,
                period: number(4, "period")?,
            };
            let limit = cache.borrow_mut().get(parameters)?;
            self.last = Some(LastLimit { text: text.unwrap_or_default().into(), parameters, limit });
        }
        let cost = Cost::new(number(5, "quantity")?);
        if let Some(LastLimit { parameters, limit, .. }) = &self.last
            && self.limits.last().is_none_or(|(last, _)| last != parameters)
        {
            self.limits.push((*parameters, *limit));
        }
        let key = Span { start: key.start + offset, end: key.end + offset };
        self.pending.push(PendingThrottle { key, limit: self.limits.len() - 1, cost, peer });
        Ok(())
    }

    /// Decides all commands and writes their replies. `bytes` are those to which the spans of the commands refer.
    pub(crate) async fn decide<S: Store + 'static>(
        &mut self,
        bytes: &[u8],
        worker: &ServiceWorker<S>,
        replies: &mut ReplyWriter<'_>,
    ) {
        if worker.limiter.store().is_immediate() {
            return self.decide_at_once(bytes, worker, replies);
        }
        let start = worker.limiter.clock().read();
        let Self { pending, limits, decisions, .. } = self;
        let deciding = decide_later(bytes, (pending, limits), (worker, start.at), decisions);
        let is_decided = Box::pin(deciding).await;
        self.conclude((is_decided, start), bytes, worker, replies);
    }

    /// The same with a store in this process. Not a part of a future, which would contain all checks.
    fn decide_at_once<S: Store + 'static>(
        &mut self,
        bytes: &[u8],
        worker: &ServiceWorker<S>,
        replies: &mut ReplyWriter<'_>,
    ) {
        let start = worker.limiter.clock().read();
        let Self { pending, limits, decisions, .. } = self;
        let is_decided = decide_immediate(bytes, (pending, limits), (worker, start.at), decisions);
        self.conclude((is_decided, start), bytes, worker, replies);
    }

    /// Writes the replies and records the decisions.
    fn conclude<S: Store + 'static>(
        &mut self,
        (is_decided, start): (bool, ClockReading),
        bytes: &[u8],
        worker: &ServiceWorker<S>,
        replies: &mut ReplyWriter<'_>,
    ) {
        let Self { pending, limits, decisions, .. } = self;
        let counts = if is_decided {
            write_decisions(decisions, replies)
        } else {
            for _ in pending.iter() {
                replies.error(STORE_FAILED);
            }
            [(DecisionKind::StoreFailed, pending.len()), (DecisionKind::Rejected, 0)]
        };
        if let Some(counters) = worker.recorder(Protocol::Resp).counters() {
            // Each decision of a batch is recorded with an equal part of its time.
            let nanos = worker.limiter.clock().read().nanos_since(start) / (pending.len().max(1) as u64);
            let rejected = counts.iter().filter(|(kind, _)| *kind == DecisionKind::Rejected);
            if let Some(rejected) = rejected.map(|(_, count)| *count).find(|count| *count > 0) {
                let slots = worker.resp.slots.get_or_init(|| worker.register_rule(RULE, RULE_NAME));
                for _ in 0..rejected {
                    // Keys are no clients of the policy and are not listed.
                    counters.record_rejection(slots, RULE, b"", start.at);
                }
            }
            for (kind, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
                counters.record_decisions(kind, nanos, count as u64);
            }
            if let Some(log) = worker.recorder(Protocol::Resp).command_log() {
                let decisions: &[Decision] = if is_decided { decisions } else { &[] };
                log_decisions(&log, bytes, (pending, decisions), (start, nanos));
            }
        }
        pending.clear();
        limits.clear();
        decisions.clear();
    }
}

/// Logs and traces the commands that are sampled. There are no decisions if the store failed.
#[cold]
fn log_decisions(
    log: &CommandLog<'_>,
    bytes: &[u8],
    (pending, decisions): (&[PendingThrottle], &[Decision]),
    (start, nanos): (ClockReading, u64),
) {
    for (index, command) in pending.iter().enumerate() {
        let decision = decisions.get(index);
        let kind = match decision {
            Some(decision) if decision.passes() => DecisionKind::Admitted,
            Some(_) => DecisionKind::Rejected,
            None => DecisionKind::StoreFailed,
        };
        log.record(Some(kind), || CommandRecord {
            client: Some(CommandClient::Chosen(command.key.of(bytes))),
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
            ..CommandRecord::new(RULE_NAME, command.peer, start)
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

/// The checks of commands.
fn checks<'c>(
    bytes: &'c [u8],
    pending: &[PendingThrottle],
    limits: &'c [(LimitParameters, CarriedLimit)],
) -> SmallVec<[Check<'c>; INLINE_CHECKS]> {
    let checks = pending.iter().filter_map(|command| {
        let (_, limit) = limits.get(command.limit)?;
        Some(command.check(bytes, limit))
    });
    checks.collect()
}

/// Decides with a store in this process.
fn decide_immediate<S: Store + 'static>(
    bytes: &[u8],
    (pending, limits): (&[PendingThrottle], &[(LimitParameters, CarriedLimit)]),
    (worker, now): (&ServiceWorker<S>, Timestamp),
    decisions: &mut Vec<Decision>,
) -> bool {
    let decided = if let ([command], [(_, limit)]) = (pending, limits) {
        // Without a pipeline each batch is one command, which needs no list.
        let check = [command.check(bytes, limit)];
        poll_immediate(worker.limiter.check_limits_batch(&[&check], now, decisions))
    } else {
        let checks = checks(bytes, pending, limits);
        let batch: SmallVec<[&[Check<'_>]; INLINE_CHECKS]> = checks.chunks(1).collect();
        poll_immediate(worker.limiter.check_limits_batch(&batch, now, decisions))
    };
    decided.is_some_and(|decided| decided.is_ok())
}

/// Decides with any store.
async fn decide_later<S: Store + 'static>(
    bytes: &[u8],
    (pending, limits): (&[PendingThrottle], &[(LimitParameters, CarriedLimit)]),
    (worker, now): (&ServiceWorker<S>, Timestamp),
    decisions: &mut Vec<Decision>,
) -> bool {
    let checks = checks(bytes, pending, limits);
    let batch: Vec<&[Check<'_>]> = checks.chunks(1).collect();
    worker.limiter.check_limits_batch(&batch, now, decisions).await.is_ok()
}

/// Writes the replies and counts the decisions.
fn write_decisions(decisions: &[Decision], replies: &mut ReplyWriter<'_>) -> [(DecisionKind, usize); 2] {
    let mut admitted = 0;
    for decision in decisions {
        admitted += usize::from(decision.passes());
        write_decision(decision, replies);
    }
    [(DecisionKind::Admitted, admitted), (DecisionKind::Rejected, decisions.len() - admitted)]
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
