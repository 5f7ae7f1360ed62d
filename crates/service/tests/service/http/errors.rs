//! Errors: paths, methods, tokens, content types, sizes, JSON.

use std::collections::BTreeMap;

use super::POLICY;
use crate::fixture::TestService;

const BOB: &str = r#"{"rule":"default","client":"user:bob"}"#;
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// The request is answered with this status and a problem whose `detail` contains the text.
#[track_caller]
fn assert_problem(
    service: &TestService,
    (method, path, body): (&str, &str, &str),
    status: u16,
    detail: &str,
) {
    let response = service.http(method, path, "Content-Type: application/json\r\n", body);
    let what = format!("{method} {path} {body:.80}: {response:?}");
    assert_eq!(response.status, status, "{what}");
    assert!(response.header("content-type").is_some_and(|it| it.ends_with("problem+json")), "{what}");
    let problem = response.json();
    assert_eq!(problem["status"], status, "{what}");
    assert!(problem["detail"].as_str().is_some_and(|text| text.contains(detail)), "{what}");
    assert_eq!(response.header("allow").is_some(), status == 405, "{what}");
}

#[test]
fn error_of_a_path_method_or_size_is_a_problem_that_says_what_to_do() {
    let service = TestService::start(POLICY);
    let long = format!(r#"{{"rule":"{}"}}"#, "x".repeat(64 << 10));
    let too_long = format!(r#"{{"rule":"{}"}}"#, "x".repeat(1 << 20));
    for (method, path, body, status, detail) in [
        ("POST", "/v1/none", BOB, 404, "/openapi.json"),
        ("POST", "/v1/check/", BOB, 404, "/openapi.json"),
        ("GET", "/v1/check", "", 405, "Use POST"),
        ("POST", "/openapi.json", "", 405, "Use GET, HEAD"),
        ("DELETE", "/healthz", "", 405, "Use GET, HEAD"),
        ("POST", "/v1/peek", &long, 413, "64 KiB"),
        ("POST", "/v1/check", &long, 413, "64 KiB"),
        ("POST", "/v1/check", &too_long, 413, "1024 KiB"),
    ] {
        assert_problem(&service, (method, path, body), status, detail);
    }
}

#[test]
fn error_of_a_body_is_a_problem_that_says_what_to_do() {
    let service = TestService::start(POLICY);
    for (path, body, status, detail) in [
        ("check", "", 400, "Invalid JSON: EOF while parsing a value at line 1 column 0"),
        ("check", "{\n \"rule\": }", 400, "line 2 column 10"),
        ("check", r#"{"rules":"default"}"#, 400, "unknown field `rules`, expected one of `rule`"),
        ("check", r#"{"rule":"default","rule":"default"}"#, 400, "duplicate field"),
        ("check", r#"{"rule":"default","cost":-1}"#, 400, "integer `-1`, expected a whole number"),
        ("check", r#"{"rule":"default","cost":"1"}"#, 400, "Invalid request: invalid type: string"),
        ("check", r#"{"rule":"default","client":7}"#, 400, "a client like"),
        ("check", r#"{"rule":"default","client":"bob"}"#, 400, "user:bob"),
        ("check", r#"{"rule":"default","client":"usr:bob"}"#, 400, "`user:…`"),
        ("check", r#"{"rule":"default","client":"foo:bob"}"#, 400, "unknown client kind"),
        ("check", r#"{"rule":"default","client":"user:b","cost":9007199254740992}"#, 400, "cost"),
        ("check", r#"{"rule":"none","client":"user:bob"}"#, 404, "named `none`. It has `default`, `by-pair`"),
        ("refund", r#"{"rule":"none","client":"user:bob"}"#, 404, "`none`"),
        ("reset", r#"{"client":"user:bob"}"#, 400, "missing field `rule`"),
        ("commit", r#"{"reservation":"x"}"#, 400, "missing field `cost`"),
        ("commit", r#"{"reservation":"x","cost":null}"#, 400, "`cost` is null"),
    ] {
        assert_problem(&service, ("POST", &format!("/v1/{path}"), body), status, detail);
    }
}

#[test]
fn client_with_a_long_name_is_rejected() {
    let service = TestService::start(POLICY);
    let reserve = |length: usize| {
        let body = format!(r#"{{"rule":"default","client":"user:{}"}}"#, "x".repeat(length));
        service.post("/v1/reserve", &body)
    };
    assert_eq!(reserve(1_024).status, 200);
    let rejected = reserve(1_025);
    assert_eq!(rejected.status, 400, "{rejected:?}");
    assert!(rejected.json()["detail"].to_string().contains("at most 1024 bytes"), "{rejected:?}");
}

#[test]
fn content_type_json_is_accepted_and_no_other() {
    let service = TestService::start(POLICY);
    let json = "Content-Type: Application/JSON; charset=utf-8\r\n";
    assert_eq!(service.http("POST", "/v1/check", json, BOB).status, 200);
    let text = "Content-Type: text/plain\r\n";
    // A web page may send all of these to any server.
    for headers in ["", text, "Content-Type: text/plain; application/json\r\n", &format!("{json}{text}")] {
        for path in ["/v1/check", "/v1/reset", "/json"] {
            let response = service.http("POST", path, headers, BOB);
            assert_eq!(response.status, 415, "{path} {headers}: {response:?}");
            assert!(response.json()["detail"].to_string().contains("Content-Type: application/json"));
        }
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
    let json = format!("{right}Content-Type: application/json\r\n");
    assert_eq!(service.http("POST", "/v1/check", &json, BOB).status, 200);
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

#[test]
fn token_of_a_new_policy_replaces_the_old_one() {
    let policy =
        format!("{POLICY}\nservice: {{ http: {{ address: '127.0.0.1:8082', token_file: service.token }} }}");
    let file = |token: &str| BTreeMap::from([("service.token".to_owned(), token.as_bytes().to_vec())]);
    let new = TOKEN.replace('0', "f");
    let service = TestService::start_with_files(&policy, &file(TOKEN));
    let status = |token: &str| {
        let headers = format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\n");
        service.http("POST", "/v1/check", &headers, BOB).status
    };
    assert_eq!((status(TOKEN), status(&new)), (200, 401));
    service.apply_policy(&policy, &file(&new));
    assert_eq!((status(TOKEN), status(&new)), (401, 200));
}
