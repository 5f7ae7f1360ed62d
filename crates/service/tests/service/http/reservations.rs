//! Reservations of several rules, and of requests.

use serde_json::{Value, json};

use crate::fixture::TestService;

const POLICY: &str = "
clients: { user: { header: X-User-Id } }
rate_limits:
  default: { requests: 10, window: 1m, algorithm: fixed_window }
  rules:
    - { name: tpm, per: user, requests: 100, window: 1m, algorithm: fixed_window, match: { path: /chat } }
    - { name: rpm, per: user, requests: 3, window: 1m, algorithm: fixed_window, match: { path: /chat } }
";
const TPM: &str = r#"{"rule":"tpm","client":"user:bob","cost":0}"#;
const RPM: &str = r#"{"rule":"rpm","client":"user:bob","cost":0}"#;

impl TestService {
    fn left(&self, peek: &str) -> Value {
        self.post_json("/v1/peek", peek, 200)["remaining"].clone()
    }
}

fn both(tokens: u64) -> String {
    let rules = json!([{ "rule": "tpm", "client": "user:bob", "cost": tokens }, { "rule": "rpm", "client": "user:bob" }]);
    json!({ "checks": rules, "ttl": 30 }).to_string()
}

#[test]
fn reservation_of_several_rules_charges_all_or_none_and_commits_each() {
    let service = TestService::start(POLICY);
    let reserved = service.post_json("/v1/reserve", &both(60), 200);
    assert_eq!((&reserved["admitted"], &reserved["rules"]), (&json!(true), &json!(["tpm", "rpm"])));
    assert_eq!((service.left(TPM), service.left(RPM)), (json!(40), json!(2)));
    let refused = service.post_json("/v1/reserve", &both(41), 200);
    assert_eq!((&refused["admitted"], &refused["rule"]), (&json!(false), &json!("tpm")));
    assert_eq!(refused["reservation"], Value::Null);
    assert_eq!(service.left(RPM), 2, "the other rule is not charged");

    let id = &reserved["reservation"];
    let commit = |costs: Value, status| {
        let mut body = costs;
        body["reservation"] = id.clone();
        service.post_json("/v1/commit", &body.to_string(), status)
    };
    let ambiguous = commit(json!({ "cost": 5 }), 400);
    assert!(ambiguous["detail"].to_string().contains("`tpm`, `rpm`"), "{ambiguous}");
    commit(json!({ "costs": { "default": 5 } }), 400);
    commit(json!({ "costs": { "tpm": 5 }, "cost": 5 }), 400);
    commit(json!({}), 400);
    let committed = commit(json!({ "costs": { "tpm": 15 } }), 200);
    assert_eq!(committed, json!({ "committed": true, "rules": ["tpm", "rpm"] }), "it was still open");
    assert_eq!((service.left(TPM), service.left(RPM)), (json!(85), json!(2)), "what is left out stays");
    commit(json!({ "costs": { "tpm": 15 } }), 404);
}

#[test]
fn reservation_of_a_request_charges_the_rules_that_it_matches() {
    let service = TestService::start(POLICY);
    let request =
        json!({ "method": "POST", "path": "/chat", "headers": { "x-user-id": "bob" }, "peer": "192.0.2.1" });
    let reserve = || service.post_json("/v1/reserve", &json!({ "request": request }).to_string(), 200);
    let reserved = reserve();
    assert_eq!(reserved["rules"], json!(["default", "tpm", "rpm"]));
    let commit = json!({ "reservation": reserved["reservation"], "costs": { "tpm": 70, "rpm": 0 } });
    service.post_json("/v1/commit", &commit.to_string(), 200);
    assert!(
        [reserve(), reserve(), reserve()].iter().all(|one| one["admitted"] == true),
        "one was given back"
    );
    let refused = reserve();
    assert_eq!((&refused["admitted"], &refused["rule"]), (&json!(false), &json!("rpm")));
    let peek = json!({ "rule": "default", "client": "ip:192.0.2.1", "cost": 0 }).to_string();
    assert_eq!(service.left(&peek), 6, "no rule of the refused request is charged");
}

#[test]
fn reservation_message_with_contradictions_is_rejected_and_charges_nothing() {
    let service = TestService::start(POLICY);
    let tpm = json!({ "rule": "tpm", "client": "user:bob" });
    let many: Vec<_> =
        (0..17).map(|user| json!({ "rule": "tpm", "client": format!("user:{user}") })).collect();
    for body in [
        json!({ "checks": [tpm, tpm] }),
        json!({ "checks": [tpm, { "rule": "tpm", "client": "user:alice" }] }),
        json!({ "checks": [] }),
        json!({ "checks": many }),
        json!({ "checks": [tpm], "rule": "rpm" }),
        json!({ "checks": [{ "request": { "method": "GET", "path": "/", "peer": "192.0.2.1" } }] }),
        json!({ "rule": "tpm", "client": "user:bob", "request": { "method": "GET", "path": "/", "peer": "192.0.2.1" } }),
        json!({ "ttl": 5 }),
    ] {
        service.post_json("/v1/reserve", &body.to_string(), 400);
    }
    service.post_json("/v1/reserve", &json!({ "checks": [tpm, { "rule": "none" }] }).to_string(), 404);
    assert_eq!((service.left(TPM), service.left(RPM)), (json!(100), json!(3)));
}
