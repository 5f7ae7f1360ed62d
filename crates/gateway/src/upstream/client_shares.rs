//! How much one client may contribute to what all clients of an upstream share.
//!
//! Law: while requests of other clients to a server succeed, the failures of one client count for at most half of a threshold
//! of its breaker, of its ejection and of the retry budget. Otherwise a client could take a server from all others by requests that the server
//! refuses on purpose, for example by closing the connection. A failed connect counts fully, and so do the failures of a
//! client that is alone: no other client shows that the server works.
//!
//! A threshold of a window follows its calls, so it falls when calls leave the window: a client could raise it with many
//! successes, fail within half of it, and wait. Then its failures are more than half. So what opens a breaker is counted without what each client has beyond its half at
//! that moment.
//!
//! Clients are told apart by address. As long as a server works, [`RecentSuccesses`] is hardly written, and [`FailureShares`]
//! is not locked.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_core::{Ratio, TimeSpan, Timestamp, WindowProgress};
use tidegate_policy::Addresses;

/// A success is remembered for at least this long, and at most twice as long.
const MEMORY: TimeSpan = TimeSpan::from_secs(5);
/// Clients whose failures are counted at a time. More clients that fail are evidence against the server.
const MAX_CLIENTS: usize = 16;
/// The steps of a window that may still have failures in it, the current one included.
const STEPS: usize = WindowProgress::STEPS as usize + 1;

/// The window of a retry budget, ten seconds, in steps.
const BUDGET_STEP: TimeSpan = TimeSpan::from_millis(10_000 / WindowProgress::STEPS as u64);

/// The address of a client: IPv4 in full, IPv6 by its network, of at most 64 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ClientId(u64);

impl ClientId {
    pub(crate) fn new(addresses: &Addresses, address: IpAddr) -> Self {
        Self(match addresses.counter_address(address) {
            IpAddr::V4(address) => u64::from(address.to_bits()),
            IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
        })
    }

    /// A number whose bits depend on the whole address.
    pub(crate) fn hash(self) -> u64 {
        // The multiplier is the golden ratio, as in Fibonacci hashing: neighbours differ in the upper half, which is returned as
        // the lower one.
        self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32)
    }
}

/// Whose attempt it was, for its part in what its result counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Evidence {
    pub(crate) client: ClientId,
    /// When the limits let the request pass; of a success, when its response began.
    pub(crate) at: Timestamp,
    /// No client can cause this end of an attempt.
    pub(crate) counts_fully: bool,
}

/// Which clients a server has served lately. No clock is read: the time of a success is the end that telemetry measures, or, without
/// telemetry, the one at which the request began.
#[derive(Debug, Default)]
pub(super) struct RecentSuccesses {
    /// Of the current and the previous period.
    periods: [SuccessPeriod; 2],
}

#[derive(Debug, Default)]
struct SuccessPeriod {
    /// The number of the period from 1 on, and in the lowest bit whether it has several clients.
    stamp: AtomicU64,
    /// The first client.
    client: AtomicU64,
}

fn period(at: Timestamp) -> u64 {
    at.as_micros() / MEMORY.as_micros() + 1
}

/// Whether a period with this stamp is the one with this number, the one before, or a later one.
fn is_recent(stamp: u64, number: u64) -> bool {
    stamp != 0 && (stamp >> 1) + 1 >= number
}

impl RecentSuccesses {
    /// A request of `client` has succeeded at `at`.
    #[inline]
    pub(super) fn record(&self, client: ClientId, at: Timestamp) {
        let number = period(at);
        let slot = &self.periods[(number & 1) as usize];
        let stamp = slot.stamp.load(Ordering::Relaxed);
        // Most requests end here, without a write.
        if stamp != number << 1 | 1
            && (stamp != number << 1 || slot.client.load(Ordering::Relaxed) != client.0)
        {
            slot.update(number, stamp, client);
        }
    }

