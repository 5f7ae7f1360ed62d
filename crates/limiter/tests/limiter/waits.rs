//! Requests that wait for their turn, on virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::HeaderMap;
use tidegate_core::{ActionKind, ActionSet, Check, CounterKey, Decision, Refund, TimeSpan, Timestamp};
use tidegate_limiter::{CheckContext, Limiter, Ruling, WaitBounds, WaitTerms};
use tidegate_policy::{Facts, Scratch};
use tidegate_store::{Clock, MemoryStore, Override, Store, StoreError};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::{START, active, describe};

const PERFORMED: ActionSet = ActionSet::of(&[ActionKind::Wait, ActionKind::Degrade, ActionKind::Slow]);

/// The time of the runtime, which is paused: it advances to the next timer when nothing else is left to do.
#[derive(Debug)]
struct PausedClock(Instant);

impl Clock for PausedClock {
    fn now(&self) -> Timestamp {
        START + TimeSpan::from_micros(u64::try_from(self.0.elapsed().as_micros()).expect("a short test"))
    }
}

/// Counts decisions. A remote store is asked once for a decision and the peek that follows it.
#[derive(Debug)]
struct CountingStore {
    memory: MemoryStore,
    decisions: AtomicUsize,
}

impl Store for CountingStore {
    async fn decide(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        self.decisions.fetch_add(1, Ordering::Relaxed);
        // As if it were remote.
        tokio::task::yield_now().await;
        self.memory.decide(checks, now).await
    }

    async fn decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        self.memory.decide_batch(batch, now, decisions).await
    }

    async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        tokio::task::yield_now().await;
        self.memory.peek(checks, now).await
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<bool, StoreError> {
        self.memory.refund(refunds, now).await
    }

    async fn reset(&self, key: CounterKey<'_>) -> Result<(), StoreError> {
        self.memory.reset(key).await
    }

    async fn override_limit(
        &self,
        key: CounterKey<'_>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.memory.override_limit(key, replacement, now).await
    }
}

/// How a request ended, and how many milliseconds after the start.
type Ended = (String, u64);

struct WaitBench {
    limiter: Limiter<CountingStore>,
    clock: Arc<PausedClock>,
}

impl WaitBench {
    fn new(policy: &str) -> Arc<Self> {
        #[expect(clippy::disallowed_methods, reason = "the time of the runtime is the clock")]
        let clock = Arc::new(PausedClock(Instant::now()));
        let store = CountingStore { memory: MemoryStore::with_cap(1 << 20), decisions: AtomicUsize::new(0) };
        let limiter = Limiter::new(active(policy), Arc::new(store), Arc::clone(&clock) as Arc<dyn Clock>);
        Arc::new(Self { limiter: limiter.expect("a limiter"), clock })
    }

    /// One request per 100 ms for all clients, with this action.
    fn paced(on_exceed: &str) -> Arc<Self> {
        Self::new(&format!("rate_limits: {{ global: {{ {PACE}, on_exceed: {on_exceed} }} }}"))
    }

    fn millis(&self) -> u64 {
        self.clock.now().since(START).as_micros() / 1_000
    }

    /// Sends a request of client `client`, which waits as long as it has to. Requests arrive in the order of the calls.
    async fn send(self: &Arc<Self>, client: u8, path: &'static str) -> JoinHandle<Ended> {
        self.send_until(client, path, None).await
    }

    async fn send_until(
        self: &Arc<Self>,
        client: u8,
        path: &'static str,
        deadline: Option<Timestamp>,
    ) -> JoinHandle<Ended> {
        let bench = Arc::clone(self);
        let request = tokio::spawn(async move {
            let ended = bench.serve(client, path, deadline).await;
            (ended, bench.millis())
        });
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        request
    }

