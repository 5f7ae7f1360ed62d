//! The events of a storm, in the order of virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use fastrand::Rng;
use tidegate_core::{
    Backoff, BackoffDelays, Breaker, BreakerConfig, CallOutcome, CallTicket, CallTiming, Jitter, RetryBudget,
    TimeSpan, Timestamp,
};

use super::curve::StormReport;
use super::service::{Arrival, Service};

/// The clients and the service.
#[derive(Clone, Debug)]
pub(crate) struct StormConfig {
    pub(crate) seed: u64,
    /// Each sends one request per second on average, whatever becomes of the earlier ones.
    pub(crate) clients: u64,
    /// Seconds in which clients send requests.
    pub(crate) seconds: u64,
    /// The seconds in which the service is dead.
    pub(crate) outage: Range<u64>,
    /// Requests that the service works on at a time.
    pub(crate) workers: u64,
    /// Requests that may wait for a worker.
    pub(crate) queue: usize,
    /// The mean time that a worker needs.
    pub(crate) work: TimeSpan,
    /// A client waits this long for a response, in each attempt.
    pub(crate) timeout: TimeSpan,
    /// Attempts of a request, the first included.
    pub(crate) attempts: u32,
}

impl Default for StormConfig {
    fn default() -> Self {
        Self {
            seed: 42,
            clients: 1_000,
            seconds: 60,
            outage: 10..20,
            workers: 880,
            queue: 5_000,
            work: TimeSpan::from_millis(800),
            timeout: TimeSpan::from_secs(2),
            attempts: 5,
        }
    }
}

impl StormConfig {
    pub(crate) fn capacity_per_second(&self) -> u64 {
        self.workers * 1_000_000 / self.work.as_micros()
    }
}

/// How clients retry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protection {
    pub(crate) name: &'static str,
    pub(crate) jitter: Jitter,
    pub(crate) has_budget: bool,
    pub(crate) has_breaker: bool,
}

/// What happens at a time. Events at the same time happen in the order in which they were scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Request,
    Send { request: usize },
    WorkEnds { attempt: usize, life: u32 },
    Timeout { attempt: usize },
    ServiceDies,
    ServiceRecovers,
}

struct Request {
    started: Timestamp,
    attempts: u32,
    delays: BackoffDelays,
}

struct Attempt {
    request: usize,
    sent: Timestamp,
    /// Until there is a result.
    is_pending: bool,
    ticket: Option<CallTicket>,
}

struct Storm<'a> {
    config: &'a StormConfig,
    now: Timestamp,
    rng: Rng,
    events: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    /// The number of events that were scheduled.
    scheduled: u64,
    service: Service,
    requests: Vec<Request>,
    attempts: Vec<Attempt>,
    backoff: Backoff,
    budget: Option<RetryBudget>,
    breaker: Option<Breaker>,
    report: StormReport,
}

/// Runs a storm to its end.
pub(crate) fn run(config: &StormConfig, protection: &Protection) -> anyhow::Result<StormReport> {
    let (base, cap) = (TimeSpan::from_millis(500), TimeSpan::from_secs(4));
    let open_for = TimeSpan::from_secs(2);
    let breaker_config = BreakerConfig { open_for, max_open_for: open_for, ..BreakerConfig::default() };
    let mut storm = Storm {
        config,
        now: Timestamp::ZERO,
        rng: Rng::with_seed(config.seed),
        events: BinaryHeap::new(),
        scheduled: 0,
        service: Service::new(usize::try_from(config.workers)?, config.queue),
        requests: Vec::new(),
        attempts: Vec::new(),
        backoff: Backoff::new(base, cap, protection.jitter)?,
        budget: protection.has_budget.then(RetryBudget::default),
        breaker: if protection.has_breaker { Some(Breaker::new(breaker_config)?) } else { None },
        report: StormReport::new(protection.name, config.outage.clone(), config.seconds),
    };
    storm.schedule(TimeSpan::from_secs(config.outage.start), Event::ServiceDies);
    storm.schedule(TimeSpan::from_secs(config.outage.end), Event::ServiceRecovers);
    for _ in 0..config.clients {
        storm.schedule_request();
    }
    while let Some(Reverse((at, _, event))) = storm.events.pop() {
        storm.now = at;
        storm.handle(event);
    }
    storm.report.close();
    Ok(storm.report)
}

