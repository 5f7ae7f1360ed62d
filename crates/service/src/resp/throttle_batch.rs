//! The `CL.THROTTLE` commands that are decided together: their keys, limits and costs.

use std::cell::RefCell;

use thiserror::Error;
use tidegate_core::{Check, Cost, CounterKey};

use super::frame::{Arguments, Span, parse_integer};
use super::limit_cache::{CarriedLimit, LimitCache, LimitParameters, LimitParametersError};

/// The most commands that are decided together.
const MAX_BATCH: usize = 256;

/// Why a `CL.THROTTLE` command has no decision.
#[derive(Debug, Error)]
pub(super) enum ThrottleError {
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
}

/// Consecutive `CL.THROTTLE` commands of a connection.
#[derive(Debug, Default)]
pub(super) struct ThrottleBatch {
    pending: Vec<PendingThrottle>,
    /// The keys of the commands, one after the other.
    keys: Vec<u8>,
    /// The limits of the commands. Successive commands with the same limit share one; the last one stays when the others are
    /// decided.
    limits: Vec<CarriedLimit>,
    /// The arguments of the last limit as they were sent, with the framing between them. Most commands have the same ones, and
    /// need not be parsed.
    limit_text: Vec<u8>,
}

impl ThrottleBatch {
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The number of commands.
    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.pending.len() >= MAX_BATCH
    }

    /// Adds a command; not if it is invalid.
    pub(super) fn push(
        &mut self,
        arguments: &Arguments<'_>,
        cache: &RefCell<LimitCache>,
    ) -> Result<(), ThrottleError> {
        let (5..=6, Some(key)) = (arguments.len(), arguments.get(1)) else {
            return Err(ThrottleError::Arity);
        };
        let number = |index, name| match arguments.get(index).map(parse_integer) {
            Some(Some(number)) => u64::try_from(number).map_err(|_| ThrottleError::Negative { name }),
            Some(None) => Err(ThrottleError::NoInteger { name }),
            None => Ok(1),
        };
        let text = arguments.framed_text(2, 4);
        let new_limit = if text.is_some_and(|text| text == self.limit_text) {
            None
        } else {
            Some(cache.borrow_mut().get(LimitParameters {
                max_burst: number(2, "max_burst")?,
                count: number(3, "count")?,
                period: number(4, "period")?,
            })?)
        };
        let cost = Cost::new(number(5, "quantity")?);
        if let Some(limit) = new_limit {
            self.limits.push(limit);
            self.limit_text.clear();
            self.limit_text.extend_from_slice(text.unwrap_or_default());
        }
        let start = self.keys.len();
        self.keys.extend_from_slice(key);
        let key = Span { start, end: self.keys.len() };
        self.pending.push(PendingThrottle { key, limit: self.limits.len() - 1, cost });
        Ok(())
    }

    /// The check of each command.
    pub(super) fn checks(&self) -> impl Iterator<Item = Check<'_>> {
        self.pending.iter().filter_map(|command| {
            let CarriedLimit { rule, limit } = self.limits.get(command.limit)?;
            Some(Check::new(CounterKey::new(*rule, command.key.of(&self.keys)), limit).cost(command.cost))
        })
    }

    /// The key of each command.
    pub(super) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.pending.iter().map(|command| command.key.of(&self.keys))
    }

    /// Removes the commands.
    pub(super) fn clear(&mut self) {
        self.pending.clear();
        self.keys.clear();
        self.limits.drain(..self.limits.len().saturating_sub(1));
    }
}
