//! A circuit breaker: calls to a service that fails are rejected at once, until a probe shows that it works again.
//!
//! ```text
//!              failures or rate reached                 a probe fails
//!   ┌────────┐ ───────────────────────> ┌──────┐ <───────────────────── ┌──────────┐
//!   │ Closed │                          │ Open │                        │ HalfOpen │
//!   └────────┘                          └──────┘ ─────────────────────> └──────────┘
//!       ^                                          the open time is over     │
//!       └────────────────────────────────────────────────────────────────────┘
//!                            enough probes have succeeded
//! ```
//!
//! The state is one word, replaced by compare-and-swap: kind, generation, and a payload that depends on the kind. The
//! generation changes with every transition, so that the result of a call counts only in the state that admitted it. While
//! the breaker is closed and calls succeed, nothing is written unless a rate is configured.
//!
//! Laws: at most `probes` probes are in flight, those of earlier half-open states included, and at most as many whose callers
//! [delay](Breaker::delay) them. While none ends, one more may start after a second, another one after two, and so on up to
//! `open_for`. So a probe that never ends delays the next one by a second. A neutral outcome changes no count, and neither does a client error, except that it ends a probe as a
//! success. A success never opens the breaker, unless it was slow.

mod config;
mod probe_slots;
mod state_word;

pub use config::{BreakerConfig, BreakerConfigError, SlowCalls};

use thiserror::Error;

use self::probe_slots::ProbeSlots;
use self::state_word::{MICROS_PER_MILLI, StateWord};
use super::atomic::{AtomicU32, AtomicU64, Ordering};
use super::call_outcome::CallOutcome;
use super::call_window::{CallCounts, CallRecord, CallWindow, WindowProgress};
use crate::time::{TimeSpan, Timestamp};

/// A circuit breaker, shared by all callers of one service.
#[derive(Debug)]
pub struct Breaker {
    config: BreakerConfig,
    state: AtomicU64,
    /// Probes in flight, of whatever generation.
    probes: ProbeSlots,
    /// Probes in flight that their callers delay.
    delayed: AtomicU32,
    /// Half-open states in a row that ended with a failed probe.
    failed_probes: AtomicU32,
    /// The calls of the window, if a rate is configured.
    window: Option<CallWindow>,
    opened: AtomicU64,
    rejected: AtomicU64,
}

/// A call that the breaker admitted. Give it to [`Breaker::record`], or to [`Breaker::cancel`] if it has no result.
#[derive(Debug)]
#[must_use]
pub struct CallTicket {
    generation: u64,
    kind: CallKind,
    slot: ProbeSlot,
}

/// What a call is for the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallKind {
    /// The breaker is closed.
    Ordinary,
    /// It made the breaker half-open.
    FirstProbe,
    /// The breaker was half-open.
    LaterProbe,
}

/// What a call occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeSlot {
    /// Nothing: it is no probe, or has given its slot up.
    None,
    /// One of the slots for probes.
    Prompt,
    /// One of the slots for probes that their callers delay.
    Delayed,
}

impl CallTicket {
    /// Whether the call probes a service that has failed.
    pub const fn is_probe(&self) -> bool {
        !matches!(self.kind, CallKind::Ordinary)
    }

    /// Whether the call has made the breaker half-open.
    pub const fn is_first_probe(&self) -> bool {
        matches!(self.kind, CallKind::FirstProbe)
    }
}

/// The breaker rejects calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the circuit breaker is open")]
pub struct BreakerOpen {
    /// When the next probe is possible; `None` if that is not known: probes are in flight, or the breaker was forced open.
    pub retry_after: Option<TimeSpan>,
}

/// When a call ended, and how long it took.
#[derive(Clone, Copy, Debug)]
pub struct CallTiming {
    /// The end of the call.
    pub now: Timestamp,
    /// Its duration.
    pub elapsed: TimeSpan,
    /// Uniform over all of `u64`; used for the jitter of the open time.
    pub random: u64,
}

