//! When the next request to a host may be sent. Pure: time and randomness are arguments.
//!
//! - A limit with nothing left is not used before its reset.
//! - A limit with little left, relative to the time to its reset, is spread over the rest of its window.
//! - A rejection blocks what rejected it for `Retry-After`, or else for 1 s, 2 s, 4 s and so on up to 60 s.
//! - After a limit was exhausted, one request tests whether it admits requests again. The others wait for the response to
//!   it, so that they do not all arrive at the reset.
//!
//! A limit applies to a path if the last response to that path named it; paths that differ in ids only are one path. It
//! applies to a path that was never requested if all responses to at least two paths named it, or if it has rejected
//! requests to two paths: a limit of one endpoint must not block the others. A rejection that names no limit blocks all.
//! All methods take paths [without ids](without_ids).

use std::borrow::Cow;
use std::collections::HashMap;

use tidegate_core::{TimeSpan, Timestamp};
use tidegate_headers::{AdvertisedLimit, AdvertisedLimits, RejectionBody};

use super::policy_pace::{Observation, PolicyDelay, PolicyPace, with_jitter};

/// Further limits are ignored. Sets of policies are bits of a `u64`.
const MAX_POLICIES: usize = 64;
/// Limits with longer names are ignored: the names that a server invents must not fill the memory.
const MAX_NAME: usize = 256;
/// When more paths are known, all of them are forgotten.
const MAX_PATHS: usize = 512;
/// A recovered host is tested at least this often, however slow its responses are.
const PROBE_INTERVAL: TimeSpan = TimeSpan::from_secs(1);
/// The ramp ends when this many requests may be in flight.
const RAMP_END: u32 = 1_024;
/// The first block after a rejection without `Retry-After`, and the longest one.
const FIRST_BLOCK: TimeSpan = TimeSpan::from_secs(1);
const LONGEST_BLOCK: TimeSpan = TimeSpan::from_secs(60);
/// Limits are tested again after this time, even if their reset is later: servers may announce nonsense.
const HORIZON: TimeSpan = TimeSpan::from_secs(3_600);

/// The pace of one host, or of one partition of it.
#[derive(Debug)]
pub(crate) struct PaceState {
    horizon: TimeSpan,
    policies: Vec<PolicyPace>,
    /// The policies of each path without its ids, as the last response to it named them.
    paths: HashMap<Box<str>, u64>,
    /// The policies that all known paths have, if there are at least two of them.
    shared: u64,
    /// The policies that have rejected requests to at least two paths, and the paths that each rejected first.
    widespread: u64,
    first_rejected: HashMap<usize, Box<str>>,
    in_flight: u32,
    /// The number of requests so far.
    requests: u64,
    /// The number of responses so far.
    responses: u64,
    last_sent: Timestamp,
    /// No request is sent before this time: a rejection named no limit of the headers.
    blocked_until: Timestamp,
    /// What the body of that rejection said.
    blocked_by: RejectionBody,
    /// Rejections in a row without `Retry-After`. Those of requests that were sent before the last one of them arrived count
    /// once: they say the same.
    rejections: u32,
    /// The number of requests when the last one of them was counted.
    rejected_before: u64,
    /// How many requests may be in flight while the host recovers from a rejection or an exhausted limit.
    ramp: Option<u32>,
}

/// A request that may be sent.
#[derive(Debug)]
#[must_use]
pub(crate) struct PaceTicket {
    policies: u64,
    at: Timestamp,
    /// The number of the request, in the order of sending.
    request: u64,
    /// The number of responses when the request was sent.
    responses: u64,
}

/// Why a request has to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PaceDelay {
    /// When to ask again.
    pub(crate) until: Timestamp,
    /// Whether a request before this time would certainly be rejected.
    pub(crate) is_required: bool,
    /// The name of the limit.
    pub(crate) policy: Option<String>,
    /// The units per window of the limit.
    pub(crate) limit: Option<u64>,
}

