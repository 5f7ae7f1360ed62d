//! When waiting requests depart, in real time: part of `cargo xtask scorecard waiting`.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use http::HeaderMap;
use tidegate_core::{ActionKind, ActionSet, Check, Cost, CounterKey, Role, RuleId, TimeSpan, Timestamp};
use tidegate_limiter::{CheckContext, Limiter, Ruling, WaitBounds, WaitTerms};
use tidegate_policy::{Facts, Scratch};
use tidegate_store::{Clock, MemoryStore, Store, SystemClock};
use tokio::runtime::Builder;
use tokio::time::sleep;

use crate::active;

const PERFORMED: ActionSet = ActionSet::of(&[ActionKind::Wait]);
const BURST: u64 = 10;
const THREADS: u32 = 2;

/// A limiter at which all requests wait until its counter is reset.
struct Queue {
    limiter: Limiter<MemoryStore>,
    clock: Arc<SystemClock>,
    departures: Mutex<Vec<Timestamp>>,
    /// How late bare timers were.
    timers: Mutex<Vec<u64>>,
}

impl Queue {
    fn new(rate: u64) -> Self {
        let policy = active(&format!(
            "rate_limits: {{ global: {{ requests: {rate}, window: 1s, algorithm: token_bucket, burst: {BURST}, on_exceed: {{ wait: 1d }} }} }}"
        ));
        let clock = Arc::new(SystemClock::new());
        let store = Arc::new(MemoryStore::with_cap(1 << 20));
        let limiter = Limiter::new(policy, store, Arc::clone(&clock) as Arc<dyn Clock>).expect("a limiter");
        let bound = 200_000;
        limiter.waits().set_bounds(WaitBounds { counter: bound, client: 100, total: bound });
        let limit = limiter.policy().matcher.plan().rate_limits.global.as_ref().expect("the rule").limit;
        let debt = Check::new(lane(), &limit).cost(Cost::new(3_600 * rate)).role(Role::Overage);
        pollster::block_on(limiter.store().decide(&[debt], clock.now())).expect("a decision");
        Self { limiter, clock, departures: Mutex::default(), timers: Mutex::default() }
    }

    async fn serve(self: Arc<Self>, number: u32) {
        let (policy, headers, arrived) = (self.limiter.policy(), HeaderMap::new(), self.clock.now());
        let [_, a, b, c] = number.to_be_bytes();
        let facts = Facts {
            method: "GET",
            host: None,
            path: "/",
            headers: &headers,
            peer: [10, a, b, c].into(),
            body: tidegate_policy::BodyFacts::Unknown,
        };
        let mut place = {
            let mut scratch = Scratch::default();
            let context = CheckContext { now: arrived, performs: PERFORMED };
            let Ruling::Act(act) = self.limiter.check(&policy, &facts, &mut scratch, context).await else {
                panic!("it has to wait");
            };
            let terms = WaitTerms { arrived, deadline: None, performs: PERFORMED };
            self.limiter.join(act, terms).await.expect("a place")
        };
        loop {
            place.turn(&*self.clock).await;
            let (now, mut scratch) = (self.clock.now(), Scratch::default());
            let turn = (&mut place, now);
            if let Some(ruling) = self.limiter.check_at_turn(&policy, &facts, &mut scratch, turn).await {
                assert!(matches!(ruling, Ruling::Serve(_)), "{ruling:?}");
                self.departures.lock().expect("no panic").push(now);
                return;
            }
        }
    }

    /// How late timers of this period are while the queue departs.
    async fn time_bare(self: Arc<Self>, period: TimeSpan) {
        loop {
            let due = self.clock.now() + period;
            sleep(period.into()).await;
            self.timers.lock().expect("no panic").push(self.clock.now().since(due).as_micros());
        }
    }

    fn departed(&self) -> usize {
        self.departures.lock().expect("no panic").len()
    }
}

fn lane() -> CounterKey<'static> {
    CounterKey::new(RuleId::named("global"), b"")
}

fn percentile_99(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() * 99 / 100).copied().unwrap_or_default()
}

/// Bytes of this process in memory.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let resident = pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    resident.expect("a number of pages") * 4_096
}

/// Lets `waiting` requests wait in two threads, then `departing` of them depart. Returns the bytes of each, and the queue.
fn run(rate: u64, waiting: u32, departing: usize) -> (u64, Arc<Queue>) {
    let queue = Arc::new(Queue::new(rate));
    let before = resident();
    for first in 0..THREADS {
        let queue = Arc::clone(&queue);
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let period = TimeSpan::from_micros(1_000_000 / rate);
                tokio::spawn(Arc::clone(&queue).time_bare(period));
                for number in (first..waiting).step_by(THREADS as usize) {
                    tokio::spawn(Arc::clone(&queue).serve(number));
                }
                while queue.departed() < departing {
                    sleep(Duration::from_millis(20)).await;
                }
            });
        });
    }
    while queue.limiter.waits().len() < waiting as usize {
        thread::sleep(Duration::from_millis(5));
    }
    let each = resident().saturating_sub(before) / u64::from(waiting);
    queue.timers.lock().expect("no panic").clear();
    pollster::block_on(queue.limiter.reset(lane())).expect("a reset");
    while queue.departed() < departing {
        thread::sleep(Duration::from_millis(5));
    }
    (each, queue)
}

#[test]
#[ignore = "takes half a minute; part of `cargo xtask scorecard waiting`"]
fn long_departures_with_10_000_waiting_are_neither_early_nor_late() {
    for (rate, departing) in [(100, 1_000), (1_000, 9_000)] {
        let (_, queue) = run(rate, 10_000, departing);
        let departures = queue.departures.lock().expect("no panic").clone();
        let first = departures[0];
        let mut lateness = Vec::new();
        for (place, departure) in (0..).zip(&departures) {
            let due = first + TimeSpan::from_micros((place + 1_u64).saturating_sub(BURST) * 1_000_000 / rate);
            assert!(*departure >= due, "departure {place} is early");
            lateness.push(departure.since(due).as_micros());
        }
        let (early, late) = lateness.split_at(lateness.len() / 2);
        let mean = |values: &[u64]| values.iter().sum::<u64>() / values.len() as u64;
        let drift = mean(late).saturating_sub(mean(early));
        let (departure, timer) =
            (percentile_99(lateness.clone()), percentile_99(queue.timers.lock().expect("no panic").clone()));
        let hundredths = departure * 100 / timer.max(1);
        println!(
            "{rate}/s, 10,000 waiting: {} departures, none early; p99 {departure} µs late, a bare timer {timer} µs: {hundredths} % (bar 150); \
             the second half {drift} µs later than the first",
            departures.len()
        );
        assert!(hundredths <= 150, "{hundredths} %");
        assert!(drift <= timer, "{drift} µs");
    }
}

#[test]
#[ignore = "part of `cargo xtask scorecard waiting`"]
fn long_queue_of_100_000_requests_is_small() {
    let (each, _) = run(1_000, 100_000, 100);
    println!("100,000 waiting: {each} bytes each beyond the connection, with their tasks (bar 2048)");
    assert!(each <= 2_048, "{each}");
}
