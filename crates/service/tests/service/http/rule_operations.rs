//! Operations on rules, over HTTP and the Redis protocol: lock-outs, leaky buckets, exemptions, and messages that are no objects.

use serde_json::json;
use tidegate_core::TimeSpan;
use tidegate_telemetry::Protocol;

use crate::fixture::TestService;
use crate::grpc::client::{GrpcClient, RLS, descriptor, message, request};
use crate::resp::{Reply, RespClient, status};

const BOB: &str = r#"{"rule":"default","client":"user:bob"}"#;

#[test]
fn reset_ends_the_lock_out_of_the_client() {
    let service = TestService::start(
        "rate_limits: { default: { requests: 1, window: 1m, algorithm: fixed_window, penalty: { after: 1, for: 1h } } }",
    );
    let lock_out = || {
        assert_eq!(service.post_json("/v1/check", BOB, 200)["admitted"], true);
        assert_eq!(service.post_json("/v1/check", BOB, 200)["reason"], "locked_out");
    };
    lock_out();
    assert_eq!(service.post_json("/v1/reset", BOB, 200), json!({ "reset": true }));
    lock_out();
    let mut client = RespClient::connect(&service);
    assert_eq!(client.call("TIDEGATE.RESET default user:bob"), status("OK"));
    lock_out();
}

const LEAKY: &str = "rate_limits: { default: { requests: 10, window: 1s, algorithm: leaky_bucket, burst: 100, max_wait: 1h } }";

/// How long a request of bob has to wait.
fn wait(service: &TestService) -> f64 {
    service.post_json("/v1/peek", BOB, 200)["wait"].as_f64().unwrap()
}

#[test]
fn commit_of_a_part_of_a_leaky_charge_refunds_the_rest_or_says_so() {
    let service = TestService::start(LEAKY);
    let reserve = |cost: u64| {
        let body = json!({ "rule": "default", "client": "user:bob", "cost": cost });
        service.post_json("/v1/reserve", &body.to_string(), 200)["reservation"].clone()
    };
    let commit = |reservation, cost: u64| {
        service.post_json("/v1/commit", &json!({ "reservation": reservation, "cost": cost }).to_string(), 200)
    };
    assert_eq!(commit(reserve(50), 20), json!({ "committed": true, "rule": "default" }));
    assert!((wait(&service) - 2.0).abs() < 1e-6);
    let (first, _last) = (reserve(20), reserve(10));
    let before = wait(&service);
    assert_eq!(commit(first, 5), json!({ "committed": true, "rule": "default", "refunded": false }));
    assert!((wait(&service) - before).abs() < 1e-6, "a later request waits behind it");
}

