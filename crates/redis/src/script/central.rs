//! The arguments and the reply of `central.lua`.

use std::collections::BTreeSet;

use redis::Value;
use tidegate_core::{Algorithm, Cost, Limit, Outcome, Role, TimeSpan, Timestamp, Verdict};
use tidegate_store::StoreError;

use super::limit::push_limit;
use super::{KeyList, MAX_COST, ScriptCall, foreign_operation, packed_reply, position, protocol_error};
use crate::key::KeyName;
use crate::operation::{AttemptId, CounterCheck, Operation, OperationReply};

/// The fast path is in `central.lua`. The functions of the other files are created only when they are needed.
pub(super) const SOURCE: &str = concat!(
    "#!lua\n",
    include_str!("../../lua/format.lua"),
    "\nlocal function load_algorithm(kind)\n",
    include_str!("../../lua/exact.lua"),
    include_str!("../../lua/formulas.lua"),
    "if kind == FIXED_WINDOW then\n",
    include_str!("../../lua/fixed_window.lua"),
    "return fixed_window\nelseif kind == SLIDING_COUNTER then\n",
    include_str!("../../lua/sliding_counter.lua"),
    "return sliding_counter\nelseif kind == SLIDING_LOG then\n",
    include_str!("../../lua/sliding_log.lua"),
    "return sliding_log\nend\n",
    include_str!("../../lua/token_bucket.lua"),
    "if kind == TOKEN_BUCKET then\nreturn token_bucket\nend\n",
    include_str!("../../lua/leaky_bucket.lua"),
    "return leaky_bucket\nend\n",
    "\nlocal function general(now, min_ttl, operations, limits, values, left, algorithm_of)\n",
    include_str!("../../lua/exact.lua"),
    include_str!("../../lua/entry.lua"),
    include_str!("../../lua/operations.lua"),
    "end\n\n",
    include_str!("../../lua/central.lua"),
);

/// The shortest TTL of a key: short enough to cost little, long enough for every round trip.
const MIN_TTL_SECS: &str = "2";
/// With time from the caller, keys must outlive a trace that is replayed faster than real time.
const CALLER_TTL_SECS: &str = "3600";
/// What follows the name of a counter in the names of its cells.
const CELLS_SUFFIXES: [u8; 2] = *b"12";
/// The bytes of an integer below 2^56.
const WIDE: usize = 7;
/// The bytes of the reply to an operation without outcomes.
const DONE: u8 = 3;
const NEWER_FORMAT: u8 = 4;
const UNCHANGED: u8 = 5;

pub(super) fn encode(operations: &[&Operation], now: Option<Timestamp>) -> Result<ScriptCall, StoreError> {
    let mut encoder = Encoder::default();
    for operation in operations {
        encoder.push(operation)?;
    }
    let time = now.map_or_else(String::new, |now| now.as_micros().to_string());
    let ttl = if now.is_some() { CALLER_TTL_SECS } else { MIN_TTL_SECS };
    let Encoder { keys: KeyList { mut keys, .. }, cells, limits, operations, .. } = encoder;
    let mut arguments = vec![time.into_bytes(), ttl.as_bytes().to_vec(), limits, operations];
    if !cells.is_empty() {
        arguments.push(keys.len().to_string().into_bytes());
        keys.extend(cells.iter().flat_map(|key| CELLS_SUFFIXES.map(|suffix| [*key, &[suffix]].concat())));
    }
    Ok(ScriptCall { keys, arguments })
}

#[derive(Default)]
struct Encoder<'a> {
    keys: KeyList<'a>,
    /// The counters that may have cells of a log.
    cells: BTreeSet<&'a [u8]>,
    limits: Vec<u8>,
    known_limits: Vec<&'a Limit>,
    operations: Vec<u8>,
}

