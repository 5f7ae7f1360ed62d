use super::*;
use crate::resilience::call_window::WindowLength;
use crate::resilience::ratio::Ratio;

const START: Timestamp = Timestamp::from_secs(1_700_000_000);
const OPEN: TimeSpan = TimeSpan::from_secs(30);

fn breaker(config: BreakerConfig) -> Breaker {
    Breaker::new(BreakerConfig { open_jitter: Ratio::ZERO, ..config }).unwrap()
}

fn at(now: Timestamp) -> CallTiming {
    CallTiming { now, elapsed: TimeSpan::ZERO, random: u64::MAX }
}

fn call(
    breaker: &Breaker,
    outcome: CallOutcome,
    now: Timestamp,
) -> Result<Option<BreakerState>, BreakerOpen> {
    breaker.try_acquire(|| now).map(|ticket| breaker.record(ticket, outcome, || at(now)))
}

fn fail(breaker: &Breaker, times: u32, now: Timestamp) {
    for _ in 0..times {
        call(breaker, CallOutcome::Failure, now).unwrap();
    }
}

#[test]
fn breaker_after_five_failures_rejects_until_one_probe_succeeds() {
    let breaker = breaker(BreakerConfig::default());
    fail(&breaker, 4, START);
    assert_eq!(breaker.state(), BreakerState::Closed);
    assert_eq!(call(&breaker, CallOutcome::Failure, START), Ok(Some(BreakerState::Open)));
    let rejected = breaker.try_acquire(|| START + TimeSpan::from_secs(10)).unwrap_err();
    assert_eq!(rejected.retry_after, Some(TimeSpan::from_secs(20)));
    let later = START + OPEN;
    let probe = breaker.try_acquire(|| later).unwrap();
    assert!(probe.is_probe());
    assert_eq!(breaker.try_acquire(|| later).unwrap_err().retry_after, None, "one probe at a time");
    assert_eq!(breaker.record(probe, CallOutcome::Success, || at(later)), Some(BreakerState::Closed));
    assert_eq!(call(&breaker, CallOutcome::Success, later), Ok(None));
    let status = breaker.status(later);
    assert_eq!((status.opened, status.rejected, status.probes), (1, 2, 0));
}

#[test]
fn failed_probe_opens_the_breaker_for_a_doubled_time() {
    let config = BreakerConfig { max_open_for: TimeSpan::from_secs(100), ..BreakerConfig::default() };
    let breaker = breaker(config);
    fail(&breaker, 5, START);
    let mut now = START;
    for open in [30, 60, 100, 100] {
        now = now + TimeSpan::from_secs(open);
        assert!(breaker.try_acquire(|| now - TimeSpan::from_millis(1)).is_err(), "open for {open} s");
        assert_eq!(call(&breaker, CallOutcome::Failure, now), Ok(Some(BreakerState::Open)));
    }
    now = now + TimeSpan::from_secs(100);
    call(&breaker, CallOutcome::Success, now).unwrap();
    fail(&breaker, 5, now);
    assert!(breaker.try_acquire(|| now + OPEN).is_ok(), "a success resets the open time");
}

#[test]
fn open_time_with_jitter_is_never_shorter_than_configured() {
    let config = BreakerConfig { open_jitter: Ratio::from_percent(10), ..BreakerConfig::default() };
    for (random, open) in [(0, 30_000), (u64::MAX, 33_000)] {
        let breaker = Breaker::new(config).unwrap();
        for _ in 0..5 {
            let ticket = breaker.try_acquire(|| START).unwrap();
            breaker.record(ticket, CallOutcome::Failure, || CallTiming { random, ..at(START) });
        }
        assert_eq!(breaker.status(START).open_for, TimeSpan::from_millis(open));
    }
}

#[test]
fn success_and_neutral_outcomes_do_not_open_the_breaker() {
    let breaker = breaker(BreakerConfig::default());
    for _ in 0..100 {
        fail(&breaker, 4, START);
        call(&breaker, CallOutcome::Success, START).unwrap();
        call(&breaker, CallOutcome::Neutral, START).unwrap();
    }
    fail(&breaker, 4, START);
    call(&breaker, CallOutcome::Neutral, START).unwrap();
    assert_eq!(breaker.status(START).consecutive_failures, 4, "neutral outcomes reset nothing");
    assert_eq!(call(&breaker, CallOutcome::Failure, START), Ok(Some(BreakerState::Open)));
}

