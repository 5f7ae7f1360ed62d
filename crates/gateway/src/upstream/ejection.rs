//! Passive health checks: a server that fails several times in a row gets no requests for a while, and then a growing share.
//!
//! The state is a few words that all workers share. As long as a server works, nothing is written and no clock is read.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tidegate_core::{CallOutcome, TimeSpan, Timestamp};
use tidegate_policy::EjectPlan;

/// How long the share of a server grows after it has recovered. A server that has just started is slow at first: its caches
/// are empty, and all requests at once could make it fail again.
pub(super) const SLOW_START: TimeSpan = TimeSpan::from_secs(10);
/// The first share, in thousandths of the usual one.
const FIRST_SHARE: u64 = 100;
const WHOLE: u64 = 1_000;
/// Ejections grow up to this multiple of the first one.
const MAX_FACTOR: u64 = 10;

/// The failures and ejections of one server.
#[derive(Debug, Default)]
pub(crate) struct EjectionState {
    /// Failures in a row.
    failures: AtomicU32,
    /// Ejections in a row.
    ejections: AtomicU32,
    /// When the server gets requests again and its slow start begins, in microseconds; 0 once that is over.
    resumes_at: AtomicU64,
    /// When earlier ejections are forgotten, in microseconds.
    settles_at: AtomicU64,
    /// What a slow start has saved up for the next request, in thousandths of a request.
    credit: AtomicU64,
}

/// The share of requests that a server gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrafficShare {
    /// The usual one.
    Full,
    /// This many thousandths of it.
    SlowStart(u64),
    /// Nothing.
    Ejected,
}

impl EjectionState {
    /// The share of requests at `now`, which is called only after an ejection or a recovery.
    #[inline]
    pub(super) fn share(&self, now: impl FnOnce() -> Timestamp) -> TrafficShare {
        match self.resumes_at.load(Ordering::Relaxed) {
            0 => TrafficShare::Full,
            resumes_at => self.share_after(Timestamp::from_micros(resumes_at), now()),
        }
    }