    async fn serve(&self, client: u8, path: &str, deadline: Option<Timestamp>) -> String {
        let (policy, headers, arrived) = (self.limiter.policy(), HeaderMap::new(), self.clock.now());
        let peer = [192, 0, 2, client].into();
        let facts = Facts {
            method: "GET",
            host: Some("a.example"),
            path,
            headers: &headers,
            peer,
            body: tidegate_policy::BodyFacts::Unknown,
        };
        let mut place = {
            let mut scratch = Scratch::default();
            let context = CheckContext { now: arrived, performs: PERFORMED };
            match self.limiter.check(&policy, &facts, &mut scratch, context).await {
                Ruling::Act(act) if act.is_wait() => {
                    let terms = WaitTerms { arrived, deadline, performs: PERFORMED };
                    match self.limiter.join(act, terms).await {
                        Ok(place) => place,
                        Err(refuse) => return describe(&Ruling::Refuse(*refuse)),
                    }
                }
                ruling => return describe(&ruling),
            }
        };
        loop {
            place.turn(&*self.clock).await;
            let (now, mut scratch) = (self.clock.now(), Scratch::default());
            let turn = (&mut place, now);
            if let Some(ruling) = self.limiter.check_at_turn(&policy, &facts, &mut scratch, turn).await {
                return describe(&ruling);
            }
        }
    }

    /// A request over an interface that does not wait.
    async fn check_now(&self, client: u8, path: &str) -> String {
        let (policy, mut scratch, headers) = (self.limiter.policy(), Scratch::default(), HeaderMap::new());
        let peer = [192, 0, 2, client].into();
        let facts = Facts {
            method: "GET",
            host: Some("a.example"),
            path,
            headers: &headers,
            peer,
            body: tidegate_policy::BodyFacts::Unknown,
        };
        describe(&self.limiter.check(&policy, &facts, &mut scratch, self.clock.now()).await)
    }
}

const PACE: &str = "requests: 10, window: 1s, algorithm: token_bucket, burst: 1";

async fn ended(requests: Vec<JoinHandle<Ended>>) -> Vec<Ended> {
    let mut all = Vec::new();
    for request in requests {
        all.push(request.await.expect("the request ends"));
    }
    all
}

