//! Errors: paths, methods, tokens, content types, sizes, JSON.

use std::collections::BTreeMap;

use super::POLICY;
use crate::fixture::TestService;

const BOB: &str = r#"{"rule":"default","client":"user:bob"}"#;
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn error_is_a_problem_that_says_what_to_do() {
    let service = TestService::start(POLICY);
    let unknown_field = "unknown field `rules`, expected one of `rule`";
    let long = format!(r#"{{"rule":"{}"}}"#, "x".repeat(64 << 10));
    let too_long = format!(r#"{{"rule":"{}"}}"#, "x".repeat(1 << 20));
    for (method, path, headers, body, status, detail) in [
        ("POST", "/v1/none", "", BOB, 404, "/openapi.json"),
        ("POST", "/v1/check/", "", BOB, 404, "/openapi.json"),
        ("GET", "/v1/check", "", "", 405, "Use POST"),
        ("POST", "/openapi.json", "", "", 405, "Use GET, HEAD"),
        ("DELETE", "/healthz", "", "", 405, "Use GET, HEAD"),
        ("POST", "/v1/check", "Content-Type: text/plain\r\n", BOB, 415, "application/json"),
        ("POST", "/v1/peek", "", &long, 413, "64 KiB"),
        ("POST", "/v1/check", "", &long, 413, "64 KiB"),
        ("POST", "/v1/check", "", &too_long, 413, "1024 KiB"),
        ("POST", "/v1/check", "", "", 400, "line 1 column 0"),
        ("POST", "/v1/check", "", "{\n \"rule\": }", 400, "line 2 column 10"),
        ("POST", "/v1/check", "", r#"{"rules":"default"}"#, 400, unknown_field),
        ("POST", "/v1/check", "", r#"{"rule":"default","rule":"default"}"#, 400, "duplicate field"),
        ("POST", "/v1/check", "", r#"{"rule":"default","client":"user:bob","cost":-1}"#, 400, "integer `-1`"),
        ("POST", "/v1/check", "", r#"{"rule":"default","client":7}"#, 400, "a client like"),
        ("POST", "/v1/check", "", r#"{"rule":"default","client":"bob"}"#, 400, "user:bob"),
        ("POST", "/v1/check", "", r#"{"rule":"default","client":"usr:bob"}"#, 400, "`user:…`"),
        (
            "POST",
            "/v1/check",
            "",
            r#"{"rule":"default","client":"user:b","cost":9007199254740992}"#,
            400,
            "cost",
        ),
        ("POST", "/v1/check", "", r#"{"rule":"none","client":"user:bob"}"#, 404, "`none`"),
        ("POST", "/v1/refund", "", r#"{"rule":"none","client":"user:bob"}"#, 404, "`none`"),
        ("POST", "/v1/reset", "", r#"{"client":"user:bob"}"#, 400, "missing field `rule`"),
        ("POST", "/v1/commit", "", r#"{"reservation":"x"}"#, 400, "missing field `cost`"),
    ] {
        let response = service.http(method, path, headers, body);
        let what = format!("{method} {path} {body:.80}: {response:?}");
        assert_eq!(response.status, status, "{what}");
        assert!(response.header("content-type").is_some_and(|it| it.ends_with("problem+json")), "{what}");
        let problem = response.json();
        assert_eq!(problem["status"], status, "{what}");
        assert!(problem["detail"].as_str().is_some_and(|text| text.contains(detail)), "{what}");
        if status == 405 {
            assert!(response.header("allow").is_some(), "{what}");
        }
    }
}

#[test]
fn content_type_with_parameters_or_absent_is_accepted() {
    let service = TestService::start(POLICY);
    for headers in ["", "Content-Type: Application/JSON; charset=utf-8\r\n"] {
        assert_eq!(service.http("POST", "/v1/check", headers, BOB).status, 200);
    }
}

#[test]
fn token_is_required_except_for_health() {
    let policy =
        format!("{POLICY}\nservice: {{ http: {{ address: '127.0.0.1:8082', token_file: service.token }} }}");
    let files = BTreeMap::from([("service.token".to_owned(), TOKEN.as_bytes().to_vec())]);
    let service = TestService::start_with_files(&policy, &files);
    for path in ["/healthz", "/readyz"] {
        let response = service.http("GET", path, "", "");
        assert_eq!((response.status, response.text().as_str()), (200, "ok\n"));
    }
    let right = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(service.http("POST", "/v1/check", &right, BOB).status, 200);
    assert_eq!(service.http("GET", "/openapi.json", &right, "").status, 200);
    let wrong = [
        String::new(),
        format!("Authorization: {TOKEN}\r\n"),
        format!("Authorization: Basic {TOKEN}\r\n"),
        format!("Authorization: Bearer {TOKEN}x\r\n"),
        "Authorization: Bearer\r\n".to_owned(),
        format!("{right}{right}"),
        format!("X-Tidegate-Token: {TOKEN}\r\n"),
    ];
    for headers in &wrong {
        let response = service.http("POST", "/v1/check", headers, BOB);
        assert_eq!(response.status, 401, "{headers}: {response:?}");
        assert_eq!(response.header("www-authenticate"), Some("Bearer"));
    }
    // The original client's token is not that of the listener, and the other way round.
    let original =
        "X-Original-Method: GET\r\nX-Original-URI: /\r\nX-Original-Host: a\r\nX-Real-IP: 192.0.2.1\r\n";
    let authorize =
        |headers: &str| service.http("GET", "/v1/authorize", &format!("{original}{headers}"), "").status;
    assert_eq!(authorize(&right), 401);
    assert_eq!(authorize(&format!("X-Tidegate-Token: {TOKEN}\r\nAuthorization: Bearer other\r\n")), 200);
    assert_eq!(authorize(&format!("X-Tidegate-Token: {TOKEN}\r\nX-Tidegate-Token: {TOKEN}\r\n")), 401);
}
