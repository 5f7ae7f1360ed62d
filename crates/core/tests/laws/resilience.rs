//! Laws of breaker, retry budget, backoff and adaptive limit.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use proptest::prelude::*;
use tidegate_core::{
    AdaptiveConfig, AdaptiveLimit, Backoff, Breaker, BreakerConfig, BreakerState, CallOutcome, CallTicket,
    CallTiming, Jitter, Ratio, RetryBudget, TimeSpan, Timestamp,
};

const START: Timestamp = Timestamp::from_secs(1_700_000_000);
const SECONDS_PER_WINDOW: usize = 10;

#[derive(Clone, Copy, Debug)]
enum BudgetStep {
    Request,
    Retry,
    RefundedRetry,
    Wait(u64),
}

fn budget_step() -> impl Strategy<Value = BudgetStep> {
    prop_oneof![
        6 => Just(BudgetStep::Request),
        6 => Just(BudgetStep::Retry),
        1 => Just(BudgetStep::RefundedRetry),
        1 => (0..3_000_u64).prop_map(BudgetStep::Wait),
    ]
}

proptest! {
    #[test]
    fn retries_of_ten_seconds_and_of_all_time_never_exceed_the_share_plus_the_minimum(
        steps in prop::collection::vec(budget_step(), 1..800),
        percent in 0..=100_u32,
        min_per_second in 0..3_u32,
    ) {
        let share = Ratio::from_percent(percent);
        let budget = RetryBudget::new(share, min_per_second);
        let mut now = START;
        // Requests and retries of each second.
        let mut seconds = vec![(0_u64, 0_u64); 1];
        for step in steps {
            match step {
                BudgetStep::Wait(millis) => now = now + TimeSpan::from_millis(millis),
                BudgetStep::Request => budget.record_request(now),
                BudgetStep::Retry | BudgetStep::RefundedRetry => {}
            }
            let second = usize::try_from(now.since(START).as_micros() / 1_000_000).unwrap();
            seconds.resize(seconds.len().max(second + 1), (0, 0));
            match step {
                BudgetStep::Request => seconds[second].0 += 1,
                BudgetStep::Retry => {
                    let allowed = budget.remaining(now);
                    let grant = budget.try_withdraw(now);
                    prop_assert_eq!(grant.is_some(), allowed > 0, "remaining says what is allowed");
                    seconds[second].1 += u64::from(grant.is_some());
                }
                BudgetStep::RefundedRetry => {
                    let before = budget.remaining(now);
                    if let Some(grant) = budget.try_withdraw(now) {
                        budget.refund(grant);
                    }
                    prop_assert_eq!(budget.remaining(now), before);
                }
                BudgetStep::Wait(_) => {}
            }
        }
        // Ten seconds of retries are paid by the requests of these and of the nine seconds before, and all by all.
        for end in 1..=seconds.len() {
            for length in [SECONDS_PER_WINDOW, end] {
                let retries: u64 = seconds[end.saturating_sub(length)..end].iter().map(|second| second.1).sum();
                let payers = end.saturating_sub(length + SECONDS_PER_WINDOW - 1);
                let requests: u64 = seconds[payers..end].iter().map(|second| second.0).sum();
                let minimum = u64::from(min_per_second) * length.min(end) as u64;
                prop_assert!(retries <= share.of(requests) + minimum, "{retries} retries of {requests} requests");
            }
        }
    }

    #[test]
    fn backoff_stays_within_the_documented_range(
        base in 1..10_000_000_u64,
        factor in 1..1_000_u64,
        randoms in prop::collection::vec(any::<u64>(), 1..40),
    ) {
        let (base, cap) = (TimeSpan::from_micros(base), TimeSpan::from_micros(base * factor));
        for jitter in Jitter::ALL {
            let mut delays = Backoff::new(base, cap, jitter).unwrap().delays();
            let mut previous = base;
            for (retry, random) in randoms.iter().enumerate() {
                let delay = delays.next_delay(*random);
                let doubled = base.as_micros().saturating_mul(1_u64.checked_shl(u32::try_from(retry).unwrap()).unwrap_or(u64::MAX));
                let exponential = TimeSpan::from_micros(doubled).min(cap);
                let (low, high) = match jitter {
                    Jitter::None => (exponential, exponential),
                    Jitter::Full => (TimeSpan::ZERO, exponential),
                    Jitter::Equal => (TimeSpan::from_micros(exponential.as_micros() / 2), exponential),
                    Jitter::Decorrelated => {
                        (base, TimeSpan::from_micros(previous.as_micros().saturating_mul(3)).min(cap))
                    }
                };
                prop_assert!((low..=high).contains(&delay), "{jitter:?} {low:?} {delay:?} {high:?}");
                previous = delay;
            }
        }
    }
}

