//! The breaker of one service, and the permits of its calls.

use std::sync::Arc;

use tidegate_core::{
    Breaker, BreakerConfig, BreakerConfigError, BreakerOpen, BreakerState, BreakerStatus, CallOutcome,
    CallTicket, CallTiming, TimeSpan,
};
use tidegate_store::{Clock, ClockReading};

use crate::clock::system_clock;

/// The circuit breaker of one service. Clones share the state.
#[derive(Clone, Debug)]
pub struct CircuitBreaker {
    shared: Arc<BreakerWithClock>,
}

#[derive(Debug)]
struct BreakerWithClock {
    breaker: Breaker,
    clock: Arc<dyn Clock>,
}

impl CircuitBreaker {
    /// A closed breaker that uses the [system clock](system_clock).
    pub fn new(config: BreakerConfig) -> Result<Self, BreakerConfigError> {
        Self::with_clock(config, system_clock())
    }

    /// A closed breaker that uses `clock`.
    pub fn with_clock(config: BreakerConfig, clock: Arc<dyn Clock>) -> Result<Self, BreakerConfigError> {
        Ok(Self { shared: Arc::new(BreakerWithClock { breaker: Breaker::new(config)?, clock }) })
    }

    /// Admits a call, or rejects it. The clock is not read while the breaker is closed, unless slow calls open it.
    #[inline]
    pub fn try_acquire(&self) -> Result<BreakerPermit, BreakerOpen> {
        let BreakerWithClock { breaker, clock } = &*self.shared;
        let ticket = breaker.try_acquire(|| clock.now())?;
        let started = breaker.measures_duration().then(|| clock.read());
        Ok(BreakerPermit { shared: Arc::clone(&self.shared), ticket: Some(ticket), started })
    }

    /// The state.
    pub fn state(&self) -> BreakerState {
        self.shared.breaker.state()
    }

    /// The state and the counts.
    pub fn status(&self) -> BreakerStatus {
        self.shared.breaker.status(self.shared.clock.now())
    }

    /// The state machine: for its configuration, and to force it open or closed or to reset it.
    pub fn breaker(&self) -> &Breaker {
        &self.shared.breaker
    }
}

impl Default for CircuitBreaker {
    /// Opens after 5 failures in a row, for 30 seconds.
    fn default() -> Self {
        let Ok(breaker) = Self::new(BreakerConfig::default()) else { unreachable!("the default is valid") };
        breaker
    }
}

/// A call that the breaker admitted. Dropping it cancels the call: it counts neither as success nor as failure, and the slot
/// of a probe becomes free.
#[derive(Debug)]
#[must_use = "a dropped permit cancels the call"]
pub struct BreakerPermit {
    shared: Arc<BreakerWithClock>,
    /// `None` once the result is recorded.
    ticket: Option<CallTicket>,
    /// Set if durations matter.
    started: Option<ClockReading>,
}

impl BreakerPermit {
    /// Whether the call probes a service that has failed.
    pub fn is_probe(&self) -> bool {
        self.ticket.as_ref().is_some_and(CallTicket::is_probe)
    }

    /// Whether the call has made the breaker half-open.
    pub fn is_first_probe(&self) -> bool {
        self.ticket.as_ref().is_some_and(CallTicket::is_first_probe)
    }

    /// The call does not count as slow, however long it takes: part of its time is not due to the service.
    pub fn ignore_duration(&mut self) {
        self.started = None;
    }

    /// A probe whose caller may delay it as it likes leaves its slot to another one. Returns whether it may go on; if not, drop
    /// it. See [`Breaker::delay`].
    pub fn delay(&mut self) -> bool {
        self.ticket.as_mut().is_none_or(|ticket| self.shared.breaker.delay(ticket))
    }

    /// Gives up the slot of a probe, which may last. Its result still counts.
    pub fn release_slot(&mut self) {
        if let Some(ticket) = &mut self.ticket {
            self.shared.breaker.release_slot(ticket);
        }
    }

    /// Records the result of the call. Returns the new state if the breaker has changed it.
    #[inline]
    pub fn record(self, outcome: CallOutcome) -> Option<BreakerState> {
        self.record_with(outcome, || true)
    }