impl<'a> Encoder<'a> {
    fn push(&mut self, operation: &'a Operation) -> Result<(), StoreError> {
        match operation {
            Operation::Decide(checks) => match checks.as_slice() {
                [check] if is_plain(check) => self.push_plain(check),
                _ => self.push_checks(2, checks),
            },
            Operation::Attempt(checks, attempt) => {
                self.push_attempt(3, *attempt, Timestamp::ZERO);
                self.push_checks(2, checks)
            }
            Operation::Peek(checks) => self.push_checks(4, checks),
            Operation::Cancel { checks, charged, attempt } => {
                self.push_attempt(5, *attempt, *charged);
                self.push_checks(2, checks)
            }
            Operation::Refund(refunds) => {
                self.push_code(6, refunds.len())?;
                for refund in refunds {
                    self.push_change(&refund.key, Some(&refund.limit), refund.cost, refund.charged)?;
                }
                Ok(())
            }
            Operation::Reset(key) => {
                self.push_code(7, 1)?;
                self.push_change(key, None, Cost::ZERO, Timestamp::ZERO)
            }
            Operation::Override(key, replacement) => {
                self.push_code(8, 1)?;
                let limit = replacement.as_ref().map(|replacement| &replacement.limit);
                let until = replacement.map_or(Timestamp::ZERO, |replacement| replacement.until);
                self.push_change(key, limit, Cost::ZERO, until)
            }
            Operation::RestoreOverride(key, replacement) => {
                self.push_code(8, 1)?;
                self.push_change(key, Some(&replacement.limit), Cost::ONE, replacement.until)
            }
            Operation::Lease(_)
            | Operation::Exchange(_)
            | Operation::ResetCopies(_)
            | Operation::Permits(_) => Err(foreign_operation()),
        }
    }

    /// One binding check: the shortest form, for the fast path.
    fn push_plain(&mut self, check: &'a CounterCheck) -> Result<(), StoreError> {
        let (key, limit) = (self.keys.position(&check.key)?, self.limit(&check.limit)?);
        match (u8::try_from(limit), u8::try_from(check.cost.get())) {
            (Ok(limit), Ok(cost)) => {
                let [high, low] = key.to_be_bytes();
                self.operations.extend([1, high, low, limit, cost]);
                Ok(())
            }
            _ => self.push_checks(2, std::slice::from_ref(check)),
        }
    }

    /// What turns the decision that follows into an attempt or its cancellation.
    fn push_attempt(&mut self, code: u8, attempt: AttemptId, charged: Timestamp) {
        self.operations.push(code);
        self.push_wide(attempt.0);
        self.push_wide(charged.as_micros());
    }

    fn push_checks(&mut self, code: u8, checks: &'a [CounterCheck]) -> Result<(), StoreError> {
        self.push_code(code, checks.len())?;
        for check in checks {
            self.push_counter(&check.key, Some(&check.limit), check.cost)?;
            self.operations.push(match check.role {
                Role::Binding => 1,
                Role::Advisory | Role::Action => 2,
                Role::Overage => 3,
            });
        }
        Ok(())
    }

    fn push_change(
        &mut self,
        key: &'a KeyName,
        limit: Option<&'a Limit>,
        cost: Cost,
        time: Timestamp,
    ) -> Result<(), StoreError> {
        self.push_counter(key, limit, cost)?;
        self.push_wide(time.as_micros());
        Ok(())
    }

    fn push_code(&mut self, code: u8, count: usize) -> Result<(), StoreError> {
        self.operations.push(code);
        self.operations.extend(position(count)?.to_le_bytes());
        Ok(())
    }

    fn push_counter(
        &mut self,
        key: &'a KeyName,
        limit: Option<&'a Limit>,
        cost: Cost,
    ) -> Result<(), StoreError> {
        // A reset deletes the cells of whatever limit there was.
        if limit.is_none_or(|limit| limit.algorithm() == Algorithm::SlidingLog) {
            self.cells.insert(key.as_bytes());
        }
        let key = self.keys.position(key)?;
        let limit = limit.map_or(Ok(0), |limit| self.limit(limit))?;
        self.operations.extend(key.to_le_bytes());
        self.operations.extend(limit.to_le_bytes());
        self.push_wide(cost.get().min(MAX_COST));
        Ok(())
    }

    fn push_wide(&mut self, number: u64) {
        self.operations.extend(number.to_le_bytes().into_iter().take(WIDE));
    }

    fn limit(&mut self, limit: &'a Limit) -> Result<u16, StoreError> {
        let known = self.known_limits.iter().position(|known| *known == limit);
        let place = known.unwrap_or_else(|| {
            push_limit(&mut self.limits, limit);
            self.known_limits.push(limit);
            self.known_limits.len() - 1
        });
        position(place + 1)
    }
}