#[test]
fn mean_of_jitter_is_the_middle_of_its_range() {
    let backoff = |jitter| Backoff::new(TimeSpan::from_secs(1), TimeSpan::from_secs(30), jitter).unwrap();
    // The first wait, over evenly spread random values: 0 to 1 s, 0.5 to 1 s, 1 to 3 s.
    for (jitter, mean) in [
        (Jitter::None, 1_000_000),
        (Jitter::Full, 500_000),
        (Jitter::Equal, 750_000),
        (Jitter::Decorrelated, 2_000_000),
    ] {
        let samples = 10_000_u64;
        let step = u64::MAX / samples;
        let sum: u64 = (0..samples).map(|n| backoff(jitter).delays().next_delay(n * step).as_micros()).sum();
        let average = sum / samples;
        assert!(average.abs_diff(mean) < 200, "{jitter:?}: {average}");
    }
}

/// A breaker written from its definition, for one thread.
#[derive(Debug)]
struct BreakerModel {
    config: BreakerConfig,
    state: BreakerState,
    failures: u32,
    successes: u32,
    until: Timestamp,
    failed_probes: u32,
    last_probe: Timestamp,
}

impl BreakerModel {
    fn new(config: BreakerConfig) -> Self {
        let state = BreakerState::Closed;
        let (until, last_probe) = (Timestamp::ZERO, Timestamp::ZERO);
        Self { config, state, failures: 0, successes: 0, until, failed_probes: 0, last_probe }
    }

    fn admits(&mut self, now: Timestamp, probes_in_flight: usize) -> bool {
        let is_open = self.state == BreakerState::Open && now < self.until;
        let extra = probes_in_flight.saturating_sub(self.config.probes as usize);
        let wait = TimeSpan::from_secs(1 << extra.min(20)).min(self.config.open_for);
        let is_hung = now.since(self.last_probe) >= wait;
        let has_slot = probes_in_flight < self.config.probes as usize || is_hung;
        if self.state == BreakerState::Closed {
            return true;
        }
        if is_open || !has_slot {
            return false;
        }
        if self.state == BreakerState::Open {
            (self.state, self.successes) = (BreakerState::HalfOpen, 0);
        }
        self.last_probe = now;
        true
    }

    /// Returns whether the state has changed.
    fn end(&mut self, outcome: CallOutcome, is_probe: bool, now: Timestamp) -> bool {
        match (self.state, outcome) {
            (BreakerState::Closed, CallOutcome::Success) => {
                self.failures = 0;
                false
            }
            (BreakerState::Closed, CallOutcome::Failure) => {
                self.failures += 1;
                let opens = self.failures >= self.config.failures.unwrap();
                if opens {
                    self.open(now, 0);
                }
                opens
            }
            (BreakerState::HalfOpen, CallOutcome::Failure) if is_probe => {
                self.open(now, self.failed_probes + 1);
                true
            }
            (BreakerState::HalfOpen, CallOutcome::Success) if is_probe => {
                self.successes += 1;
                let closes = self.successes >= self.config.successes;
                if closes {
                    (self.state, self.failures, self.failed_probes) = (BreakerState::Closed, 0, 0);
                }
                closes
            }
            _ => false,
        }
    }

