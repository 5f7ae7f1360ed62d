//! The replies to `TIDEGATE.CHECK` and `TIDEGATE.PEEK`.

use tidegate_core::{TimeSpan, Timestamp};
use tidegate_limiter::RulingReport;

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
    pub(super) fn admitted(report: &RulingReport<'_>, wait: TimeSpan) -> Self {
        Self { wait: millis(wait), charged_at: report.at() + wait, ..Self::rejected(report, None).pass() }
    }

    /// The reply if no limit was checked at `now`: the client is banned, or with [`pass`](Self::pass), exempt.
    pub(super) fn unlimited(now: Timestamp) -> Self {
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

    pub(super) fn pass(self) -> Self {
        Self { is_admitted: true, ..self }
    }

    pub(super) fn rejected(report: &RulingReport<'_>, retry_after: Option<TimeSpan>) -> Self {
        let limits = report.limits();
        // Limits in shadow mode are not reported.
        let limit = limits.primary();
        Self {
            is_admitted: false,
            limit: limit.map_or(-1, |limit| saturated(limit.quota)),
            remaining: limit.map_or(-1, |limit| saturated(limit.remaining)),
            retry_after: retry_after.map_or(-1, millis),
            reset_after: limit.map_or(-1, |limit| millis(limit.reset_after)),
            wait: 0,
            charged_at: report.at(),
        }
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
