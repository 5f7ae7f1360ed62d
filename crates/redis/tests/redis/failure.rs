//! The composed store when a part of a decision fails, is rejected or is refunded.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{
    Algorithm, Check, Coordination, CounterKey, Decision, Limit, RuleId, Spec, StoreFailureMode, TimeSpan,
    Timestamp,
};
use tidegate_redis::{Endpoint, RedisConfig, RedisStore};
use tidegate_store::{RuleSettings, Store, SystemClock};
use tidegate_testkit::port::free_address;
use tidegate_testkit::process::RedisServer;

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

fn open(url: &str, rules: &[(&str, Coordination, StoreFailureMode)]) -> RedisStore {
    let config =
        RedisConfig { timeout: Duration::from_secs(2), ..RedisConfig::new(Endpoint::parse(url).unwrap()) };
    let store = RedisStore::new(config, Arc::new(SystemClock::new()));
    let settings = |(name, coordination, on_store_failure): &(&str, _, _)| RuleSettings {
        rule: RuleId::named(name),
        coordination: *coordination,
        on_store_failure: *on_store_failure,
    };
    store.apply_settings(&rules.iter().map(settings).collect::<Vec<_>>());
    store
}

fn limit(algorithm: Algorithm, requests: u64) -> Limit {
    Limit::new(algorithm, Spec::new(requests, TimeSpan::from_secs(3_600))).unwrap()
}

fn check<'a>(rule: &str, client: &'a [u8], limit: &'a Limit) -> Check<'a> {
    Check::new(CounterKey::new(RuleId::named(rule), client), limit)
}

#[tokio::test]
async fn request_that_a_failure_mode_allowed_has_no_refund() {
    let (central, lease, sync) = (Coordination::Central, Coordination::Lease, Coordination::Sync);
    let allow = StoreFailureMode::Allow;
    let rules = [("central", central, allow), ("lease", lease, allow), ("sync", sync, allow)];
    let local = ("static", Coordination::Static, StoreFailureMode::Local);
    let store = open(&format!("redis://{}", free_address()), &[rules[0], rules[1], rules[2], local]);
    let limit = limit(Algorithm::TokenBucket, 5);
    for (rule, ..) in rules {
        let checks = [check(rule, b"client", &limit), check("static", b"client", &limit)];
        let alone = store.decide(&checks[..1], NOW).await.unwrap();
        assert!(alone.passes());
        assert_eq!(alone.refunds(&checks[..1]).len(), 0, "{rule} charged nothing");
        let both = store.decide(&checks, NOW).await.unwrap();
        let refunds = both.refunds(&checks);
        assert_eq!((refunds.len(), refunds[0].key, refunds[0].charged), (1, checks[1].key, NOW), "{rule}");
    }
}

#[tokio::test]
async fn refund_of_a_mixed_decision_reaches_each_counter_at_its_own_time() {
    let server = RedisServer::start();
    let rules = [("static", Coordination::Static, StoreFailureMode::Local)];
    let store = open(&server.url(), &rules);
    for algorithm in [Algorithm::SlidingLog, Algorithm::LeakyBucket, Algorithm::FixedWindow] {
        let limit = limit(algorithm, 5);
        let checks = [check("static", b"client", &limit), check("central", b"client", &limit)];
        let unused = store.peek(&checks, NOW).await.unwrap();
        // The node's time is far from the server's.
        let decision = store.decide(&checks, NOW).await.unwrap();
        assert!(decision.passes());
        store.refund(&decision.refunds(&checks), NOW).await.unwrap();
        let left = store.peek(&checks, NOW).await.unwrap();
        let remaining = |decision: &Decision| {
            decision.outcomes.iter().map(|outcome| outcome.remaining).collect::<Vec<_>>()
        };
        assert_eq!(remaining(&left), remaining(&unused), "{algorithm}");
    }
}