impl Storm<'_> {
    fn schedule(&mut self, after: TimeSpan, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((self.now + after, self.scheduled, event)));
    }

    /// The next request of a client: a second later on average.
    fn schedule_request(&mut self) {
        let pause = TimeSpan::from_micros(self.rng.u64(0..2_000_000));
        if self.now + pause < Timestamp::from_secs(self.config.seconds) {
            self.schedule(pause, Event::Request);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Request => self.start_request(),
            Event::Send { request } => self.send(request),
            Event::WorkEnds { attempt, life } if life == self.service.life() => self.end_work(attempt),
            // The service died meanwhile.
            Event::WorkEnds { .. } => {}
            Event::Timeout { attempt } => self.fail(attempt),
            Event::ServiceDies => self.kill_service(),
            Event::ServiceRecovers => self.service.recover(),
        }
    }

    fn start_request(&mut self) {
        self.report.count_request(self.now.as_micros());
        if let Some(budget) = &self.budget {
            budget.record_request(self.now);
        }
        self.requests.push(Request { started: self.now, attempts: 0, delays: self.backoff.delays() });
        self.send(self.requests.len() - 1);
        self.schedule_request();
    }

    fn send(&mut self, request: usize) {
        let now = self.now;
        let ticket = match self.breaker.as_ref().map(|breaker| breaker.try_acquire(|| now)) {
            None => None,
            Some(Ok(ticket)) => Some(ticket),
            // The request fails at once and is not sent again.
            Some(Err(_)) => return,
        };
        self.requests[request].attempts += 1;
        self.report.count_attempt(now.as_micros());
        let attempt = self.attempts.len();
        self.attempts.push(Attempt { request, sent: now, is_pending: true, ticket });
        match self.service.arrive(attempt) {
            Arrival::Started => self.start_work(attempt),
            Arrival::Queued => {}
            Arrival::Refused => return self.fail(attempt),
        }
        self.schedule(self.config.timeout, Event::Timeout { attempt });
    }

    fn start_work(&mut self, attempt: usize) {
        let mean = self.config.work.as_micros();
        let work = TimeSpan::from_micros(self.rng.u64(mean / 2..mean * 3 / 2));
        self.schedule(work, Event::WorkEnds { attempt, life: self.service.life() });
    }

    fn end_work(&mut self, attempt: usize) {
        if self.end_attempt(attempt, CallOutcome::Success) {
            let started = self.requests[self.attempts[attempt].request].started;
            self.report.count_success(started.as_micros(), self.now.as_micros());
        }
        if let Some(next) = self.service.end_work() {
            self.start_work(next);
        }
    }

    /// Ends an attempt without a response, and schedules the next one if there may be one.
    fn fail(&mut self, attempt: usize) {
        if !self.end_attempt(attempt, CallOutcome::Failure) {
            return;
        }
        let number = self.attempts[attempt].request;
        if self.requests[number].attempts >= self.config.attempts {
            return;
        }
        let is_granted = self.budget.as_ref().is_none_or(|budget| budget.try_withdraw(self.now).is_some());
        if is_granted {
            let delay = self.requests[number].delays.next_delay(self.rng.u64(..));
            self.schedule(delay, Event::Send { request: number });
        }
    }

    /// Returns whether the attempt was still pending.
    fn end_attempt(&mut self, attempt: usize, outcome: CallOutcome) -> bool {
        let attempt = &mut self.attempts[attempt];
        if !attempt.is_pending {
            return false;
        }
        attempt.is_pending = false;
        if let (Some(breaker), Some(ticket)) = (&self.breaker, attempt.ticket.take()) {
            let timing =
                CallTiming { now: self.now, elapsed: self.now.since(attempt.sent), random: self.rng.u64(..) };
            breaker.record(ticket, outcome, || timing);
        }
        true
    }

    /// All attempts in flight fail at the same instant.
    fn kill_service(&mut self) {
        self.service.die();
        for attempt in 0..self.attempts.len() {
            self.fail(attempt);
        }
    }
}
