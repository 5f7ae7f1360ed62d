//! `TIDEGATE.…`: rules of the policy by name.

use smallvec::SmallVec;
use thiserror::Error;
use tidegate_core::{Cost, TimeSpan, Timestamp};
use tidegate_limiter::{RuleCheck, RuleError, Ruling, RulingReport};
use tidegate_policy::{CounterScope, RuleClient, Scratch};
use tidegate_store::{ClockReading, Store};
use tidegate_telemetry::{DecisionKind, Protocol};

use super::command::parse_integer;
use super::frame::Arguments;
use super::reply::ReplyWriter;
use super::throttle::STORE_FAILED;
use crate::client::{self, RuleClientError, StatedIdentity};
use crate::worker::{ServedPolicy, ServiceWorker};

/// Why a command about a rule failed.
#[derive(Debug, Error)]
enum RuleCommandError {
    #[error("ERR wrong number of arguments")]
    Arity,
    #[error("ERR {name} is not an integer, or is negative or too large")]
    NoInteger { name: &'static str },
    #[error("ERR {name} is not valid UTF-8")]
    Encoding { name: &'static str },
    #[error("ERR invalid client: {0}")]
    Client(RuleClientError),
    #[error("NORULE the policy has no such rate limit")]
    NoRule,
    #[error("{STORE_FAILED}")]
    StoreFailed,
}

impl From<RuleClientError> for RuleCommandError {
    fn from(error: RuleClientError) -> Self {
        match error {
            RuleClientError::NoRule => Self::NoRule,
            error => Self::Client(error),
        }
    }
}

impl From<RuleError> for RuleCommandError {
    fn from(error: RuleError) -> Self {
        match error {
            RuleError::NoRule => Self::NoRule,
            RuleError::Store(_) => Self::StoreFailed,
        }
    }
}

/// The rule, client and cost of a command.
struct RuleArguments<'a> {
    rule: &'a str,
    client: RuleClient,
    cost: Cost,
    /// The index of the first argument after the cost.
    end: usize,
}

impl<'a> RuleArguments<'a> {
    /// Parses `rule client… [cost]` with at most `optional` arguments after the client. A rule that counts combinations of
    /// identities needs all of them, each as an argument of its own: no separator can be part of a value.
    fn parse(
        arguments: &Arguments<'a>,
        policy: &ServedPolicy,
        optional: usize,
    ) -> Result<Self, RuleCommandError> {
        let text = |index, name| {
            let text = std::str::from_utf8(arguments.get(index).unwrap_or_default());
            text.map_err(|_| RuleCommandError::Encoding { name })
        };
        let rule = text(1, "rule")?;
        let end = 2 + client::identity_count(&policy.active, rule);
        let identity = |index| {
            let stated = client::split_identity(text(index, "client")?);
            stated.map_err(|error| RuleCommandError::Client(error.into()))
        };
        // An identity that is missing or misplaced is an error of `rule_client`, which says what the rule counts.
        let stated = (2..end.min(arguments.len())).map(identity);
        let stated = stated.collect::<Result<SmallVec<[StatedIdentity<'_>; 2]>, _>>();
        let stated = match policy.active.matcher.rule_scope(rule) {
            Some(CounterScope::Everybody) => stated.unwrap_or_default(),
            _ => stated?,
        };
        let client = client::rule_client(&policy.active, rule, &stated)?;
        if arguments.len() > end + optional {
            return Err(RuleCommandError::Arity);
        }
        let cost = Cost::new(unsigned(arguments, end, "cost")?.unwrap_or(1));
        Ok(Self { rule, client, cost, end: end + 1 })
    }

    fn check(&self) -> RuleCheck<'_> {
        RuleCheck { rule: self.rule, client: &self.client, cost: self.cost }
    }
}

/// The number at `index`, if there is one.
fn unsigned(
    arguments: &Arguments<'_>,
    index: usize,
    name: &'static str,
) -> Result<Option<u64>, RuleCommandError> {
    let Some(text) = arguments.get(index) else { return Ok(None) };
    let number = parse_integer(text).and_then(|number| u64::try_from(number).ok());
    number.map(Some).ok_or(RuleCommandError::NoInteger { name })
}

/// `TIDEGATE.CHECK rule client… [cost]`
pub(super) async fn check<S: Store + 'static>(
    arguments: &Arguments<'_>,
    worker: &ServiceWorker<S>,
    policy: &ServedPolicy,
    replies: &mut ReplyWriter<'_>,
) {
    if let Err(error) = try_check(arguments, worker, policy, replies).await {
        replies.error(error.to_string());
    }
}

