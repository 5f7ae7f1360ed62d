//! Parses the rate-limit headers of other servers.
//!
//! Servers use several generations of headers, sometimes together. The most informative one that is present is used:
//!
//! 1. `RateLimit-Policy: "a";q=100;w=60` and `RateLimit: "a";r=50;t=30`, the newest draft;
//! 2. `RateLimit: limit=100, remaining=50, reset=30`, with `RateLimit-Policy: 100;w=60`;
//! 3. `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset`, with the same policies, which may also follow the limit;
//! 4. `X-RateLimit-*`, or `X-Rate-Limit-*`.
//!
//! The server may be wrong or hostile: invalid values are ignored. A number with a fraction or beyond the range is rounded to
//! its safe side: times up, units down.

use std::time::UNIX_EPOCH;

use http::header::{AGE, DATE, HeaderName, RETRY_AFTER};
use http::{HeaderMap, HeaderValue};
use sfv::{BareItem, Dictionary, Item, List, ListEntry, Parser, StringRef, TokenRef};
use tidegate_core::{LimitUnit, TimeSpan, Timestamp};

use crate::names;

/// Further limits are ignored.
const MAX_LIMITS: usize = 64;
/// A reset of at least this many seconds is a Unix time: no server announces a wait of 31 years.
const FIRST_UNIX_SECOND: u64 = 1_000_000_000;
/// From the year 5138 on, a number of seconds is one of milliseconds; and so on for the smaller units.
const FIRST_UNIX_MILLISECOND: u64 = 100_000_000_000;
const FIRST_UNIX_MICROSECOND: u64 = FIRST_UNIX_MILLISECOND * 1_000;
const FIRST_UNIX_NANOSECOND: u64 = FIRST_UNIX_MICROSECOND * 1_000;
/// Clocks that differ by no more than this agree: `Date` has whole seconds.
const SMALL_SKEW: TimeSpan = TimeSpan::from_secs(2);

const X_RATE_LIMIT: SingleValueHeaders = SingleValueHeaders {
    limit: HeaderName::from_static("x-rate-limit-limit"),
    remaining: HeaderName::from_static("x-rate-limit-remaining"),
    reset: HeaderName::from_static("x-rate-limit-reset"),
};
const X_RATELIMIT: SingleValueHeaders =
    SingleValueHeaders { limit: names::X_LIMIT, remaining: names::X_REMAINING, reset: names::X_RESET };
const RATELIMIT: SingleValueHeaders =
    SingleValueHeaders { limit: names::LIMIT, remaining: names::REMAINING, reset: names::RESET };
const SINGLE_VALUED: [SingleValueHeaders; 3] = [RATELIMIT, X_RATELIMIT, X_RATE_LIMIT];

/// The limits that a response advertises.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdvertisedLimits {
    /// The limits, in the order of the response.
    pub limits: Vec<AdvertisedLimit>,
    /// The time after which the client may retry.
    pub retry_after: Option<TimeSpan>,
}

/// One limit that a response advertises.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdvertisedLimit {
    /// The name of the limit.
    pub name: Option<String>,
    /// Units per window.
    pub quota: Option<u64>,
    /// The window.
    pub window: Option<TimeSpan>,
    /// Units that are left.
    pub remaining: Option<u64>,
    /// The time until more units are left.
    pub reset_after: Option<TimeSpan>,
    /// The unit; `None` if the response names none, or an unknown one.
    pub unit: Option<LimitUnit>,
}

impl AdvertisedLimits {
    /// Reads the headers of a response that was received at `now`.
    pub fn parse(headers: &HeaderMap, now: Timestamp) -> Self {
        let server_time = server_time(headers, now);
        // A proxy may write the reset, and a server behind it the `Date`. So the clock that is ahead counts: a wait that is too
        // short costs one request, and one that is too long stops the client.
        let ahead = now.max(server_time);
        let mut limits = policies(headers, &names::POLICY);
        let states = states(headers);
        if states.is_empty() {
            let single = dictionary(headers, ahead)
                .or_else(|| SINGLE_VALUED.iter().find_map(|family| family.read(headers, ahead, &mut limits)));
            if let Some(single) = single {
                merge(&mut limits, single);
            }
        }
        for state in states {
            merge(&mut limits, state);
        }
        Self { limits, retry_after: retry_after(headers, server_time) }
    }
}

