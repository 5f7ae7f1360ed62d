//! The operations of a store: several checks, roles, refunds, resets, overrides, peeks and failures.

use std::collections::VecDeque;
use std::sync::Arc;

use redis::AsyncCommands;
use tidegate_core::{
    Algorithm, Check, Cost, CounterKey, Limit, Role, RuleId, Spec, TimeSpan, Timestamp, Verdict,
};
use tidegate_redis::TimeSource;
use tidegate_store::{Clock, ManualClock, Override, Store, StoreError, SystemClock};
use tidegate_testkit::process::RedisServer;
use tidegate_testkit::wait::within;

use super::super::{assert_all_keys_expire, raw};
use super::{LEASED, RULE, START, limit, node, nodes};

const MINUTE: TimeSpan = TimeSpan::from_secs(60);

#[tokio::test]
async fn several_checks_are_charged_together_or_not_at_all() {
    let server = RedisServer::start();
    let stores = nodes(&server, 1);
    let (wide, narrow) =
        (limit(Algorithm::FixedWindow, 100, MINUTE), limit(Algorithm::TokenBucket, 10, MINUTE));
    let checks = [
        Check::new(CounterKey::new(RuleId::named("wide"), b"a"), &wide),
        Check::new(CounterKey::new(RuleId::named("narrow"), b"a"), &narrow),
    ];
    let mut passed = 0;
    for _ in 0..30 {
        let decision = stores[0].decide(&checks, START).await.unwrap();
        passed += u64::from(decision.passes());
        assert_eq!(decision.rejected_by.is_some(), !decision.passes());
    }
    assert_eq!(passed, 10);
    let left = stores[0].decide(&[checks[0].cost(Cost::ZERO)], START).await.unwrap();
    assert_eq!(left.outcomes[0].remaining, 90);
}

