//! What happens to a request that exceeds a limit: `on_exceed`.

use std::fmt;

use tidegate_core::{ActionKind, Borrow, Slowdown, TimeSpan};

use crate::units::{percent_text, size_text, span_text};

/// What happens to a request that exceeds a limit, with its parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ExceedAction {
    /// It is rejected.
    #[default]
    Reject,
    /// It gets a response from the cache that is at most this old.
    Cached {
        /// The largest age.
        max_age: TimeSpan,
    },
    /// It waits for its turn, at most this long.
    Wait {
        /// The longest wait.
        max: TimeSpan,
    },
    /// It is accepted, and delivered later.
    Defer(Box<DeferAction>),
    /// It is served in a cheaper way.
    Degrade {
        /// The upstream that serves it; `None` if its route's upstream does, which is told by a header.
        upstream: Option<DegradedUpstream>,
    },
    /// Near the limit requests are delayed; beyond it they are rejected.
    Slow(Slowdown),
    /// Some more units are admitted. They are part of the limit.
    Borrow(Borrow),
}

/// The upstream that serves degraded requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DegradedUpstream {
    /// Its index in the plan.
    pub index: usize,
    /// Its name.
    pub name: String,
}

/// How deferred requests are kept and delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeferAction {
    /// How many requests are delivered per window.
    pub requests: u64,
    /// The window.
    pub window: TimeSpan,
    /// How many requests are kept.
    pub queue: u32,
    /// How many requests of one client are kept.
    pub per_client: u32,
    /// The largest body, in bytes.
    pub body: u64,
    /// How often a request is tried.
    pub attempts: u32,
    /// How long the result is kept.
    pub keep: TimeSpan,
    /// Whether requests with credentials are kept.
    pub stores_credentials: bool,
}

impl ExceedAction {
    /// Which action it is.
    pub const fn kind(&self) -> ActionKind {
        match self {
            Self::Reject => ActionKind::Reject,
            Self::Cached { .. } => ActionKind::Cached,
            Self::Wait { .. } => ActionKind::Wait,
            Self::Defer(_) => ActionKind::Defer,
            Self::Degrade { .. } => ActionKind::Degrade,
            Self::Slow(_) => ActionKind::Slow,
            Self::Borrow(_) => ActionKind::Borrow,
        }
    }
}

impl fmt::Display for ExceedAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reject => f.write_str("reject"),
            Self::Cached { max_age } => write!(f, "cached for {}", span_text(*max_age)),
            Self::Wait { max } => write!(f, "wait at most {}", span_text(*max)),
            Self::Defer(defer) => defer.fmt(f),
            Self::Degrade { upstream: None } => f.write_str("degrade"),
            Self::Degrade { upstream: Some(upstream) } => write!(f, "degrade to `{}`", upstream.name),
            Self::Slow(slow) => {
                let from = percent_text(slow.from_millionths());
                write!(f, "slow from {from}, by {} at the limit", span_text(slow.max()))
            }
            Self::Borrow(Borrow { units, repay }) => write!(f, "borrow {units}, each repaid by {repay}"),
        }
    }
}

impl fmt::Display for DeferAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, window, queue, per_client, body, attempts, keep, stores_credentials } = self;
        write!(
            f,
            "defer: deliver {requests} per {}, keep {queue} requests, {per_client} of a client, bodies up to {}, {attempts} attempts, results for {}",
            span_text(*window),
            size_text(*body),
            span_text(*keep)
        )?;
        f.write_str(if *stores_credentials { ", with credentials" } else { "" })
    }
}