    fn share_after(&self, resumes_at: Timestamp, now: Timestamp) -> TrafficShare {
        if now < resumes_at {
            return TrafficShare::Ejected;
        }
        let elapsed = now.since(resumes_at);
        if elapsed >= SLOW_START {
            // Unless the server was ejected again meanwhile.
            let _ = self.resumes_at.compare_exchange(
                resumes_at.as_micros(),
                0,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            return TrafficShare::Full;
        }
        let share = elapsed.as_micros() * WHOLE / SLOW_START.as_micros();
        TrafficShare::SlowStart(share.max(FIRST_SHARE))
    }

    /// Whether the next request belongs to a share of all requests, given in thousandths. The share is exact on average, without
    /// randomness.
    pub(super) fn takes_turn(&self, share: u64) -> bool {
        let credit = self.credit.fetch_add(share, Ordering::Relaxed) + share;
        let is_due = credit >= WHOLE;
        if is_due {
            self.credit.fetch_sub(WHOLE, Ordering::Relaxed);
        }
        is_due
    }

    /// How long the server stays ejected.
    pub(super) fn ejected_for(&self, now: Timestamp) -> Option<TimeSpan> {
        let resumes_at = Timestamp::from_micros(self.resumes_at.load(Ordering::Relaxed));
        Some(resumes_at.since(now)).filter(|left| !left.is_zero())
    }

    /// Whether the latest result was a failure.
    pub(super) fn is_failing(&self) -> bool {
        self.failures.load(Ordering::Relaxed) != 0
    }

    /// Ends an ejection and starts slowly, for example because a health check has found that the server works again.
    pub(super) fn begin_slow_start(&self, now: Timestamp) {
        self.resumes_at.store(now.as_micros(), Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
    }

    /// Counts a result. Returns whether the server has now failed so often that it should be ejected. Without a plan it never
    /// is, but [`Self::is_failing`] is still known.
    #[inline]
    pub(super) fn record(
        &self,
        outcome: CallOutcome,
        plan: Option<&EjectPlan>,
        now: impl FnOnce() -> Timestamp,
    ) -> bool {
        match outcome {
            CallOutcome::Neutral | CallOutcome::ClientError => false,
            CallOutcome::Success => {
                // The load avoids a write, which would invalidate the cache line on other CPU cores.
                if self.is_failing() {
                    self.failures.store(0, Ordering::Relaxed);
                }
                if self.ejections.load(Ordering::Relaxed) != 0 {
                    self.forget_ejections(now());
                }
                false
            }
            CallOutcome::Failure => match plan {
                None => {
                    self.failures.store(1, Ordering::Relaxed);
                    false
                }
                // Requests that were sent before the ejection may still fail.
                Some(_) if self.share(now) == TrafficShare::Ejected => false,
                Some(plan) => self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= plan.after,
            },
        }
    }

    fn forget_ejections(&self, now: Timestamp) {
        if now.as_micros() >= self.settles_at.load(Ordering::Relaxed) {
            self.ejections.store(0, Ordering::Relaxed);
        }
    }

    /// Ejects the server. Returns for how long: each ejection that follows soon is twice as long.
    pub(super) fn eject(&self, plan: &EjectPlan, now: Timestamp) -> TimeSpan {
        let earlier = self.ejections.fetch_add(1, Ordering::Relaxed);
        let factor = 1_u64.checked_shl(earlier).unwrap_or(MAX_FACTOR).min(MAX_FACTOR);
        let span = TimeSpan::from_micros(plan.duration.as_micros().saturating_mul(factor));
        self.failures.store(0, Ordering::Relaxed);
        self.resumes_at.store((now + span).as_micros(), Ordering::Relaxed);
        // A server that works for as long as it was ejected has recovered.
        self.settles_at.store((now + span + span).as_micros(), Ordering::Relaxed);
        span
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_700_000_000);
    const SECOND: TimeSpan = TimeSpan::from_secs(1);

    /// Fails until the server should be ejected. Returns after how many failures.
    fn fail(state: &EjectionState, now: Timestamp) -> usize {
        let plan = EjectPlan::default();
        (1..100).find(|_| state.record(CallOutcome::Failure, Some(&plan), || now)).expect("an ejection")
    }

    #[test]
    fn failures_in_a_row_eject_and_others_do_not() {
        let (state, plan) = (EjectionState::default(), EjectPlan::default());
        for _ in 0..100 {
            for outcome in [CallOutcome::Failure; 4] {
                assert!(!state.record(outcome, Some(&plan), || START));
            }
            assert!(!state.record(CallOutcome::Success, Some(&plan), || START));
            assert!(!state.is_failing());
        }
        for _ in 0..100 {
            assert!(
                !state.record(CallOutcome::Neutral, Some(&plan), || START),
                "neutral results do not count"
            );
        }
        assert_eq!(fail(&state, START), 5);
    }

    #[test]
    fn repeated_ejections_double_up_to_ten_times() {
        let (state, plan) = (EjectionState::default(), EjectPlan::default());
        let mut now = START;
        let seconds: Vec<_> = (0..6)
            .map(|_| {
                assert_eq!(fail(&state, now), 5);
                let span = state.eject(&plan, now);
                now = now + span;
                span.as_secs_ceil()
            })
            .collect();
        assert_eq!(seconds, [10, 20, 40, 80, 100, 100]);
    }

    #[test]
    fn ejections_are_forgotten_after_the_server_has_worked_as_long() {
        let (state, plan) = (EjectionState::default(), EjectPlan::default());
        state.eject(&plan, START);
        let back = START + plan.duration;
        state.record(CallOutcome::Success, Some(&plan), || back);
        assert_eq!(state.eject(&plan, back), TimeSpan::from_secs(20), "it failed again soon");
        let back = back + TimeSpan::from_secs(20);
        state.record(CallOutcome::Success, Some(&plan), || back + TimeSpan::from_secs(20));
        assert_eq!(state.eject(&plan, back + TimeSpan::from_secs(20)), plan.duration);
    }

    #[test]
    fn ejected_server_returns_with_a_share_that_grows_over_ten_seconds() {
        let (state, plan) = (EjectionState::default(), EjectPlan::default());
        assert_eq!(state.share(|| START), TrafficShare::Full);
        state.eject(&plan, START);
        let share = |seconds| state.share(|| START + TimeSpan::from_secs(seconds));
        assert_eq!([share(0), share(9)], [TrafficShare::Ejected; 2]);
        assert_eq!(state.ejected_for(START + SECOND), Some(TimeSpan::from_secs(9)));
        let growing = [share(10), share(11), share(15), share(19)];
        assert_eq!(growing, [100, 100, 500, 900].map(TrafficShare::SlowStart));
        assert_eq!(share(20), TrafficShare::Full);
        assert_eq!(share(0), TrafficShare::Full, "the clock is not needed any more");
    }

    #[test]
    fn failures_of_requests_sent_before_the_ejection_do_not_count() {
        let (state, plan) = (EjectionState::default(), EjectPlan::default());
        state.eject(&plan, START);
        for _ in 0..100 {
            assert!(!state.record(CallOutcome::Failure, Some(&plan), || START + SECOND));
        }
        assert_eq!(fail(&state, START + plan.duration), 5);
    }

    #[test]
    fn turns_of_a_share_are_exact_on_average() {
        let state = EjectionState::default();
        for share in [100, 250, 333, 999] {
            let turns = (0..1_000).filter(|_| state.takes_turn(share)).count() as u64;
            assert!(turns.abs_diff(share) <= 1, "{share}: {turns}");
        }
    }

    #[test]
    fn health_check_that_passes_ends_an_ejection_with_a_slow_start() {
        let (state, plan) = (EjectionState::default(), EjectPlan::default());
        state.begin_slow_start(START);
        assert_eq!(state.share(|| START), TrafficShare::SlowStart(100));
        state.eject(&plan, START);
        assert_eq!(state.share(|| START + SECOND), TrafficShare::Ejected);
        state.begin_slow_start(START + SECOND);
        assert_eq!(state.share(|| START + SECOND), TrafficShare::SlowStart(100));
    }
}