#[test]
fn failure_rate_opens_only_with_enough_calls() {
    for window in [WindowLength::Time(TimeSpan::from_secs(10)), WindowLength::Calls(100)] {
        let rate = Some(Ratio::from_percent(50));
        let config = BreakerConfig { failures: None, failure_rate: rate, window, ..BreakerConfig::default() };
        let breaker = breaker(config);
        for _ in 0..10 {
            call(&breaker, CallOutcome::Success, START).unwrap();
        }
        fail(&breaker, 9, START);
        assert_eq!(breaker.state(), BreakerState::Closed, "19 calls are too few");
        assert_eq!(call(&breaker, CallOutcome::Failure, START), Ok(Some(BreakerState::Open)));
    }
}

#[test]
fn slow_calls_open_the_breaker_although_they_succeed() {
    let slow = SlowCalls { over: TimeSpan::from_secs(2), rate: Ratio::from_percent(80) };
    let config = BreakerConfig { failures: None, slow: Some(slow), min_calls: 5, ..BreakerConfig::default() };
    let breaker = breaker(config);
    assert!(breaker.measures_duration());
    let mut states = [None; 5];
    for (state, seconds) in states.iter_mut().zip([1, 2, 3, 2, 2]) {
        let ticket = breaker.try_acquire(|| START).unwrap();
        let timing = || CallTiming { elapsed: TimeSpan::from_secs(seconds), ..at(START) };
        *state = breaker.record(ticket, CallOutcome::Success, timing);
    }
    assert_eq!(states, [None, None, None, None, Some(BreakerState::Open)]);
}

