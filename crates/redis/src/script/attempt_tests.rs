//! Attempts whose cancellations meet other decisions on the same counter.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Algorithm, Cost, CounterKey, Limit, Outcomes, Role, RuleId, Spec, TimeSpan, Timestamp};
use tidegate_store::SystemClock;
use tidegate_testkit::process::RedisServer;

use crate::config::{RedisConfig, TimeSource};
use crate::endpoint::Endpoint;
use crate::link::Link;
use crate::operation::{AttemptId, CounterCheck, Operation, OperationReply};

const START: Timestamp = Timestamp::from_secs(1_700_000_000);

/// One counter, and the time of the next operation.
struct Counter {
    link: Link,
    check: CounterCheck,
    now: Timestamp,
}

impl Counter {
    fn new(server: &RedisServer, algorithm: Algorithm, name: &str) -> Self {
        let endpoint = Endpoint::parse(&server.url()).unwrap();
        let timeout = Duration::from_secs(5);
        let config = RedisConfig { time: TimeSource::Caller, timeout, ..RedisConfig::new(endpoint) };
        let link = Link::new(config, Arc::new(SystemClock::new()));
        let max_wait = (algorithm == Algorithm::LeakyBucket).then_some(TimeSpan::from_secs(60));
        let limit =
            Limit::new(algorithm, Spec { max_wait, ..Spec::new(10, TimeSpan::from_secs(60)) }).unwrap();
        let client = format!("{algorithm} {name}");
        let key = link.names().counter(CounterKey::new(RuleId::named("default"), client.as_bytes()));
        let check = CounterCheck { key, limit, cost: Cost::ONE, role: Role::Binding };
        Self { link, check, now: START }
    }

    async fn call(&mut self, operation: Operation) -> Outcomes {
        self.now = self.now + TimeSpan::from_micros(1);
        match self.link.call(operation, self.now).await.unwrap() {
            OperationReply::Outcomes(at, outcomes) => {
                assert_eq!(at, self.now);
                outcomes
            }
            other => panic!("outcomes expected: {other:?}"),
        }
    }

    fn checks(&self, cost: u64) -> Vec<CounterCheck> {
        vec![CounterCheck { cost: Cost::new(cost), ..self.check.clone() }]
    }

    async fn decide(&mut self, cost: u64) -> bool {
        let checks = self.checks(cost);
        self.call(Operation::Decide(checks)).await[0].verdict.is_pass()
    }

    /// An attempt and the time of its charge.
    async fn attempt(&mut self) -> (AttemptId, Timestamp) {
        let attempt = AttemptId::random();
        let checks = self.checks(2);
        assert!(self.call(Operation::Attempt(checks, attempt)).await[0].verdict.is_pass());
        (attempt, self.now)
    }

    async fn cancel(&mut self, (attempt, charged): (AttemptId, Timestamp)) {
        let checks = self.checks(2);
        self.call(Operation::Cancel { checks, charged, attempt }).await;
    }

    /// What is left.
    async fn left(&mut self) -> u64 {
        let checks = self.checks(0);
        self.call(Operation::Peek(checks)).await[0].remaining
    }
}

#[tokio::test]
async fn cancelled_attempts_among_rejections_and_other_attempts_leave_nothing_charged() {
    let server = RedisServer::start();
    for &algorithm in Algorithm::ALL {
        for order in ["rejection", "inner first", "outer first", "three"] {
            let mut counter = Counter::new(&server, algorithm, order);
            assert!(counter.decide(3).await);
            let before = counter.left().await;
            let first = counter.attempt().await;
            match order {
                "rejection" => {
                    assert!(!counter.decide(11).await);
                    counter.cancel(first).await;
                }
                "inner first" => {
                    let second = counter.attempt().await;
                    counter.cancel(second).await;
                    counter.cancel(first).await;
                }
                "outer first" => {
                    let second = counter.attempt().await;
                    counter.cancel(first).await;
                    counter.cancel(second).await;
                }
                _ => {
                    let second = counter.attempt().await;
                    let third = counter.attempt().await;
                    for attempt in [third, first, second] {
                        counter.cancel(attempt).await;
                    }
                }
            }
            assert_eq!(counter.left().await, before, "{algorithm}: {order}");
        }
    }
}

#[tokio::test]
async fn cancelled_attempt_keeps_what_others_have_charged() {
    let server = RedisServer::start();
    for &algorithm in Algorithm::ALL {
        let mut counter = Counter::new(&server, algorithm, "others");
        let (first, second) = (counter.attempt().await, counter.attempt().await);
        assert!(counter.decide(3).await);
        counter.cancel(first).await;
        counter.cancel(second).await;
        let left = counter.left().await;
        // A leaky bucket gives back only its last departure, a token bucket only what cannot have drained.
        let expected = match algorithm {
            Algorithm::LeakyBucket => 3..=3,
            Algorithm::TokenBucket => 6..=7,
            _ => 7..=7,
        };
        assert!(expected.contains(&left), "{algorithm}: {left}");
    }
}