/// Headers that hold one value each.
struct SingleValueHeaders {
    limit: HeaderName,
    remaining: HeaderName,
    reset: HeaderName,
}

impl SingleValueHeaders {
    /// The limit; `None` without any of these headers. Early drafts append policies to the limit; they are added to `limits`.
    fn read(
        &self,
        headers: &HeaderMap,
        now: Timestamp,
        limits: &mut Vec<AdvertisedLimit>,
    ) -> Option<AdvertisedLimit> {
        let number = |name, round| headers.get_all(name).iter().find_map(|value| number(value, round));
        let mut listed = policies(headers, &self.limit).into_iter().filter(|policy| policy.name.is_none());
        let first = listed.next().unwrap_or_default();
        let quota = first.quota.or_else(|| number(&self.limit, Round::Down));
        let remaining = number(&self.remaining, Round::Down);
        let date = || headers.get_all(&self.reset).iter().find_map(http_date);
        let reset_after = number(&self.reset, Round::Up)
            .map(|number| reset_after(number, now))
            .or_else(|| Some(date()?.since(now)));
        if quota.is_none() && remaining.is_none() && reset_after.is_none() {
            return None;
        }
        limits.extend(listed.take(MAX_LIMITS.saturating_sub(limits.len())));
        Some(AdvertisedLimit { quota, remaining, reset_after, ..first })
    }
}

/// Merges `reported` into the policy with the same name, or without a name, the same quota.
fn merge(limits: &mut Vec<AdvertisedLimit>, reported: AdvertisedLimit) {
    let belongs = |limit: &&mut AdvertisedLimit| {
        let is_open = limit.remaining.is_none() && limit.reset_after.is_none();
        let is_same = match &reported.name {
            Some(_) => limit.name == reported.name,
            None => limit.quota.is_some() && limit.quota == reported.quota,
        };
        is_open && is_same
    };
    if let Some(limit) = limits.iter_mut().find(belongs) {
        limit.remaining = reported.remaining;
        limit.reset_after = reported.reset_after;
    } else if limits.len() < MAX_LIMITS {
        limits.push(reported);
    }
}

/// A list of policies: `"name";q=100;qu="requests";w=60` in the newest draft, `100;w=60` in earlier ones.
fn policies(headers: &HeaderMap, name: &HeaderName) -> Vec<AdvertisedLimit> {
    items(headers, name).filter_map(|item| policy(&item)).take(MAX_LIMITS).collect()
}

fn policy(item: &Item) -> Option<AdvertisedLimit> {
    let parameter = |key| item.params.get(key);
    let window = parameter("w").and_then(|window| item_number(window, Round::Up)).map(TimeSpan::from_secs);
    if let Some(quota) = integer(&item.bare_item) {
        return Some(AdvertisedLimit { quota: Some(quota), window, ..AdvertisedLimit::default() });
    }
    let unit = match parameter("qu") {
        Some(unit) => text(unit).and_then(LimitUnit::parse),
        None => Some(LimitUnit::Requests),
    };
    let quota = parameter("q").and_then(integer);
    let name = Some(text(&item.bare_item)?.to_owned());
    Some(AdvertisedLimit { name, quota, window, unit, ..AdvertisedLimit::default() })
}

/// The states of named limits: `"name";r=50;t=30`.
fn states(headers: &HeaderMap) -> Vec<AdvertisedLimit> {
    let state = |item: Item| {
        let parameter = |key, round| item.params.get(key).and_then(|value| item_number(value, round));
        let name = Some(text(&item.bare_item)?.to_owned());
        let remaining = parameter("r", Round::Down);
        let reset_after = parameter("t", Round::Up).map(TimeSpan::from_secs);
        let state = AdvertisedLimit { name, remaining, reset_after, ..AdvertisedLimit::default() };
        (remaining.is_some() || reset_after.is_some()).then_some(state)
    };
    items(headers, &names::RATELIMIT).filter_map(state).take(MAX_LIMITS).collect()
}

/// `limit=100, remaining=50, reset=30`.
fn dictionary(headers: &HeaderMap, now: Timestamp) -> Option<AdvertisedLimit> {
    let members = Parser::new(&joined(headers, &names::RATELIMIT)).parse::<Dictionary>().ok()?;
    let number = |key, round| match members.get(key)? {
        ListEntry::Item(item) => item_number(&item.bare_item, round),
        ListEntry::InnerList(_) => None,
    };
    let (quota, remaining) = (number("limit", Round::Down), number("remaining", Round::Down));
    let reset = number("reset", Round::Up);
    if quota.is_none() && remaining.is_none() && reset.is_none() {
        return None;
    }
    let reset_after = reset.map(|number| reset_after(number, now));
    Some(AdvertisedLimit { quota, remaining, reset_after, ..AdvertisedLimit::default() })
}