#[test]
fn result_of_a_call_from_an_earlier_state_is_ignored() {
    let breaker = breaker(BreakerConfig::default());
    let [old_failure, old_success] = [(); 2].map(|()| breaker.try_acquire(|| START).unwrap());
    fail(&breaker, 5, START);
    let later = START + OPEN;
    assert_eq!(breaker.record(old_success, CallOutcome::Success, || at(later)), None);
    call(&breaker, CallOutcome::Success, later).unwrap();
    fail(&breaker, 4, later);
    assert_eq!(breaker.record(old_failure, CallOutcome::Failure, || at(later)), None);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn cancelled_probe_releases_its_slot() {
    let breaker = breaker(BreakerConfig::default());
    fail(&breaker, 5, START);
    let later = START + OPEN;
    for _ in 0..10 {
        let probe = breaker.try_acquire(|| later).unwrap();
        breaker.cancel(probe);
        let probe = breaker.try_acquire(|| later).unwrap();
        assert_eq!(breaker.record(probe, CallOutcome::Neutral, || at(later)), None);
    }
    assert_eq!(breaker.status(later).state, BreakerState::HalfOpen);
    assert_eq!(breaker.status(later).probes, 0);
}

#[test]
fn delayed_probe_leaves_its_slot_and_its_result_counts() {
    let breaker = breaker(BreakerConfig::default());
    fail(&breaker, 5, START);
    let later = START + OPEN;
    let mut delayed = breaker.try_acquire(|| later).unwrap();
    assert!(breaker.delay(&mut delayed));
    let mut second = breaker.try_acquire(|| later).expect("the slot is free");
    assert!(!breaker.delay(&mut second), "one delayed probe at a time");
    assert!(breaker.try_acquire(|| later).is_err(), "the second one has kept its slot");
    breaker.cancel(second);
    breaker.release_slot(&mut delayed);
    let mut third = breaker.try_acquire(|| later).unwrap();
    assert!(breaker.delay(&mut third));
    breaker.cancel(third);
    assert_eq!(breaker.record(delayed, CallOutcome::Success, || at(later)), Some(BreakerState::Closed));
    assert_eq!(breaker.status(later).probes, 0);
}

#[test]
fn client_error_counts_only_for_a_probe() {
    let breaker = breaker(BreakerConfig::default());
    fail(&breaker, 4, START);
    for _ in 0..10 {
        call(&breaker, CallOutcome::ClientError, START).unwrap();
    }
    assert_eq!(breaker.status(START).consecutive_failures, 4);
    fail(&breaker, 1, START);
    let later = START + OPEN;
    assert_eq!(call(&breaker, CallOutcome::ClientError, later), Ok(Some(BreakerState::Closed)));
}

#[test]
fn hung_probe_of_an_earlier_half_open_state_still_takes_a_slot() {
    let breaker = breaker(BreakerConfig { probes: 2, ..BreakerConfig::default() });
    fail(&breaker, 5, START);
    let later = START + OPEN;
    let hung = breaker.try_acquire(|| later).unwrap();
    call(&breaker, CallOutcome::Failure, later).unwrap();
    let later = later + OPEN;
    let second = breaker.try_acquire(|| later).unwrap();
    assert!(breaker.try_acquire(|| later).is_err(), "the hung probe counts");
    breaker.cancel(hung);
    let third = breaker.try_acquire(|| later).unwrap();
    breaker.cancel(second);
    breaker.cancel(third);
}

#[test]
fn hung_probe_lets_one_more_probe_start_after_a_time_that_doubles_up_to_the_open_time() {
    let breaker = breaker(BreakerConfig::default());
    fail(&breaker, 5, START);
    let mut now = START + OPEN;
    let hung = [1, 2, 4, 8, 16, 30, 30].map(|seconds| {
        let wait = TimeSpan::from_secs(seconds);
        let probe = breaker.try_acquire(|| now).unwrap();
        assert_eq!(breaker.hung_after(), wait);
        assert!(breaker.try_acquire(|| now).is_err(), "one probe at a time");
        assert!(breaker.try_acquire(|| now + wait - TimeSpan::from_millis(1)).is_err(), "not yet hung");
        now = now + wait;
        probe
    });
    assert_eq!(call(&breaker, CallOutcome::Success, now), Ok(Some(BreakerState::Closed)));
    for probe in hung {
        breaker.cancel(probe);
    }
    assert_eq!(breaker.status(now).probes, 0);
}

#[test]
fn breaker_closes_after_the_configured_number_of_successes() {
    let breaker = breaker(BreakerConfig { successes: 3, ..BreakerConfig::default() });
    fail(&breaker, 5, START);
    let later = START + OPEN;
    let states = [(); 3].map(|()| call(&breaker, CallOutcome::Success, later).unwrap());
    assert_eq!(states, [None, None, Some(BreakerState::Closed)]);
}

#[test]
fn forced_state_stays_whatever_the_calls_do_until_reset() {
    let breaker = breaker(BreakerConfig::default());
    breaker.force_open();
    assert_eq!(breaker.try_acquire(|| Timestamp::MAX).unwrap_err().retry_after, None);
    breaker.force_closed();
    fail(&breaker, 100, START);
    assert_eq!(breaker.state(), BreakerState::ForcedClosed);
    breaker.reset();
    fail(&breaker, 4, START);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn invalid_configuration_is_rejected_with_the_field() {
    let new = |config| Breaker::new(config).unwrap_err();
    let good = BreakerConfig::default();
    assert_eq!(new(BreakerConfig { failures: None, ..good }), BreakerConfigError::NeverOpens);
    assert_eq!(
        new(BreakerConfig { failures: Some(0), ..good }),
        BreakerConfigError::Zero { field: "failures" }
    );
    assert_eq!(new(BreakerConfig { probes: 0, ..good }), BreakerConfigError::Zero { field: "probes" });
    assert!(matches!(
        new(BreakerConfig { max_open_for: TimeSpan::from_secs(1), ..good }),
        BreakerConfigError::MaxOpenBelowOpen { .. }
    ));
    let rate = BreakerConfig {
        failure_rate: Some(Ratio::from_percent(50)),
        window: WindowLength::Calls(10),
        ..good
    };
    assert_eq!(new(rate), BreakerConfigError::MinCallsBeyondWindow { min_calls: 20, window: 10 });
}
