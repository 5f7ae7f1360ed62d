//! The pace of one limit that a server advertises.

use tidegate_core::{LimitUnit, TimeSpan, Timestamp};
use tidegate_headers::AdvertisedLimit;

/// What is known about one limit.
#[derive(Clone, Debug)]
pub(super) struct PolicyPace {
    /// The name; a limit without one is identified by its quota.
    name: Option<String>,
    /// Units per window: as advertised, or else the most that was ever left, plus one.
    quota: u64,
    is_quota_advertised: bool,
    /// The window: as advertised, or else the longest time to a reset so far.
    span: TimeSpan,
    /// Units left, without those of requests in flight.
    remaining: u64,
    /// When the units are available again; never too early, because servers round up.
    reset_at: Timestamp,
    /// How long after the reset an exhausted limit is used again, so that clients do not return together.
    jitter: TimeSpan,
    /// The earliest time of the next request while requests are spread.
    next_at: Timestamp,
    /// Whether a request costs one unit. Other limits are respected only when they are exhausted.
    counts_requests: bool,
    /// The number of the request whose response told the state.
    reported_by: u64,
    /// Until when the last rejection said that nothing is left.
    rejected_until: Timestamp,
    /// Whether nothing is known about the current window: it began after the last response, and no response has ever told the
    /// quota.
    is_unknown: bool,
}

/// When a limit admits a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolicyDelay {
    /// The limit is exhausted until this time.
    Exhausted(Timestamp),
    /// Units are left; requests are spread, and the next one is at this time.
    Spread(Timestamp),
}

/// The circumstances of an observation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observation {
    pub(super) now: Timestamp,
    /// The number of the request, in the order of sending.
    pub(super) request: u64,
    /// Resets later than this are not believed.
    pub(super) horizon: TimeSpan,
    /// Requests that the response may not count: those in flight.
    pub(super) in_flight: u64,
    /// Requests that the response may not count: those that were responded to since it was sent.
    pub(super) overtaking: u64,
    /// Uniform over all of `u64`.
    pub(super) random: u64,
}

impl Observation {
    fn uncounted(self) -> u64 {
        self.in_flight.saturating_add(self.overtaking)
    }
}

impl PolicyPace {
    /// A limit that is seen for the first time; `None` if it does not say how much is left and until when, or if it counts
    /// concurrent requests.
    pub(super) fn new(limit: &AdvertisedLimit, seen: Observation) -> Option<Self> {
        let (remaining, reset_after) = state_of(limit, seen)?;
        Some(Self {
            name: limit.name.clone(),
            quota: limit.quota.unwrap_or(remaining.saturating_add(1)),
            is_quota_advertised: limit.quota.is_some(),
            span: limit.window.unwrap_or(reset_after).min(seen.horizon),
            remaining: remaining.saturating_sub(seen.uncounted()),
            reset_at: seen.now + reset_after,
            jitter: up_to_a_tenth(reset_after, seen.random),
            next_at: seen.now,
            counts_requests: matches!(limit.unit, None | Some(LimitUnit::Requests)),
            reported_by: seen.request,
            rejected_until: Timestamp::ZERO,
            is_unknown: false,
        })
    }

    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(super) const fn quota(&self) -> u64 {
        self.quota
    }

    /// Whether `limit` describes this policy.
    pub(super) fn is(&self, limit: &AdvertisedLimit) -> bool {
        match (&self.name, &limit.name) {
            (Some(mine), Some(theirs)) => mine == theirs,
            (None, None) => {
                self.is_quota_advertised == limit.quota.is_some()
                    && limit.quota.is_none_or(|quota| quota == self.quota)
            }
            _ => false,
        }
    }

