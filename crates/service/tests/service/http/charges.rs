//! Refunds, resets and reservations.

use serde_json::{Value, json};
use tidegate_core::TimeSpan;
use tidegate_policy::NoFiles;

use super::POLICY;
use crate::fixture::TestService;

const BOB: &str = r#"{"rule":"default","client":"user:bob"}"#;

impl TestService {
    fn remaining(&self) -> u64 {
        self.post_json("/v1/peek", r#"{"rule":"default","client":"user:bob","cost":0}"#, 200)["remaining"]
            .as_u64()
            .expect("a number")
    }

    fn reserve(&self, cost: u64) -> Value {
        let body = json!({ "rule": "default", "client": "user:bob", "cost": cost, "ttl": 30 });
        self.post_json("/v1/reserve", &body.to_string(), 200)
    }

    #[track_caller]
    fn commit(&self, reservation: &Value, cost: u64, status: u16) -> Value {
        let body = json!({ "reservation": reservation, "cost": cost });
        self.post_json("/v1/commit", &body.to_string(), status)
    }
}

#[test]
fn refund_gives_units_back() {
    let service = TestService::start(POLICY);
    let checked = service.post_json("/v1/check", r#"{"rule":"default","client":"user:bob","cost":6}"#, 200);
    assert_eq!(service.remaining(), 4);
    let refund = |charged_at: &Value| {
        let body = json!({ "rule": "default", "client": "user:bob", "cost": 2, "charged_at": charged_at });
        service.post_json("/v1/refund", &body.to_string(), 200)
    };
    assert_eq!(refund(&checked["at"]), json!({ "refunded": true }));
    assert_eq!(service.remaining(), 6);
    service.post_json("/v1/refund", BOB, 200);
    assert_eq!(service.remaining(), 7);
    service.clock.advance(TimeSpan::from_secs(60));
    service.post_json("/v1/check", BOB, 200);
    refund(&checked["at"]);
    assert_eq!(service.remaining(), 9, "the window of the charge has passed");
    let bad = r#"{"rule":"default","client":"user:bob","charged_at":-1}"#;
    assert!(service.post_json("/v1/refund", bad, 400)["detail"].to_string().contains("charged_at"));
}

#[test]
fn reset_clears_the_counter_of_one_client() {
    let service = TestService::start(POLICY);
    service.post_json("/v1/check", BOB, 200);
    service.post_json("/v1/check", r#"{"rule":"default","client":"user:eve","cost":5}"#, 200);
    assert_eq!(service.post_json("/v1/reset", BOB, 200), json!({ "reset": true }));
    assert_eq!(service.remaining(), 10);
    let eve = service.post_json("/v1/peek", r#"{"rule":"default","client":"user:eve","cost":0}"#, 200);
    assert_eq!(eve["remaining"], 5);
}

#[test]
fn commit_of_less_refunds_and_of_more_charges_into_debt() {
    let service = TestService::start(POLICY);
    let reserved = service.reserve(6);
    assert_eq!((&reserved["admitted"], service.remaining()), (&json!(true), 4));
    assert_eq!(
        service.commit(&reserved["reservation"], 2, 200),
        json!({ "committed": true, "rule": "default" })
    );
    assert_eq!(service.remaining(), 8);
    let reserved = service.reserve(3);
    service.commit(&reserved["reservation"], 3, 200);
    assert_eq!(service.remaining(), 5);
    let reserved = service.reserve(5);
    service.commit(&reserved["reservation"], 15, 200);
    assert_eq!(service.remaining(), 0);
    assert_eq!(service.post_json("/v1/check", BOB, 200)["admitted"], false);
}

/// A counter that was moved to another limit does not know what was charged under the old one.
#[test]
fn commit_after_a_changed_limit_says_that_nothing_was_refunded() {
    let other = POLICY.replace("requests: 10,", "requests: 20,");
    let service = TestService::start(POLICY);
    let reserved = service.reserve(6);
    service.apply_policy(&other, &NoFiles);
    assert_eq!(service.post_json("/v1/check", BOB, 200)["remaining"], 13, "moved to the new limit");
    assert_eq!(
        service.commit(&reserved["reservation"], 2, 200),
        json!({ "committed": true, "rule": "default", "refunded": false })
    );
    assert_eq!(service.remaining(), 13);
    // What was charged under the limit in force is refunded, whatever came before it.
    let reserved = service.reserve(6);
    let committed = json!({ "committed": true, "rule": "default" });
    assert_eq!(service.commit(&reserved["reservation"], 2, 200), committed);
    assert_eq!(service.remaining(), 11);
    // A counter that was not used since still has the old limit.
    let reserved = service.reserve(6);
    service.apply_policy(POLICY, &NoFiles);
    assert_eq!(service.commit(&reserved["reservation"], 1, 200), committed);
    service.apply_policy(&other, &NoFiles);
    assert_eq!(service.remaining(), 10);
}

#[test]
fn commit_says_whether_the_rest_was_refunded_whatever_has_changed() {
    let algorithms =
        ["fixed_window", "token_bucket", "leaky_bucket", "sliding_window_log", "sliding_window_counter"];
    let policy = |requests: u64, window: &str, algorithm: &str| {
        let wait = if algorithm == "leaky_bucket" { ", burst: 10, max_wait: 1h" } else { "" };
        format!(
            "rate_limits: {{ default: {{ requests: {requests}, window: {window}, algorithm: {algorithm}{wait} }} }}"
        )
    };
    for algorithm in algorithms {
        let changes =
            [(10, "1m", algorithm), (20, "1m", algorithm), (7, "1m", algorithm), (10, "2m", algorithm)];
        let changes = changes.into_iter().chain(algorithms.map(|other| (10, "1m", other)));
        for ((requests, window, other), is_moved) in
            changes.flat_map(|change| [(change, false), (change, true)])
        {
            let service = TestService::start(&policy(10, "1m", algorithm));
            let reserved = service.reserve(6);
            service.apply_policy(&policy(requests, window, other), &NoFiles);
            if is_moved {
                service.post_json("/v1/check", BOB, 200);
            }
            let before = service.remaining();
            let committed = service.commit(&reserved["reservation"], 2, 200);
            let is_refunded = committed.get("refunded").is_none();
            let case = format!("{algorithm} to {requests} per {window}, {other}, {is_moved}: {committed}");
            // A counter of another algorithm starts empty, and until then the refund cannot be seen.
            if is_moved || other == algorithm {
                let after = service.remaining();
                assert_eq!(after > before, is_refunded, "{case} {before} {after}");
            }
            let is_same = (requests, window, other) == (10, "1m", algorithm);
            if is_same && algorithm != "leaky_bucket" || !is_moved && other == algorithm {
                assert!(is_refunded, "{case}");
            }
        }
    }
}

#[test]
fn commit_of_more_after_a_changed_limit_is_charged_under_the_new_one() {
    let service = TestService::start(POLICY);
    let reserved = service.reserve(1);
    service.apply_policy(&POLICY.replace("requests: 10,", "requests: 4,"), &NoFiles);
    assert_eq!(service.post_json("/v1/check", BOB, 200)["remaining"], 2);
    service.commit(&reserved["reservation"], 3, 200);
    let second = service.reserve(1);
    assert_eq!(second["admitted"], false, "{second}");
    // Removing the rule leaves the charge of its counter.
    service.clock.advance(TimeSpan::from_secs(60));
    let reserved = service.reserve(2);
    service.apply_policy("rate_limits: { rules: [{ name: other, requests: 1, window: 1m }] }", &NoFiles);
    service.commit(&reserved["reservation"], 3, 200);
}

#[test]
fn commit_of_a_reservation_without_cost_charges_everything() {
    let service = TestService::start(POLICY);
    let reserved = service.reserve(0);
    assert_eq!(service.remaining(), 10);
    service.commit(&reserved["reservation"], 4, 200);
    assert_eq!(service.remaining(), 6);
}

#[test]
fn commit_twice_unknown_or_expired_is_404_and_leaves_the_charge() {
    let service = TestService::start(POLICY);
    let reserved = service.reserve(4);
    service.commit(&reserved["reservation"], 1, 200);
    service.commit(&reserved["reservation"], 1, 404);
    assert_eq!(service.remaining(), 9, "refunded once");
    for unknown in ["", "x", "00000000000000000000000000000000"] {
        service.commit(&json!(unknown), 0, 404);
    }
    let expiring = service.reserve(4);
    service.clock.advance(TimeSpan::from_secs(30));
    service.commit(&expiring["reservation"], 0, 404);
    assert_eq!(service.remaining(), 5, "the charge stays");
}

#[test]
fn reserve_rejected_has_no_reservation() {
    let service = TestService::start(POLICY);
    let rejected = service.reserve(11);
    assert_eq!((&rejected["admitted"], &rejected["reservation"]), (&json!(false), &json!(null)));
    assert_eq!(service.remaining(), 10);
    for ttl in [0, 3_601] {
        let body = json!({ "rule": "default", "client": "user:bob", "ttl": ttl }).to_string();
        assert!(service.post_json("/v1/reserve", &body, 400)["detail"].to_string().contains("ttl"));
    }
}