async fn try_check<S: Store + 'static>(
    arguments: &Arguments<'_>,
    worker: &ServiceWorker<S>,
    policy: &ServedPolicy,
    replies: &mut ReplyWriter<'_>,
) -> Result<(), RuleCommandError> {
    let parsed = RuleArguments::parse(arguments, policy, 1)?;
    let (start, mut scratch) = (worker.limiter.clock().read(), Scratch::default());
    let ruling = worker.limiter.check_rule(&policy.active, parsed.check(), &mut scratch, start.at).await;
    // Permits are released here: the end of the request is not known.
    match ruling {
        Ruling::Admitted(ruling) => {
            record(worker, policy, (DecisionKind::Admitted, start), &ruling.report);
            CheckReply::admitted(&ruling.report, ruling.delay).write(replies);
        }
        Ruling::Rejected(ruling) => {
            record(worker, policy, (DecisionKind::Rejected, start), &ruling.report);
            if let Some(counters) = worker.recorder(Protocol::Resp).counters() {
                counters.record_rejection(&policy.counted, ruling.rule, ruling.report.client(), start.at);
            }
            CheckReply::rejected(&ruling.report, ruling.retry_after).write(replies);
        }
        Ruling::StoreFailed(ruling) => {
            record(worker, policy, (DecisionKind::StoreFailed, start), &ruling.report);
            if ruling.is_binding {
                return Err(RuleCommandError::StoreFailed);
            }
            CheckReply::admitted(&ruling.report, TimeSpan::ZERO).write(replies);
        }
        Ruling::Banned => {
            count(worker, (DecisionKind::Banned, start));
            CheckReply::unlimited(start.at).write(replies);
        }
        Ruling::Exempt(_) => {
            count(worker, (DecisionKind::Exempt, start));
            CheckReply::unlimited(start.at).pass().write(replies);
        }
        Ruling::NoRule => return Err(RuleCommandError::NoRule),
    }
    Ok(())
}

/// `TIDEGATE.PEEK rule client… [cost]`
pub(super) async fn peek<S: Store + 'static>(
    arguments: &Arguments<'_>,
    worker: &ServiceWorker<S>,
    policy: &ServedPolicy,
    replies: &mut ReplyWriter<'_>,
) {
    if let Err(error) = try_peek(arguments, worker, policy, replies).await {
        replies.error(error.to_string());
    }
}

async fn try_peek<S: Store + 'static>(
    arguments: &Arguments<'_>,
    worker: &ServiceWorker<S>,
    policy: &ServedPolicy,
    replies: &mut ReplyWriter<'_>,
) -> Result<(), RuleCommandError> {
    let parsed = RuleArguments::parse(arguments, policy, 1)?;
    let mut scratch = Scratch::default();
    let now = worker.now();
    match worker.limiter.preview_rule(&policy.active, parsed.check(), &mut scratch, now).await {
        Ruling::Admitted(ruling) => CheckReply::admitted(&ruling.report, ruling.delay).write(replies),
        Ruling::Rejected(ruling) => CheckReply::rejected(&ruling.report, ruling.retry_after).write(replies),
        Ruling::StoreFailed(ruling) if ruling.is_binding => return Err(RuleCommandError::StoreFailed),
        Ruling::StoreFailed(ruling) => CheckReply::admitted(&ruling.report, TimeSpan::ZERO).write(replies),
        Ruling::Banned => CheckReply::unlimited(now).write(replies),
        Ruling::Exempt(_) => CheckReply::unlimited(now).pass().write(replies),
        Ruling::NoRule => return Err(RuleCommandError::NoRule),
    }
    Ok(())
}

