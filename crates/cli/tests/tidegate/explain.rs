//! `tidegate explain` with the example policies.

use std::process::Output;

use crate::program::run_in_root;

fn tidegate(policy: &str, args: &[&str]) -> Output {
    run_in_root(&[&["explain", "--config", policy], args].concat())
}

#[test]
fn explain_prints_client_route_and_rules_without_the_api_key() {
    let output = tidegate(
        "examples/saas-tiers.yaml",
        &["POST", "/v1//reports?x=1", "-H", "Host: api.example.com:443", "-H", "X-API-Key: pk_live_4f9a"],
    );
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for part in
        ["POST /v1/reports at api.example.com", "tier      premium", "→ app", "endpoint:POST /v1/reports"]
    {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    assert!(!text.contains("pk_live_4f9a"), "{text}");
}

#[test]
fn explain_with_json_format_prints_the_verdict() {
    let output = tidegate(
        "examples/login-protection.yaml",
        &["GET", "/", "--from", "203.0.113.9", "--format", "json"],
    );
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        json["verdict"],
        serde_json::json!({ "is": "banned", "by": "policy", "subject": "203.0.113.0/24" })
    );
}

#[test]
fn explain_prints_resilience_of_route_and_upstream() {
    let output = tidegate("examples/resilience.yaml", &["GET", "/api/search/x", "--format", "json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let route = &json["route"];
    assert_eq!(route["bulkhead"], "at most 50 in flight");
    assert_eq!(
        route["resilience"]["timeouts"],
        "connect 2s, request 10s, idle 1m, total 30s, starts a deadline"
    );
    assert_eq!(route["resilience"]["shed"], "adaptive, 5 to 1000 in flight, initially 20");
}

#[test]
fn explain_with_data_counts_the_user_that_the_body_names() {
    let rules = |args: &[&str]| {
        let output = tidegate("examples/login-form.yaml", &[args, &["--format", "json"]].concat());
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let rules = json["rules"].as_array().unwrap().iter();
        rules.map(|rule| format!("{} {}", rule["name"], rule["key"]).replace('"', "")).collect::<Vec<_>>()
    };
    let json = ["POST", "/login", "-H", "Content-Type: application/json"];
    let with = |data| rules(&[&json[..], &["--data", data]].concat());
    assert_eq!(with(r#"{"username": "Bob"}"#)[1..], ["login ip:127.0.0.1", "login user:bob"]);
    assert_eq!(with(r#"{"username": ["bob"]}"#)[1..], ["login ip:127.0.0.1", "login anonymous"]);
    assert_eq!(rules(&json)[1..], ["login ip:127.0.0.1"]);
}

#[test]
fn explain_with_a_missing_or_invalid_policy_fails() {
    for (policy, args) in [("examples/none.yaml", ["GET", "/"]), ("examples/keys.csv", ["GET", "/"])] {
        let output = tidegate(policy, &args);
        assert_eq!(output.status.code(), Some(1), "{policy}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty());
    }
}

#[test]
fn explain_of_a_rejected_request_prints_status_and_reason() {
    for (args, expected) in [
        (["GET", "/%zz"], "400: `%` at byte 1 of the path is not followed by two hexadecimal digits"),
        (
            ["GET", "/a%2Fb"],
            "400: `%2F` in the path is not allowed; set `http.encoded_slash: keep` or `decode` to allow it",
        ),
        (["get", "/"], "400: method must be uppercase"),
        (["GET", "/a b"], "400: "),
    ] {
        let output = tidegate("examples/small-api.yaml", &args);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains(expected), "{args:?}: {text}");
    }
    let output =
        tidegate("examples/saas-tiers.yaml", &["GET", "/", "-H", "Host: other.org", "--format", "json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        json["verdict"],
        serde_json::json!({ "is": "rejected", "status": 404, "reason": "no matching route" })
    );
}

#[test]
fn explain_keeps_a_no_break_space_in_a_header() {
    let (host, key) = ("Host: api.example.com", "X-API-Key: pk_live_4f9a\u{a0}");
    let output =
        tidegate("examples/saas-tiers.yaml", &["GET", "/", "-H", host, "-H", key, "--format", "json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["verdict"]["status"], 400, "{json}");
}