/// `Retry-After`, or its counterpart among the `X-RateLimit` headers. The longest of several counts.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<TimeSpan> {
    let seconds = |value| number(value, Round::Up).map(TimeSpan::from_secs);
    let standard = headers.get_all(RETRY_AFTER).iter();
    let standard = standard.filter_map(|value| seconds(value).or_else(|| Some(http_date(value)?.since(now))));
    standard.max().or_else(|| headers.get_all(names::X_RETRY_AFTER).iter().filter_map(seconds).max())
}

/// The time at `now` by the clock of the server, which writes times of its own clock.
fn server_time(headers: &HeaderMap, now: Timestamp) -> Timestamp {
    let Some(date) = headers.get(DATE).and_then(http_date) else { return now };
    // A cache has kept the response for this long.
    let age = headers.get(AGE).and_then(|age| number(age, Round::Down)).unwrap_or(0);
    let server_time = date + TimeSpan::from_secs(age);
    let skew = now.since(server_time).max(server_time.since(now));
    if skew > SMALL_SKEW { server_time } else { now }
}

fn http_date(value: &HeaderValue) -> Option<Timestamp> {
    let date = httpdate::parse_http_date(value.to_str().ok()?).ok()?;
    let seconds = date.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Some(Timestamp::from_secs(seconds))
}

/// The time until a reset that is a number of seconds, or a Unix time in any usual unit.
fn reset_after(number: u64, now: Timestamp) -> TimeSpan {
    let at = match number {
        ..FIRST_UNIX_SECOND => now + TimeSpan::from_secs(number),
        FIRST_UNIX_SECOND..FIRST_UNIX_MILLISECOND => Timestamp::from_secs(number),
        FIRST_UNIX_MILLISECOND..FIRST_UNIX_MICROSECOND => {
            Timestamp::from_micros(number.saturating_mul(1_000))
        }
        FIRST_UNIX_MICROSECOND..FIRST_UNIX_NANOSECOND => Timestamp::from_micros(number),
        FIRST_UNIX_NANOSECOND.. => Timestamp::from_micros(number.div_ceil(1_000)),
    };
    at.since(now)
}

/// Where a fraction goes.
#[derive(Clone, Copy)]
enum Round {
    Up,
    Down,
}

/// A number of decimal digits, possibly with a fraction. One beyond the range is the largest.
fn number(value: &HeaderValue, round: Round) -> Option<u64> {
    let text = std::str::from_utf8(value.as_bytes().trim_ascii()).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let whole = whole.parse().unwrap_or(u64::MAX);
    let is_more = fraction.bytes().any(|digit| digit != b'0');
    Some(whole.saturating_add(u64::from(is_more && matches!(round, Round::Up))))
}

/// The items of a structured list.
fn items(headers: &HeaderMap, name: &HeaderName) -> impl Iterator<Item = Item> {
    let list = Parser::new(&joined(headers, name)).parse::<List>().unwrap_or_default();
    list.into_iter().filter_map(|entry| match entry {
        ListEntry::Item(item) => Some(item),
        ListEntry::InnerList(_) => None,
    })
}

/// A header on several lines is one list.
fn joined(headers: &HeaderMap, name: &HeaderName) -> Vec<u8> {
    headers.get_all(name).iter().map(HeaderValue::as_bytes).collect::<Vec<_>>().join(&b", "[..])
}

fn integer(item: &BareItem) -> Option<u64> {
    u64::try_from(i64::from(item.as_integer()?)).ok()
}

/// An integer or a decimal that is not negative.
fn item_number(item: &BareItem, round: Round) -> Option<u64> {
    let Some(decimal) = item.as_decimal() else { return integer(item) };
    number(&HeaderValue::try_from(decimal.to_string()).ok()?, round)
}

/// A string, or a token as earlier drafts have it.
fn text(item: &BareItem) -> Option<&str> {
    item.as_string().map(StringRef::as_str).or_else(|| item.as_token().map(TokenRef::as_str))
}

#[cfg(test)]
mod tests;