#[tokio::test]
async fn batch_decides_in_order_and_costs_add_up() {
    let server = RedisServer::start();
    let stores = nodes(&server, 2);
    let limit = limit(Algorithm::SlidingCounter, 10, MINUTE);
    let check = Check::new(CounterKey::new(RULE, b"a"), &limit);
    let single = [check.cost(Cost::new(4))];
    let batch: Vec<&[Check<'_>]> = vec![&single; 4];
    let mut decisions = Vec::new();
    stores[0].decide_batch(&batch, START, &mut decisions).await.unwrap();
    let passed: Vec<_> = decisions.iter().map(tidegate_core::Decision::passes).collect();
    assert_eq!(passed, [true, true, false, false]);
    let never = stores[1].decide(&[check.cost(Cost::new(11))], START).await.unwrap();
    assert_eq!(never.verdict, Verdict::Never);
}

#[tokio::test]
async fn advisory_check_never_rejects_and_overage_is_charged() {
    let server = RedisServer::start();
    let stores = nodes(&server, 2);
    let limit = limit(Algorithm::TokenBucket, 10, MINUTE);
    let check = Check::new(CounterKey::new(RULE, b"a"), &limit);
    let advisory = stores[0].decide(&[check.cost(Cost::new(11)).role(Role::Advisory)], START).await.unwrap();
    assert!(advisory.passes() && !advisory.outcomes[0].verdict.is_pass());
    let overage = stores[0].decide(&[check.cost(Cost::new(25)).role(Role::Overage)], START).await.unwrap();
    assert!(overage.passes());
    // This decision waits for the request that carries the debt.
    assert!(!stores[0].decide(&[check], START).await.unwrap().passes());
    let rejected = stores[1].decide(&[check], START).await.unwrap();
    // 15 units too many drain in 90 s, one more in 6 s.
    let Verdict::NotUntil { retry_after } = rejected.verdict else { panic!("{rejected:?}") };
    assert!((60..=96).contains(&retry_after.as_secs_ceil()), "{retry_after:?}");
}

#[tokio::test]
async fn lease_dropped_by_a_reset_or_an_override_is_released_without_a_decision() {
    let server = RedisServer::start();
    for algorithm in LEASED {
        let stores = nodes(&server, 2);
        let whole = limit(algorithm, 100, MINUTE);
        let client = |change: &str| format!("{algorithm} {change}");
        for change in ["reset", "override"] {
            let client = client(change);
            let check = Check::new(CounterKey::new(RULE, client.as_bytes()), &whole);
            assert!(stores[0].decide(&[check], START).await.unwrap().passes());
            let (spent, at) = if change == "reset" {
                stores[0].reset(check.key).await.unwrap();
                (0, START + TimeSpan::from_secs(1))
            } else {
                let replacement = Override { limit: whole, until: START + MINUTE };
                stores[0].override_limit(check.key, Some(replacement), START).await.unwrap();
                (1, START)
            };
            // Without another decision of this node: another one has the client's traffic from now on.
            stores[0].settle(at).await;
            let mut passed = 0;
            for _ in 0..110 {
                passed += u64::from(stores[1].decide(&[check], at).await.unwrap().passes());
            }
            assert_eq!(passed, 100 - spent, "{client}");
        }
    }
}

#[tokio::test]
async fn rejection_under_an_override_ends_with_it() {
    let server = RedisServer::start();
    for algorithm in LEASED {
        let store = &nodes(&server, 1)[0];
        let (own, narrow) = (limit(algorithm, 100, MINUTE), limit(algorithm, 5, MINUTE));
        let check = Check::new(CounterKey::new(RULE, algorithm.name().as_bytes()), &own);
        let replacement = Override { limit: narrow, until: START + TimeSpan::from_secs(5) };
        store.override_limit(check.key, Some(replacement), START).await.unwrap();
        let large = check.cost(Cost::new(10));
        assert_eq!(store.decide(&[large], START).await.unwrap().verdict, Verdict::Never, "{algorithm}");
        let mut passed = 0;
        for _ in 0..10 {
            passed += u64::from(store.decide(&[check], START).await.unwrap().passes());
        }
        assert_eq!(passed, 5, "{algorithm}");
        let later = START + TimeSpan::from_secs(6);
        for check in [check, large] {
            assert!(store.decide(&[check], later).await.unwrap().passes(), "{algorithm}: it has ended");
        }
    }
}

#[tokio::test]
async fn refund_returns_units_to_the_lease_only_once() {
    let server = RedisServer::start();
    let stores = nodes(&server, 1);
    for algorithm in LEASED {
        let limit = limit(algorithm, 10, MINUTE);
        let check = Check::new(CounterKey::new(RULE, algorithm.name().as_bytes()), &limit).cost(Cost::new(3));
        let decision = stores[0].decide(&[check], START).await.unwrap();
        let refunds = decision.refunds(&[check]);
        for _ in 0..3 {
            stores[0].refund(&refunds, START).await.unwrap();
        }
        let later = START + TimeSpan::from_micros(1);
        let mut passed = 0;
        for _ in 0..20 {
            passed += u64::from(stores[0].decide(&[check.cost(Cost::ONE)], later).await.unwrap().passes());
        }
        assert_eq!(passed, 10, "{algorithm}");
    }
}

#[tokio::test]
async fn charge_that_makes_the_block_low_can_be_refunded() {
    let server = RedisServer::start();
    for algorithm in LEASED {
        let store = &nodes(&server, 1)[0];
        let limit = limit(algorithm, 12, MINUTE);
        let check = Check::new(CounterKey::new(RULE, algorithm.name().as_bytes()), &limit);
        assert!(store.decide(&[check], START).await.unwrap().passes());
        // The block has 12 units; with 3 left, the node requests more.
        let large = [check.cost(Cost::new(9))];
        let at = START + TimeSpan::from_millis(1);
        let decision = store.decide(&large, at).await.unwrap();
        assert!(decision.passes());
        store.refund(&decision.refunds(&large), at).await.unwrap();
        let mut passed = 0;
        for _ in 0..30 {
            passed += u64::from(store.decide(&[check], at).await.unwrap().passes());
        }
        assert_eq!(passed, 11, "{algorithm}");
    }
}

#[tokio::test]
async fn refund_of_settled_units_makes_them_available_again() {
    let server = RedisServer::start();
    for (algorithm, count) in LEASED.into_iter().flat_map(|algorithm| [(algorithm, 1), (algorithm, 3)]) {
        let stores = nodes(&server, count);
        let limit = limit(algorithm, 100, MINUTE);
        let client = format!("{algorithm} {count}");
        let checks = [Check::new(CounterKey::new(RULE, client.as_bytes()), &limit)];
        let mut admitted = Vec::new();
        for store in stores.iter().cycle().take(400) {
            let decision = store.decide(&checks, START).await.unwrap();
            admitted.extend(decision.passes().then_some((store, decision)));
        }
        assert_eq!(admitted.len(), 100, "{client}");
        for (store, decision) in admitted.iter().step_by(2) {
            store.refund(&decision.refunds(&checks), START).await.unwrap();
        }
        let mut again = 0;
        for store in stores.iter().cycle().take(400) {
            again += u32::from(store.decide(&checks, START).await.unwrap().passes());
        }
        assert_eq!(again, 50, "{client}");
    }
}

#[tokio::test]
async fn refund_of_settled_units_during_an_override_makes_them_available_again() {
    let server = RedisServer::start();
    for (algorithm, count) in LEASED.into_iter().flat_map(|algorithm| [(algorithm, 1), (algorithm, 3)]) {
        let stores = nodes(&server, count);
        let [own, other] = [10, 100].map(|requests| limit(algorithm, requests, MINUTE));
        let client = format!("{algorithm} {count}");
        let checks = [Check::new(CounterKey::new(RULE, client.as_bytes()), &own)];
        let over = Override { limit: other, until: START + MINUTE };
        stores[0].override_limit(checks[0].key, Some(over), START).await.unwrap();
        let at = START + TimeSpan::from_millis(1);
        let mut admitted = Vec::new();
        for store in stores.iter().cycle().take(400) {
            let decision = store.decide(&checks, at).await.unwrap();
            admitted.extend(decision.passes().then_some((store, decision)));
        }
        assert_eq!(admitted.len(), 100, "{client}");
        for (store, decision) in admitted.iter().step_by(2) {
            store.refund(&decision.refunds(&checks), at).await.unwrap();
        }
        let mut again = 0;
        for store in stores.iter().cycle().take(400) {
            again += u32::from(store.decide(&checks, at).await.unwrap().passes());
        }
        assert_eq!(again, 50, "{client}");
    }
}

#[tokio::test]
async fn costs_that_the_response_settles_use_the_whole_limit() {
    let server = RedisServer::start();
    for (algorithm, count) in LEASED.into_iter().flat_map(|algorithm| [(algorithm, 1), (algorithm, 3)]) {
        let stores = nodes(&server, count);
        let limit = limit(algorithm, 1_000, MINUTE);
        let client = format!("{algorithm} {count}");
        let check = Check::new(CounterKey::new(RULE, client.as_bytes()), &limit);
        // A request reserves 10 units and uses 2. Its response comes when five others have been decided.
        let (reanswered, unused) = ([check.cost(Cost::new(10))], [check.cost(Cost::new(8))]);
        let (mut in_progress, mut answered) = (VecDeque::new(), 0);
        for step in 0..3_000 {
            let store = &stores[step % stores.len()];
            let decision = store.decide(&reanswered, START).await.unwrap();
            if decision.passes() {
                in_progress.push_back((store, decision));
                answered += 1;
            }
            if (in_progress.len() > 5 || step % 5 == 4)
                && let Some((store, decision)) = in_progress.pop_front()
            {
                store.refund(&decision.refunds(&unused), START).await.unwrap();
            }
        }
        assert!((480..=500).contains(&answered), "{client}: {answered} of 500");
    }
}

#[tokio::test]
async fn refund_of_settled_units_without_redis_is_an_error() {
    let mut server = RedisServer::start();
    let store = &nodes(&server, 1)[0];
    let limit = limit(Algorithm::FixedWindow, 10, MINUTE);
    let checks = [Check::new(CounterKey::new(RULE, b"a"), &limit)];
    let mut decisions = Vec::new();
    for _ in 0..11 {
        decisions.push(store.decide(&checks, START).await.unwrap());
    }
    server.kill();
    let refunds = decisions[0].refunds(&checks);
    let refused = async {
        // A call may have been sent before the connection is known to be lost.
        while store.refund(&refunds, START).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    within("an error", refused).await;
}

#[tokio::test]
async fn debt_whose_request_was_not_sent_is_sent_later() {
    let mut server = RedisServer::start();
    let clock = Arc::new(ManualClock::at(START));
    let store = node(&server, 1, TimeSource::Caller, Arc::clone(&clock) as Arc<dyn Clock>);
    let limit = limit(Algorithm::FixedWindow, 10, MINUTE);
    let check = Check::new(CounterKey::new(RULE, b"a"), &limit);
    assert!(store.decide(&[check], START).await.unwrap().passes());
    server.kill();
    // Until the connection is known to be lost, a request may have an unknown result.
    let other = Check::new(CounterKey::new(RULE, b"b"), &limit);
    let mut attempts = 0;
    while attempts < 20 {
        attempts += u32::from(store.decide(&[other], START).await.is_err());
    }
    let overage = store.decide(&[check.cost(Cost::new(25)).role(Role::Overage)], START).await.unwrap();
    assert!(overage.passes());
    server.restart();
    within("the debt in Redis", async {
        loop {
            store.settle(START).await;
            if let Ok(decision) = nodes(&server, 1)[0].peek(&[check], START).await
                && decision.outcomes[0].remaining == 0
            {
                return;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn reset_frees_the_client_and_keeps_its_override() {
    let server = RedisServer::start();
    let stores = nodes(&server, 1);
    for algorithm in LEASED {
        let limit = limit(algorithm, 10, MINUTE);
        let key = CounterKey::new(RULE, algorithm.name().as_bytes());
        let check = Check::new(key, &limit);
        let count = async || {
            let mut passed = 0;
            for _ in 0..40 {
                passed += u64::from(stores[0].decide(&[check], START).await.unwrap().passes());
            }
            passed
        };
        assert_eq!(count().await, 10, "{algorithm}");
        stores[0].reset(key).await.unwrap();
        assert_eq!(count().await, 10, "{algorithm}");
        let more = Limit::new(algorithm, Spec::new(25, MINUTE)).unwrap();
        let replacement = Override { limit: more, until: START + TimeSpan::from_secs(3_600) };
        stores[0].override_limit(key, Some(replacement), START).await.unwrap();
        assert_eq!(count().await, 15, "{algorithm}");
        stores[0].reset(key).await.unwrap();
        assert_eq!(count().await, 25, "{algorithm}");
        stores[0].override_limit(key, None, START).await.unwrap();
        assert_eq!(count().await, 0, "{algorithm}");
    }
}

#[tokio::test]
async fn changed_limit_keeps_the_spent_units() {
    let server = RedisServer::start();
    let stores = nodes(&server, 1);
    for algorithm in LEASED {
        let (old, new) = (limit(algorithm, 10, MINUTE), limit(algorithm, 15, MINUTE));
        let key = CounterKey::new(RULE, algorithm.name().as_bytes());
        let mut passed = [0, 0];
        for (limit, passed) in [&old, &new].into_iter().zip(&mut passed) {
            for _ in 0..40 {
                let decision = stores[0].decide(&[Check::new(key, limit)], START).await.unwrap();
                *passed += u64::from(decision.passes());
            }
        }
        assert_eq!(passed, [10, 5], "{algorithm}");
    }
}

#[tokio::test]
async fn peek_of_an_unknown_counter_asks_redis_and_leases_nothing() {
    let server = RedisServer::start();
    let stores = nodes(&server, 2);
    let limit = limit(Algorithm::FixedWindow, 10, MINUTE);
    let check = Check::new(CounterKey::new(RULE, b"a"), &limit);
    assert_eq!(stores[0].peek(&[check], START).await.unwrap().outcomes[0].remaining, 10);
    assert_eq!(raw(&server).await.keys::<_, Vec<String>>("*").await.unwrap(), [""; 0]);
    assert!(stores[0].decide(&[check], START).await.unwrap().passes());
    assert_eq!(stores[0].peek(&[check], START).await.unwrap().outcomes[0].remaining, 9);
    let elsewhere = stores[1].peek(&[check.cost(Cost::new(6))], START).await.unwrap();
    assert!(!elsewhere.passes(), "the other node holds four of the nine units");
    assert_eq!(elsewhere.outcomes[0].remaining, 5);
}

#[tokio::test]
async fn rejected_flood_sends_nothing_after_the_first_rejection() {
    let server = RedisServer::start();
    let stores = nodes(&server, 1);
    let limit = limit(Algorithm::TokenBucket, 10, MINUTE);
    let check = Check::new(CounterKey::new(RULE, b"a"), &limit);
    for _ in 0..12 {
        stores[0].decide(&[check], START).await.unwrap();
    }
    let calls = async || {
        let info: String =
            redis::cmd("INFO").arg("commandstats").query_async(&mut raw(&server).await).await.unwrap();
        info.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap().to_owned()
    };
    let before = calls().await;
    for _ in 0..10_000 {
        assert!(!stores[0].decide(&[check], START + TimeSpan::from_secs(1)).await.unwrap().passes());
    }
    assert_eq!(calls().await, before);
}

#[tokio::test]
async fn idle_counters_are_released_and_every_key_expires() {
    let server = RedisServer::start();
    let stores = nodes(&server, 2);
    for algorithm in LEASED {
        let limit = limit(algorithm, 100, MINUTE);
        let check = Check::new(CounterKey::new(RULE, algorithm.name().as_bytes()), &limit);
        assert!(stores[0].decide(&[check], START).await.unwrap().passes());
    }
    assert_eq!((stores[0].report(START).counters, stores[0].report(START).units), (3, 147));
    for seconds in [6, 12, 18, 30] {
        stores[0].settle(START + TimeSpan::from_secs(seconds)).await;
    }
    let later = START + TimeSpan::from_secs(30);
    assert_eq!((stores[0].report(later).counters, stores[0].report(later).units), (0, 0));
    for algorithm in LEASED {
        let limit = limit(algorithm, 100, MINUTE);
        let check =
            Check::new(CounterKey::new(RULE, algorithm.name().as_bytes()), &limit).cost(Cost::new(99));
        assert!(stores[1].decide(&[check], later).await.unwrap().passes(), "{algorithm}");
    }
    assert_eq!(assert_all_keys_expire(&mut raw(&server).await).await, 3);
}

#[tokio::test]
async fn entry_of_a_newer_format_is_left_alone() {
    let server = RedisServer::start();
    let stores = nodes(&server, 1);
    let limit = limit(Algorithm::TokenBucket, 10, MINUTE);
    let check = Check::new(CounterKey::new(RULE, b"a"), &limit);
    stores[0].decide(&[check], START).await.unwrap();
    let mut raw = raw(&server).await;
    let keys: Vec<String> = raw.keys("*").await.unwrap();
    raw.set::<_, _, ()>(&keys[0], b"\xffnewer").await.unwrap();
    let fresh = nodes(&server, 1);
    let error = fresh[0].decide(&[check], START).await.unwrap_err();
    assert!(matches!(error, StoreError::Protocol { .. }), "{error:?}");
    let error = fresh[0].peek(&[check], START).await.unwrap_err();
    assert!(matches!(error, StoreError::Protocol { .. }), "{error:?}");
    let error = fresh[0].reset(check.key).await.unwrap_err();
    assert!(matches!(error, StoreError::Protocol { .. }), "{error:?}");
    let replacement = Override { limit, until: START + MINUTE };
    let error = fresh[0].override_limit(check.key, Some(replacement), START).await.unwrap_err();
    assert!(matches!(error, StoreError::Protocol { .. }), "{error:?}");
    assert_eq!(raw.get::<_, Vec<u8>>(&keys[0]).await.unwrap(), b"\xffnewer");
}

/// The places of the numbers of a state and of its times in an entry with one counter.
const STATE: [usize; 5] = [37, 45, 53, 61, 69];
/// The places of the first record's time, granted units and spent units.
const RECORD: [usize; 3] = [101, 109, 117];

#[tokio::test]
async fn malformed_entry_is_an_error_for_its_counter_only_and_a_reset_removes_it() {
    let server = RedisServer::start();
    let mut raw = raw(&server).await;
    for algorithm in LEASED {
        let limit = limit(algorithm, 10, MINUTE);
        let check = Check::new(CounterKey::new(RULE, b"a"), &limit);
        let other = Check::new(CounterKey::new(RULE, b"b"), &limit);
        nodes(&server, 2)[0].decide(&[check], START).await.unwrap();
        let keys: Vec<String> = raw.keys("*").await.unwrap();
        let written: Vec<u8> = raw.get(&keys[0]).await.unwrap();
        assert_eq!(written.len(), 134, "one counter and one record");
        let mut malformed: Vec<Vec<u8>> = vec![vec![], vec![1], vec![0, 1, 0, 0], written[..133].to_vec()];
        for place in STATE.into_iter().chain(RECORD) {
            for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1e9] {
                let mut entry = written.clone();
                entry[place..place + 8].copy_from_slice(&number.to_le_bytes());
                malformed.push(entry);
            }
        }
        // More units are spent than granted.
        let mut entry = written.clone();
        entry[RECORD[2]..RECORD[2] + 8].copy_from_slice(&1e9_f64.to_le_bytes());
        malformed.push(entry);
        for entry in &malformed {
            raw.set::<_, _, ()>(&keys[0], entry).await.unwrap();
            let fresh = &nodes(&server, 2)[0];
            let (first, second) = ([check], [other]);
            let (failed, decided) = tokio::join!(fresh.decide(&first, START), fresh.decide(&second, START));
            assert!(matches!(failed, Err(StoreError::Protocol { .. })), "{algorithm}: {failed:?} {entry:?}");
            assert!(decided.is_ok(), "{algorithm}: {decided:?}");
            assert_eq!(raw.get::<_, Vec<u8>>(&keys[0]).await.unwrap(), *entry);
        }
        let fresh = &nodes(&server, 1)[0];
        fresh.reset(check.key).await.unwrap();
        assert!(fresh.decide(&[check], START).await.unwrap().passes());
        redis::cmd("FLUSHALL").query_async::<()>(&mut raw).await.unwrap();
    }
}

#[tokio::test]
async fn lease_is_spent_while_redis_is_gone_until_it_expires() {
    let server = RedisServer::start();
    let clock = Arc::new(ManualClock::at(SystemClock::new().now()));
    let store = node(&server, 1, TimeSource::Server, Arc::clone(&clock) as Arc<dyn Clock>);
    let limit = limit(Algorithm::TokenBucket, 1_000, MINUTE);
    let check = Check::new(CounterKey::new(RULE, b"a"), &limit);
    store.decide(&[check], Timestamp::ZERO).await.unwrap();
    drop(server);
    clock.advance(TimeSpan::from_secs(5));
    assert!(store.decide(&[check], Timestamp::ZERO).await.unwrap().passes());
    clock.advance(TimeSpan::from_secs(5));
    let error = store.decide(&[check], Timestamp::ZERO).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
}

#[tokio::test]
async fn algorithm_that_cannot_be_leased_is_unsupported() {
    let server = RedisServer::start();
    let stores = nodes(&server, 1);
    for algorithm in [Algorithm::LeakyBucket, Algorithm::SlidingLog] {
        let limit = limit(algorithm, 10, MINUTE);
        let check = Check::new(CounterKey::new(RULE, b"a"), &limit);
        let error = stores[0].decide(&[check], START).await.unwrap_err();
        assert!(matches!(error, StoreError::Unsupported { .. }), "{error:?}");
    }
}
