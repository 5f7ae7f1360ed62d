//! Admin endpoints about the whole gateway: status, reload, explain, top, metrics, backup.

use serde_json::json;
use tidegate_testkit::client::{Connection, request};

use super::AdminGateway;

#[test]
fn status_and_metrics_report_the_running_gateway() {
    let gate = AdminGateway::start("");
    let status = gate.send("GET", "/v1/status", "").json();
    assert_eq!((&status["ready"], &status["rules"][0]["name"]), (&json!(true), &json!("default")));
    assert!(status["durable"].as_str().unwrap().ends_with("policy.state/tidegate.redb"), "{status}");
    let (done, said, _) = gate.command(&["status"]);
    assert!(done && said.contains("(ready)") && said.contains("5 per 1h, sliding_window_log"), "{said}");
    let metrics = gate.send("GET", "/metrics", "");
    assert!(
        metrics.head().contains("text/plain") && metrics.text().contains("rate_limit_requests_total"),
        "{metrics:?}"
    );
    assert_eq!(gate.send("HEAD", "/metrics", "").text(), "");
    assert_eq!(request(&gate.admin, "GET", "/readyz", "", "").json(), json!({ "status": "ready" }));
}

#[test]
fn admin_reload_applies_a_valid_policy_and_rejects_an_invalid_one() {
    let gate = AdminGateway::start("");
    let same = gate.send("POST", "/v1/reload", "");
    assert_eq!((same.status, &same.json()["changes"]), (200, &json!([])), "{same:?}");
    gate.policy.write("rate_limits: { default: { requests: 0, window: 1m } }\n");
    let bad = gate.send("POST", "/v1/reload", "");
    assert_eq!((bad.status, &bad.json()["error"]), (422, &json!("bad_policy")));
    assert!(bad.json()["message"].as_str().unwrap().contains("policy.yaml:1:"), "{bad:?}");
    assert_eq!(gate.get(""), 200, "the running policy stays active");
}

#[test]
fn admin_explain_uses_the_active_policy_and_bans() {
    let gate = AdminGateway::start("");
    let body = r#"{"path":"/x?y","headers":{"X-User":"bob"}}"#;
    let explained = gate.send("POST", "/v1/explain", body).json();
    assert_eq!(explained["verdict"]["is"], "passes", "{explained}");
    assert_eq!((&explained["client"]["key"], &explained["path"]), (&json!("user:bob"), &json!("/x")));
    gate.send("POST", "/v1/bans", r#"{"subject":"user:bob"}"#);
    let explained = gate.send("POST", "/v1/explain", body).json();
    assert_eq!(explained["verdict"], json!({ "is": "banned", "subject": "user:bob", "by": "operator" }));
    let wrong = gate.send("POST", "/v1/explain", r#"{"path":"/%zz"}"#);
    assert_eq!((wrong.status, &wrong.json()["verdict"]["status"]), (200, &json!(400)));
}

#[test]
fn top_lists_the_heaviest_clients_with_their_rejections() {
    let gate = AdminGateway::start("");
    let mut connection = Connection::open(&gate.server.address).unwrap();
    let top_client = |gate: &AdminGateway| {
        let top = gate.send("GET", "/v1/top", "").json();
        top["rules"][0]["clients"][0].clone()
    };
    // The top clients are sampled: about one of a thousand decisions counts.
    while top_client(&gate)["refused"].as_u64().unwrap_or_default() == 0 {
        for _ in 0..500 {
            connection.get("X-User: abuser\r\n").unwrap();
        }
    }
    assert_eq!(top_client(&gate)["client"], "user:abuser");
}

#[test]
fn backup_replaces_the_state_file() {
    let gate = AdminGateway::start("");
    gate.send("POST", "/v1/bans", r#"{"subject":"user:bob"}"#);
    let copy = gate.policy.path().replace("policy.yaml", "copy.redb");
    let (done, said, error) = gate.command(&["backup", &copy]);
    assert!(done && said.contains("copy.redb"), "{error}");
    let (done, _, error) = gate.command(&["backup", &copy]);
    assert!(!done && error.contains("exists"), "{error}");
    assert_eq!(gate.send("POST", "/v1/backup", r#"{"path":"beside.redb"}"#).status, 201);
    assert_eq!(gate.send("POST", "/v1/backup", r#"{"path":"/none/of/these"}"#).status, 422);
    gate.send("DELETE", "/v1/bans", r#"{"subject":"user:bob"}"#);
    let AdminGateway { server, policy, .. } = gate;
    drop(server);
    let original = policy.path().replace(".yaml", ".state/tidegate.redb");
    std::fs::copy(&copy, &original).unwrap();
    let gate = AdminGateway::serve(policy);
    assert_eq!(gate.get("X-User: bob\r\n"), 403);
}
