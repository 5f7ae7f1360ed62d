//! The state of one client.

use tidegate_testkit::client::request;
use tidegate_testkit::process::{PolicyFile, RedisServer};
use tidegate_testkit::wait::eventually_blocking;

use super::{AdminGateway, policy_text};

fn policy_with_rules(rest: &str) -> PolicyFile {
    let rules = "rules: [{ name: login, match: { path: /login }, per: [ip, user], requests: 2, window: 1h, penalty: { after: 1, for: 1h } },
        { name: slots, per: ip, concurrent: 4 }]";
    PolicyFile::new(&policy_text(rest).replace("rate_limits: {", &format!("rate_limits: {{ {rules},")))
}

#[test]
fn client_shows_limits_lock_outs_bans_and_overrides() {
    let gateway = AdminGateway::serve(policy_with_rules(""));
    let bob = "X-User: bob\r\nX-Forwarded-For: 203.0.113.9\r\n";
    let login = || request(&gateway.server.address, "GET", "/login", bob, "").status;
    assert_eq!([login(), login(), login()], [200, 200, 429]);
    assert!(gateway.command(&["override", "user:bob", "--rule", "default", "--limit", "9/h"]).0);
    assert!(gateway.command(&["ban", "user:bob", "--reason", "tests"]).0);
    let (done, shown, error) = gateway.command(&["client", "user:bob"]);
    assert!(done, "{error}");
    for line in [
        "banned by the operator: user:bob (tests)",
        "locked out by login for ",
        ": ip:203.0.113.9+user:bob",
        "default  user:bob  5 per 1h, sliding_window_log  7 ",
        "user:bob  default  9 per 1h",
    ] {
        assert!(shown.contains(line), "{line} is not in\n{shown}");
    }
    let state = gateway.send("GET", "/v1/clients/ip%3A203.0.113.9%2Buser:bob", "").json();
    let login = &state["rules"][0];
    assert_eq!((&login["rule"], &login["remaining"]), (&"login".into(), &0.into()), "{state}");
    assert!(login["retry_after"].as_u64().unwrap() > 0, "{state}");
    let (_, shown, _) = gateway.command(&["client", "ip:203.0.113.77"]);
    assert!(shown.contains("slots") && shown.contains("at most 4 concurrent requests"), "{shown}");
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("default ip:203.0.113.77 5 per 1h, sliding_window_log 5 unused"), "{shown}");
    let (done, shown, _) = gateway.command(&["client", "tenant:none"]);
    assert!(done && shown.contains("no rule counts this client"), "{shown}");
    assert_eq!(gateway.send("GET", "/v1/clients/bob", "").status, 400);
    assert_eq!(gateway.send("GET", "/v1/clients/%zz", "").status, 400);
    assert_eq!(gateway.send("POST", "/v1/clients/user:bob", "{}").status, 405);
}

#[test]
fn client_shows_what_remains_in_every_store() {
    let redis = RedisServer::start();
    let shared = |coordination: &str| {
        format!(
            "store: {{ url: '{}', prefix: '{coordination}:', coordination: {coordination}, nodes: 1 }}\n",
            redis.url()
        )
    };
    for store in [String::new(), shared("central"), shared("lease"), shared("sync"), shared("static")] {
        let text = policy_text(&store)
            .replace("requests: 5, window: 1h, algorithm: sliding_window_log", "requests: 1000, window: 1d");
        let gateway = AdminGateway::serve(PolicyFile::new(&text));
        for _ in 0..3 {
            assert_eq!(gateway.get("X-User: bob\r\n"), 200, "{store}");
        }
        for (client, remaining) in [("user:bob", 997), ("user:carol", 1000)] {
            // A request that came before the connection to Redis is charged as soon as there is one.
            eventually_blocking(&format!("{remaining} remain of {client} {store}"), || {
                let state = gateway.send("GET", &format!("/v1/clients/{client}"), "").json();
                state["rules"][0]["remaining"] == remaining
            });
        }
        assert_eq!(gateway.get("X-User: bob\r\n"), 200, "nothing was charged");
    }
}

#[test]
fn explanation_with_live_counters_has_their_state_and_charges_nothing() {
    let gateway = AdminGateway::serve(policy_with_rules(""));
    let explain = |live: bool, path: &str| {
        let headers = r#"{"X-User":"bob","X-Forwarded-For":"203.0.113.9"}"#;
        let body = format!(r#"{{"path":"{path}","headers":{headers},"live":{live}}}"#);
        gateway.send("POST", "/v1/explain", &body).json()
    };
    let bob = "X-User: bob\r\nX-Forwarded-For: 203.0.113.9\r\n";
    let get = |path: &str| request(&gateway.server.address, "GET", path, bob, "").status;
    assert_eq!([get("/login"), get("/login")], [200, 200]);
    for _ in 0..2 {
        let explained = explain(true, "/login");
        assert_eq!(explained["verdict"]["is"], "limit_exceeded", "{explained}");
        assert_eq!(explained["rules"][0]["outcome"]["remaining"], 3, "{explained}");
        assert_eq!(explained["verdict"]["by"], "login");
    }
    assert_eq!(explain(false, "/login")["verdict"]["is"], "admitted");
    assert_eq!(explain(true, "/")["verdict"]["is"], "admitted");
    assert_eq!(get("/login"), 429);
    let locked = explain(true, "/login");
    assert_eq!((&locked["verdict"]["is"], &locked["verdict"]["by"]), (&"locked_out".into(), &"login".into()));
}

#[test]
fn concurrency_rules_are_in_the_start_message_and_in_status() {
    let gateway = AdminGateway::serve(policy_with_rules(""));
    let line = "slots: at most 4 concurrent requests";
    assert!(gateway.server.startup_output.contains(line), "{}", gateway.server.startup_output);
    let (_, status, _) = gateway.command(&["status"]);
    assert!(status.contains(&format!("  limit        {line}\n")), "{status}");
}
