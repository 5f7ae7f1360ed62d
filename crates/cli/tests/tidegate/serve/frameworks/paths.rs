//! Paths: whatever a framework takes for the limited endpoint is limited, and other paths arrive as they are.

use serde_json::{Value, json};
use tidegate_testkit::process::{PolicyFile, Tidegate};

use super::{App, Framework, get, get_http2, send};

/// How many calls an hour the login handler may get.
const LIMIT: u64 = 5;

/// Targets that some server, framework or file system takes for `/api/login`.
const SPELLINGS: &[&str] = &[
    "/api/login",
    "/api/login?a=b",
    "/api/login?",
    "/api/login/",
    "/api/login//",
    "/API/LOGIN",
    "/Api/Login",
    "/api/LOGIN/",
    "//api/login",
    "///api///login",
    "/api//login",
    "/./api/login",
    "/api/./login",
    "/api/login/.",
    "/a/../api/login",
    "/api/a/../login",
    "/../api/login",
    "/a/%2e%2e/api/login",
    "/a/%2E./api/login",
    "/api/%6cogin",
    "/api/%6C%6FGIN",
    "/%61%70%69/%6c%6f%67%69%6e",
    "/%41PI/login",
    "/api/%256cogin",
    "/api%2Flogin",
    "/api%2flogin",
    "/%2Fapi/login",
    "/api/login%2F",
    "/a/..%2Fapi/login",
    "/api%5Clogin",
    "/api%5clogin",
    "/api\\login",
    "/a/..\\api/login",
    "/api/login%0A",
    "/api/login%0D%0A",
    "/api/login%00",
    "/api/login%09",
    "/api/login%7F",
    "/api/login%20",
    "/api/login.",
    "/api/login%2E",
    "/api/login;a=b",
    "/api/login;",
    "/api;a=b/login",
    "/;a=b/api/login",
    "/..;/api/login",
    "/api/login%3Ba=b",
    "/api/login%3Fa",
    "/api/login%23a",
    "/api/login#a",
    "/api%c0%aflogin",
    "http://a/api/login",
    "http://a//API/%6Cogin;a",
    "HTTP://A/api/login/",
];

/// Requests that differ in more than the target.
const REQUESTS: &[&str] = &[
    "POST /api/login HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    "PUT /api/LOGIN HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    "HEAD /api/login HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "get /api/login HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /api/login HTTP/1.0\r\n\r\n",
    "GET /api/login HTTP/1.1\r\nHost: another.example\r\n\r\n",
    "GET /api/login HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n",
    "GET /api/login HTTP/1.1\r\nHost: a\r\nX-API-Key: another\r\n\r\n",
    "GET /calls HTTP/1.1\r\nHost: a\r\nX-Original-URL: /api/login\r\nX-Rewrite-URL: /api/login\r\n\r\n",
];

/// Targets of other handlers, and what they must see.
fn valid() -> Vec<(&'static str, Value)> {
    let item = |id, query| json!({ "id": id, "query": query });
    vec![
        ("/items/42", item("42", "")),
        ("/items/Case", item("Case", "")),
        ("/items/a:b@c", item("a:b@c", "")),
        ("/items/a+b", item("a+b", "")),
        ("/items/a%20b", item("a b", "")),
        ("/items/a%2Bb", item("a+b", "")),
        ("/items/%E2%82%AC", item("€", "")),
        ("/items/100%25", item("100%", "")),
        ("/items/~a.b-c_d!$&'()*,=", item("~a.b-c_d!$&'()*,=", "")),
        ("/items/%61bc", item("abc", "")),
        ("/items/1?q=a%2Fb&r=c+d&s=%0A", item("1", "q=a%2Fb&r=c+d&s=%0A")),
        ("/items/1?path=/../a//b;c", item("1", "path=/../a//b;c")),
        ("/list/", json!({ "path": "/list/" })),
    ]
}

fn start(framework: Framework) -> (App, PolicyFile, Tidegate) {
    let app = App::start(framework);
    let policy = PolicyFile::new("");
    let limit = format!("requests: {LIMIT}, window: 1h, algorithm: fixed_window");
    let server =
        app.behind(&policy, &format!("rate_limits: {{ endpoints: {{ /api/login: {{ {limit} }} }} }}"));
    (app, policy, server)
}

fn check_spellings(framework: Framework) {
    let (app, _policy, server) = start(framework);
    let address = server.address.as_str();
    for _ in 0..LIMIT {
        assert_eq!(get(address, "/api/login", "").status, 200);
    }
    assert_eq!(get(address, "/api/login", "").status, 429);
    assert_eq!(app.calls(), LIMIT);
    let mut evading = Vec::new();
    let mut calls = LIMIT;
    let mut check = |spelling: &str| {
        let now = app.calls();
        if now > calls {
            evading.push(spelling.to_owned());
        }
        calls = now;
    };
    for target in SPELLINGS {
        get(address, target, "");
        check(target);
    }
    for target in SPELLINGS.iter().filter(|target| target.starts_with('/')) {
        get_http2(address, target, &[]);
        check(&format!("{target} over HTTP/2"));
    }
    for request in REQUESTS {
        send(address, request);
        check(request);
    }
    assert!(evading.is_empty(), "{} spellings evade the limit of {framework:?}: {evading:#?}", evading.len());
}

fn check_valid(framework: Framework) {
    let (_app, _policy, server) = start(framework);
    for (target, expected) in valid() {
        let response = get(&server.address, target, "");
        assert_eq!(response.status, 200, "{framework:?} {target}: {response:?}");
        assert_eq!(response.json(), expected, "{framework:?} {target}");
        let (status, body) = get_http2(&server.address, target, &[]).expect("a response");
        assert_eq!(
            (status, serde_json::from_str(&body).ok()),
            (200, Some(expected)),
            "{framework:?} {target}"
        );
    }
}

#[test]
fn spellings_of_a_limited_endpoint_are_at_least_40() {
    assert!(SPELLINGS.len() >= 40 && valid().len() >= 12);
}

#[test]
fn express_endpoint_limit_counts_every_spelling() {
    check_spellings(Framework::Express);
}

#[test]
fn fastapi_endpoint_limit_counts_every_spelling() {
    check_spellings(Framework::FastApi);
}

#[test]
fn flask_endpoint_limit_counts_every_spelling() {
    check_spellings(Framework::Flask);
}

#[test]
fn express_handlers_see_valid_paths_unchanged() {
    check_valid(Framework::Express);
}

#[test]
fn fastapi_handlers_see_valid_paths_unchanged() {
    check_valid(Framework::FastApi);
}

#[test]
fn flask_handlers_see_valid_paths_unchanged() {
    check_valid(Framework::Flask);
}
