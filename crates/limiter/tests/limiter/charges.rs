//! Charges: refunds, settlements and body meters.

use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_core::{Cost, TimeSpan};
use tidegate_limiter::{Charge, ChargeUse, RuleCheck};
use tidegate_policy::{RuleClient, Scratch};
use tidegate_store::MemoryStore;

use crate::{Bench, served};

fn policy(charge: &str) -> String {
    format!(
        "rate_limits: {{ rules: [{{ name: r, per: [ip], requests: 10, window: 1h, algorithm: fixed_window, {charge} }}] }}"
    )
}

/// The charge of a request that the policy admits.
async fn charge(
    bench: &Bench<MemoryStore>,
    usage: ChargeUse,
    headers: &[(&'static str, &str)],
) -> Option<Charge> {
    bench.check("/", headers, |ruling| served(ruling).charge(&bench.limiter, usage)).await
}

async fn left(bench: &Bench<MemoryStore>) -> u64 {
    let now = bench.now();
    let (policy, mut scratch) = (bench.limiter.policy(), Scratch::default());
    let client = bench.check("/", &[], |ruling| served(ruling).report.client().to_vec()).await;
    let peek = RuleCheck { rule: "r", client: &RuleClient::from_key(&client), cost: Cost::ZERO };
    let ruling = bench.limiter.check_rule(&policy, peek, &mut scratch, now).await;
    served(ruling.expect("a rule")).report.limits()[0].remaining
}

#[tokio::test]
async fn settle_with_status_that_is_not_charged_refunds() {
    let bench = Bench::new(&policy("charge: { after: { status: [401] } }"));
    for status in [200, 401] {
        let charge = charge(&bench, ChargeUse::Served, &[]).await.expect("the response settles it");
        assert!(charge.is_open());
        charge.settle(status, &HeaderMap::new()).await;
    }
    // The request that reads the client's key is charged and never settled.
    assert_eq!(left(&bench).await, 8);
}

#[tokio::test]
async fn settle_by_header_charges_its_value() {
    let bench = Bench::new(&policy("charge: { after: { header: x-cost } }"));
    let charge = charge(&bench, ChargeUse::Served, &[]).await.expect("the response settles it");
    let cost = (HeaderName::from_static("x-cost"), HeaderValue::from_static("7"));
    charge.settle(200, &HeaderMap::from_iter([cost])).await;
    assert_eq!(left(&bench).await, 2);
}

#[tokio::test]
async fn release_request_sent_to_no_server_refunds() {
    let bench = Bench::new(&policy("charge: { after: { status: [401] } }"));
    let charge = charge(&bench, ChargeUse::Served, &[]).await.expect("the response settles it");
    charge.release().await;
    assert_eq!(left(&bench).await, 9);
}

#[tokio::test]
async fn body_meter_chunked_body_is_charged_as_it_arrives() {
    let bench = Bench::new(&policy("cost: { body: 1KiB }"));
    let headers = [("transfer-encoding", "chunked")];
    let mut charge = charge(&bench, ChargeUse::Served, &headers).await.expect("the body settles it");
    let mut meter = charge.meter().expect("the body settles it");
    assert!(!charge.is_open() && charge.meter().is_none());
    for _ in 0..4 {
        meter.add(1_024);
    }
    drop(meter);
    // The charge runs in a task of its own.
    tokio::task::yield_now().await;
    assert_eq!(left(&bench).await, 5, "four units, and one for the request that reads the key");
}

#[tokio::test]
async fn charge_dropped_refunds_unless_served() {
    let bench = Bench::new(&policy("cost: 3"));
    for (is_served, expected) in [(true, 4), (false, 1)] {
        let mut charge = charge(&bench, ChargeUse::Refundable, &[]).await.expect("a charge");
        if is_served {
            charge.serve();
        }
        drop(charge);
        tokio::task::yield_now().await;
        assert_eq!(left(&bench).await, expected);
    }
}

#[tokio::test]
async fn charge_refunded_after_it_was_served_refunds_once() {
    let bench = Bench::new(&policy("cost: 3, charge: { after: { status: [401] } }"));
    let mut charge = charge(&bench, ChargeUse::Refundable, &[]).await.expect("a charge");
    charge.serve();
    charge.refund();
    tokio::task::yield_now().await;
    assert_eq!(left(&bench).await, 7, "the request that reads the key is charged");
}

#[tokio::test]
async fn charge_of_a_request_that_cannot_be_refunded_or_settled_is_none() {
    let bench = Bench::new(&policy("cost: 3"));
    assert!(charge(&bench, ChargeUse::Served, &[]).await.is_none());
    let bench = Bench::new(&policy("cost: { body: 1KiB }"));
    assert!(charge(&bench, ChargeUse::Served, &[("content-length", "9")]).await.is_none());
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
    let admitted = served(ruling.expect("a rule"));
    (admitted.report.limits()[0].remaining, admitted.delay)
}

/// A leaky bucket gives back only its last departure. Otherwise a client could fill one that all share at no cost.
#[tokio::test]
async fn charge_of_delayed_requests_refunds_all_of_a_request_or_nothing() {
    let shared =
        "{ name: shared, per: everybody, requests: 1, window: 1s, algorithm: leaky_bucket, burst: 10 }";
    let own = "{ name: own, per: [ip], requests: 10, window: 1h, algorithm: fixed_window }";
    let also = "{ name: also, per: [ip], requests: 1, window: 2s, algorithm: leaky_bucket, burst: 10 }";
    for rules in [format!("{own}, {shared}"), format!("{shared}, {own}"), format!("{own}, {also}, {shared}")]
    {
        let policy = format!("rate_limits: {{ rules: [{rules}] }}");
        for order in orders() {
            let bench = Bench::new(&policy);
            let mut charges = Vec::new();
            let mut key = Vec::new();
            for _ in 0..4 {
                let (charge, client) = bench
                    .check("/", &[], |ruling| {
                        let admitted = served(ruling);
                        let charge = admitted.charge(&bench.limiter, ChargeUse::Refundable);
                        (charge, admitted.report.client().to_vec())
                    })
                    .await;
                key = client;
                charges.push(charge);
            }
            let mut waiting: Vec<_> = (0..4).collect();
            for request in order.clone() {
                drop(charges[request].take());
                tokio::task::yield_now().await;
                if waiting.last() == Some(&request) {
                    waiting.pop();
                }
                let count = waiting.len() as u64;
                let (_, wait) = remaining(&bench, "shared", b"").await;
                assert_eq!(wait, TimeSpan::from_secs(count), "{rules}: {request} of {order:?}");
                let (left, _) = remaining(&bench, "own", &key).await;
                assert_eq!(left, 10 - count, "{rules}: {request} of {order:?}");
            }
        }
    }
}