fn is_plain(check: &CounterCheck) -> bool {
    check.role == Role::Binding
        && check.limit.algorithm() != Algorithm::SlidingLog
        && !check.limit.lends()
        && (1..=255).contains(&check.cost.get())
}

pub(super) fn decode(operations: &[&Operation], reply: &Value) -> Result<Vec<OperationReply>, StoreError> {
    let mut reader = Reader(packed_reply(reply)?);
    let at = Timestamp::from_micros(reader.wide()?);
    let mut replies = Vec::with_capacity(operations.len());
    for operation in operations {
        replies.push(match operation {
            _ if reader.0.first() == Some(&NEWER_FORMAT) => {
                reader.byte()?;
                OperationReply::NewerFormat
            }
            Operation::Decide(checks)
            | Operation::Attempt(checks, _)
            | Operation::Peek(checks)
            | Operation::Cancel { checks, .. } => {
                let outcomes = checks.iter().map(|_| reader.outcome()).collect::<Result<_, _>>()?;
                OperationReply::Outcomes(at, outcomes)
            }
            Operation::Refund(_)
            | Operation::Reset(_)
            | Operation::Override(..)
            | Operation::RestoreOverride(..) => match reader.byte()? {
                DONE => OperationReply::Done(at),
                UNCHANGED => OperationReply::Unchanged,
                _ => return Err(protocol_error("unknown reply to an operation")),
            },
            Operation::Lease(_)
            | Operation::Exchange(_)
            | Operation::ResetCopies(_)
            | Operation::Permits(_) => {
                return Err(foreign_operation());
            }
        });
    }
    if reader.0.is_empty() { Ok(replies) } else { Err(protocol_error("the reply is too long")) }
}

/// The rest of a reply.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Result<u8, StoreError> {
        let (first, rest) = self.0.split_first().ok_or_else(|| protocol_error("the reply is too short"))?;
        self.0 = rest;
        Ok(*first)
    }

    fn wide(&mut self) -> Result<u64, StoreError> {
        let (number, rest) =
            self.0.split_first_chunk::<WIDE>().ok_or_else(|| protocol_error("the reply is too short"))?;
        self.0 = rest;
        Ok(number.iter().rev().fold(0, |value, byte| (value << 8) | u64::from(*byte)))
    }

    fn outcome(&mut self) -> Result<Outcome, StoreError> {
        let (verdict, span) = (self.byte()?, TimeSpan::from_micros(self.wide()?));
        let verdict = match verdict {
            0 => Verdict::Pass { wait: span },
            1 => Verdict::NotUntil { retry_after: span },
            2 => Verdict::Never,
            _ => return Err(protocol_error("unknown verdict")),
        };
        let (limit, remaining) = (self.wide()?, self.wide()?);
        Ok(Outcome::new(verdict, limit, remaining, TimeSpan::from_micros(self.wide()?)))
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{CounterKey, RuleId, Spec};

    use super::*;
    use crate::key::KeyNames;

    #[test]
    fn call_names_the_cells_of_logs_after_all_counters() {
        let names = KeyNames::new("tg:", b"secret");
        let check = |client: &[u8], algorithm| CounterCheck {
            key: names.counter(CounterKey::new(RuleId::named("default"), client)),
            limit: Limit::new(algorithm, Spec::new(10, TimeSpan::from_secs(60))).unwrap(),
            cost: Cost::ONE,
            role: Role::Binding,
        };
        let (log, window) = (check(b"a", Algorithm::SlidingLog), check(b"b", Algorithm::FixedWindow));
        let keys = [&log, &window].map(|check| check.key.as_bytes().to_vec());
        let decide = |checks: &[&CounterCheck]| Operation::Decide(checks.iter().copied().cloned().collect());
        let (plain, both) = (decide(&[&window]), decide(&[&log, &window]));
        let call = encode(&[&plain], None).unwrap();
        assert_eq!((call.keys.as_slice(), call.arguments.len()), (&keys[1..], 4));
        let call = encode(&[&both, &both], None).unwrap();
        let cells = [b"1", b"2"].map(|suffix| [keys[0].as_slice(), suffix].concat());
        assert_eq!(call.keys, [keys.as_slice(), &cells].concat());
        assert_eq!(call.arguments.get(4).map(Vec::as_slice), Some(b"2".as_slice()));
    }
}