    fn open(&mut self, now: Timestamp, failed_probes: u32) {
        let factor = 1_u64 << failed_probes.min(20);
        let open = (self.config.open_for.as_micros() * factor).min(self.config.max_open_for.as_micros());
        (self.state, self.failed_probes) = (BreakerState::Open, failed_probes);
        self.until = now + TimeSpan::from_micros(open);
    }
}

#[derive(Clone, Copy, Debug)]
enum BreakerStep {
    Start,
    /// Ends one of the calls in flight.
    End(prop::sample::Index, u8),
    Wait(u64),
}

fn breaker_step() -> impl Strategy<Value = BreakerStep> {
    prop_oneof![
        4 => Just(BreakerStep::Start),
        4 => (any::<prop::sample::Index>(), 0..8_u8).prop_map(|(call, end)| BreakerStep::End(call, end)),
        1 => (0..40_u64).prop_map(BreakerStep::Wait),
    ]
}

proptest! {
    #[test]
    fn breaker_behaves_like_its_definition(
        steps in prop::collection::vec(breaker_step(), 1..400),
        failures in 1..6_u32,
        probes in 1..4_u32,
        successes in 1..4_u32,
        longest in 0..4_u64,
    ) {
        let open_for = TimeSpan::from_secs(10);
        let config = BreakerConfig {
            failures: Some(failures),
            open_for,
            max_open_for: TimeSpan::from_secs(10 << longest),
            open_jitter: Ratio::ZERO,
            probes,
            successes,
            ..BreakerConfig::default()
        };
        let (breaker, mut model) = (Breaker::new(config).unwrap(), BreakerModel::new(config));
        let mut now = START;
        // The calls in flight, with the number of transitions at their start.
        let mut calls: Vec<(CallTicket, u32)> = Vec::new();
        let mut transitions = 0;
        for step in steps {
            match step {
                BreakerStep::Wait(seconds) => now = now + TimeSpan::from_secs(seconds),
                BreakerStep::Start => {
                    let in_flight = calls.iter().filter(|(ticket, _)| ticket.is_probe()).count();
                    let was = model.state;
                    let admits = model.admits(now, in_flight);
                    transitions += u32::from(model.state != was);
                    let ticket = breaker.try_acquire(|| now);
                    prop_assert_eq!(ticket.is_ok(), admits, "{:?} {:?}", &model, breaker.status(now));
                    calls.extend(ticket.ok().map(|ticket| (ticket, transitions)));
                }
                BreakerStep::End(at, end) if !calls.is_empty() => {
                    let (ticket, started) = calls.swap_remove(at.index(calls.len()));
                    let outcome = match end {
                        0 => {
                            breaker.cancel(ticket);
                            continue;
                        }
                        1 => CallOutcome::Neutral,
                        2..4 => CallOutcome::Success,
                        _ => CallOutcome::Failure,
                    };
                    // The result of a call that another state admitted does not count.
                    let is_current = started == transitions;
                    let changes = is_current && model.end(outcome, ticket.is_probe(), now);
                    transitions += u32::from(changes);
                    let timing = || CallTiming { now, elapsed: TimeSpan::ZERO, random: 0 };
                    prop_assert_eq!(breaker.record(ticket, outcome, timing).is_some(), changes);
                }
                BreakerStep::End(..) => {}
            }
            prop_assert_eq!(breaker.state(), model.state);
        }
    }
}

