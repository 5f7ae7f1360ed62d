//! Limits of one client: overrides, and reset counters.

use tidegate_testkit::client::request;
use tidegate_testkit::process::PolicyFile;

use super::{AdminGateway, policy_text};

/// How many of ten requests of a user are admitted.
fn admitted_of_ten(gateway: &AdminGateway, user: &str) -> usize {
    (0..10).filter(|_| gateway.get(&format!("X-User: {user}\r\n")) == 200).count()
}

#[test]
fn override_applies_at_once_and_after_a_restart_until_it_is_removed() {
    let gateway = AdminGateway::start("");
    let body = r#"{"client":"user:bob","rule":"default","requests":7,"reason":"a friend"}"#;
    let made = gateway.send("POST", "/v1/overrides", body);
    assert_eq!(made.status, 201, "{made:?}");
    let created = made.json();
    assert_eq!(
        (&created["window"], &created["algorithm"]),
        (&"1h".into(), &"sliding_window_log".into()),
        "the values of the rule"
    );
    assert_eq!(admitted_of_ten(&gateway, "bob"), 7);
    assert_eq!(admitted_of_ten(&gateway, "carol"), 5);
    gateway.server.signal("-KILL");
    let gateway = gateway.restart();
    assert_eq!(admitted_of_ten(&gateway, "bob"), 7, "the override survives a kill");
    let listed = gateway.send("GET", "/v1/overrides", "").json();
    assert_eq!(listed["overrides"][0]["client"], "user:bob");
    assert_eq!(
        gateway.send("DELETE", "/v1/overrides", r#"{"client":"user:bob","rule":"default"}"#).status,
        200
    );
    assert_eq!(
        gateway.send("DELETE", "/v1/overrides", r#"{"client":"user:bob","rule":"default"}"#).status,
        404
    );
    assert_eq!(gateway.send("POST", "/v1/reset", r#"{"client":"user:bob"}"#).status, 200);
    assert_eq!(admitted_of_ten(&gateway, "bob"), 5);
}

#[test]
fn override_of_a_static_limit_is_divided_by_the_number_of_nodes() {
    let gateway = AdminGateway::start("store: { coordination: static, nodes: 5 }\n");
    assert_eq!(admitted_of_ten(&gateway, "carol"), 1, "a fifth of five");
    let body = r#"{"client":"user:bob","rule":"default","requests":20}"#;
    assert_eq!(gateway.send("POST", "/v1/overrides", body).status, 201);
    assert_eq!(admitted_of_ten(&gateway, "bob"), 4, "a fifth of twenty");
    let listed = gateway.send("GET", "/v1/overrides", "").json();
    assert_eq!(listed["overrides"][0]["requests"], 20, "as the operator set it");
}

#[test]
fn override_with_a_duration_ends() {
    let gateway = AdminGateway::start("");
    let body = r#"{"client":"user:bob","rule":"default","requests":1,"for":"300ms"}"#;
    assert_eq!(gateway.send("POST", "/v1/overrides", body).status, 201);
    // At most one request is admitted under the override, then the rest of five.
    let mut admitted_of_ten = 0;
    while admitted_of_ten < 5 {
        admitted_of_ten += u32::from(gateway.get("X-User: bob\r\n") == 200);
    }
    assert_eq!(gateway.get("X-User: bob\r\n"), 429);
    assert_eq!(gateway.send("GET", "/v1/overrides", "").json()["overrides"], serde_json::json!([]));
}

#[test]
fn reset_clears_the_counters_of_one_client() {
    let gateway = AdminGateway::start("");
    assert_eq!((admitted_of_ten(&gateway, "bob"), admitted_of_ten(&gateway, "carol")), (5, 5));
    let (done, printed, error) = gateway.command(&["reset", "user:bob", "--rule", "default"]);
    assert!(done, "{error}");
    assert_eq!(printed, "counters reset: user:bob (rules: default)\n");
    assert_eq!((admitted_of_ten(&gateway, "bob"), admitted_of_ten(&gateway, "carol")), (5, 0));
    let wrong = gateway.send("POST", "/v1/reset", r#"{"client":"user:bob","rule":"defualt"}"#);
    assert_eq!(wrong.status, 400);
    assert!(wrong.json()["hint"].as_str().unwrap().contains("default"), "{wrong:?}");
    let hashed = gateway.send("POST", "/v1/reset", r#"{"client":"api_key:…#12345678"}"#);
    assert!(hashed.status == 400 && hashed.text().contains("complete key"), "{hashed:?}");
}

#[test]
fn override_command_sets_lists_and_removes_overrides() {
    let gateway = AdminGateway::start("");
    let args = ["override", "user:bob", "--rule", "default", "--limit", "2/m", "--for", "1h"];
    let (done, printed, error) = gateway.command(&args);
    assert!(done, "{error}");
    assert!(printed.contains("user:bob  default  2 per 1m, sliding_window_log"), "{printed}");
    assert_eq!(admitted_of_ten(&gateway, "bob"), 2);
    let (_, listed, _) = gateway.command(&["override"]);
    assert_eq!(listed.lines().count(), 2, "{listed}");
    let (done, printed, _) = gateway.command(&["override", "user:bob", "--rule", "default", "--end"]);
    assert_eq!(
        (done, printed.as_str()),
        (true, "override removed: user:bob has the limit of rule default again\n")
    );
    let (_, listed, _) = gateway.command(&["override"]);
    assert_eq!(listed, "no overrides\n");
    for (args, expected) in [
        (&["override", "user:bob", "--rule", "default", "--limit", "0/m"][..], "requests"),
        (&["override", "user:bob", "--rule", "none", "--limit", "1/m"], "the policy has no rule `none`"),
        (&["override", "bob", "--rule", "default", "--limit", "1/m"], "user:bob"),
        (&["override", "user:bob", "--rule", "default", "--limit", "1/m", "--algorithm", "magic"], "magic"),
        (&["override", "user:bob", "--rule", "default"], "--limit"),
    ] {
        let (done, _, error) = gateway.command(args);
        assert!(!done && error.contains(expected), "{args:?}: {error}");
    }
}

/// A policy with this number of different limits.
fn policy_of(limits: usize) -> String {
    let tiers: Vec<_> = (1..limits).map(|n| format!("t{n}: {{ requests: {n}, window: 1m }}")).collect();
    let default = "default: { requests: 5, window: 1h, algorithm: sliding_window_log }";
    policy_text("").replace(default, &format!("{default}, tiers: {{ {} }}", tiers.join(", ")))
}

#[test]
fn policy_or_override_beyond_the_maximum_of_limits_is_rejected_and_changes_nothing() {
    let gateway = AdminGateway::serve(PolicyFile::new(&policy_of(16_381)));
    let limit_bob = |limit| gateway.command(&["override", "user:bob", "--rule", "default", "--limit", limit]);
    let (done, _, error) = limit_bob("7/h");
    assert!(done, "{error}");
    let metrics = gateway.send("GET", "/metrics", "").text();
    for line in ["tidegate_limits_in_use 16382", "tidegate_limits_max 16382"] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in\n{metrics}");
    }
    let (done, _, error) = limit_bob("8/h");
    assert!(!done && error.contains("16382 of at most 16382 are in use"), "{error}");
    assert!(error.contains("1 more are needed") && error.contains("remove overrides"), "{error}");
    assert_eq!(admitted_of_ten(&gateway, "bob"), 7, "the earlier override stays in force");

    gateway.policy.write(&policy_of(16_382));
    let line = gateway.server.wait_for_log("\"event\":\"reload");
    assert!(line.contains("the running policy stays active") && line.contains("1 more are needed"), "{line}");
    let response = gateway.send("POST", "/v1/reload", "");
    assert!(response.status != 200 && response.text().contains("16382 of at most 16382"), "{response:?}");
    assert_eq!(admitted_of_ten(&gateway, "carol"), 5, "the old policy stays in force");

    gateway.policy.write(&policy_text(""));
    gateway.server.wait_for_log("policy reloaded");
    let gateway = gateway.restart();
    let listed = gateway.send("GET", "/v1/overrides", "").json();
    assert_eq!(listed["overrides"][0]["requests"], 7, "the durable store kept the earlier one: {listed}");
}

/// Each of the rules counts another identity; the policy has no users but those of `login`.
fn policy_of_scopes() -> PolicyFile {
    let rules = "rules: [{ name: login, match: { path: /login }, per: [ip, user], requests: 5, window: 1h },
        { name: api, per: user, requests: 5, window: 1h }], global: { requests: 1000, window: 1h }";
    let text = policy_text("").replace("identify_by: [user, ip]", "identify_by: [ip]");
    PolicyFile::new(&text.replace("rate_limits: {", &format!("rate_limits: {{ {rules},")))
}

#[test]
fn reset_names_the_rules_that_count_the_client_and_fails_if_none_does() {
    let gateway = AdminGateway::serve(policy_of_scopes());
    for (client, rules) in [
        ("ip:203.0.113.9", "default, api"),
        ("user:bob", "api"),
        ("ip:203.0.113.9+user:bob", "login"),
        ("user:bob+ip:203.0.113.9", "login"),
        ("ip:203.0.113.9+ip:203.0.113.9", "login"),
        ("everybody", "global"),
    ] {
        let (done, printed, error) = gateway.command(&["reset", client]);
        assert!(done, "{client}: {error}");
        assert!(printed.ends_with(&format!(" (rules: {rules})\n")), "{client}: {printed}");
    }
    for (args, expected) in [
        (&["reset", "user:bob", "--rule", "default"][..], "`default` counts ip:ADDRESS"),
        (&["reset", "user:bob", "--rule", "login"], "`login` counts ip:ADDRESS+user:NAME"),
        (&["reset", "ip:203.0.113.9", "--rule", "login"], "`login` counts ip:ADDRESS+user:NAME"),
        (&["reset", "ip:203.0.113.9", "--rule", "global"], "`global` counts everybody"),
        (&["reset", "api_key:k"], "`api` counts user:NAME or ip:ADDRESS"),
        (&["reset", "tenant:acme"], "no rule counts tenant:acme"),
    ] {
        let (done, _, error) = gateway.command(args);
        assert!(!done && error.contains(expected), "{args:?}: {error}");
    }
}

#[test]
fn reset_of_a_combination_in_any_order_empties_its_counter() {
    let gateway = AdminGateway::serve(policy_of_scopes());
    let (headers, client) = ("X-User: bob\r\nX-Forwarded-For: 203.0.113.9\r\n", "user:bob+ip:203.0.113.9");
    let login = || request(&gateway.server.address, "POST", "/login", headers, "").status;
    assert_eq!([(); 6].map(|()| login()), [200, 200, 200, 200, 200, 429]);
    for name in [client, "ip:203.0.113.9", "user:bob"] {
        assert!(gateway.command(&["reset", name]).0, "{name}");
    }
    assert_eq!(login(), 200);
}

#[test]
fn override_of_a_client_that_the_rule_does_not_count_is_not_stored() {
    let gateway = AdminGateway::serve(policy_of_scopes());
    for (client, rule) in [("user:bob", "login"), ("user:bob", "default"), ("ip:203.0.113.9+user:bob", "api")]
    {
        let (done, _, error) = gateway.command(&["override", client, "--rule", rule, "--limit", "1/m"]);
        assert!(!done && error.contains(&format!("the rule `{rule}` does not count {client}")), "{error}");
    }
    let (_, listed, _) = gateway.command(&["override"]);
    assert_eq!(listed, "no overrides\n");
    let (done, _, error) =
        gateway.command(&["override", "user:bob+ip:203.0.113.9", "--rule", "login", "--limit", "1/m"]);
    assert!(done, "{error}");
    let headers = "X-User: bob\r\nX-Forwarded-For: 203.0.113.9\r\n";
    let login = || request(&gateway.server.address, "POST", "/login", headers, "").status;
    assert_eq!((login(), login()), (200, 429));
}

#[test]
fn reset_of_an_exempt_client_fails_and_of_one_that_a_caller_may_name_does_not() {
    let exempt = policy_text("").replace("clients: {", "clients: { exempt: { networks: [203.0.113.0/24] },");
    let gateway = AdminGateway::serve(PolicyFile::new(&exempt));
    let (done, _, error) = gateway.command(&["reset", "ip:203.0.113.9"]);
    assert!(!done && error.contains("is exempt") && error.contains("clients.exempt"), "{error}");
    // A caller of the decision service names its client as it likes.
    let gateway = AdminGateway::start("service: { http: '127.0.0.1:0' }\n");
    let (done, printed, error) = gateway.command(&["reset", "tenant:acme"]);
    assert!(done && printed.contains("(rules: default)"), "{printed}{error}");
}

#[test]
fn limit_that_is_not_reported_rejects_without_telling_clients_about_it() {
    let rules =
        "rules: [{ name: hidden, match: { path: /hidden }, per: user, requests: 1, window: 2h, report: off },
        { name: hidden_slots, match: { path: /slots }, per: ip, concurrent: 1, report: off }]";
    let text = policy_text("headers: [x_ratelimit, ratelimit]\nerror_body: problem\n");
    let policy = PolicyFile::new(&text.replace("rate_limits: {", &format!("rate_limits: {{ {rules},")));
    let gateway = AdminGateway::serve(policy);
    let get = || request(&gateway.server.address, "GET", "/hidden", "X-User: bob\r\n", "");
    let admitted = get();
    assert_eq!((admitted.status, admitted.remaining()), (200, 4), "the limit that is reported: {admitted:?}");
    let rejected = get();
    assert_eq!(rejected.status, 429);
    assert!(rejected.header("retry-after").is_some(), "{rejected:?}");
    assert!(
        rejected.header("x-ratelimit-limit").is_none() && rejected.header("ratelimit").is_none(),
        "{rejected:?}"
    );
    for response in [&admitted, &rejected] {
        assert!(!response.head().contains("hidden") && !response.text().contains("hidden"), "{response:?}");
    }
    assert!(
        !rejected.text().contains("\"limit\"") && rejected.text().contains("\"retry_after\""),
        "{rejected:?}"
    );
    let (_, shown, _) = gateway.command(&["client", "user:bob"]);
    assert!(shown.contains("hidden"), "operators see it: {shown}");
}
