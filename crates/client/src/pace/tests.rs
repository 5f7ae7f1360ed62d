//! Laws of the pace under every algorithm, with the headers that the project itself writes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use http::HeaderMap;
use proptest::prelude::*;
use tidegate_core::{
    Algorithm, Cost, CounterState, Limit, LimitReport, LimitUnit, Spec, TimeSpan, Timestamp, Verdict,
};
use tidegate_headers::{
    AdvertisedLimits, HeaderStyle, HeaderValueCache, HeaderWriter, RateLimitHeaders, RejectionBody,
    write_retry_after,
};

use super::state::{PaceState, PaceTicket, ResponseLimits};

const START: Timestamp = Timestamp::from_secs(1_700_000_000);
const MICROS: u64 = 1_000_000;
const PATH: &str = "/items";

/// A server with one limit.
struct LimitedServer {
    limit: Limit,
    spec: Spec,
    state: CounterState,
    style: HeaderStyle,
    rejections: usize,
}

impl LimitedServer {
    fn respond(&mut self, now: Timestamp) -> (bool, HeaderMap) {
        let outcome = self.limit.step(&mut self.state, now, Cost::ONE);
        let retry_after = match outcome.verdict {
            Verdict::NotUntil { retry_after } => Some(retry_after),
            _ => None,
        };
        let report = LimitReport {
            name: "default",
            quota: self.spec.requests,
            window: Some(self.spec.window),
            remaining: outcome.remaining,
            reset_after: outcome.reset_after,
            retry_after,
            unit: LimitUnit::Requests,
        };
        let (mut written, mut cache) = (RateLimitHeaders::default(), HeaderValueCache::default());
        let mut writer = HeaderWriter { styles: &[self.style], cache: &mut cache };
        writer.write_limits(&mut written, now, &report, &[report]);
        let mut headers = HeaderMap::new();
        written.insert_into(&mut headers);
        if let Some(retry_after) = retry_after {
            write_retry_after(&mut headers, retry_after.as_secs_ceil(), &[]);
            self.rejections += 1;
        }
        (retry_after.is_some(), headers)
    }
}

/// What happens to the request of a caller.
enum Event {
    Ask,
    Arrive(PaceTicket),
    Receive(PaceTicket, bool, HeaderMap),
}

/// Callers that send one request after another, at the pace of one client.
struct Simulation {
    server: LimitedServer,
    pace: PaceState,
    events: BinaryHeap<Reverse<(Timestamp, usize)>>,
    pending: Vec<Option<(usize, Event)>>,
    random: fastrand::Rng,
    /// The longest latency in each direction.
    latency: u64,
    sent: usize,
}

impl Simulation {
    fn schedule(&mut self, at: Timestamp, caller: usize, event: Event) {
        self.events.push(Reverse((at, self.pending.len())));
        self.pending.push(Some((caller, event)));
    }

    fn latency(&mut self) -> TimeSpan {
        TimeSpan::from_micros(self.random.u64(0..=self.latency))
    }

    /// Runs until `total` requests have been sent. Returns when the last one was.
    fn run(&mut self, callers: usize, total: usize) -> Timestamp {
        self.schedule(START, 0, Event::Ask);
        let mut is_known = false;
        let mut now = START;
        while self.sent < total {
            let Reverse((at, index)) = self.events.pop().expect("requests go on");
            now = at;
            let (caller, event) = self.pending[index].take().expect("an event happens once");
            match event {
                Event::Ask => self.ask(caller, now),
                Event::Arrive(ticket) => {
                    let (is_rejected, headers) = self.server.respond(now);
                    let back = now + self.latency();
                    self.schedule(back, caller, Event::Receive(ticket, is_rejected, headers));
                }
                Event::Receive(ticket, is_rejected, headers) => {
                    let limits = AdvertisedLimits::parse(&headers, now);
                    let random = self.random.u64(..);
                    let rejection = is_rejected.then(RejectionBody::default);
                    let response =
                        ResponseLimits { limits: &limits, rejection: rejection.as_ref(), now, random };
                    self.pace.observe(&ticket, PATH, response);
                    self.schedule(now, caller, Event::Ask);
                    // The others start when the first response has told the limit.
                    for other in if is_known { 0..0 } else { 1..callers } {
                        self.schedule(now, other, Event::Ask);
                    }
                    is_known = true;
                }
            }
        }
        now
    }

    fn ask(&mut self, caller: usize, now: Timestamp) {
        if let Some(delay) = self.pace.delay(PATH, now) {
            assert!(delay.until > now, "a delay ends later");
            self.schedule(delay.until, caller, Event::Ask);
        } else {
            let ticket = self.pace.charge(PATH, now);
            self.sent += 1;
            let arrival = now + self.latency();
            self.schedule(arrival, caller, Event::Arrive(ticket));
        }
    }
}