    /// Whether a request of another client has succeeded not long before `at`, or later.
    pub(super) fn has_other(&self, client: ClientId, at: Timestamp) -> bool {
        let number = period(at);
        self.periods.iter().any(|slot| {
            let stamp = slot.stamp.load(Ordering::Relaxed);
            is_recent(stamp, number) && (stamp & 1 == 1 || slot.client.load(Ordering::Relaxed) != client.0)
        })
    }

    /// The same for any client.
    pub(super) fn has_any(&self, at: Timestamp) -> bool {
        let number = period(at);
        self.periods.iter().any(|slot| is_recent(slot.stamp.load(Ordering::Relaxed), number))
    }
}

impl SuccessPeriod {
    #[cold]
    fn update(&self, number: u64, stamp: u64, client: ClientId) {
        if stamp >> 1 == number {
            self.stamp.store(number << 1 | 1, Ordering::Relaxed);
        } else if stamp >> 1 < number {
            self.client.store(client.0, Ordering::Relaxed);
            self.stamp.store(number << 1, Ordering::Relaxed);
        }
    }
}

/// What a failure may do: open a breaker or eject a server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Thresholds {
    /// The number of failures in a row.
    pub(super) in_a_row: Option<u32>,
    /// The number of failures in the window.
    pub(super) window: Option<WindowThreshold>,
}

/// How many failures of a window open a breaker now.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowThreshold {
    failures: u64,
    /// Failures in the window now.
    counted: u64,
    step: u64,
}

impl WindowThreshold {
    /// The threshold for retries, of which `left` are left of those of ten seconds: a client that has used as many is at half.
    pub(super) fn of_budget(left: u64, now: Timestamp) -> Self {
        let step = now.as_micros() / BUDGET_STEP.as_micros();
        Self { failures: left.saturating_mul(2), counted: 0, step }
    }

    /// The threshold for the calls in the window; it only grows with another one.
    pub(super) fn new(progress: WindowProgress, rate: Ratio, min_calls: u32) -> Self {
        let calls = progress.calls.max(u64::from(min_calls));
        let rounded_down = rate.of(calls);
        let is_whole = rate.is_reached_by(rounded_down, calls);
        Self { failures: rounded_down + u64::from(!is_whole), counted: progress.bad, step: progress.step }
    }
}

/// The failures of each client, as far as they count for one breaker or one ejection.
#[derive(Debug, Default)]
pub(super) struct FailureShares {
    /// Whether there are failures since the latest success.
    has_streak: AtomicBool,
    table: Mutex<ClientShareTable>,
}

#[derive(Debug, Default)]
struct ClientShareTable {
    /// The one that failed last is the last one.
    clients: Vec<ClientFailures>,
    /// The halves of an odd threshold: one of two clients has used its half failure.
    has_half: bool,
    /// Failures that the breaker does not know: with them it would have opened because of what one client has beyond its half.
    withheld: StepCounts,
}

#[derive(Clone, Copy, Debug)]
struct ClientFailures {
    client: ClientId,
    /// Since the latest success.
    streak: u32,
    window: StepCounts,
}

/// Failures in the latest steps of a window, the current one first.
#[derive(Clone, Copy, Debug, Default)]
struct StepCounts {
    counts: [u32; STEPS],
    step: u64,
}

impl FailureShares {
    /// Counts a failure of `client`. Returns whether it counts against the server: always if no other client
    /// `has_others` that succeed, else within half of the thresholds.
    pub(super) fn count(&self, client: ClientId, thresholds: Thresholds, has_others: bool) -> bool {
        let mut table = self.lock();
        self.has_streak.store(true, Ordering::Relaxed);
        table.count(client, thresholds, has_others)
    }

    /// A success ends all streaks.
    #[inline]
    pub(super) fn end_streak(&self) {
        if self.has_streak.load(Ordering::Relaxed) {
            self.forget_streak();
        }
    }