fn admitted(rule: &str, millis: u64) -> Ended {
    (format!("admitted, 0 left of {rule}"), millis)
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_depart_at_the_rate_in_order_of_arrival() {
    let bench = WaitBench::paced("{ wait: 1m }");
    let mut requests = Vec::new();
    for client in 0..200 {
        requests.push(bench.send(client, "/").await);
    }
    assert_eq!(bench.limiter.waits().len(), 199);
    let expected: Vec<_> = (0..200).map(|place| admitted("global", 100 * place)).collect();
    assert_eq!(ended(requests).await, expected);
    assert!(bench.limiter.waits().is_empty());
    let decisions = bench.limiter.store().decisions.load(Ordering::Relaxed);
    assert_eq!(decisions, 201, "one for each departure, and the one that had the second request wait");
}

#[tokio::test(start_paused = true)]
async fn departures_of_each_algorithm_are_those_of_the_limit() {
    for algorithm in ["token_bucket", "fixed_window", "sliding_window_log", "sliding_window_counter"] {
        let bench = WaitBench::new(&format!(
            "rate_limits: {{ global: {{ requests: 4, window: 1s, algorithm: {algorithm}, on_exceed: {{ wait: 1m }} }} }}"
        ));
        let mut requests = Vec::new();
        for _ in 0..40 {
            requests.push(bench.send(1, "/").await);
        }
        let ended = ended(requests).await;
        let times: Vec<_> = ended.iter().map(|(_, millis)| *millis).collect();
        assert!(times.is_sorted(), "{algorithm}: {times:?}");
        assert!(ended.iter().all(|(ended, _)| ended.starts_with("admitted")), "{algorithm}: {ended:?}");
        // The 40th departs when 36 more than the first 4 fit.
        assert!((9_000..=18_000).contains(&times[39]), "{algorithm}: {times:?}");
        let decisions = bench.limiter.store().decisions.load(Ordering::Relaxed);
        assert!(decisions <= 44, "{algorithm}: {decisions} decisions for 40 departures");
    }
}

#[tokio::test(start_paused = true)]
async fn request_whose_turn_cannot_come_in_time_is_refused_at_once() {
    let bench = WaitBench::paced("{ wait: 250ms }");
    let mut requests = Vec::new();
    for client in 0..4 {
        requests.push(bench.send(client, "/").await);
    }
    // Its deadline is before its turn.
    let deadline = Some(START + TimeSpan::from_millis(99));
    requests.push(bench.send_until(9, "/", deadline).await);
    let refused = ("rejected by global: Limit, Some(1)".to_owned(), 0);
    let expected =
        [admitted("global", 0), admitted("global", 100), admitted("global", 200), refused.clone(), refused];
    assert_eq!(ended(requests).await, expected);
}

#[tokio::test(start_paused = true)]
async fn newcomer_never_overtakes_whatever_its_interface() {
    let bench = WaitBench::paced("{ wait: 1m }");
    let waiting = [bench.send(1, "/").await, bench.send(2, "/").await, bench.send(3, "/").await];
    // The unit of the first that waits is available, and nobody has taken it yet.
    tokio::time::advance(std::time::Duration::from_millis(100)).await;
    assert_eq!(bench.check_now(4, "/").await, "rejected by global: Limit, Some(1)");
    let newcomer = bench.send(5, "/").await;
    let [one, two, three] = waiting;
    let ended = ended(vec![one, two, three, newcomer]).await;
    assert_eq!(ended, [0, 100, 200, 300].map(|millis| admitted("global", millis)));
}

#[tokio::test(start_paused = true)]
async fn request_that_another_counter_refuses_at_its_turn_moves_there_and_blocks_nobody() {
    let bench = WaitBench::new(&format!(
        "rate_limits:\n  rules:\n    - {{ name: lane, per: everybody, {PACE}, on_exceed: {{ wait: 1m }} }}\n    \
         - {{ name: own, per: [ip], requests: 1, window: 1s, algorithm: token_bucket, on_exceed: {{ wait: 1m }} }}\n"
    ));
    let mut requests = Vec::new();
    for client in [1, 1, 2, 3] {
        requests.push(bench.send(client, "/").await);
    }
    let times: Vec<_> = ended(requests).await.into_iter().map(|(_, millis)| millis).collect();
    assert_eq!(times, [0, 1_000, 100, 200], "the second request of the first client waits for its own limit");
}

#[tokio::test(start_paused = true)]
async fn requests_behind_those_that_leave_move_up() {
    let bench = WaitBench::paced("{ wait: 1m }");
    let mut requests = Vec::new();
    for client in 0..21 {
        requests.push(bench.send(client, "/").await);
    }
    let (mut left, mut stayed) = (Vec::new(), Vec::new());
    for (place, request) in requests.into_iter().enumerate() {
        if place % 2 == 1 { left.push(request) } else { stayed.push(request) }
    }
    left.iter().for_each(JoinHandle::abort);
    let expected: Vec<_> = (0..11).map(|place| admitted("global", 100 * place)).collect();
    assert_eq!(ended(stayed).await, expected);
    assert!(bench.limiter.waits().is_empty());
}

#[tokio::test(start_paused = true)]
async fn waits_of_one_client_do_not_keep_out_the_first_of_another() {
    let bench = WaitBench::paced("{ wait: 1h }");
    bench.limiter.waits().set_bounds(WaitBounds { client: 50, ..WaitBounds::default() });
    let mut of_one = Vec::new();
    for _ in 0..200 {
        of_one.push(bench.send(1, "/").await);
    }
    assert_eq!(bench.limiter.waits().len(), 50);
    let other = bench.send(2, "/").await;
    assert_eq!(bench.limiter.waits().len(), 51);
    assert_eq!(ended(vec![other]).await, [admitted("global", 5_100)]);
    of_one.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn lock_out_ends_the_waits_of_its_client_at_once() {
    let bench = WaitBench::new(
        "rate_limits:\n  rules:\n    \
         - { name: strict, per: [ip], requests: 2, window: 1h, algorithm: token_bucket, penalty: { after: 1, for: 1h } }\n    \
         - { name: lane, match: { path: /lane }, per: everybody, requests: 1, window: 1m, algorithm: token_bucket, on_exceed: { wait: 1h } }\n",
    );
    let served = bench.send(1, "/lane").await;
    let (locked, other) = (bench.send(1, "/lane").await, bench.send(2, "/lane").await);
    assert_eq!(bench.limiter.waits().len(), 2);
    assert_eq!(bench.check_now(1, "/").await, "admitted, 0 left of strict");
    assert!(bench.check_now(1, "/").await.starts_with("rejected by strict: LockOut"));
    let ended = ended(vec![served, locked, other]).await;
    assert!(ended[1].0.starts_with("rejected by strict: LockOut") && ended[1].1 == 0, "{ended:?}");
    assert_eq!(ended[2].1, 60_000, "the place was free");
}

#[tokio::test(start_paused = true)]
async fn waiting_is_no_violation_and_a_refusal_after_it_is_one() {
    let bench = WaitBench::new(
        "rate_limits: { default: { requests: 1, window: 1s, algorithm: token_bucket, on_exceed: { wait: 1s }, \
         penalty: { after: 2, for: 1h } } }",
    );
    let mut requests = Vec::new();
    for _ in 0..2 {
        requests.push(bench.send(1, "/").await);
    }
    assert_eq!(bench.limiter.penalties().len(), 0, "waiting is none");
    let refused = bench.send(1, "/").await;
    assert!(ended(vec![refused]).await[0].0.starts_with("rejected by default: Limit"));
    assert_eq!(bench.limiter.penalties().len(), 1);
    assert_eq!(ended(requests).await, [admitted("default", 0), admitted("default", 1_000)]);
}

#[tokio::test(start_paused = true)]
async fn reload_that_removes_the_rule_loses_no_waiting_request() {
    let bench = WaitBench::paced("{ wait: 1m }");
    let mut requests = Vec::new();
    for client in 0..5 {
        requests.push(bench.send(client, "/").await);
    }
    let without = active("rate_limits: { default: { requests: 9, window: 1s } }");
    bench.limiter.activate(bench.limiter.prepare(without).expect("limits"));
    assert_eq!(bench.check_now(9, "/").await, "admitted, 8 left of default");
    let expected: Vec<_> = (0..5).map(|place| admitted("global", 100 * place)).collect();
    assert_eq!(ended(requests).await, expected);
}

#[tokio::test(start_paused = true)]
async fn end_refuses_at_once_those_whose_turn_comes_later() {
    let bench = WaitBench::paced("{ wait: 1m }");
    let mut requests = Vec::new();
    for client in 0..5 {
        requests.push(bench.send(client, "/").await);
    }
    bench.limiter.waits().end_at(START + TimeSpan::from_millis(250));
    requests.push(bench.send(6, "/").await);
    let ended = ended(requests).await;
    let times: Vec<_> = ended.iter().map(|(_, millis)| *millis).collect();
    assert_eq!(times, [0, 100, 200, 0, 0, 0], "{ended:?}");
    assert!(ended[3..].iter().all(|(ended, _)| ended.starts_with("rejected by global: Limit")), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn ban_during_the_wait_applies_at_the_turn() {
    use tidegate_policy::{Ban, Bans, Subject};
    let bench = WaitBench::paced("{ wait: 1m }");
    let requests = vec![bench.send(1, "/").await, bench.send(2, "/").await, bench.send(3, "/").await];
    let subject = Subject::parse("192.0.2.2", 64).expect("a subject");
    let ban = Ban { subject, reason: String::new(), since: Timestamp::ZERO, until: None };
    bench.limiter.ban(Bans::new([ban]));
    let expected = [admitted("global", 0), ("banned".to_owned(), 100), admitted("global", 100)];
    assert_eq!(ended(requests).await, expected);
}