#[test]
fn refund_of_a_part_of_a_leaky_charge_says_that_nothing_changed() {
    let service = TestService::start(LEAKY);
    let checked = service.post_json("/v1/check", r#"{"rule":"default","client":"user:bob","cost":30}"#, 200);
    let refund = |cost: u64| {
        let body =
            json!({ "rule": "default", "client": "user:bob", "cost": cost, "charged_at": checked["at"] });
        service.post_json("/v1/refund", &body.to_string(), 200)["refunded"].clone()
    };
    assert_eq!((refund(10), refund(30), refund(30)), (json!(false), json!(true), json!(false)));
    let mut client = RespClient::connect(&service);
    let Reply::Array(reply) = client.call("TIDEGATE.CHECK default user:bob 30") else { panic!() };
    let Reply::Integer(charged_at) = reply[6] else { panic!("{reply:?}") };
    let mut refund =
        |cost: u64| client.call(&format!("TIDEGATE.REFUND default user:bob {cost} {charged_at}"));
    assert_eq!((refund(10), refund(30)), (status("UNCHANGED"), status("OK")));
}

#[test]
fn refund_of_a_log_without_the_time_of_its_charge_says_that_nothing_changed() {
    let service = TestService::start(
        "rate_limits: { default: { requests: 10, window: 1h, algorithm: sliding_window_log } }",
    );
    let remaining = || service.post_json("/v1/peek", BOB, 200)["remaining"].clone();
    let checked = service.post_json("/v1/check", r#"{"rule":"default","client":"user:bob","cost":6}"#, 200);
    service.clock.advance(TimeSpan::from_secs(1));
    let refunded = service.post_json("/v1/refund", r#"{"rule":"default","client":"user:bob","cost":4}"#, 200);
    assert_eq!((refunded, remaining()), (json!({ "refunded": false }), json!(4)));
    let body = json!({ "rule": "default", "client": "user:bob", "cost": 4, "charged_at": checked["at"] });
    let refunded = service.post_json("/v1/refund", &body.to_string(), 200);
    assert_eq!((refunded, remaining()), (json!({ "refunded": true }), json!(8)));
    let mut client = RespClient::connect(&service);
    assert_eq!(client.call("TIDEGATE.REFUND default user:bob 2"), status("UNCHANGED"));
    let charged_at = (checked["at"].as_f64().unwrap() * 1e6).round();
    let refund = format!("TIDEGATE.REFUND default user:bob 2 {charged_at}");
    assert_eq!((client.call(&refund), remaining()), (status("OK"), json!(10)));
}

#[test]
fn exempt_client_is_admitted_under_every_rule() {
    let service = TestService::start(
        "clients: { exempt: { networks: [198.51.100.0/24] } }\nrate_limits: { default: { requests: 1, window: 1h } }",
    );
    let mut client = RespClient::connect(&service);
    for _ in 0..3 {
        let body = r#"{"rule":"default","client":"ip:198.51.100.7"}"#;
        let checked = service.post_json("/v1/check", body, 200);
        assert_eq!((&checked["admitted"], &checked["reason"]), (&json!(true), &json!("exempt")));
        let reserved = service.post_json("/v1/reserve", body, 200);
        let commit = json!({ "reservation": reserved["reservation"], "cost": 5 });
        service.post_json("/v1/commit", &commit.to_string(), 200);
        let Reply::Array(reply) = client.call("TIDEGATE.CHECK default ip:198.51.100.7") else { panic!() };
        assert_eq!(reply[..3], [1, -1, -1].map(Reply::Integer));
    }
}

#[tokio::test]
async fn concurrency_limit_by_name_is_rejected_with_the_reason() {
    let policy = "rate_limits: { rules: [{ name: slots, concurrent: 2, per: ip }] }";
    let service = TestService::start(policy);
    let reason = "limits concurrent requests";
    let body = r#"{"rule":"slots","client":"ip:192.0.2.1"}"#;
    for path in ["/v1/check", "/v1/peek", "/v1/refund", "/v1/reset", "/v1/reserve"] {
        let problem = service.post_json(path, body, 400);
        assert!(problem["detail"].to_string().contains(reason), "{path}: {problem}");
    }
    let mut client = RespClient::connect(&service);
    for command in [
        "CHECK slots ip:192.0.2.1",
        "PEEK slots ip:192.0.2.1",
        "REFUND slots ip:192.0.2.1 1",
        "RESET slots ip:192.0.2.1",
    ] {
        let reply = client.call(&format!("TIDEGATE.{command}"));
        assert!(matches!(&reply, Reply::Error(text) if text.starts_with("ERR the rule limits")), "{reply:?}");
    }
    let mut grpc = GrpcClient::connect(service.address(Protocol::Grpc)).await;
    let descriptor = descriptor(&[("rule", "slots"), ("client", "ip:192.0.2.1")]);
    let reply = grpc.call(RLS, &[], message(&request("tidegate", vec![descriptor]))).await;
    assert_eq!(reply.code(), 3, "{reply:?}");
}

#[test]
fn message_that_is_an_array_is_rejected() {
    let service = TestService::start("rate_limits: { default: { requests: 100, window: 1h } }");
    let bodies = [
        ("/v1/check", r#"["default","user:bob",1,null,null]"#),
        ("/v1/check", r#"{"request":["GET","a.example","/",{},"192.0.2.1"]}"#),
        ("/v1/peek", r#"["default","user:bob",1,null]"#),
        ("/v1/refund", r#"["default","user:bob",1,null]"#),
        ("/v1/reset", r#"["default","user:bob"]"#),
        ("/v1/reserve", r#"["default","user:bob",1,60]"#),
        ("/v1/commit", r#"["00000000000000000000000000000000",1]"#),
        ("/v1/check", "1"),
    ];
    for (path, body) in bodies {
        let problem = service.post_json(path, body, 400);
        assert!(problem["detail"].to_string().contains("expected an object"), "{path} {body}: {problem}");
    }
}
