//! Tokens and cookies: the user and the session that a service reads are those that were counted.

use std::collections::BTreeMap;

use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::{Value, json};
use tidegate_testkit::client::Connection;
use tidegate_testkit::message::Response;
use tidegate_testkit::process::{PolicyFile, Tidegate};

use super::{App, Framework, TOKEN_SECRET};

const BEFORE: &[&[u8]] = &[
    b"",
    b"Bearer ",
    b"bearer  ",
    b"Bearer\t",
    b"Bearer\xa0",
    b"\xa0Bearer ",
    b"X ",
    b"X y, Bearer ",
    b"Bearer:",
    b"1234567",
    b"Bearer Bearer ",
    b"Basic YTpi, Bearer ",
    b"Token token=\"",
    b"x.y.",
    b"eyJ",
];
const AFTER: &[&[u8]] =
    &[b"", b"=", b"=AAAA", b"AAAA", b"!", b" x", b", x", b"\"", b".x", b"\xa0", b"==, Bearer x"];

/// Cookies that some framework reads as the session `abc123`.
const COOKIES: &[&[u8]] = &[
    b"session=abc123",
    b"session=%61bc123",
    b"session=\"abc123\"",
    b"session=\"%61bc123\"",
    b"session=\"\\141bc123\"",
    b"session=\"abc1234",
    b"session=abc123\xa0",
    b"\xa0session=abc123",
    b"session =abc123",
    b"a=b;session=abc123",
    b"session=%2561bc123",
];

fn token(claims: &Value) -> String {
    encode(&Header::default(), claims, &EncodingKey::from_secret(TOKEN_SECRET.as_bytes())).unwrap()
}

/// Tokens of the user `ann`, with and without valid times.
fn tokens() -> [String; 4] {
    const FAR: u64 = 4_000_000_000;
    let times =
        [json!({ "exp": FAR }), json!({ "exp": 7 }), json!({}), json!({ "exp": FAR, "nbf": FAR - 1 })];
    times.map(|times| {
        let mut claims = json!({ "sub": "ann" });
        claims.as_object_mut().unwrap().extend(times.as_object().unwrap().clone());
        token(&claims)
    })
}

/// Values of `Authorization` in which some service finds a token of `ann`.
fn spellings() -> Vec<Vec<u8>> {
    let (tokens, mut spellings) = (tokens(), Vec::new());
    for (n, before) in BEFORE.iter().enumerate() {
        for (m, after) in AFTER.iter().enumerate() {
            spellings.push([before, tokens[(n + m) % tokens.len()].as_bytes(), after].concat());
        }
    }
    let bob = token(&json!({ "sub": "bob" }));
    for ann in &tokens {
        let (head, tail) = ann.split_at(20);
        spellings.push(format!("{head}Bearer {tail}").into_bytes());
        spellings.push(format!("Bearer {head} {tail}").into_bytes());
        spellings.push(format!("Bearer {ann}, Bearer {bob}").into_bytes());
        spellings.push(format!("Bearer {bob} {ann}").into_bytes());
        spellings.push([ann.as_str(); 5].join(",").into_bytes());
    }
    spellings
}

fn send(address: &str, name: &str, value: &[u8]) -> Response {
    let head = format!("GET /token HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{name}: ");
    let request = [head.as_bytes(), value, b"\r\n\r\n"].concat();
    Connection::open(address).unwrap().send(&request).unwrap()
}

fn start(framework: Framework) -> (App, PolicyFile, Tidegate) {
    let app = App::start(framework);
    let policy = PolicyFile::new("");
    std::fs::write(policy.beside("jwt.secret"), TOKEN_SECRET).unwrap();
    let server = app.behind(
        &policy,
        "clients:
  identify_by: [user, cookie, ip]
  user: { jwt: { secret_file: jwt.secret } }
  cookie: { name: session }
rate_limits: { default: { requests: 100_000, window: 1h, algorithm: fixed_window } }",
    );
    (app, policy, server)
}

/// Every value in which the service reads this `subject`, but which was neither counted for it nor rejected.
fn evading(address: &str, (name, plain): (&str, &[u8]), values: &[Vec<u8>], subject: &Value) -> Vec<String> {
    let mut remaining = send(address, name, plain).remaining();
    let (mut evading, mut statuses) = (Vec::new(), BTreeMap::new());
    for value in values {
        let response = send(address, name, value);
        *statuses.entry(response.status).or_insert(0) += 1;
        let before = std::mem::replace(&mut remaining, send(address, name, plain).remaining());
        let counted = before - remaining - 1;
        let seen = response.json();
        let (seen, is_seen) = match name {
            "Cookie" => (seen["session"].clone(), seen["session"] == *subject),
            _ => (seen["users"].clone(), seen["users"] != json!([])),
        };
        let is_right = match response.status {
            200 => !is_seen || seen == *subject && counted == 1,
            status => [400, 401].contains(&status),
        };
        if !is_right {
            evading.push(format!("{} reads {seen}, counted {counted}", value.escape_ascii()));
        }
    }
    let has_both = statuses.contains_key(&200) && statuses.contains_key(&400);
    assert!(has_both || !evading.is_empty(), "{statuses:?}");
    evading
}

fn check(framework: Framework) {
    let (_app, _policy, server) = start(framework);
    let address = server.address.as_str();
    let plain = format!("Bearer {}", tokens()[0]);
    let users = evading(address, ("Authorization", plain.as_bytes()), &spellings(), &json!(["ann"]));
    let cookies: Vec<_> = COOKIES.iter().map(|cookie| cookie.to_vec()).collect();
    let sessions = evading(address, ("Cookie", b"session=abc123"), &cookies, &json!("abc123"));
    assert!(users.is_empty() && sessions.is_empty(), "{framework:?}: {users:#?} {sessions:#?}");
}

#[test]
fn express_user_and_session_counted_are_those_seen() {
    check(Framework::Express);
}

#[test]
fn fastapi_user_and_session_counted_are_those_seen() {
    check(Framework::FastApi);
}

#[test]
fn flask_user_and_session_counted_are_those_seen() {
    check(Framework::Flask);
}
