//! Reservations, refunds and body meters.

use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_core::Cost;
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