named_enum! {
    /// What a breaker does with calls.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum BreakerState {
        /// Calls are admitted.
        Closed = "closed",
        /// Calls are rejected until the open time is over.
        Open = "open",
        /// Probes are admitted, all other calls are rejected.
        HalfOpen = "half_open",
        /// An operator closed the breaker: calls are admitted, whatever their results.
        ForcedClosed = "forced_closed",
        /// An operator opened the breaker: calls are rejected.
        ForcedOpen = "forced_open",
    }
}

/// A breaker at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerStatus {
    /// The state.
    pub state: BreakerState,
    /// The rest of the open time, while the breaker is open.
    pub open_for: TimeSpan,
    /// Failures in a row, while the breaker is closed.
    pub consecutive_failures: u32,
    /// Probes in flight, without those that their callers delay.
    pub probes: u32,
    /// How often the breaker has opened.
    pub opened: u64,
    /// Calls that were rejected.
    pub rejected: u64,
}

impl Breaker {
    /// A closed breaker.
    pub fn new(config: BreakerConfig) -> Result<Self, BreakerConfigError> {
        config.validate()?;
        Ok(Self {
            config,
            state: AtomicU64::new(0),
            probes: ProbeSlots::new(),
            delayed: AtomicU32::new(0),
            failed_probes: AtomicU32::new(0),
            window: config.has_rate().then(|| CallWindow::new(config.window)),
            opened: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
        })
    }

    /// The configuration.
    pub const fn config(&self) -> &BreakerConfig {
        &self.config
    }

    /// Whether durations matter: a share of slow calls opens the breaker.
    pub const fn measures_duration(&self) -> bool {
        self.config.slow.is_some()
    }

    /// Admits a call, or rejects it. `now` is not called while the breaker is closed.
    #[inline]
    pub fn try_acquire(&self, now: impl FnOnce() -> Timestamp) -> Result<CallTicket, BreakerOpen> {
        let word = StateWord::unpack(self.load());
        match word.state {
            BreakerState::Closed | BreakerState::ForcedClosed => Ok(CallTicket {
                generation: word.generation,
                kind: CallKind::Ordinary,
                slot: ProbeSlot::None,
            }),
            _ => self.acquire_unless_open(now()),
        }
    }

    /// Rejects the call while the open time lasts: the usual answer of a breaker that is not closed.
    #[cold]
    fn acquire_unless_open(&self, now: Timestamp) -> Result<CallTicket, BreakerOpen> {
        let word = StateWord::unpack(self.load());
        if word.state == BreakerState::Open && now < word.open_until() {
            return Err(self.reject(Some(word.open_until().since(now))));
        }
        self.try_probe(now)
    }

    #[inline(never)]
    fn try_probe(&self, now: Timestamp) -> Result<CallTicket, BreakerOpen> {
        loop {
            let word = StateWord::unpack(self.load());
            match word.state {
                BreakerState::Closed | BreakerState::ForcedClosed => {
                    return Ok(CallTicket {
                        generation: word.generation,
                        kind: CallKind::Ordinary,
                        slot: ProbeSlot::None,
                    });
                }
                BreakerState::ForcedOpen => return Err(self.reject(None)),
                BreakerState::Open if now < word.open_until() => {
                    return Err(self.reject(Some(word.open_until().since(now))));
                }
                BreakerState::Open | BreakerState::HalfOpen => {}
            }
            // The slot is taken before the state is confirmed, so that there are never more probes than slots.
            if !self.probes.try_take(self.config.probes, self.config.open_for, now) {
                return Err(self.reject(None));
            }
            let (is_confirmed, generation) = if word.state == BreakerState::Open {
                let half_open = word.becomes(BreakerState::HalfOpen, 0);
                (self.replace(word, half_open), half_open.generation)
            } else {
                let current = StateWord::unpack(self.load());
                let is_same = (current.state, current.generation) == (word.state, word.generation);
                (is_same, word.generation)
            };
            if is_confirmed {
                let is_first = word.state == BreakerState::Open;
                let kind = if is_first { CallKind::FirstProbe } else { CallKind::LaterProbe };
                return Ok(CallTicket { generation, kind, slot: ProbeSlot::Prompt });
            }
            self.probes.release();
        }
    }