/// What a response says about limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseLimits<'a> {
    pub(crate) limits: &'a AdvertisedLimits,
    /// The body of a rejection with 429; `None` if the request was not rejected.
    pub(crate) rejection: Option<&'a RejectionBody>,
    pub(crate) now: Timestamp,
    /// Uniform over all of `u64`.
    pub(crate) random: u64,
}

/// A request that was rejected.
#[derive(Clone, Copy)]
struct RejectedCall<'a> {
    /// Its path without ids.
    path: &'a str,
    /// Its number, in the order of sending.
    request: u64,
    /// The limits that rejected it, as far as the headers tell, with the numbers of their policies.
    rejecting: &'a [(usize, &'a AdvertisedLimit)],
}

impl PaceState {
    /// Knows no limits. A reset up to `max_wait` is always believed.
    pub(crate) fn new(max_wait: TimeSpan) -> Self {
        Self {
            horizon: HORIZON.max(max_wait),
            policies: Vec::new(),
            paths: HashMap::new(),
            shared: 0,
            widespread: 0,
            first_rejected: HashMap::new(),
            in_flight: 0,
            requests: 0,
            responses: 0,
            last_sent: Timestamp::ZERO,
            blocked_until: Timestamp::ZERO,
            blocked_by: RejectionBody::default(),
            rejections: 0,
            rejected_before: 0,
            ramp: None,
        }
    }

    /// The policies that apply to `path`. Requests with the same set wait in one queue.
    pub(crate) fn policies_of(&self, path: &str) -> u64 {
        self.paths.get(path).copied().unwrap_or(self.shared | self.widespread)
    }

    /// Why a request to `path` must wait at `now`; `None` if it need not.
    pub(crate) fn delay(&self, path: &str, now: Timestamp) -> Option<PaceDelay> {
        self.limit_delay(path, now).or_else(|| self.ramp_delay(now))
    }

    fn limit_delay(&self, path: &str, now: Timestamp) -> Option<PaceDelay> {
        let mut latest = (now < self.blocked_until).then(|| PaceDelay {
            until: self.blocked_until,
            is_required: true,
            policy: self.blocked_by.policy.clone(),
            limit: self.blocked_by.limit,
        });
        for policy in self.select(self.policies_of(path)) {
            let Some(delay) = policy.delay(now) else { continue };
            let (until, is_required) = match delay {
                PolicyDelay::Exhausted(until) => (until, true),
                PolicyDelay::Spread(until) => (until, false),
            };
            if latest.as_ref().is_none_or(|latest| (latest.is_required, latest.until) < (is_required, until))
            {
                let (policy, limit) = (policy.name().map(str::to_owned), Some(policy.quota()));
                latest = Some(PaceDelay { until, is_required, policy, limit });
            }
        }
        latest
    }

    /// While the host recovers, a request waits for the responses to others, or for the next probe.
    fn ramp_delay(&self, now: Timestamp) -> Option<PaceDelay> {
        let until = self.last_sent + PROBE_INTERVAL;
        let is_full = self.ramp.is_some_and(|ramp| self.in_flight >= ramp);
        let delay = PaceDelay { until, is_required: false, policy: None, limit: None };
        (is_full && now < until).then_some(delay)
    }

    /// Whether a rejection or an exhausted limit holds any request back at `now`.
    pub(crate) fn is_blocked(&self, now: Timestamp) -> bool {
        let is_exhausted = |policy: &PolicyPace| matches!(policy.delay(now), Some(PolicyDelay::Exhausted(_)));
        now < self.blocked_until || self.policies.iter().any(is_exhausted)
    }

    /// Counts a request to `path` that is sent at `now`.
    pub(crate) fn charge(&mut self, path: &str, now: Timestamp) -> PaceTicket {
        let policies = self.policies_of(path);
        let (mut was_exhausted, in_flight) = (false, self.in_flight.into());
        for policy in self.select_mut(policies) {
            was_exhausted |= policy.charge(now, in_flight);
        }
        if was_exhausted {
            self.ramp = Some(1);
        }
        self.in_flight = self.in_flight.saturating_add(1);
        self.last_sent = now;
        self.requests += 1;
        PaceTicket { policies, at: now, request: self.requests, responses: self.responses }
    }

