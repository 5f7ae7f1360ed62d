//! All interleavings of two threads, and most of three.

use loom::sync::Arc;
use loom::thread;

use super::breaker::{Breaker, BreakerConfig, CallTiming};
use super::call_outcome::CallOutcome;
use super::ratio::Ratio;
use super::retry_budget::RetryBudget;
use crate::time::{TimeSpan, Timestamp};

const START: Timestamp = Timestamp::from_secs(1_700_000_000);

fn timing(now: Timestamp) -> CallTiming {
    CallTiming { now, elapsed: TimeSpan::ZERO, random: 0 }
}

#[test]
fn loom_retries_of_two_threads_in_different_seconds_stay_within_the_budget() {
    loom::model(|| {
        let budget = Arc::new(RetryBudget::new(Ratio::from_percent(10), 0));
        for _ in 0..10 {
            budget.record_request(START);
        }
        let other = {
            let budget = Arc::clone(&budget);
            thread::spawn(move || budget.try_withdraw(START).is_some())
        };
        let mine = budget.try_withdraw(START + TimeSpan::from_secs(1)).is_some();
        let other = other.join().unwrap();
        assert!(!(mine && other), "ten requests pay for one retry");
    });
}

#[test]
fn loom_minimum_and_refunds_stay_within_the_budget() {
    loom::model(|| {
        let budget = Arc::new(RetryBudget::new(Ratio::ZERO, 1));
        let other = {
            let budget = Arc::clone(&budget);
            thread::spawn(move || match budget.try_withdraw(START) {
                Some(grant) => {
                    budget.refund(grant);
                    false
                }
                None => true,
            })
        };
        let mine = budget.try_withdraw(START);
        let was_rejected = other.join().unwrap();
        assert!(mine.is_some() || !was_rejected, "one of them gets the only retry");
        drop(mine);
    });
}

#[test]
fn loom_two_callers_of_an_open_breaker_start_one_probe() {
    loom::model(|| {
        let config =
            BreakerConfig { failures: Some(1), open_jitter: Ratio::ZERO, ..BreakerConfig::default() };
        let breaker = Arc::new(Breaker::new(config).unwrap());
        let ticket = breaker.try_acquire(|| START).unwrap();
        breaker.record(ticket, CallOutcome::Failure, || timing(START));
        let later = START + config.open_for;
        let other = {
            let breaker = Arc::clone(&breaker);
            thread::spawn(move || breaker.try_acquire(|| later).is_ok())
        };
        let mine = breaker.try_acquire(|| later).is_ok();
        let other = other.join().unwrap();
        assert!(mine ^ other, "exactly one probe: {mine} {other}");
    });
}

#[test]
fn loom_two_callers_behind_a_hung_probe_start_one_probe() {
    loom::model(|| {
        let config =
            BreakerConfig { failures: Some(1), open_jitter: Ratio::ZERO, ..BreakerConfig::default() };
        let breaker = Arc::new(Breaker::new(config).unwrap());
        let ticket = breaker.try_acquire(|| START).unwrap();
        breaker.record(ticket, CallOutcome::Failure, || timing(START));
        let first = START + config.open_for;
        let _hung = breaker.try_acquire(|| first).unwrap();
        let later = first + config.open_for;
        let other = {
            let breaker = Arc::clone(&breaker);
            thread::spawn(move || breaker.try_acquire(|| later).is_ok())
        };
        let mine = breaker.try_acquire(|| later).is_ok();
        let other = other.join().unwrap();
        assert!(mine ^ other, "exactly one more probe: {mine} {other}");
    });
}

#[test]
fn loom_two_callers_while_a_hung_probe_ends_start_one_probe() {
    // Three threads have too many interleavings for all of them; the violation needs two preemptions.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let config =
            BreakerConfig { failures: Some(1), open_jitter: Ratio::ZERO, ..BreakerConfig::default() };
        let breaker = Arc::new(Breaker::new(config).unwrap());
        let ticket = breaker.try_acquire(|| START).unwrap();
        breaker.record(ticket, CallOutcome::Failure, || timing(START));
        let first = START + config.open_for;
        let hung = breaker.try_acquire(|| first).unwrap();
        let later = first + config.open_for;
        let callers = [(); 2].map(|()| {
            let breaker = Arc::clone(&breaker);
            thread::spawn(move || breaker.try_acquire(|| later).is_ok())
        });
        breaker.cancel(hung);
        let [one, other] = callers.map(|caller| caller.join().unwrap());
        assert!(one ^ other, "exactly one young probe: {one} {other}");
    });
}

#[test]
fn loom_cancelled_probe_and_new_caller_never_make_two_probes() {
    loom::model(|| {
        let config =
            BreakerConfig { failures: Some(1), open_jitter: Ratio::ZERO, ..BreakerConfig::default() };
        let breaker = Arc::new(Breaker::new(config).unwrap());
        let ticket = breaker.try_acquire(|| START).unwrap();
        breaker.record(ticket, CallOutcome::Failure, || timing(START));
        let later = START + config.open_for;
        let probe = breaker.try_acquire(|| later).unwrap();
        let other = {
            let breaker = Arc::clone(&breaker);
            thread::spawn(move || {
                let ticket = breaker.try_acquire(|| later);
                assert!(breaker.status(later).probes <= 1);
                if let Ok(ticket) = ticket {
                    breaker.cancel(ticket);
                }
            })
        };
        breaker.record(probe, CallOutcome::Failure, || timing(later));
        other.join().unwrap();
        assert_eq!(breaker.status(later).probes, 0);
    });
}

#[test]
fn loom_two_failures_at_once_are_both_counted() {
    loom::model(|| {
        let config = BreakerConfig { failures: Some(2), ..BreakerConfig::default() };
        let breaker = Arc::new(Breaker::new(config).unwrap());
        let [mine, theirs] = [(); 2].map(|()| breaker.try_acquire(|| START).unwrap());
        let other = {
            let breaker = Arc::clone(&breaker);
            thread::spawn(move || breaker.record(theirs, CallOutcome::Failure, || timing(START)).is_some())
        };
        let mine = breaker.record(mine, CallOutcome::Failure, || timing(START)).is_some();
        assert!(mine ^ other.join().unwrap(), "the second of them opens the breaker");
    });
}