    /// How long after the start of the last probe another one may start, although none has ended.
    pub fn hung_after(&self) -> TimeSpan {
        self.probes.hung_after(self.config.probes, self.config.open_for)
    }

    /// The caller of a probe may delay it as it likes, for example by sending its request slowly. The probe leaves its slot to
    /// another one, and takes one of as many for delayed probes. Returns whether there is one; if not, cancel the call.
    pub fn delay(&self, ticket: &mut CallTicket) -> bool {
        if ticket.slot != ProbeSlot::Prompt {
            return true;
        }
        let take = |taken: u32| (taken < self.config.probes).then(|| taken.saturating_add(1));
        let has_slot = self.delayed.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_ok();
        if has_slot {
            self.release_slot(ticket);
            ticket.slot = ProbeSlot::Delayed;
        }
        has_slot
    }

    /// Gives up the slot of a probe, which may last. Its result still counts.
    pub fn release_slot(&self, ticket: &mut CallTicket) {
        match ticket.slot {
            ProbeSlot::None => {}
            ProbeSlot::Prompt => self.probes.release(),
            ProbeSlot::Delayed => {
                self.delayed.fetch_sub(1, Ordering::AcqRel);
            }
        }
        ticket.slot = ProbeSlot::None;
    }

    /// Records the result of a call. `timing` is called only if the result needs it. Returns the new state if it has changed.
    #[inline]
    pub fn record(
        &self,
        ticket: CallTicket,
        outcome: CallOutcome,
        timing: impl FnOnce() -> CallTiming,
    ) -> Option<BreakerState> {
        if outcome == CallOutcome::Success && self.window.is_none() && !ticket.is_probe() {
            let word = StateWord::unpack(self.load());
            // Most calls end here.
            if word.payload == 0 || word.state != BreakerState::Closed {
                return None;
            }
        }
        self.record_result(ticket, outcome, timing())
    }

    fn record_result(
        &self,
        ticket: CallTicket,
        outcome: CallOutcome,
        timing: CallTiming,
    ) -> Option<BreakerState> {
        let has_failed = match outcome {
            CallOutcome::ClientError if ticket.is_probe() => false,
            CallOutcome::Neutral | CallOutcome::ClientError => {
                self.cancel(ticket);
                return None;
            }
            CallOutcome::Failure => true,
            CallOutcome::Success => false,
        };
        let is_slow = self.config.slow.is_some_and(|slow| timing.elapsed >= slow.over);
        let call = CallRecord { has_failed, is_slow };
        let changed = if ticket.is_probe() {
            self.record_probe(&ticket, call, timing)
        } else {
            self.record_call(&ticket, call, timing)
        };
        // The slot is released after the transition, so that no further probe starts in between.
        self.cancel(ticket);
        changed
    }

    /// Ends a call without a result.
    pub fn cancel(&self, mut ticket: CallTicket) {
        self.release_slot(&mut ticket);
    }

    fn record_call(&self, ticket: &CallTicket, call: CallRecord, timing: CallTiming) -> Option<BreakerState> {
        let is_current =
            |word: StateWord| word.state == BreakerState::Closed && word.generation == ticket.generation;
        if let Some(window) = self.window.as_ref().filter(|_| is_current(StateWord::unpack(self.load()))) {
            window.add(call, timing.now);
        }
        loop {
            let word = StateWord::unpack(self.load());
            if !is_current(word) {
                return None;
            }
            let failures = if call.has_failed { word.payload.saturating_add(1) } else { 0 };
            let is_bad = call.has_failed || call.is_slow;
            let opens = self.config.failures.is_some_and(|most| failures >= u64::from(most))
                || (is_bad
                    && self.window.as_ref().is_some_and(|window| self.exceeds(window.counts(timing.now))));
            if opens {
                if self.open(word, timing, 0) {
                    return Some(BreakerState::Open);
                }
            } else if failures == word.payload || self.replace(word, word.with_payload(failures)) {
                return None;
            }
        }
    }

