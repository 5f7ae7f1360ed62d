//! Reservations: charges that are made up front and settled later.

use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_core::Cost;
use tidegate_limiter::{Admitted, RuleCheck, Ruling};
use tidegate_policy::Scratch;
use tidegate_store::MemoryStore;

use crate::Setup;

fn policy(charge: &str) -> String {
    format!(
        "rate_limits: {{ rules: [{{ name: r, per: [ip], requests: 10, window: 1h, algorithm: fixed_window, {charge} }}] }}"
    )
}

fn admitted(ruling: Ruling<'_>) -> Admitted<'_> {
    match ruling {
        Ruling::Admitted(admitted) => admitted,
        other => panic!("{other:?}"),
    }
}

async fn remaining(setup: &Setup<MemoryStore>) -> u64 {
    let now = setup.now();
    let (policy, mut scratch) = (setup.limiter.policy(), Scratch::default());
    let client = setup.check("/", &[], |ruling| admitted(ruling).report.client().to_vec()).await;
    let peek = RuleCheck { rule: "r", client: &client, cost: Cost::ZERO };
    let ruling = setup.limiter.check_rule(&policy, peek, &mut scratch, now).await;
    admitted(ruling).report.limits()[0].remaining
}

#[tokio::test]
async fn settle_with_a_status_that_is_not_charged_refunds() {
    let setup = Setup::new(&policy("charge: { after: { status: [401] } }"));
    let reservations = setup.check("/", &[], |ruling| admitted(ruling).reservations).await;
    setup.limiter.settle(reservations, 200, &HeaderMap::new()).await;
    let reservations = setup.check("/", &[], |ruling| admitted(ruling).reservations).await;
    setup.limiter.settle(reservations, 401, &HeaderMap::new()).await;
    // The request in `remaining` that finds the client's key is charged and never settled.
    assert_eq!(remaining(&setup).await, 8);
}

#[tokio::test]
async fn settle_with_a_cost_header_charges_its_value() {
    let setup = Setup::new(&policy("charge: { after: { header: x-cost } }"));
    let reservations = setup.check("/", &[], |ruling| admitted(ruling).reservations).await;
    let cost = (HeaderName::from_static("x-cost"), HeaderValue::from_static("7"));
    setup.limiter.settle(reservations, 200, &HeaderMap::from_iter([cost])).await;
    assert_eq!(remaining(&setup).await, 2);
}

#[tokio::test]
async fn release_refunds_the_reservation() {
    let setup = Setup::new(&policy("charge: { after: { status: [401] } }"));
    let reservations = setup.check("/", &[], |ruling| admitted(ruling).reservations).await;
    setup.limiter.release(reservations).await;
    assert_eq!(remaining(&setup).await, 9);
}

#[tokio::test]
async fn body_meter_charges_the_body_as_it_arrives() {
    let setup = Setup::new(&policy("cost: { body: 1KiB }"));
    let headers = [("transfer-encoding", "chunked")];
    let mut reservations = setup.check("/", &headers, |ruling| admitted(ruling).reservations).await;
    let mut meter = setup.limiter.body_meter(&mut reservations).expect("the body settles it");
    assert!(reservations.is_empty());
    for _ in 0..4 {
        meter.add(1_024);
    }
    drop(meter);
    // The charge runs in a task of its own.
    tokio::task::yield_now().await;
    assert_eq!(remaining(&setup).await, 5, "four units, and one for the request in `remaining`");
}

#[tokio::test]
async fn refund_guard_dropped_refunds_unless_keep_is_called() {
    let setup = Setup::new(&policy("cost: 3"));
    for (keeps, expected) in [(true, 4), (false, 1)] {
        let guard =
            setup.check("/", &[], |ruling| setup.limiter.refund_guard(&admitted(ruling).report)).await;
        if keeps {
            guard.keep();
        } else {
            drop(guard);
            tokio::task::yield_now().await;
        }
        assert_eq!(remaining(&setup).await, expected);
    }
}