    /// Takes over what a response says, unless the response to a request that was sent later is known: a slow response
    /// may be about a window that has ended. The later one does not count this request, so nothing is lost.
    pub(super) fn observe(&mut self, limit: &AdvertisedLimit, seen: Observation) {
        let Some((remaining, reset_after)) = state_of(limit, seen) else { return };
        if seen.request < self.reported_by {
            return;
        }
        (self.reported_by, self.is_unknown) = (seen.request, false);
        let (is_first, reset_at) = (seen.now >= self.reset_at, seen.now + reset_after);
        // Requests are processed and responses arrive in any order. Both our own count and what the response reports
        // without the requests that it may not count are at most what is left; if the response reports less than our
        // count, somebody else uses the limit too.
        let left = remaining.saturating_sub(seen.uncounted());
        self.remaining = if remaining < self.remaining || is_first { left } else { left.max(self.remaining) };
        self.reset_at = if self.remaining == 0 { reset_at.max(self.rejected_until) } else { reset_at };
        self.jitter = up_to_a_tenth(reset_after, seen.random);
        self.is_quota_advertised |= limit.quota.is_some();
        self.quota = limit.quota.unwrap_or(self.quota.max(remaining.saturating_add(1)));
        self.span = match limit.window {
            Some(window) => window.min(seen.horizon),
            None => self.span.max(reset_after),
        };
    }

    /// A rejection of this request: nothing is left before `until`, which the rejection itself says.
    pub(super) fn exhaust_until(&mut self, until: Timestamp, request: u64) {
        (self.remaining, self.reset_at, self.jitter) = (0, until, TimeSpan::ZERO);
        (self.rejected_until, self.is_unknown) = (until, false);
        self.reported_by = self.reported_by.max(request);
    }

    /// Why a request must wait at `now`; `None` if it need not.
    pub(super) fn delay(&self, now: Timestamp) -> Option<PolicyDelay> {
        if self.is_unknown {
            return None;
        }
        if self.remaining == 0 {
            let until = self.reset_at + self.jitter;
            return (now < until).then_some(PolicyDelay::Exhausted(until));
        }
        let is_early = self.is_low(now) && now < self.next_at;
        is_early.then_some(PolicyDelay::Spread(self.next_at))
    }

    /// Charges a request that is sent at `now`, while others are `in_flight`. Returns whether it is the first one after the
    /// limit was exhausted.
    pub(super) fn charge(&mut self, now: Timestamp, in_flight: u64) -> bool {
        let was_exhausted = self.remaining == 0;
        if now >= self.reset_at {
            // What the new window holds is an assumption until a response confirms it. Requests in flight may arrive in it.
            self.remaining = self.quota.saturating_sub(in_flight).max(1);
            self.reset_at = now + self.span;
            self.next_at = now;
            self.is_unknown = !self.is_quota_advertised;
        }
        if !self.counts_requests {
            return was_exhausted;
        }
        if self.is_low(now) {
            let interval = self.reset_at.since(now).as_micros() / self.remaining.max(1);
            self.next_at = now + TimeSpan::from_micros(interval);
        }
        self.remaining = self.remaining.saturating_sub(1);
        was_exhausted
    }

    /// Returns the unit of a request that did not reach the server.
    pub(super) fn refund(&mut self, charged_at: Timestamp) {
        let is_in_window = charged_at < self.reset_at;
        if self.counts_requests && is_in_window {
            self.remaining = self.remaining.saturating_add(1).min(self.quota.max(1));
        }
    }

    /// Whether less than half of the units are left that would be left at a steady rate.
    fn is_low(&self, now: Timestamp) -> bool {
        let left = 2 * u128::from(self.remaining) * u128::from(self.span.as_micros());
        let steady = u128::from(self.quota) * u128::from(self.reset_at.since(now).as_micros());
        self.counts_requests && left < steady
    }
}

/// What is left, and for how long, at most the horizon.
fn state_of(limit: &AdvertisedLimit, seen: Observation) -> Option<(u64, TimeSpan)> {
    if limit.unit == Some(LimitUnit::ConcurrentRequests) {
        return None;
    }
    let reset_after = limit.reset_after.or(limit.window)?;
    Some((limit.remaining?, reset_after.min(seen.horizon)))
}

/// A span between zero and a tenth of `span`. `random` is uniform over all of `u64`.
fn up_to_a_tenth(span: TimeSpan, random: u64) -> TimeSpan {
    let widest = u128::from(span.as_micros() / 10) + 1;
    TimeSpan::from_micros(u64::try_from((widest * u128::from(random)) >> 64).unwrap_or_default())
}

/// `wait` plus up to a tenth of it: never early, and clients that wait for the same time do not return together.
pub(crate) fn with_jitter(wait: TimeSpan, random: u64) -> TimeSpan {
    TimeSpan::from_micros(wait.as_micros().saturating_add(up_to_a_tenth(wait, random).as_micros()))
}
