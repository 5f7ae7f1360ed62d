//! `TIDEGATE.…`: rules of the policy by name.

use std::net::IpAddr;

use smallvec::SmallVec;
use thiserror::Error;
use tidegate_core::{Cost, TimeSpan, Timestamp};
use tidegate_limiter::{RuleCheck, RuleError, Ruling, UnknownRule};
use tidegate_policy::{CounterScope, RuleClient, Scratch};
use tidegate_store::{ClockReading, Store};
use tidegate_telemetry::{
    CommandClient, CommandFailure, CommandRecord, DecisionKind, DecisionSink, Protocol,
};

use super::check_reply::CheckReply;
use super::frame::{Arguments, parse_integer};
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
    #[error("ERR {0}")]
    Concurrency(RuleClientError),
    #[error("NORULE the policy has no such rate limit")]
    NoRule,
    #[error("{STORE_FAILED}")]
    StoreFailed,
}

impl From<RuleClientError> for RuleCommandError {
    fn from(error: RuleClientError) -> Self {
        match error {
            RuleClientError::NoRule => Self::NoRule,
            error @ RuleClientError::Concurrency => Self::Concurrency(error),
            error => Self::Client(error),
        }
    }
}

impl From<UnknownRule> for RuleCommandError {
    fn from(_: UnknownRule) -> Self {
        Self::NoRule
    }
}

impl From<RuleError> for RuleCommandError {
    fn from(error: RuleError) -> Self {
        match error {
            RuleError::NoRule(UnknownRule) => Self::NoRule,
            RuleError::Store(_) => Self::StoreFailed,
        }
    }
}

impl RuleCommandError {
    fn failure(&self) -> CommandFailure {
        match self {
            Self::Arity
            | Self::NoInteger { .. }
            | Self::Encoding { .. }
            | Self::Client(_)
            | Self::Concurrency(_) => CommandFailure::BadRequest,
            Self::NoRule => CommandFailure::NoRule,
            Self::StoreFailed => CommandFailure::StoreFailed,
        }
    }
}

/// A command about a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleCommand {
    /// `TIDEGATE.CHECK rule client… [cost]`
    Check,
    /// `TIDEGATE.PEEK rule client… [cost]`
    Peek,
    /// `TIDEGATE.REFUND rule client… cost [charged_at]`
    Refund,
    /// `TIDEGATE.RESET rule client…`
    Reset,
}

impl RuleCommand {
    /// The name in logs.
    const fn name(self) -> &'static str {
        match self {
            Self::Check => "TIDEGATE.CHECK",
            Self::Peek => "TIDEGATE.PEEK",
            Self::Refund => "TIDEGATE.REFUND",
            Self::Reset => "TIDEGATE.RESET",
        }
    }

    /// The most arguments after the client.
    const fn optional(self) -> usize {
        match self {
            Self::Check | Self::Peek => 1,
            Self::Refund => 2,
            Self::Reset => 0,
        }
    }
}

