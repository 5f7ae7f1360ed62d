//! The script, its arguments and its reply.

use redis::Script;
use tidegate_core::{
    AlgorithmKind, Check, Cost, CounterKey, Decision, Limit, Outcome, Outcomes, Refund, Role, TimeSpan,
    Timestamp, Verdict,
};
use tidegate_store::{Override, StoreError};

use crate::key;

/// Scripts compute in doubles: larger costs exceed every limit and need not be distinguished.
const MAX_COST: u64 = 1 << 53;

pub(crate) fn central() -> Script {
    Script::new(concat!(
        "#!lua\n",
        include_str!("../lua/exact.lua"),
        include_str!("../lua/token_bucket.lua"),
        include_str!("../lua/central.lua"),
    ))
}

/// One call of the script: its distinct keys and its arguments.
#[derive(Debug, Default)]
pub(crate) struct ScriptCall {
    pub(crate) keys: Vec<String>,
    pub(crate) numbers: Vec<u64>,
}

impl ScriptCall {
    pub(crate) fn checks(batch: &[&[Check<'_>]]) -> Result<Self, StoreError> {
        let mut call = Self::default();
        call.push(batch.len() as u64);
        for checks in batch {
            call.push(checks.len() as u64);
            for check in *checks {
                call.push_key(check.key);
                call.push_limit(check.limit)?;
                call.push_cost(check.cost);
                call.push(match check.role {
                    Role::Binding => 1,
                    Role::Advisory => 2,
                    Role::Overage => 3,
                });
            }
        }
        Ok(call)
    }

    pub(crate) fn refunds(refunds: &[Refund<'_>]) -> Result<Self, StoreError> {
        let mut call = Self::default();
        call.push(refunds.len() as u64);
        for refund in refunds {
            call.push_key(refund.key);
            call.push_limit(refund.limit)?;
            call.push_cost(refund.cost);
            call.push(refund.charged.as_micros());
        }
        Ok(call)
    }

    pub(crate) fn reset(key: CounterKey<'_>) -> Self {
        let mut call = Self::default();
        call.push_key(key);
        call
    }

    pub(crate) fn override_limit(
        key: CounterKey<'_>,
        replacement: Option<&Override>,
    ) -> Result<Self, StoreError> {
        let mut call = Self::reset(key);
        match replacement {
            None => call.push(0),
            Some(replacement) => {
                call.push(replacement.until.as_micros());
                call.push_limit(&replacement.limit)?;
            }
        }
        Ok(call)
    }

    fn push(&mut self, number: u64) {
        self.numbers.push(number);
    }

    fn push_cost(&mut self, cost: Cost) {
        self.push(cost.get().min(MAX_COST));
    }

    fn push_key(&mut self, key: CounterKey<'_>) {
        let name = key::name(key);
        let position = self.keys.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.keys.push(name);
            self.keys.len() - 1
        });
        self.push(position as u64 + 1);
    }

    fn push_limit(&mut self, limit: &Limit) -> Result<(), StoreError> {
        let AlgorithmKind::TokenBucket(bucket) = limit.kind() else {
            return Err(StoreError::Unsupported { algorithm: limit.algorithm() });
        };
        let rate = bucket.rate();
        self.numbers.extend([limit.capacity(), rate.tick().micros(), rate.unit().get(), rate.drain().get()]);
        Ok(())
    }
}

/// Parses the reply to the checks of `batch`.
pub(crate) fn decisions(batch: &[&[Check<'_>]], reply: &[u64]) -> Result<Vec<Decision>, StoreError> {
    let mut numbers = reply.iter().copied();
    let mut next = || numbers.next().ok_or_else(|| protocol_error("the reply is too short"));
    let at = Timestamp::from_micros(next()?);
    let decisions = batch
        .iter()
        .map(|checks| {
            let outcomes = checks.iter().map(|_| outcome(&mut next)).collect::<Result<Outcomes, _>>()?;
            Ok(Decision::new(at, checks, outcomes))
        })
        .collect::<Result<_, StoreError>>()?;
    if next().is_ok() { Err(protocol_error("the reply is too long")) } else { Ok(decisions) }
}

fn outcome(next: &mut impl FnMut() -> Result<u64, StoreError>) -> Result<Outcome, StoreError> {
    let (verdict, span) = (next()?, TimeSpan::from_micros(next()?));
    let verdict = match verdict {
        0 => Verdict::Pass { wait: span },
        1 => Verdict::NotUntil { retry_after: span },
        2 => Verdict::Never,
        _ => return Err(protocol_error("unknown verdict")),
    };
    Ok(Outcome { verdict, limit: next()?, remaining: next()?, reset_after: TimeSpan::from_micros(next()?) })
}

fn protocol_error(reason: &str) -> StoreError {
    StoreError::Protocol { reason: reason.to_owned() }
}
