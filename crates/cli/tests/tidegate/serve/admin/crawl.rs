//! Who has no token reads nothing but health, and changes nothing.

use tidegate_testkit::client::request;

use super::AdminGateway;

const PATHS: [&str; 22] = [
    "/",
    "/healthz",
    "/readyz",
    "/metrics",
    "/v1",
    "/v1/status",
    "/v1/bans",
    "/v1/bans/user:bob",
    "/v1/overrides",
    "/v1/reset",
    "/v1/reload",
    "/v1/explain",
    "/v1/top",
    "/v1/backup",
    "/v1/none",
    "//v1/bans",
    "/healthz/../v1/bans",
    "/healthz%2f..%2fv1/bans",
    "/healthz?/v1/bans",
    "/HEALTHZ",
    "/.git/config",
    "/favicon.ico",
];
const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"];
/// It would do for every path that takes one.
const BODY: &str =
    r#"{"subject":"user:mallory","client":"user:mallory","rule":"default","requests":1,"path":"stolen"}"#;

#[test]
fn without_the_token_nothing_is_read_but_health_and_nothing_is_changed() {
    let gate = AdminGateway::start("bans: { networks: [192.0.2.0/24] }\n");
    assert_eq!(gate.ask("POST", "/v1/bans", r#"{"subject":"user:bob"}"#).status, 201);
    let before = gate.ask("GET", "/v1/status", "").json();
    let half = gate.token.split_at(32).0;
    let wrong = [
        String::new(),
        "Authorization: Bearer \r\n".to_owned(),
        format!("Authorization: Bearer {half}\r\n"),
        format!("Authorization: Bearer {}0\r\n", gate.token),
        format!("Authorization: Basic {}\r\n", gate.token),
        format!("Authorization: Bearer {0}\r\nAuthorization: Bearer {0}\r\n", gate.token),
        format!("X-Token: {}\r\nCookie: token={0}\r\n", gate.token),
    ];
    for path in PATHS {
        for method in METHODS {
            for headers in &wrong {
                let answer = request(&gate.admin, method, path, headers, BODY);
                let is_health = matches!(path, "/healthz" | "/readyz" | "/healthz?/v1/bans");
                if is_health && matches!(method, "GET" | "HEAD") {
                    assert_eq!(answer.status, 200, "{method} {path}");
                } else {
                    assert_eq!(answer.status, 401, "{method} {path} {headers}");
                    assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
                }
                let all = format!("{}{}", answer.head(), answer.text());
                for secret in ["bob", "192.0.2", "default", "rate_limit", &gate.token] {
                    assert!(!all.contains(secret), "{method} {path}: {answer:?}");
                }
            }
        }
    }
    let mut after = gate.ask("GET", "/v1/status", "").json();
    after["connections"] = before["connections"].clone();
    assert_eq!(after, before);
    let listed = gate.ask("GET", "/v1/bans", "").text();
    assert!(!listed.contains("mallory"), "{listed}");
}

#[test]
fn no_page_in_a_browser_is_answered_even_with_the_token() {
    let gate = AdminGateway::start("");
    let token = format!("Authorization: Bearer {}\r\n", gate.token);
    for headers in ["Origin: http://evil.example\r\n", "Origin: null\r\n", "Host: evil.example\r\n"] {
        for path in ["/healthz", "/v1/bans"] {
            let answer = request(&gate.admin, "GET", path, &format!("{token}{headers}"), "");
            assert!(matches!(answer.status, 403 | 421), "{answer:?}");
            assert!(!answer.head().to_lowercase().contains("access-control"), "{answer:?}");
        }
    }
}

#[test]
fn what_is_not_there_is_404_and_what_a_path_does_not_take_is_405() {
    let gate = AdminGateway::start("");
    let missing = gate.ask("GET", "/v1/none", "");
    assert_eq!((missing.status, &missing.json()["error"]), (404, &"not_found".into()));
    for (path, allowed) in [
        ("/healthz", "GET, HEAD"),
        ("/metrics", "GET, HEAD"),
        ("/v1/bans", "GET, HEAD, POST, DELETE"),
        ("/v1/reload", "POST"),
    ] {
        let answer = gate.ask("PUT", path, "");
        assert_eq!(answer.status, 405, "{path}");
        assert_eq!(answer.header("allow"), Some(allowed), "{path}");
    }
    assert_eq!(gate.ask("GET", "/v1/reload", "").status, 405);
}

#[test]
fn a_body_that_is_none_is_told_and_a_large_one_is_not_read() {
    let gate = AdminGateway::start("");
    for (body, told) in [
        ("", "no JSON"),
        ("{", "invalid JSON"),
        ("[]", "invalid"),
        (r#"{"subject":"user:bob","until":"1h"}"#, "unknown field `until`"),
        (r#"{"for":"1h"}"#, "missing field `subject`"),
        (r#"{"subject":7}"#, "invalid type"),
        (r#"{"subject":"bob"}"#, "say what kind of client"),
        (r#"{"subject":"203.0.113.7/24"}"#, "203.0.113.0/24"),
        (r#"{"subject":"user:bob","for":"soon"}"#, "duration"),
        (r#"{"subject":"user:bob","for":"0s"}"#, "must be positive"),
        (r#"{"subject":"user:bob","reason":"two\nlines"}"#, "one line"),
    ] {
        let answer = gate.ask("POST", "/v1/bans", body);
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
        assert!(answer.json()["message"].as_str().unwrap().contains(told), "{body}: {answer:?}");
    }
    let large = format!(r#"{{"subject":"user:{}"}}"#, "x".repeat(70_000));
    assert_eq!(gate.ask("POST", "/v1/bans", &large).status, 413);
    assert_eq!(gate.ask("GET", "/v1/bans", "").json()["bans"], serde_json::json!([]));
}