    /// Charges a request again that was not sent yet. `None` if it must wait now; then it is not charged any more. The time of
    /// a request that was spread has come already, and one that can wait only until `latest` does not wait for others.
    pub(crate) fn renew(
        &mut self,
        ticket: &PaceTicket,
        path: &str,
        now: Timestamp,
        latest: Timestamp,
    ) -> Option<PaceTicket> {
        self.end(ticket, true);
        let is_held_back = self.limit_delay(path, now).is_some_and(|delay| delay.is_required);
        let must_wait = is_held_back || self.ramp_delay(now).is_some_and(|delay| delay.until < latest);
        (!must_wait).then(|| self.charge(path, now))
    }

    /// Ends a request without a response. Its units are returned if it was certainly `unsent`.
    pub(crate) fn end(&mut self, ticket: &PaceTicket, unsent: bool) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if unsent {
            for policy in self.select_mut(ticket.policies) {
                policy.refund(ticket.at);
            }
        }
    }

    /// Takes over what the response to a request to `path` says.
    pub(crate) fn observe(&mut self, ticket: &PaceTicket, path: &str, response: ResponseLimits<'_>) {
        self.end(ticket, false);
        let seen = Observation {
            now: response.now,
            request: ticket.request,
            horizon: self.horizon,
            in_flight: self.in_flight.into(),
            overtaking: self.responses.saturating_sub(ticket.responses),
            random: response.random,
        };
        self.responses += 1;
        self.make_room(&response.limits.limits);
        let (mut named, mut rejecting) = (0, Vec::new());
        for limit in &response.limits.limits {
            let Some(index) = self.update(limit, seen) else { continue };
            named |= 1 << index;
            if response.rejection.is_some_and(|body| is_named_by(limit, body)) {
                rejecting.push((index, limit));
            }
        }
        if named != 0 || response.rejection.is_none() {
            self.remember(path, named);
        }
        if let Some(rejection) = response.rejection {
            let rejected = RejectedCall { path, request: ticket.request, rejecting: &rejecting };
            self.block(rejected, rejection, response);
        } else {
            self.rejections = 0;
            // Advertised limits say how much is admitted; without them, the load is doubled with each response.
            let doubled = self.ramp.map(|ramp| ramp.saturating_mul(2));
            self.ramp = doubled.filter(|ramp| named == 0 && *ramp < RAMP_END);
        }
    }

    /// Blocks the limits that rejected a request, or everything if they are not named.
    fn block(&mut self, rejected: RejectedCall<'_>, rejection: &RejectionBody, response: ResponseLimits<'_>) {
        let RejectedCall { path, request, rejecting } = rejected;
        let ResponseLimits { limits, now, random, .. } = response;
        self.ramp = Some(1);
        // A server that says 0 must not get all attempts at once, and one whose clock is behind says a time in the past.
        let retry_after = limits.retry_after.filter(|wait| !wait.is_zero());
        let wait = if let Some(wait) = retry_after {
            self.rejections = 0;
            with_jitter(wait.min(self.horizon), random)
        } else {
            if request > self.rejected_before {
                self.rejections = self.rejections.saturating_add(1);
                self.rejected_before = self.requests;
            }
            let factor = 1_u64.checked_shl(self.rejections.saturating_sub(1)).unwrap_or(u64::MAX);
            let wait = TimeSpan::from_micros(FIRST_BLOCK.as_micros().saturating_mul(factor));
            with_jitter(wait, random).min(LONGEST_BLOCK)
        };
        // `Retry-After` takes precedence over the reset. Without it, only the reset of this response counts: what is known
        // otherwise may be about a later window.
        let until = |limit: &AdvertisedLimit| {
            let reset = limit.reset_after.or(limit.window).filter(|_| retry_after.is_none());
            now + wait.max(reset.map_or(TimeSpan::ZERO, |reset| with_jitter(reset.min(self.horizon), random)))
        };
        let until: Vec<_> = rejecting.iter().map(|(index, limit)| (*index, until(limit))).collect();
        for (index, until) in &until {
            if let Some(policy) = self.policies.get_mut(*index) {
                policy.exhaust_until(*until, request);
            }
            let first = self.first_rejected.entry(*index).or_insert_with(|| path.into());
            if **first != *path {
                self.widespread |= 1 << index;
            }
        }
        if rejecting.iter().any(|(_, limit)| limit.name.is_some()) {
            return;
        }
        let until = until.iter().map(|(_, until)| *until).max().unwrap_or(now + wait);
        if until > self.blocked_until {
            (self.blocked_until, self.blocked_by) = (until, rejection.clone());
        }
    }

    /// Forgets everything if `limits` do not fit. Only a server that keeps renaming its limits gets here.
    fn make_room(&mut self, limits: &[AdvertisedLimit]) {
        let is_new = |limit: &&AdvertisedLimit| !self.policies.iter().any(|policy| policy.is(limit));
        if self.policies.len() + limits.iter().filter(is_new).count() > MAX_POLICIES {
            self.policies.clear();
            self.paths.clear();
            self.first_rejected.clear();
            (self.shared, self.widespread) = (0, 0);
        }
    }

    /// Updates or adds a policy; `None` if the limit cannot be followed.
    fn update(&mut self, limit: &AdvertisedLimit, seen: Observation) -> Option<usize> {
        if limit.name.as_ref().is_some_and(|name| name.len() > MAX_NAME) {
            return None;
        }
        if let Some(index) = self.policies.iter().position(|policy| policy.is(limit)) {
            self.policies.get_mut(index)?.observe(limit, seen);
            return Some(index);
        }
        let policy = PolicyPace::new(limit, seen)?;
        if self.policies.len() >= MAX_POLICIES {
            return None;
        }
        self.policies.push(policy);
        Some(self.policies.len() - 1)
    }

    fn remember(&mut self, path: &str, policies: u64) {
        match self.paths.get_mut(path) {
            Some(known) if *known == policies => return,
            Some(known) => *known = policies,
            None => {
                if self.paths.len() >= MAX_PATHS {
                    self.paths.clear();
                }
                self.paths.insert(path.into(), policies);
            }
        }
        let common = self.paths.values().fold(u64::MAX, |common, policies| common & policies);
        // What many paths share stays known when the paths are forgotten.
        self.shared = if self.paths.len() >= 2 { common } else { self.shared & common };
    }

    fn select(&self, set: u64) -> impl Iterator<Item = &PolicyPace> {
        self.policies.iter().enumerate().filter(move |(index, _)| set & (1 << index) != 0).map(|(_, p)| p)
    }

    fn select_mut(&mut self, set: u64) -> impl Iterator<Item = &mut PolicyPace> {
        let is_in = move |(index, _): &(usize, &mut PolicyPace)| set & (1 << index) != 0;
        self.policies.iter_mut().enumerate().filter(is_in).map(|(_, policy)| policy)
    }
}

/// Whether a rejection is by this limit: its body names the limit, or nothing of the limit is left.
fn is_named_by(limit: &AdvertisedLimit, rejection: &RejectionBody) -> bool {
    let is_named = rejection.policy.is_some() && rejection.policy == limit.name;
    limit.remaining == Some(0) || is_named
}

/// A path whose segments with digits are replaced: `/v1/items/17` and `/v1/items/18` are one path.
pub(super) fn without_ids(path: &str) -> Cow<'_, str> {
    let has_digit = |text: &str| text.bytes().any(|byte| byte.is_ascii_digit());
    if !has_digit(path) {
        return Cow::Borrowed(path);
    }
    let segments = path.split('/').map(|segment| if has_digit(segment) { "*" } else { segment });
    Cow::Owned(segments.collect::<Vec<_>>().join("/"))
}