    fn record_probe(
        &self,
        ticket: &CallTicket,
        call: CallRecord,
        timing: CallTiming,
    ) -> Option<BreakerState> {
        loop {
            let word = StateWord::unpack(self.load());
            if word.state != BreakerState::HalfOpen || word.generation != ticket.generation {
                return None;
            }
            if call.has_failed || call.is_slow {
                let failed = self.failed_probes.load(Ordering::Relaxed).saturating_add(1);
                if self.open(word, timing, failed) {
                    return Some(BreakerState::Open);
                }
                continue;
            }
            let successes = word.payload.saturating_add(1);
            if successes < u64::from(self.config.successes) {
                if self.replace(word, word.with_payload(successes)) {
                    return None;
                }
                continue;
            }
            // No call is counted while the breaker is half-open, so the window is empty when it closes.
            self.clear_counts();
            if self.replace(word, word.becomes(BreakerState::Closed, 0)) {
                return Some(BreakerState::Closed);
            }
        }
    }

    fn exceeds(&self, counts: CallCounts) -> bool {
        let slow = self.config.slow.map(|slow| slow.rate);
        counts.calls >= u64::from(self.config.min_calls) && counts.reaches(self.config.failure_rate, slow)
    }

    fn open(&self, word: StateWord, timing: CallTiming, failed_probes: u32) -> bool {
        let until = timing.now + self.config.open_time(failed_probes, timing.random);
        let until = until.as_micros().div_ceil(MICROS_PER_MILLI);
        let has_opened = self.replace(word, word.becomes(BreakerState::Open, until));
        if has_opened {
            self.failed_probes.store(failed_probes, Ordering::Relaxed);
            self.opened.fetch_add(1, Ordering::Relaxed);
        }
        has_opened
    }

    /// Rejects all calls until [`Self::reset`].
    pub fn force_open(&self) {
        self.force(BreakerState::ForcedOpen);
    }

    /// Admits all calls until [`Self::reset`].
    pub fn force_closed(&self) {
        self.force(BreakerState::ForcedClosed);
    }

    /// Closes the breaker and forgets all calls.
    pub fn reset(&self) {
        self.clear_counts();
        self.force(BreakerState::Closed);
    }

    fn force(&self, state: BreakerState) {
        loop {
            let word = StateWord::unpack(self.load());
            if self.replace(word, word.becomes(state, 0)) {
                return;
            }
        }
    }

    /// The breaker at `now`. An open breaker whose time is over still counts as open: it waits for a probe.
    pub fn status(&self, now: Timestamp) -> BreakerStatus {
        let word = StateWord::unpack(self.load());
        let is = |state| word.state == state;
        BreakerStatus {
            state: word.state,
            open_for: if is(BreakerState::Open) { word.open_until().since(now) } else { TimeSpan::ZERO },
            consecutive_failures: if is(BreakerState::Closed) {
                u32::try_from(word.payload).unwrap_or(u32::MAX)
            } else {
                0
            },
            probes: self.probes.taken(),
            opened: self.opened.load(Ordering::Relaxed),
            rejected: self.rejected.load(Ordering::Relaxed),
        }
    }

    /// The window that rates are computed from, if one is configured.
    pub fn window(&self, now: Timestamp) -> Option<WindowProgress> {
        self.window.as_ref().map(|window| window.progress(now))
    }

    /// The state.
    pub fn state(&self) -> BreakerState {
        StateWord::unpack(self.load()).state
    }

    fn clear_counts(&self) {
        self.failed_probes.store(0, Ordering::Relaxed);
        if let Some(window) = &self.window {
            window.clear();
        }
    }

    fn reject(&self, retry_after: Option<TimeSpan>) -> BreakerOpen {
        self.rejected.fetch_add(1, Ordering::Relaxed);
        BreakerOpen { retry_after }
    }

    fn load(&self) -> u64 {
        self.state.load(Ordering::Acquire)
    }

    fn replace(&self, old: StateWord, new: StateWord) -> bool {
        self.state.compare_exchange(old.pack(), new.pack(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests;