    /// The same; a slow call counts as slow only if `counts_as_slow`.
    #[inline]
    pub fn record_with(
        mut self,
        outcome: CallOutcome,
        counts_as_slow: impl FnOnce() -> bool,
    ) -> Option<BreakerState> {
        self.end(outcome, counts_as_slow)
    }

    /// Records the result of the call, once. A future does not move its permit for that: the copy takes longer than recording.
    #[inline]
    pub(super) fn end(
        &mut self,
        outcome: CallOutcome,
        counts_as_slow: impl FnOnce() -> bool,
    ) -> Option<BreakerState> {
        let ticket = self.ticket.take()?;
        let BreakerWithClock { breaker, clock } = &*self.shared;
        breaker.record(ticket, outcome, || {
            let end = clock.read();
            let nanos = self.started.map_or(0, |started| end.nanos_since(started));
            let elapsed = TimeSpan::from_micros(nanos / 1_000);
            let is_slow = breaker.config().slow.is_some_and(|slow| elapsed >= slow.over);
            let elapsed = if is_slow && !counts_as_slow() { TimeSpan::ZERO } else { elapsed };
            CallTiming { now: end.at, elapsed, random: fastrand::u64(..) }
        })
    }
}

impl Drop for BreakerPermit {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.shared.breaker.cancel(ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Ratio, SlowCalls, Timestamp, WindowLength};
    use tidegate_store::ManualClock;

    use super::*;

    fn config() -> BreakerConfig {
        BreakerConfig { open_jitter: Ratio::ZERO, ..BreakerConfig::default() }
    }

    fn breaker(config: BreakerConfig) -> (CircuitBreaker, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
        let shared = Arc::clone(&clock) as Arc<dyn Clock>;
        (CircuitBreaker::with_clock(config, shared).unwrap(), clock)
    }

    fn fail(breaker: &CircuitBreaker, times: usize) {
        for _ in 0..times {
            breaker.try_acquire().unwrap().record(CallOutcome::Failure);
        }
    }

    #[test]
    fn breaker_after_five_failures_rejects_until_one_probe_decides() {
        let (breaker, clock) = breaker(config());
        fail(&breaker, 5);
        assert_eq!(breaker.state(), BreakerState::Open);
        let rejected = breaker.try_acquire().unwrap_err();
        assert_eq!(rejected.retry_after, Some(TimeSpan::from_secs(30)));
        clock.advance(TimeSpan::from_secs(30));
        let probe = breaker.try_acquire().unwrap();
        assert!(probe.is_probe());
        assert!(breaker.try_acquire().is_err(), "one probe at a time");
        assert_eq!(probe.record(CallOutcome::Success), Some(BreakerState::Closed));
        assert!(!breaker.try_acquire().unwrap().is_probe());
    }

    #[test]
    fn breaker_permit_of_a_dropped_probe_frees_its_slot() {
        let (breaker, clock) = breaker(config());
        fail(&breaker, 5);
        clock.advance(TimeSpan::from_secs(31));
        for _ in 0..10 {
            let probe = breaker.try_acquire().unwrap();
            assert_eq!(breaker.status().probes, 1);
            drop(probe);
        }
        assert_eq!(breaker.status().probes, 0);
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
    }

    #[test]
    fn breaker_with_slow_calls_measures_each_call() {
        let slow = SlowCalls { over: TimeSpan::from_secs(2), rate: Ratio::from_percent(50) };
        let window = WindowLength::Calls(10);
        let (breaker, clock) = breaker(BreakerConfig { slow: Some(slow), window, min_calls: 4, ..config() });
        for seconds in [1, 1, 2, 3] {
            let permit = breaker.try_acquire().unwrap();
            clock.advance(TimeSpan::from_secs(seconds));
            permit.record(CallOutcome::Success);
        }
        assert_eq!(breaker.state(), BreakerState::Open);
    }

    /// A clock that must not be read.
    #[derive(Debug)]
    struct ForbiddenClock;

    impl Clock for ForbiddenClock {
        fn now(&self) -> Timestamp {
            panic!("the clock was read")
        }
    }

    #[test]
    fn breaker_that_is_closed_does_not_read_the_clock() {
        let breaker = CircuitBreaker::with_clock(config(), Arc::new(ForbiddenClock)).unwrap();
        for _ in 0..10 {
            assert_eq!(breaker.try_acquire().unwrap().record(CallOutcome::Success), None);
        }
    }
}
