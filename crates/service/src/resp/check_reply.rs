//! The replies to `TIDEGATE.CHECK` and `TIDEGATE.PEEK`.

use tidegate_core::{TimeSpan, Timestamp};
use tidegate_limiter::{RefuseReason, RefuseRuling, ReportedLimits, Ruling};

use super::reply::{ReplyWriter, saturated};

/// The reply to a check. −1 stands for a value that does not exist.
pub(super) struct CheckReply {
    is_admitted: bool,
    limit: i64,
    remaining: i64,
    retry_after: i64,
    reset_after: i64,
    wait: i64,
    charged_at: Timestamp,
}

impl CheckReply {
    /// The reply to a ruling, whose report has these limits; `None` if the store returned no decision.
    pub(super) fn new(ruling: &Ruling<'_>, limits: &ReportedLimits<'_>) -> Option<Self> {
        let (retry_after, wait) = match ruling {
            Ruling::Serve(serve) => (None, serve.delay),
            Ruling::Refuse(RefuseRuling { reason: RefuseReason::StoreUnavailable, .. }) => return None,
            Ruling::Refuse(refuse) => (refuse.retry_after, TimeSpan::ZERO),
            // A caller that asks for no action gets none.
            Ruling::Act(act) => (None, act.delay),
        };
        // Limits in shadow mode are not reported.
        let limit = limits.primary();
        Some(Self {
            is_admitted: matches!(ruling, Ruling::Serve(_)),
            limit: limit.map_or(-1, |limit| saturated(limit.quota)),
            remaining: limit.map_or(-1, |limit| saturated(limit.remaining)),
            retry_after: retry_after.map_or(-1, |retry_after| millis(retry_after.wait)),
            reset_after: limit.map_or(-1, |limit| millis(limit.reset_after)),
            wait: millis(wait),
            charged_at: ruling.report().at() + wait,
        })
    }

    /// The same array in both versions of the protocol: a program that unpacks it works whichever version its client selects.
    pub(super) fn write(&self, replies: &mut ReplyWriter<'_>) {
        replies.integers([
            i64::from(self.is_admitted),
            self.limit,
            self.remaining,
            self.retry_after,
            self.reset_after,
            self.wait,
            saturated(self.charged_at.as_micros()),
        ]);
    }
}

/// Milliseconds, rounded up.
fn millis(span: TimeSpan) -> i64 {
    saturated(span.as_micros().div_ceil(1_000))
}