#[test]
fn breaker_with_many_threads_never_has_more_young_probes_than_configured() {
    const PROBES: u32 = 3;
    let config = BreakerConfig {
        failures: Some(1),
        open_jitter: Ratio::ZERO,
        probes: PROBES,
        ..BreakerConfig::default()
    };
    let breaker = Breaker::new(config).unwrap();
    let (millis, most) = (AtomicU64::new(0), AtomicUsize::new(0));
    // When the probes in flight started.
    let started = Mutex::new(Vec::<Timestamp>::new());
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (breaker, millis, most, started) = (&breaker, &millis, &most, &started);
            scope.spawn(move || {
                for call in 0..20_000_u64 {
                    let now = START + TimeSpan::from_millis(millis.fetch_add(100, Ordering::SeqCst));
                    let Ok(ticket) = breaker.try_acquire(|| now) else { continue };
                    if ticket.is_probe() {
                        let young = {
                            let mut started = started.lock().unwrap();
                            started.push(now);
                            // Then a probe that has not ended is not waited for.
                            let hung_after = TimeSpan::from_secs(1);
                            let is_young =
                                |start: &&Timestamp| **start <= now && now.since(**start) < hung_after;
                            started.iter().filter(is_young).count()
                        };
                        most.fetch_max(young, Ordering::SeqCst);
                        std::thread::yield_now();
                        let mut started = started.lock().unwrap();
                        let own = started.iter().position(|start| *start == now).unwrap();
                        started.swap_remove(own);
                    }
                    let timing = || CallTiming { now, elapsed: TimeSpan::ZERO, random: 0 };
                    match (call + thread) % 3 {
                        0 => breaker.cancel(ticket),
                        1 => drop(breaker.record(ticket, CallOutcome::Success, timing)),
                        _ => drop(breaker.record(ticket, CallOutcome::Failure, timing)),
                    }
                }
            });
        }
    });
    assert_eq!(breaker.status(START).probes, 0);
    let most = most.load(Ordering::SeqCst);
    assert!((1..=PROBES as usize).contains(&most), "{most}");
}

/// What the clients of a service do for some time.
#[derive(Clone, Copy, Debug)]
struct Traffic {
    millis: u64,
    /// Requests of the one client in each 10 ms, and their latency.
    of_one: (u64, TimeSpan),
    are_others_active: bool,
}

fn traffic() -> impl Strategy<Value = Traffic> {
    let latency = prop_oneof![1..5_000_u64, 40_000..60_000_u64, 100_000..20_000_000_u64];
    (10..20_000_u64, 0..5_u64, latency, any::<bool>()).prop_map(
        |(millis, count, micros, are_others_active)| Traffic {
            millis,
            of_one: (count, TimeSpan::from_micros(micros)),
            are_others_active,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Others are served in 45 to 55 ms. Whatever one client does, cheap or slow, alone or beside them, the limit that they
    /// meet is not below its initial value, except until the first window after the one client was alone.
    #[test]
    fn one_client_never_shrinks_the_adaptive_limit_of_others(
        others in 1..5_u64,
        steps in prop::collection::vec(traffic(), 1..12),
    ) {
        let config = AdaptiveConfig::default();
        let limit = AdaptiveLimit::new(config).unwrap();
        let (mut now, mut count) = (START, 0_u64);
        for Traffic { millis, of_one: (requests, latency), are_others_active } in steps {
            // Each of the others sends 33 requests in a second. A window needs ten samples.
            let settled = now + TimeSpan::from_millis(1_000);
            for _ in 0..millis / 10 {
                now = now + TimeSpan::from_millis(10);
                for _ in 0..requests {
                    limit.record(0, latency, now);
                }
                if are_others_active {
                    count += 1;
                    for other in (1..=others).filter(|other| (count + other) % 3 == 0) {
                        let latency = TimeSpan::from_micros(45_000 + count * 7_919 % 10_000);
                        limit.record(other, latency, now);
                    }
                    let is_settled = now >= settled;
                    prop_assert!(!is_settled || limit.limit() >= u64::from(config.initial), "{}", limit.limit());
                }
            }
        }
    }
}