/// `TIDEGATE.REFUND rule client… cost [charged_at]`
pub(super) async fn refund<S: Store + 'static>(
    arguments: &Arguments<'_>,
    worker: &ServiceWorker<S>,
    policy: &ServedPolicy,
    replies: &mut ReplyWriter<'_>,
) {
    let refunded = async {
        let parsed = RuleArguments::parse(arguments, policy, 2)?;
        if arguments.len() < parsed.end {
            return Err(RuleCommandError::Arity);
        }
        let now = worker.now();
        let charged = unsigned(arguments, parsed.end, "charged_at")?.map_or(now, Timestamp::from_micros);
        Ok(worker.limiter.refund_rule(&policy.active, parsed.check(), charged, now).await?)
    };
    write_result(refunded.await.map(|is_refunded| if is_refunded { "OK" } else { "UNCHANGED" }), replies);
}

/// `TIDEGATE.RESET rule client…`
pub(super) async fn reset<S: Store + 'static>(
    arguments: &Arguments<'_>,
    worker: &ServiceWorker<S>,
    policy: &ServedPolicy,
    replies: &mut ReplyWriter<'_>,
) {
    let reset = async {
        let parsed = RuleArguments::parse(arguments, policy, 0)?;
        Ok(worker.limiter.reset_rule(&policy.active, (parsed.rule, parsed.client.key())).await?)
    };
    write_result(reset.await.map(|()| "OK"), replies);
}

fn write_result(result: Result<&'static str, RuleCommandError>, replies: &mut ReplyWriter<'_>) {
    match result {
        Ok(status) => replies.status(status),
        Err(error) => replies.error(error.to_string()),
    }
}

fn record<S: Store + 'static>(
    worker: &ServiceWorker<S>,
    policy: &ServedPolicy,
    decision: (DecisionKind, ClockReading),
    report: &RulingReport<'_>,
) {
    count(worker, decision);
    if let Some(counters) = worker.recorder(Protocol::Resp).counters() {
        for rule in report.shadow_rejections() {
            counters.record_shadow_rejection(&policy.counted, rule);
        }
    }
}

fn count<S: Store + 'static>(worker: &ServiceWorker<S>, (kind, start): (DecisionKind, ClockReading)) {
    if let Some(counters) = worker.recorder(Protocol::Resp).counters() {
        counters.record_decision(kind, worker.limiter.clock().read().nanos_since(start));
    }
}

/// The reply to a check. −1 stands for a value that does not exist.
struct CheckReply {
    is_admitted: bool,
    limit: i64,
    remaining: i64,
    retry_after: i64,
    reset_after: i64,
    wait: i64,
    charged_at: Timestamp,
}

impl CheckReply {
    fn admitted(report: &RulingReport<'_>, wait: TimeSpan) -> Self {
        Self { wait: millis(wait), charged_at: report.at() + wait, ..Self::rejected(report, None).pass() }
    }

    /// The reply if no limit was checked at `now`: the client is banned, or with [`pass`](Self::pass), exempt.
    fn unlimited(now: Timestamp) -> Self {
        Self {
            is_admitted: false,
            limit: -1,
            remaining: -1,
            retry_after: -1,
            reset_after: -1,
            wait: 0,
            charged_at: now,
        }
    }

    fn pass(self) -> Self {
        Self { is_admitted: true, ..self }
    }

    fn rejected(report: &RulingReport<'_>, retry_after: Option<TimeSpan>) -> Self {
        let limits = report.limits();
        // Limits in shadow mode are not reported.
        let limit = limits.primary();
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        Self {
            is_admitted: false,
            limit: limit.map_or(-1, |limit| count(limit.quota)),
            remaining: limit.map_or(-1, |limit| count(limit.remaining)),
            retry_after: retry_after.map_or(-1, millis),
            reset_after: limit.map_or(-1, |limit| millis(limit.reset_after)),
            wait: 0,
            charged_at: report.at(),
        }
    }

    fn write(&self, replies: &mut ReplyWriter<'_>) {
        replies.record(7);
        replies.field("admitted");
        replies.boolean(self.is_admitted);
        let fields = [
            ("limit", self.limit),
            ("remaining", self.remaining),
            ("retry_after_ms", self.retry_after),
            ("reset_after_ms", self.reset_after),
            ("wait_ms", self.wait),
        ];
        for (name, number) in fields {
            replies.field(name);
            replies.integer(number);
        }
        replies.field("charged_at");
        replies.count(self.charged_at.as_micros());
    }
}

/// Milliseconds, rounded up.
fn millis(span: TimeSpan) -> i64 {
    i64::try_from(span.as_micros().div_ceil(1_000)).unwrap_or(i64::MAX)
}
