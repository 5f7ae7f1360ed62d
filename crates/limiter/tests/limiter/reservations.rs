//! Reservations, refunds and body meters.

use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_core::{Cost, TimeSpan};
use tidegate_limiter::{AdmittedRuling, RuleCheck, Ruling};
use tidegate_policy::{RuleClient, Scratch};
use tidegate_store::MemoryStore;

use crate::Bench;

fn policy(charge: &str) -> String {
    format!(
        "rate_limits: {{ rules: [{{ name: r, per: [ip], requests: 10, window: 1h, algorithm: fixed_window, {charge} }}] }}"
    )
}

fn admitted(ruling: Ruling<'_>) -> AdmittedRuling<'_> {
    match ruling {
        Ruling::Admitted(admitted) => admitted,
        other => panic!("{other:?}"),
    }
}

async fn left(bench: &Bench<MemoryStore>) -> u64 {
    let now = bench.now();
    let (policy, mut scratch) = (bench.limiter.policy(), Scratch::default());
    let client = bench.check("/", &[], |ruling| admitted(ruling).report.client().to_vec()).await;
    let peek = RuleCheck { rule: "r", client: &RuleClient::from_key(&client), cost: Cost::ZERO };
    let ruling = bench.limiter.check_rule(&policy, peek, &mut scratch, now).await;
    admitted(ruling).report.limits()[0].remaining
}

#[tokio::test]
async fn settle_with_status_that_is_not_charged_refunds() {
    let bench = Bench::new(&policy("charge: { after: { status: [401] } }"));
    let reservations = bench.check("/", &[], |ruling| admitted(ruling).reservations).await;
    bench.limiter.settle(reservations, 200, &HeaderMap::new()).await;
    let reservations = bench.check("/", &[], |ruling| admitted(ruling).reservations).await;
    bench.limiter.settle(reservations, 401, &HeaderMap::new()).await;
    // The request that reads the client's key is charged and never settled.
    assert_eq!(left(&bench).await, 8);
}

#[tokio::test]
async fn settle_by_header_charges_its_value() {
    let bench = Bench::new(&policy("charge: { after: { header: x-cost } }"));
    let reservations = bench.check("/", &[], |ruling| admitted(ruling).reservations).await;
    let cost = (HeaderName::from_static("x-cost"), HeaderValue::from_static("7"));
    bench.limiter.settle(reservations, 200, &HeaderMap::from_iter([cost])).await;
    assert_eq!(left(&bench).await, 2);
}

#[tokio::test]
async fn release_request_sent_to_no_server_refunds() {
    let bench = Bench::new(&policy("charge: { after: { status: [401] } }"));
    let reservations = bench.check("/", &[], |ruling| admitted(ruling).reservations).await;
    bench.limiter.release(reservations).await;
    assert_eq!(left(&bench).await, 9);
}

#[tokio::test]
async fn body_meter_chunked_body_is_charged_as_it_arrives() {
    let bench = Bench::new(&policy("cost: { body: 1KiB }"));
    let headers = [("transfer-encoding", "chunked")];
    let mut reservations = bench.check("/", &headers, |ruling| admitted(ruling).reservations).await;
    let mut meter = bench.limiter.body_meter(&mut reservations).expect("the body settles it");
    assert!(reservations.is_empty());
    for _ in 0..4 {
        meter.add(1_024);
    }
    drop(meter);
    // The charge runs in a task of its own.
    tokio::task::yield_now().await;
    assert_eq!(left(&bench).await, 5, "four units, and one for the request that reads the key");
}

#[tokio::test]
async fn refund_guard_dropped_refunds_unless_kept() {
    let bench = Bench::new(&policy("cost: 3"));
    for (keeps, expected) in [(true, 4), (false, 1)] {
        let guard =
            bench.check("/", &[], |ruling| bench.limiter.refund_guard(&admitted(ruling).report)).await;
        if keeps {
            guard.keep();
        } else {
            drop(guard);
            tokio::task::yield_now().await;
        }
        assert_eq!(left(&bench).await, expected);
    }
}

/// Every order of four numbers.
fn orders() -> Vec<Vec<usize>> {
    let all = (0..256_usize).map(|code| vec![code % 4, code / 4 % 4, code / 16 % 4, code / 64]);
    all.filter(|order| (0..4).all(|number| order.contains(&number))).collect()
}

/// What is left of a rule for the client with `key`, and how long a request would wait for it.
async fn remaining(bench: &Bench<MemoryStore>, rule: &str, key: &[u8]) -> (u64, TimeSpan) {
    let (policy, mut scratch) = (bench.limiter.policy(), Scratch::default());
    let peek = RuleCheck { rule, client: &RuleClient::from_key(key), cost: Cost::ZERO };
    let ruling = bench.limiter.check_rule(&policy, peek, &mut scratch, bench.now()).await;
    let admitted = admitted(ruling);
    (admitted.report.limits()[0].remaining, admitted.delay)
}

/// A leaky bucket gives back only its last departure. Otherwise a client could fill one that all share at no cost.
#[tokio::test]
async fn refund_guard_of_delayed_requests_returns_all_charges_of_a_request_or_none() {
    let shared =
        "{ name: shared, per: everybody, requests: 1, window: 1s, algorithm: leaky_bucket, burst: 10 }";
    let own = "{ name: own, per: [ip], requests: 10, window: 1h, algorithm: fixed_window }";
    let also = "{ name: also, per: [ip], requests: 1, window: 2s, algorithm: leaky_bucket, burst: 10 }";
    for rules in [format!("{own}, {shared}"), format!("{shared}, {own}"), format!("{own}, {also}, {shared}")]
    {
        let policy = format!("rate_limits: {{ rules: [{rules}] }}");
        for order in orders() {
            let bench = Bench::new(&policy);
            let mut guards = Vec::new();
            let mut key = Vec::new();
            for _ in 0..4 {
                let (guard, client) = bench
                    .check("/", &[], |ruling| {
                        let report = admitted(ruling).report;
                        (bench.limiter.refund_guard(&report), report.client().to_vec())
                    })
                    .await;
                key = client;
                guards.push(Some(guard));
            }
            let mut charged: Vec<_> = (0..4).collect();
            for request in order.clone() {
                drop(guards[request].take());
                tokio::task::yield_now().await;
                if charged.last() == Some(&request) {
                    charged.pop();
                }
                let count = charged.len() as u64;
                let (_, wait) = remaining(&bench, "shared", b"").await;
                assert_eq!(wait, TimeSpan::from_secs(count), "{rules}: {request} of {order:?}");
                let (left, _) = remaining(&bench, "own", &key).await;
                assert_eq!(left, 10 - count, "{rules}: {request} of {order:?}");
            }
        }
    }
}
