//! Some nodes have the old limit of a rule and some the new one.
//!
//! The model: each limit has a counter of its own from the first decision under it, which starts with what is spent under
//! the other limit. Every admission is charged to both. So a node admits only what its limit admits on top of everything
//! that all nodes have admitted, and the total is at most what the larger limit admits.

use fastrand::Rng;
use tidegate_core::{
    Algorithm, Check, Cost, CounterKey, CounterState, Limit, Outcome, RuleId, Spec, TimeSpan, Timestamp,
};
use tidegate_redis::TimeSource;
use tidegate_store::Store;
use tidegate_testkit::process::RedisServer;

use crate::central::connect;
use crate::{assert_all_keys_expire, raw};

const START: Timestamp = Timestamp::from_secs(1_700_000_000);

/// What each of two limits has counted.
struct Model {
    limits: [Limit; 2],
    states: [Option<CounterState>; 2],
}

impl Model {
    fn decide(&mut self, by: usize, now: Timestamp, cost: Cost) -> Outcome {
        let (limit, other) = (self.limits[by], 1 - by);
        let first_state = match &self.states[other] {
            Some(state) => limit.rebase(&self.limits[other], state.clone(), now),
            None => CounterState::Unseen,
        };
        let state = self.states[by].get_or_insert(first_state);
        let outcome = limit.evaluate(state, now, cost);
        if outcome.verdict.is_pass() {
            for (limit, state) in self.limits.iter().zip(&mut self.states) {
                if let Some(state) = state {
                    limit.charge(state, now, cost);
                }
            }
        }
        outcome
    }
}

fn limit(algorithm: Algorithm, requests: u64, seconds: u64) -> Limit {
    let max_wait = (algorithm == Algorithm::LeakyBucket).then_some(TimeSpan::from_secs(600));
    Limit::new(algorithm, Spec { max_wait, ..Spec::new(requests, TimeSpan::from_secs(seconds)) }).unwrap()
}

/// Alternates between both limits and returns the admissions.
async fn alternate(
    store: &impl Store,
    client: &[u8],
    limits: [Limit; 2],
    rng: &mut Rng,
    steps: usize,
) -> Vec<(Timestamp, Cost)> {
    let key = CounterKey::new(RuleId::named("default"), client);
    let mut model = Model { limits, states: [None, None] };
    let (mut now, mut admitted) = (START, Vec::new());
    for step in 0..steps {
        let longest = [10, 1_000_000, 5_000_000][rng.usize(0..3)];
        now = now + TimeSpan::from_micros(rng.u64(0..longest));
        // The change starts with the old limit alone and ends with the new one alone.
        let by = usize::from(step > steps / 10 && (rng.bool() || step > 9 * steps / 10));
        let cost = Cost::new(rng.u64(1..=2));
        let check = Check::new(key, &limits[by]).cost(cost);
        let decision = store.decide(&[check], now).await.unwrap();
        let expected = model.decide(by, now, cost);
        assert_eq!(decision.outcomes[0], expected, "step {step} under {:?}, then {:?}", limits[0], limits[1]);
        if expected.verdict.is_pass() {
            admitted.push((now, cost));
        }
    }
    admitted
}

#[tokio::test]
async fn nodes_with_two_limits_never_admit_more_than_each_limit_on_top_of_all_admissions() {
    let server = RedisServer::start();
    let store = connect(&server, TimeSource::Caller).await;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    for (i, &old) in Algorithm::ALL.iter().enumerate() {
        for (k, &new) in Algorithm::ALL.iter().enumerate() {
            let limits = [limit(old, 10, 20), limit(new, rng.u64(1..30), rng.u64(1..60))];
            if limits[0] != limits[1] {
                alternate(&store, format!("{i}-{k}").as_bytes(), limits, &mut rng, 80).await;
            }
        }
    }
    assert!(assert_all_keys_expire(&mut raw(&server).await).await > 0);
}

#[tokio::test]
async fn nodes_with_two_limits_admit_at_most_the_larger_in_every_window() {
    const WINDOW: TimeSpan = TimeSpan::from_secs(20);
    const LARGER: u64 = 14;
    let server = RedisServer::start();
    let store = connect(&server, TimeSource::Caller).await;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    for (algorithm, bound) in [(Algorithm::SlidingLog, LARGER), (Algorithm::TokenBucket, 2 * LARGER)] {
        for requests in [[6, LARGER], [LARGER, 6]] {
            let limits = requests.map(|requests| limit(algorithm, requests, 20));
            let client = format!("{algorithm} {requests:?}");
            let admitted = alternate(&store, client.as_bytes(), limits, &mut rng, 300).await;
            for (end, _) in &admitted {
                let inside = admitted.iter().filter(|(at, _)| at <= end && end.since(*at) < WINDOW);
                let units: u64 = inside.map(|(_, cost)| cost.get()).sum();
                assert!(units <= bound, "{algorithm}: {units} in one window");
            }
        }
    }
}

#[tokio::test]
async fn limit_that_no_node_uses_any_more_is_forgotten() {
    let server = RedisServer::start();
    let store = connect(&server, TimeSource::Caller).await;
    let limits = [limit(Algorithm::SlidingLog, 10, 3_600), limit(Algorithm::TokenBucket, 10, 3_600)];
    let key = CounterKey::new(RuleId::named("default"), b"client");
    let mut sizes = Vec::new();
    for (by, seconds) in [(0, 0), (1, 1), (1, 599), (1, 601)] {
        let now = START + TimeSpan::from_secs(seconds);
        let decision = store.decide(&[Check::new(key, &limits[by])], now).await.unwrap();
        assert!(decision.passes());
        let keys: Vec<String> =
            redis::cmd("KEYS").arg("*").query_async(&mut raw(&server).await).await.unwrap();
        sizes.push(keys.len());
    }
    assert_eq!(sizes, [2, 2, 2, 1], "the log of the old limit is kept beside the entry for ten minutes");
}

#[tokio::test]
async fn counter_after_a_change_equals_that_of_the_new_limit_alone_within_its_bound() {
    let server = RedisServer::start();
    let store = connect(&server, TimeSource::Caller).await;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    for &algorithm in Algorithm::ALL {
        let limits = [limit(algorithm, 10, 20), limit(algorithm, 16, 20)];
        let admitted = alternate(&store, algorithm.name().as_bytes(), limits, &mut rng, 200).await;
        let mut alone = CounterState::Unseen;
        for (at, cost) in &admitted {
            limits[1].charge(&mut alone, *at, *cost);
        }
        let (now, _) = admitted[admitted.len() - 1];
        let key = CounterKey::new(RuleId::named("default"), algorithm.name().as_bytes());
        let left = store.peek(&[Check::new(key, &limits[1]).cost(Cost::ZERO)], now).await.unwrap();
        let ideal = limits[1].evaluate(&alone, now, Cost::ZERO).remaining;
        // Until the change a bucket drained at the old, lower rate. It contains at most what the old limit holds more, until
        // it is empty for the first time.
        let bucket = matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
        let bound = if bucket { limits[0].capacity() } else { 0 };
        let left = left.outcomes[0].remaining;
        assert!(left <= ideal && ideal - left <= bound, "{algorithm}: {left} left, ideally {ideal}");
    }
}