    #[cold]
    fn forget_streak(&self) {
        let mut table = self.lock();
        self.has_streak.store(false, Ordering::Relaxed);
        table.has_half = false;
        for known in &mut table.clients {
            known.streak = 0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, ClientShareTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientShareTable {
    fn count(&mut self, client: ClientId, thresholds: Thresholds, has_others: bool) -> bool {
        let Thresholds { in_a_row, window } = thresholds;
        let step = window.map(|window| window.step);
        self.touch(client, step);
        let Some(known) = self.clients.last_mut() else { return true };
        known.window.advance(step.unwrap_or_default());
        let is_within_window = !has_others || window.is_none_or(|window| known.fits(window));
        let halves = in_a_row.filter(|_| has_others).map_or(2, |most| known.halves_left(most));
        known.streak = known.streak.saturating_add(u32::from(in_a_row.is_some()));
        if !is_within_window || halves == 0 {
            return false;
        }
        if halves == 1 {
            self.has_half = !self.has_half;
            if self.has_half {
                return false;
            }
        }
        known.window.add();
        if let Some(window) = window.filter(|_| has_others)
            && self.opens_by_excess(window)
        {
            self.withheld.add();
            return false;
        }
        true
    }

    /// Whether one more failure reaches the threshold only because a client has more than half of it.
    fn opens_by_excess(&mut self, WindowThreshold { failures, counted, step }: WindowThreshold) -> bool {
        let counted = counted.saturating_add(1);
        if counted < failures {
            return false;
        }
        let excess = |known: &mut ClientFailures| {
            known.window.advance(step);
            known.window.total().saturating_sub(failures / 2)
        };
        let excess: u64 = self.clients.iter_mut().map(excess).sum();
        self.withheld.advance(step);
        counted.saturating_add(self.withheld.total()).saturating_sub(excess) < failures
    }

    /// Moves a client to the end of the table. If there is no room, the client with the fewest failures
    /// makes it, of several the one that has not failed for the longest time: otherwise each failure of another client could
    /// make the table forget the one that fails most. `step` is that of the window, if there is one.
    fn touch(&mut self, client: ClientId, step: Option<u64>) {
        let found = self.clients.iter().position(|known| known.client == client);
        let found = found.map(|index| self.clients.remove(index));
        if found.is_none() && self.clients.len() >= MAX_CLIENTS {
            let fewest = self.clients.iter_mut().map(|known| known.remembered(step)).enumerate();
            if let Some((index, _)) = fewest.min_by_key(|(_, failures)| *failures) {
                self.clients.remove(index);
            }
        }
        let known = found.unwrap_or(ClientFailures { client, streak: 0, window: StepCounts::default() });
        self.clients.push(known);
    }
}

impl StepCounts {
    /// Forgets the steps that have left the window.
    fn advance(&mut self, step: u64) {
        // A window that was cleared starts again.
        let passed = step.checked_sub(self.step).and_then(|passed| usize::try_from(passed).ok());
        let passed = passed.unwrap_or(STEPS).min(STEPS);
        self.counts.rotate_right(passed);
        self.counts[..passed].fill(0);
        self.step = step;
    }

    fn add(&mut self) {
        self.counts[0] = self.counts[0].saturating_add(1);
    }

    fn total(&self) -> u64 {
        self.counts.iter().copied().map(u64::from).sum()
    }
}

impl ClientFailures {
    /// The failures that are lost if the client is forgotten. Without a window only the streak counts.
    fn remembered(&mut self, step: Option<u64>) -> u64 {
        let in_window = step.map_or(0, |step| {
            self.window.advance(step);
            self.window.total()
        });
        in_window.max(u64::from(self.streak))
    }

    /// Whether one more failure is within half of the threshold.
    fn fits(&self, window: WindowThreshold) -> bool {
        self.window.total().saturating_add(1).saturating_mul(2) <= window.failures
    }

    /// How much of the next failure in a row is within half of the threshold, in halves of a failure.
    fn halves_left(&self, most: u32) -> u32 {
        most.saturating_sub(self.streak.saturating_mul(2)).min(2)
    }
}

#[cfg(test)]
mod tests;
