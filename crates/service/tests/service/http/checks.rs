//! Checks of rules and of requests, peeks and batches.

use std::collections::BTreeMap;

use http::HeaderMap;
use serde_json::json;
use tidegate_core::TimeSpan;
use tidegate_limiter::Ruling;
use tidegate_policy::{Facts, Scratch};
use tidegate_store::Clock;

use super::POLICY;
use crate::fixture::TestService;

const BOB: &str = r#"{"rule":"default","client":"user:bob"}"#;

#[test]
fn check_of_a_rule_answers_with_the_decision() {
    let service = TestService::start(POLICY);
    let response = service.post("/v1/check", r#"{"rule":"default","client":"user:bob","cost":9}"#);
    assert_eq!(response.status, 200);
    assert_eq!(response.header("content-type"), Some("application/json"));
    let expected = json!({
        "admitted": true, "rule": "default", "limit": 10, "remaining": 1, "reset_after": 40, "retry_after": null,
        "wait": 0, "at": 1_700_000_000,
    });
    assert_eq!(response.json(), expected);
    assert_eq!(service.post_json("/v1/check", BOB, 200)["remaining"], 0);

    let rejected = service.post("/v1/check", BOB);
    assert_eq!(rejected.status, 200);
    let json = rejected.json();
    assert_eq!((&json["admitted"], &json["reason"]), (&json!(false), &json!("rate_limit_exceeded")));
    assert_eq!((&json["retry_after"], &json["remaining"]), (&json!(40), &json!(0)));
    assert_eq!(json["reset_after"], 40);
    for header in ["retry-after", "ratelimit", "x-ratelimit-limit"] {
        assert_eq!(rejected.header(header), None, "the client that asks is not limited");
    }

    let other = service.post_json("/v1/check", r#"{"rule":"default","client":"user:eve"}"#, 200);
    assert_eq!(other["admitted"], true, "another client has a counter of its own");
    let never = service.post_json("/v1/check", r#"{"rule":"default","client":"user:eve","cost":11}"#, 200);
    assert_eq!((&never["admitted"], &never["retry_after"]), (&json!(false), &json!(null)));
}

#[tokio::test]
async fn check_charges_the_counter_of_the_gateway() {
    let service = TestService::start(POLICY);
    service.post_json("/v1/check", r#"{"rule":"default","client":"ip:203.0.113.7","cost":9}"#, 200);
    let headers = HeaderMap::new();
    let facts = Facts {
        method: "GET",
        host: Some(""),
        path: "/",
        headers: &headers,
        peer: [203, 0, 113, 7].into(),
        body: tidegate_policy::BodyFacts::Unknown,
    };
    let (policy, mut scratch) = (service.limiter.policy(), Scratch::default());
    let now = service.clock.now();
    for expected in [true, false] {
        let ruling = service.limiter.check(&policy, &facts, &mut scratch, now).await;
        assert_eq!(matches!(ruling, Ruling::Serve(_)), expected, "{ruling:?}");
    }
}

#[test]
fn check_counts_decisions_and_rejections_by_protocol() {
    let service = TestService::start(POLICY);
    for _ in 0..12 {
        service.post("/v1/check", BOB);
    }
    let batch = format!(r#"{{"checks":[{BOB},{BOB}]}}"#);
    service.post("/v1/check", &batch);
    service.post("/v1/peek", BOB);
    let metrics = service.metrics();
    let sum = |parts: &[&str]| -> u64 {
        let lines = metrics.lines().filter(|line| parts.iter().all(|part| line.contains(part)));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    };
    assert_eq!(sum(&["rate_limit_requests_total{", "http", "admitted"]), 10, "{metrics}");
    assert_eq!(sum(&["rate_limit_requests_total{", "http", "rejected"]), 4, "{metrics}");
    assert_eq!(sum(&["rate_limit_exceeded_total{", "default"]), 4, "{metrics}");
}

#[test]
fn check_of_a_combination_needs_exactly_its_identities() {
    let service = TestService::start(POLICY);
    let check = |client: &str, status| {
        let body = format!(r#"{{"rule":"by-pair","client":{client}}}"#);
        service.post_json("/v1/check", &body, status)
    };
    assert_eq!(check(r#"{"user":"bob","ip":"203.0.113.7"}"#, 200)["remaining"], 2);
    assert_eq!(check(r#"{"ip":"203.0.113.7","user":"bob"}"#, 200)["remaining"], 1, "in any order");
    assert_eq!(check(r#"{"ip":"203.0.113.7","user":"bob\u0000"}"#, 200)["remaining"], 2);
    for wrong in [
        r#""user:bob""#,
        "{}",
        r#"{"ip":"203.0.113.7"}"#,
        r#"{"ip":"203.0.113.7","ip":"203.0.113.8"}"#,
        r#"{"ip":"203.0.113.7","tenant":"a"}"#,
        r#"{"ip":"203.0.113.7","user":"bob","tenant":"a"}"#,
    ] {
        let detail = check(wrong, 400)["detail"].to_string();
        assert!(detail.contains("per ip, user"), "{wrong}: {detail}");
    }
    assert!(check(r#"{"ip":"a","user":"b"}"#, 400)["detail"].to_string().contains("address"));
    assert!(check(r#"{"name":"a","user":"b"}"#, 400)["detail"].to_string().contains("kind"));
}

#[test]
fn check_of_a_rule_for_all_clients_needs_no_client() {
    let service = TestService::start(POLICY);
    assert_eq!(service.post_json("/v1/check", r#"{"rule":"all"}"#, 200)["remaining"], 4);
    let with_client = r#"{"rule":"all","client":"user:bob"}"#;
    assert_eq!(service.post_json("/v1/check", with_client, 200)["remaining"], 3);
    let problem = service.post_json("/v1/check", r#"{"rule":"default"}"#, 400);
    assert!(problem["detail"].to_string().contains("`client`"), "{problem}");
}

#[test]
fn check_of_the_tenant_limit_by_a_key_of_a_tenant_names_the_tenant() {
    let files = BTreeMap::from([(
        "keys.csv".to_owned(),
        b"key,tier,tenant\nKA,premium,acme\nKB,premium,\n".to_vec(),
    )]);
    let policy = "
clients: { api_key: { header: X-API-Key }, tenant: { header: X-Tenant }, tiers: { file: keys.csv } }
rate_limits: { tenant: { requests: 10, window: 1h }, tiers: { premium: { requests: 100, window: 1h } } }
";
    let service = TestService::start_with_files(policy, &files);
    let check = |client: &str, status| {
        let body = json!({ "rule": "tenant", "client": client }).to_string();
        service.post_json("/v1/check", &body, status)
    };
    let detail = check("api_key:KA", 400)["detail"].to_string();
    assert!(detail.contains("name `tenant:acme`"), "{detail}");
    assert_eq!(check("tenant:acme", 200)["remaining"], 9);
    assert_eq!(check("api_key:KB", 200)["remaining"], 9, "a client without a tenant counts as itself");
}

#[test]
fn client_chosen_text_names_no_other_client() {
    let service = TestService::start(POLICY);
    let remaining = |client: &str| {
        let body = json!({ "rule": "default", "client": client }).to_string();
        service.post_json("/v1/check", &body, 200)["remaining"].clone()
    };
    assert_eq!(remaining("user:bob"), 9);
    for other in
        ["user:bob+ip:203.0.113.7", "user:b%6Fb", "user: bob", "user:Bob", "user:bob\n", "tenant:bob"]
    {
        assert_eq!(remaining(other), 9, "{other:?}");
    }
    assert_eq!(remaining("user:bob"), 8);
}

#[test]
fn check_of_a_request_counts_like_the_gateway() {
    let policy = "
clients: { ip: { trusted_proxies: [10.0.0.0/8] }, identify_by: [ip] }
rate_limits:
  default: { requests: 100, window: 1m }
  endpoints:
    POST /login: { requests: 2, window: 1m }
";
    let service = TestService::start(policy);
    let check = |method: &str, path: &str, headers: &str, peer: &str| {
        let body = format!(
            r#"{{"request":{{"method":"{method}","host":"api.example.org","path":"{path}","headers":{headers},"peer":"{peer}"}}}}"#
        );
        service.post("/v1/check", &body)
    };
    let client = "203.0.113.7";
    for path in ["/login?a=b", "//login", "/%6Cogin", "/x/../login", "/LOGIN/./"] {
        let decision = check("POST", path, "{}", client).json();
        let is_within = path == "/login?a=b" || path == "//login";
        assert_eq!(decision["admitted"], is_within, "{path}: {decision}");
    }
    assert_eq!(check("GET", "/login", "{}", client).json()["admitted"], true);
    assert_eq!(check("POST", "/login", "{}", "203.0.113.8").json()["admitted"], true);
    // An untrusted peer cannot name another address; a trusted proxy can.
    let forged = r#"{"x-forwarded-for":"198.51.100.1"}"#;
    assert_eq!(check("POST", "/login", forged, client).json()["admitted"], false);
    assert_eq!(check("POST", "/login", forged, "10.0.0.1").json()["admitted"], true);
    for (method, path, headers) in [
        ("post", "/login", "{}"),
        ("CONNECT", "/login", "{}"),
        ("GET", "*", "{}"),
        ("GET", "http://other/login", "{}"),
        ("GET", "/a#b", "{}"),
        ("GET", "/a/..;/login", "{}"),
        ("GET", "/%zz", "{}"),
        ("GET", "", "{}"),
        ("GET", "/", r#"{"host":"other.example.org"}"#),
        ("GET", "/", r#"{"Host":"api.example.org","host":"api.example.org"}"#),
    ] {
        let response = check(method, path, headers, client);
        assert_eq!(response.status, 400, "{method} {path} {headers}: {response:?}");
    }
}

#[test]
fn check_of_a_banned_or_exempt_request_says_so() {
    let policy = "
clients: { exempt: { networks: [192.0.2.1/32] } }
bans: { networks: [192.0.2.2/32] }
rate_limits: { default: { requests: 1, window: 1m } }
";
    let service = TestService::start(policy);
    for (peer, admitted, reason) in [("192.0.2.1", true, "exempt"), ("192.0.2.2", false, "banned")] {
        let body = format!(r#"{{"request":{{"method":"GET","path":"/","peer":"{peer}"}}}}"#);
        for path in ["/v1/check", "/v1/peek"] {
            let decision = service.post_json(path, &body, 200);
            assert_eq!((&decision["admitted"], &decision["reason"]), (&json!(admitted), &json!(reason)));
            assert_eq!(decision["rule"], json!(null));
        }
    }
}

#[test]
fn invalid_identity_for_a_rule_of_all_clients_does_not_lift_the_ban_of_another() {
    let policy = "
bans: { networks: [192.0.2.2/32] }
rate_limits: { global: { requests: 100, window: 1m } }
";
    let service = TestService::start(policy);
    for (address, admitted) in [("192.0.2.1", true), ("192.0.2.2", false)] {
        for invalid in [r#""user":"""#, r#""nonsense":"a""#, r#""fingerprint":"a""#] {
            let valid = format!(r#""ip":"{address}""#);
            for client in [format!("{valid},{invalid}"), format!("{invalid},{valid}")] {
                let body = format!(r#"{{"rule":"global","client":{{{client}}}}}"#);
                assert_eq!(service.post_json("/v1/check", &body, 200)["admitted"], admitted, "{body}");
            }
        }
    }
}

#[test]
fn described_request_may_state_its_body_or_the_user_of_it() {
    let policy = "
rate_limits:
  rules:
    - { name: login, match: { method: POST, path: /login }, per_each: [ip, user], user: { body: username }, requests: 2, window: 1h }
";
    let service = TestService::start(policy);
    let check = |address: u8, stated: &str| {
        let body = format!(
            r#"{{"request":{{"method":"POST","path":"/login","peer":"192.0.2.{address}"{stated}}}}}"#
        );
        service.post_json("/v1/check", &body, 200)["admitted"].as_bool().unwrap()
    };
    let form = r#","headers":{"content-type":"application/x-www-form-urlencoded"},"body":"username=Bob""#;
    let json = r#","body":"{\"username\":\"bob\"}""#;
    assert_eq!([check(1, form), check(2, json), check(3, r#","body_user":"BOB""#)], [true, true, false]);
    // What is not known is not the same as none or unreadable, and charges no counter that others share.
    assert_eq!([check(3, ""), check(4, ""), check(5, r#","body":"""#), check(6, "")], [true; 4]);
    let compressed = r#","headers":{"content-encoding":"gzip"},"body":"x""#;
    assert_eq!([check(7, compressed), check(8, r#","body":"x""#), check(9, compressed)], [true, true, false]);
    let both = format!(
        r#"{{"request":{{"method":"POST","path":"/login","peer":"192.0.2.9","body_user":"a"{json}}}}}"#
    );
    let error = service.post_json("/v1/check", &both, 400);
    assert!(error["detail"].to_string().contains("exclude each other"), "{error}");
}

#[test]
fn peek_charges_nothing() {
    let service = TestService::start(POLICY);
    for _ in 0..20 {
        let peeked = service.post_json("/v1/peek", BOB, 200);
        assert_eq!((&peeked["admitted"], &peeked["limit"]), (&json!(true), &json!(10)));
    }
    let request = r#"{"request":{"method":"GET","path":"/","peer":"192.0.2.1"}}"#;
    for _ in 0..20 {
        assert_eq!(service.post_json("/v1/peek", request, 200)["admitted"], true);
    }
    for _ in 0..10 {
        assert_eq!(service.post_json("/v1/check", BOB, 200)["admitted"], true);
    }
    let peeked = service.post("/v1/peek", BOB);
    assert_eq!(peeked.json()["admitted"], false);
    service.clock.advance(TimeSpan::from_secs(60));
    assert_eq!(service.post_json("/v1/peek", BOB, 200)["admitted"], true);
}

#[test]
fn batch_answers_in_order_with_an_error_for_each_invalid_check() {
    let service = TestService::start(POLICY);
    let eve = r#"{"rule":"default","client":"user:eve","cost":8}"#;
    let batch = format!(
        r#"{{"checks":[{eve},{{"rule":"none","client":"user:bob"}},{BOB},{{"rule":"default","client":"bob"}},{eve},{{}}]}}"#
    );
    let response = service.post("/v1/check", &batch);
    assert_eq!(response.status, 200, "{response:?}");
    let results = response.json()["results"].clone();
    assert_eq!(results.as_array().map(Vec::len), Some(6), "{results}");
    assert_eq!(results[0]["remaining"], 2);
    assert_eq!(results[1]["error"]["status"], 404);
    assert_eq!(results[2]["remaining"], 9);
    assert_eq!(results[3]["error"]["status"], 400);
    assert_eq!(results[4]["admitted"], false);
    assert_eq!(results[5]["error"]["status"], 400);
    assert_eq!(results[0]["at"], results[4]["at"]);
}

/// A proxy sends the requests of several clients in one batch: none of them may keep the others from being limited.
#[test]
fn batch_with_a_check_that_cannot_be_read_decides_the_others() {
    let service = TestService::start(POLICY);
    let request = |fields: &str| format!(r#"{{"request":{{"method":"GET","path":"/"{fields}}}}}"#);
    let headers: Vec<_> = (0..101).map(|number| format!(r#""x-{number}":"""#)).collect();
    let values = vec![r#""""#; 101].join(",");
    let invalid = [
        request(r#","peer":"192.0.2.1","headers":{"x-a":"a\u0001b"}"#),
        request(r#","peer":"192.0.2.1","headers":{"x a":""}"#),
        request(&format!(r#","peer":"192.0.2.1","headers":{{{}}}"#, headers.join(","))),
        request(&format!(r#","peer":"192.0.2.1","headers":{{"x-a":[{values}]}}"#)),
        request(r#","peer":"fe80::1%eth0""#),
        request(r#","peer":"""#),
        request(r#","peer":null"#),
        request(""),
        request(r#","peer":"192.0.2.1","?":0"#),
        request(r#","peer":"192.0.2.1","path":"/""#),
        request(r#","peer":"192.0.2.1","host":"\ud800""#),
        r#"{"rule":"default","client":"user:bob","cost":-1}"#.to_owned(),
        r#"{"rule":"default","client":"user:bob","cost":1e999}"#.to_owned(),
        r#"{"rule":"default","client":5}"#.to_owned(),
        r#"["default","user:bob",1,null]"#.to_owned(),
        "null".to_owned(),
        format!("{}1{}", "[".repeat(200), "]".repeat(200)),
    ];
    for (index, invalid) in invalid.iter().enumerate() {
        let batch = format!(r#"{{"checks":[{BOB},{invalid},{BOB}]}}"#);
        let results = service.post_json("/v1/check", &batch, 200)["results"].clone();
        let user = |position: usize| results[position]["rule"].as_str();
        assert_eq!((user(0), user(2)), (Some("default"), Some("default")), "{invalid}: {results}");
        assert_eq!(results[1]["error"]["status"], 400, "{invalid}: {results}");
        assert!(results[1]["error"]["detail"].as_str().is_some_and(|detail| detail.len() > 20), "{results}");
        let left = 10_usize.saturating_sub(2 * (index + 1));
        assert_eq!(results[2]["remaining"], left, "{invalid}: {results}");
    }
    // Without its end, nothing says where the next check begins.
    let broken = format!(r#"{{"checks":[{BOB},{{"rule":,{BOB}]}}"#);
    assert_eq!(service.post("/v1/check", &broken).status, 400);
}

#[test]
fn batch_has_a_maximum() {
    let service = TestService::start("rate_limits: { default: { requests: 1000, window: 1m } }");
    let batch = |count: usize| format!(r#"{{"checks":[{}]}}"#, vec![BOB; count].join(","));
    let results = service.post_json("/v1/check", &batch(1_000), 200);
    assert!(results["results"].as_array().expect("results").iter().all(|result| result["admitted"] == true));
    let problem = service.post_json("/v1/check", &batch(1_001), 400);
    assert!(problem["detail"].to_string().contains("1000"), "{problem}");
    // What follows is not parsed.
    let problem = service.post_json("/v1/check", &batch(1_001).replace("]}", ",]"), 400);
    assert!(problem["detail"].to_string().contains("1000"), "{problem}");
    let problem = service.post_json("/v1/check", r#"{"checks":[],"rule":"default"}"#, 400);
    assert!(problem["detail"].to_string().contains("checks"), "{problem}");
}
