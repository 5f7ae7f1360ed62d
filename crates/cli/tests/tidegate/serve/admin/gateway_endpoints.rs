//! Admin endpoints about the whole gateway: status, reload, explain, top, metrics, backup.

use serde_json::json;
use tidegate_testkit::client::{Connection, request};

use super::AdminGateway;

#[test]
fn status_and_metrics_report_the_running_gateway() {
    let gateway = AdminGateway::start("");
    let status = gateway.send("GET", "/v1/status", "").json();
    assert_eq!((&status["ready"], &status["rules"][0]["name"]), (&json!(true), &json!("default")));
    assert!(status["durable"].as_str().unwrap().ends_with("policy.state/tidegate.redb"), "{status}");
    let (done, printed, _) = gateway.command(&["status"]);
    assert!(
        done && printed.contains("(ready)") && printed.contains("5 per 1h, sliding_window_log"),
        "{printed}"
    );
    let metrics = gateway.send("GET", "/metrics", "");
    assert!(
        metrics.head().contains("text/plain") && metrics.text().contains("rate_limit_requests_total"),
        "{metrics:?}"
    );
    assert_eq!(gateway.send("HEAD", "/metrics", "").text(), "");
    assert_eq!(request(&gateway.admin, "GET", "/readyz", "", "").json(), json!({ "status": "ready" }));
}

#[test]
fn admin_reload_applies_a_valid_policy_and_rejects_an_invalid_one() {
    let gateway = AdminGateway::start("");
    let same = gateway.send("POST", "/v1/reload", "");
    assert_eq!((same.status, &same.json()["changes"]), (200, &json!([])), "{same:?}");
    gateway.policy.write("rate_limits: { default: { requests: 0, window: 1m } }\n");
    let bad = gateway.send("POST", "/v1/reload", "");
    assert_eq!((bad.status, &bad.json()["error"]), (422, &json!("bad_policy")));
    assert!(bad.json()["message"].as_str().unwrap().contains("policy.yaml:1:"), "{bad:?}");
    assert_eq!(gateway.get(""), 200, "the running policy stays active");
}

#[test]
fn admin_explain_uses_the_active_policy_and_bans() {
    let gateway = AdminGateway::start("");
    let body = r#"{"path":"/x?y","headers":{"X-User":"bob"}}"#;
    let explained = gateway.send("POST", "/v1/explain", body).json();
    assert_eq!(explained["verdict"]["is"], "admitted", "{explained}");
    assert_eq!((&explained["client"]["key"], &explained["path"]), (&json!("user:bob"), &json!("/x")));
    gateway.send("POST", "/v1/bans", r#"{"subject":"user:bob"}"#);
    let explained = gateway.send("POST", "/v1/explain", body).json();
    assert_eq!(explained["verdict"], json!({ "is": "banned", "subject": "user:bob", "by": "operator" }));
    let wrong = gateway.send("POST", "/v1/explain", r#"{"path":"/%zz"}"#);
    assert_eq!((wrong.status, &wrong.json()["verdict"]["status"]), (200, &json!(400)));
}

#[test]
fn top_lists_the_heaviest_clients_with_their_rejections() {
    let gateway = AdminGateway::start("");
    let mut connection = Connection::open(&gateway.server.address).unwrap();
    let top_client = |gateway: &AdminGateway| {
        let top = gateway.send("GET", "/v1/top", "").json();
        top["rules"][0]["clients"][0].clone()
    };
    // The top clients are sampled: about one of a thousand decisions counts.
    while top_client(&gateway)["rejected"].as_u64().unwrap_or_default() == 0 {
        for _ in 0..500 {
            connection.get("X-User: abuser\r\n").unwrap();
        }
    }
    assert_eq!(top_client(&gateway)["client"], "user:abuser");
}

#[test]
fn backup_replaces_the_state_file() {
    let gateway = AdminGateway::start("");
    gateway.send("POST", "/v1/bans", r#"{"subject":"user:bob"}"#);
    let copy = gateway.policy.path().replace("policy.yaml", "copy.redb");
    let (done, printed, error) = gateway.command(&["backup", &copy]);
    assert!(done && printed.contains("copy.redb"), "{error}");
    let (done, _, error) = gateway.command(&["backup", &copy]);
    assert!(!done && error.contains("exists"), "{error}");
    assert_eq!(gateway.send("POST", "/v1/backup", r#"{"path":"beside.redb"}"#).status, 201);
    assert_eq!(gateway.send("POST", "/v1/backup", r#"{"path":"/none/of/these"}"#).status, 422);
    gateway.send("DELETE", "/v1/bans", r#"{"subject":"user:bob"}"#);
    let AdminGateway { server, policy, .. } = gateway;
    drop(server);
    let original = policy.path().replace(".yaml", ".state/tidegate.redb");
    std::fs::copy(&copy, &original).unwrap();
    let gateway = AdminGateway::serve(policy);
    assert_eq!(gateway.get("X-User: bob\r\n"), 403);
}
