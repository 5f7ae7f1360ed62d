//! Checks of admin requests: without a token only health can be read, and invalid requests change nothing.

use tidegate_testkit::client::{Connection, request};

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
/// A body that is valid for every path that reads one.
const BODY: &str =
    r#"{"subject":"user:mallory","client":"user:mallory","rule":"default","requests":1,"path":"stolen"}"#;

#[test]
fn admin_request_without_a_valid_token_reads_only_health_and_changes_nothing() {
    let gateway = AdminGateway::start("bans: { networks: [192.0.2.0/24] }\n");
    assert_eq!(gateway.send("POST", "/v1/bans", r#"{"subject":"user:bob"}"#).status, 201);
    let before = gateway.send("GET", "/v1/status", "").json();
    let half = gateway.token.split_at(32).0;
    let wrong = [
        String::new(),
        "Authorization: Bearer \r\n".to_owned(),
        format!("Authorization: Bearer {half}\r\n"),
        format!("Authorization: Bearer {}0\r\n", gateway.token),
        format!("Authorization: Basic {}\r\n", gateway.token),
        format!("Authorization: Bearer {0}\r\nAuthorization: Bearer {0}\r\n", gateway.token),
        format!("X-Token: {}\r\nCookie: token={0}\r\n", gateway.token),
    ];
    for path in PATHS {
        for method in METHODS {
            for headers in &wrong {
                let response = request(&gateway.admin, method, path, headers, BODY);
                let is_health = matches!(path, "/healthz" | "/readyz" | "/healthz?/v1/bans");
                if is_health && matches!(method, "GET" | "HEAD") {
                    assert_eq!(response.status, 200, "{method} {path}");
                } else {
                    assert_eq!(response.status, 401, "{method} {path} {headers}");
                    assert_eq!(response.header("www-authenticate"), Some("Bearer"));
                }
                let all = format!("{}{}", response.head(), response.text());
                for secret in ["bob", "192.0.2", "default", "rate_limit", &gateway.token] {
                    assert!(!all.contains(secret), "{method} {path}: {response:?}");
                }
            }
        }
    }
    let mut after = gateway.send("GET", "/v1/status", "").json();
    after["connections"] = before["connections"].clone();
    assert_eq!(after, before);
    let listed = gateway.send("GET", "/v1/bans", "").text();
    assert!(!listed.contains("mallory"), "{listed}");
}

#[test]
fn admin_request_of_a_browser_page_is_rejected_even_with_the_token() {
    let gateway = AdminGateway::start("");
    let token = format!("Authorization: Bearer {}\r\n", gateway.token);
    for headers in ["Origin: http://evil.example\r\n", "Origin: null\r\n", "Host: evil.example\r\n"] {
        for path in ["/healthz", "/v1/bans"] {
            let response = request(&gateway.admin, "GET", path, &format!("{token}{headers}"), "");
            assert!(matches!(response.status, 403 | 421), "{response:?}");
            assert!(!response.head().to_lowercase().contains("access-control"), "{response:?}");
        }
    }
}

#[test]
fn admin_path_unknown_gets_404_and_method_unsupported_gets_405() {
    let gateway = AdminGateway::start("");
    let missing = gateway.send("GET", "/v1/none", "");
    assert_eq!((missing.status, &missing.json()["error"]), (404, &"not_found".into()));
    for (path, allowed) in [
        ("/healthz", "GET, HEAD"),
        ("/metrics", "GET, HEAD"),
        ("/v1/bans", "GET, HEAD, POST, DELETE"),
        ("/v1/reload", "POST"),
    ] {
        let response = gateway.send("PUT", path, "");
        assert_eq!(response.status, 405, "{path}");
        assert_eq!(response.header("allow"), Some(allowed), "{path}");
    }
    assert_eq!(gateway.send("GET", "/v1/reload", "").status, 405);
}

#[test]
fn admin_body_invalid_gets_400_with_the_reason_and_too_large_gets_413() {
    let gateway = AdminGateway::start("");
    for (body, expected) in [
        ("", "invalid JSON"),
        ("{", "invalid JSON"),
        ("[]", "invalid"),
        (r#"{"subject":"user:bob","until":"1h"}"#, "unknown field `until`"),
        (r#"{"for":"1h"}"#, "missing field `subject`"),
        (r#"{"subject":7}"#, "invalid type"),
        (r#"{"subject":"bob"}"#, "missing client kind"),
        (r#"{"subject":"203.0.113.7/24"}"#, "203.0.113.0/24"),
        (r#"{"subject":"user:bob","for":"soon"}"#, "duration"),
        (r#"{"subject":"user:bob","for":"0s"}"#, "must be positive"),
        (r#"{"subject":"user:bob","reason":"two\nlines"}"#, "one line"),
    ] {
        let response = gateway.send("POST", "/v1/bans", body);
        assert_eq!(response.status, 400, "{body}: {response:?}");
        assert!(response.json()["message"].as_str().unwrap().contains(expected), "{body}: {response:?}");
    }
    let large = format!(r#"{{"subject":"user:{}"}}"#, "x".repeat(70_000));
    assert_eq!(gateway.send("POST", "/v1/bans", &large).status, 413);
    assert_eq!(gateway.send("GET", "/v1/bans", "").json()["bans"], serde_json::json!([]));
}

#[test]
fn admin_request_with_malformed_chunks_gets_400() {
    let gateway = AdminGateway::start("");
    let body = r#"{"subject":"ip:192.0.2.1"}"#;
    let size = format!("{:x}", body.len());
    for (coding, chunks, status) in [
        ("chunked", format!("{size}\r\n{body}\r\n0\r\n\r\n"), 201),
        ("chunked", format!("{size}\n{body}\r\n0\r\n\r\n"), 400),
        ("chunked", format!("{size}\r\n{body}\r\n0\r\n\nGET / HTTP/1.1\r\n\r\n"), 400),
        ("gzip, chunked", format!("{size}\r\n{body}\r\n0\r\n\r\n"), 400),
    ] {
        let request = format!(
            "POST /v1/bans HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
             Transfer-Encoding: {coding}\r\n\r\n{chunks}",
            gateway.admin, gateway.token
        );
        let response = Connection::open(&gateway.admin).unwrap().send(request.as_bytes()).unwrap();
        assert_eq!(response.status, status, "{coding} {chunks:?}: {}", response.text());
    }
}