fn simulation(
    algorithm: Algorithm,
    spec: Spec,
    style: HeaderStyle,
    (latency, seed): (u64, u64),
) -> Simulation {
    let limit = Limit::new(algorithm, spec).expect("a valid limit");
    Simulation {
        server: LimitedServer { limit, spec, state: CounterState::default(), style, rejections: 0 },
        pace: PaceState::new(TimeSpan::from_secs(60)),
        events: BinaryHeap::new(),
        pending: Vec::new(),
        random: fastrand::Rng::with_seed(seed),
        latency,
        sent: 0,
    }
}

fn any_style() -> impl Strategy<Value = HeaderStyle> {
    prop::sample::select(HeaderStyle::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn client_that_follows_the_pace_is_never_rejected_by_any_algorithm(
        algorithm in prop::sample::select(Algorithm::ALL),
        requests in 1_u64..60,
        window in 1_u64..90,
        style in any_style(),
        callers in 1_usize..12,
        // A request that tests a reset is responded to before the next one tests it.
        latency in prop::sample::select(vec![0, 1_000, 50_000, 450_000]),
        seed in any::<u64>(),
    ) {
        let spec = Spec::new(requests, TimeSpan::from_secs(window));
        let mut simulation = simulation(algorithm, spec, style, (latency, seed));
        simulation.run(callers, 400);
        prop_assert_eq!(simulation.server.rejections, 0);
    }

    #[test]
    fn client_that_follows_the_pace_uses_at_least_a_third_of_the_limit(
        algorithm in prop::sample::select(Algorithm::ALL),
        requests in 5_u64..60,
        window in 10_u64..90,
        style in any_style(),
        callers in 1_usize..5,
        seed in any::<u64>(),
    ) {
        let spec = Spec::new(requests, TimeSpan::from_secs(window));
        let mut simulation = simulation(algorithm, spec, style, (1_000, seed));
        let total = usize::try_from(requests * 10).unwrap();
        let end = simulation.run(callers, total);
        let windows = end.since(START).as_micros() / (window * MICROS);
        prop_assert!(windows <= 30, "{} windows for the requests of ten", windows);
    }

    #[test]
    fn delay_is_never_longer_than_the_advertised_time_plus_a_tenth(
        remaining in 0_u64..50,
        quota in 0_u64..100,
        reset in 0_u64..4_000,
        retry_after in prop::option::of(0_u64..4_000),
        is_rejected in any::<bool>(),
        random in any::<u64>(),
        later in 0_u64..3_000,
    ) {
        let mut headers = HeaderMap::new();
        let state = format!("\"a\";r={remaining};t={reset}");
        headers.insert("ratelimit-policy", format!("\"a\";q={quota};w=4000").parse().unwrap());
        headers.insert("ratelimit", state.parse().unwrap());
        if let Some(seconds) = retry_after {
            write_retry_after(&mut headers, seconds, &[]);
        }
        let limits = AdvertisedLimits::parse(&headers, START);
        let mut pace = PaceState::new(TimeSpan::from_secs(60));
        let ticket = pace.charge(PATH, START);
        let rejection = is_rejected.then(RejectionBody::default);
        let response = ResponseLimits { limits: &limits, rejection: rejection.as_ref(), now: START, random };
        pace.observe(&ticket, PATH, response);
        // Without `Retry-After`, a rejection waits for a second at least.
        let advertised = match retry_after {
            Some(seconds) if is_rejected => reset.max(seconds).max(1),
            None if is_rejected => reset.max(1),
            _ => reset,
        };
        let latest = START + TimeSpan::from_micros(advertised * MICROS * 11 / 10);
        let now = START + TimeSpan::from_secs(later);
        if let Some(delay) = pace.delay(PATH, now) {
            prop_assert!(delay.until <= latest.max(now), "{:?}", delay);
            if let (true, Some(seconds), 0) = (is_rejected, retry_after, remaining) {
                let earliest = START + TimeSpan::from_secs(seconds.min(3_600));
                prop_assert!(delay.until >= earliest, "never early: {:?}", delay);
            }
        }
    }

    #[test]
    fn report_changes_nothing_once_the_response_to_a_later_request_is_known(
        newest in (0_u64..50, 1_u64..4_000),
        older in prop::collection::vec((0_u64..50, 0_u64..4_000), 0..8),
        random in any::<u64>(),
        later in 0_u64..3_000,
    ) {
        let mut pace = PaceState::new(TimeSpan::from_secs(60));
        let tickets: Vec<_> = older.iter().map(|_| pace.charge(PATH, START)).collect();
        let last = pace.charge(PATH, START);
        let observe = |pace: &mut PaceState, ticket: &PaceTicket, (remaining, reset): (u64, u64)| {
            let mut headers = HeaderMap::new();
            headers.insert("ratelimit", format!("\"a\";r={remaining};t={reset}").parse().unwrap());
            let limits = AdvertisedLimits::parse(&headers, START);
            pace.observe(ticket, PATH, ResponseLimits { limits: &limits, rejection: None, now: START, random });
        };
        observe(&mut pace, &last, newest);
        let known = pace.delay(PATH, START + TimeSpan::from_secs(later));
        for (ticket, report) in tickets.iter().zip(older) {
            observe(&mut pace, ticket, report);
        }
        prop_assert_eq!(pace.delay(PATH, START + TimeSpan::from_secs(later)), known);
    }
}