/// The reply to a command that succeeded.
enum RuleReply {
    Check(CheckReply),
    Status(&'static str),
}

/// What is logged about a check.
#[derive(Default)]
struct CheckOutcome<'a> {
    /// The decision, and how many nanoseconds it took.
    decision: Option<(DecisionKind, u64)>,
    /// The rule that the reply reports, its limit and the remaining units.
    limit: Option<(&'a str, u64, u64)>,
    retry_after: Option<TimeSpan>,
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

/// Executes a command of the peer and writes its reply.
pub(super) async fn execute<S: Store + 'static>(
    command: RuleCommand,
    arguments: &Arguments<'_>,
    (worker, policy, peer): (&ServiceWorker<S>, &ServedPolicy, IpAddr),
    replies: &mut ReplyWriter<'_>,
) {
    let start = worker.limiter.clock().read();
    let (mut scratch, mut outcome) = (Scratch::default(), CheckOutcome::default());
    let (parsed, result) = match RuleArguments::parse(arguments, policy, command.optional()) {
        Ok(parsed) => {
            let result = match command {
                RuleCommand::Check => {
                    check(&parsed, (worker, policy), (start, &mut scratch), &mut outcome).await
                }
                RuleCommand::Peek => peek(&parsed, (worker, policy), start.at).await,
                RuleCommand::Refund => refund(arguments, &parsed, (worker, policy), start.at).await,
                RuleCommand::Reset => reset(&parsed, (worker, policy)).await,
            };
            (Some(parsed), result)
        }
        Err(error) => (None, Err(error)),
    };
    match &result {
        Ok(RuleReply::Check(reply)) => reply.write(replies),
        Ok(RuleReply::Status(status)) => replies.status(status),
        Err(error @ RuleCommandError::NoRule) => {
            let names = client::rule_names(&policy.active);
            let available = if names.is_empty() { names } else { format!("; it has {names}") };
            replies.error(format!("{error}{available}"));
        }
        Err(error) => replies.error(error.to_string()),
    }
    if let Some(log) = worker.recorder(Protocol::Resp).command_log() {
        let CheckOutcome { decision, limit, retry_after } = outcome;
        log.record(decision.map(|(kind, _)| kind), || CommandRecord {
            client: parsed.as_ref().map(|parsed| CommandClient::Key(parsed.client.key())),
            rule: limit.map(|(rule, ..)| rule).or(parsed.as_ref().map(|parsed| parsed.rule)),
            decision,
            limit: limit.map(|(_, limit, remaining)| (limit, remaining)),
            retry_after: retry_after.map(TimeSpan::as_secs_ceil),
            failure: result.as_ref().err().map(RuleCommandError::failure),
            ..CommandRecord::new(command.name(), peer, start)
        });
    }
}

async fn check<'a, S: Store + 'static>(
    parsed: &RuleArguments<'_>,
    (worker, policy): (&ServiceWorker<S>, &'a ServedPolicy),
    (start, scratch): (ClockReading, &'a mut Scratch),
    outcome: &mut CheckOutcome<'a>,
) -> Result<RuleReply, RuleCommandError> {
    // Permits are released here: the end of the request is not known.
    let ruling = worker.limiter.check_rule(&policy.active, parsed.check(), scratch, start.at).await?;
    let limits = ruling.report().limits();
    let (metrics, clock) = (worker.recorder(Protocol::Resp).counters(), &**worker.limiter.clock());
    let recorded = ruling.recorded(&limits);
    let kind = recorded.kind;
    let nanos = DecisionSink::Metrics { metrics, clock, start }.record(&policy.counted, recorded);
    outcome.decision = nanos.map(|nanos| (kind, nanos));
    outcome.limit = limits.primary().map(|limit| (limit.name, limit.quota, limit.remaining));
    if let Ruling::Refuse(refuse) = &ruling {
        outcome.retry_after = refuse.retry_after.map(|retry_after| retry_after.wait);
    }
    let reply = CheckReply::new(&ruling, &limits).ok_or(RuleCommandError::StoreFailed)?;
    Ok(RuleReply::Check(reply))
}

async fn peek<S: Store + 'static>(
    parsed: &RuleArguments<'_>,
    (worker, policy): (&ServiceWorker<S>, &ServedPolicy),
    now: Timestamp,
) -> Result<RuleReply, RuleCommandError> {
    let mut scratch = Scratch::default();
    let ruling = worker.limiter.preview_rule(&policy.active, parsed.check(), &mut scratch, now).await?;
    let reply = CheckReply::new(&ruling, &ruling.report().limits()).ok_or(RuleCommandError::StoreFailed)?;
    Ok(RuleReply::Check(reply))
}

async fn refund<S: Store + 'static>(
    arguments: &Arguments<'_>,
    parsed: &RuleArguments<'_>,
    (worker, policy): (&ServiceWorker<S>, &ServedPolicy),
    now: Timestamp,
) -> Result<RuleReply, RuleCommandError> {
    if arguments.len() < parsed.end {
        return Err(RuleCommandError::Arity);
    }
    let charged = unsigned(arguments, parsed.end, "charged_at")?.map(Timestamp::from_micros);
    let is_refunded = worker.limiter.refund_rule(&policy.active, parsed.check(), charged, now).await?;
    Ok(RuleReply::Status(if is_refunded { "OK" } else { "UNCHANGED" }))
}

async fn reset<S: Store + 'static>(
    parsed: &RuleArguments<'_>,
    (worker, policy): (&ServiceWorker<S>, &ServedPolicy),
) -> Result<RuleReply, RuleCommandError> {
    worker.limiter.reset_rule(&policy.active, (parsed.rule, parsed.client.key())).await?;
    Ok(RuleReply::Status("OK"))
}
