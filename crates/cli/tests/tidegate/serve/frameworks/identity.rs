//! Identity: the key and the user that a framework sees are those that were counted.

use serde_json::{Value, json};
use tidegate_testkit::message::Response;
use tidegate_testkit::process::{PolicyFile, Tidegate};

use super::{App, Framework, get, get_http2};

const LIMIT: u64 = 3;

/// Headers that name the key `spent` in some way, or try to be another client without a key.
const HEADERS: &[&str] = &[
    "",
    "X-API-Key: spent\r\n",
    "x-api-key:spent\r\n",
    "X-API-Key: \t spent \t\r\n",
    "X-API-Key: spent\r\nX-API-Key: spent\r\n",
    "X-API-Key: spent\r\nX-API-Key: good\r\n",
    "X-API-Key: good\r\nX-API-Key: spent\r\n",
    "X-API-Key: good\r\nX-Other: a\r\nx-api-key: spent\r\n",
    "X-API-Key: good, spent\r\n",
    "X-API-Key: spent,good\r\n",
    "X-API-Key: spent,\r\n",
    "X-API-Key:\r\nX-API-Key: spent\r\n",
    "X-API-Key : spent\r\n",
    "X-API-Key:\r\n spent\r\n",
    "X-API-Key: SPENT\r\n",
    "X-API-Key: \"spent\"\r\n",
    "X-API-Key: unknown\r\n",
    "X_API_Key: spent\r\n",
    "X_API_KEY: good\r\n",
    "X-API_Key: good\r\n",
    "X-API-Key: spent\r\nX_API_Key: good\r\n",
    "X_API_Key: good\r\nX-API-Key: spent\r\n",
    "X-User-Id: another\r\n",
    "X_User_Id: another\r\n",
    "X-User-Id: another\r\nX-User-Id: third\r\n",
    "X-API-Key: spent\r\nX-User-Id: another\r\n",
    "X-Forwarded-For: 192.0.2.1\r\n",
    "Forwarded: for=192.0.2.1\r\n",
];

type Fields = &'static [(&'static str, &'static str)];

/// The same over HTTP/2, where values arrive with the spaces around them.
const FIELDS: &[Fields] = &[
    &[],
    &[("x-api-key", "spent")],
    &[("x-api-key", " spent")],
    &[("x-api-key", "spent ")],
    &[("x-api-key", "\tspent")],
    &[("x-api-key", "spent\t ")],
    &[("x-api-key", "spent"), ("x-api-key", "good")],
    &[("x-api-key", "good"), ("x-api-key", "spent")],
    &[("x-api-key", "good,spent")],
    &[("x_api_key", "good")],
    &[("x_api_key", "good"), ("x-api-key", "spent")],
    &[("x-user-id", "another")],
];

/// Headers with which the key `good` is counted and is all that the framework sees, unless the gateway answers 400.
const GOOD: &[&str] = &[
    "X-API-Key: good\r\n",
    "x-api-key:good\r\n",
    "X-API-Key: \t good \t\r\n",
    "X-API-Key: good\r\nX_API_Key: spent\r\n",
    "X_API_Key: spent\r\nX-API-Key: good\r\n",
    "X-API-Key: good\r\nX-User-Id: admin\r\n",
    "X-API-Key: good\r\nX_User_Id: admin\r\n",
    "X-API-Key: good\r\nConnection: X-API-Key\r\n",
];

const GOOD_FIELDS: &[Fields] = &[
    &[("x-api-key", "good")],
    &[("x-api-key", " good")],
    &[("x-api-key", "good ")],
    &[("x-api-key", "\tgood\t")],
    &[("x-api-key", "good"), ("x_api_key", "spent")],
    &[("x-api-key", "good"), ("x-user-id", "admin")],
];

fn start(framework: Framework, clients: &str) -> (App, PolicyFile, Tidegate) {
    let app = App::start(framework);
    let policy = PolicyFile::new("");
    std::fs::write(policy.beside("keys.csv"), "good,large\nspent,small\n").unwrap();
    let limit = |requests| format!("{{ requests: {requests}, window: 1h, algorithm: fixed_window }}");
    let limits = format!(
        "rate_limits: {{ default: {small}, tiers: {{ small: {small}, large: {large} }} }}",
        small = limit(LIMIT),
        large = limit(1_000)
    );
    let server = app.behind(&policy, &format!("clients: {clients}\n{limits}"));
    (app, policy, server)
}

/// Uses up what is left for a client.
fn spend(address: &str, headers: &str) {
    for _ in 0..LIMIT {
        get(address, "/identity", headers);
    }
    assert_eq!(get(address, "/identity", headers).status, 429, "{headers}");
}

fn seen(response: &Response) -> (Value, u64) {
    (response.json(), response.remaining())
}

const CLIENTS: &str =
    "{ identify_by: [api_key, user, ip], user: { header: X-User-Id }, tiers: { file: keys.csv } }";

/// Describes the problem if a request with the key `good` neither gets 400 nor is counted for the key that the app sees.
fn check_good_key(address: &str, send: impl FnOnce() -> (u16, String)) -> Option<String> {
    let remaining = || get(address, "/identity", "X-API-Key: good\r\n").remaining();
    let before = remaining();
    let (status, body) = send();
    let counted = before - remaining() - 1;
    let sees_good =
        serde_json::from_str(&body).is_ok_and(|seen: Value| seen == json!({ "key": "good", "user": null }));
    let is_consistent = match status {
        200 => sees_good && counted == 1,
        status => status == 400 && counted == 0,
    };
    (!is_consistent).then(|| format!("is answered {status} {}, counted {counted} times", body.trim_end()))
}

fn check(framework: Framework) {
    let (_app, _policy, server) = start(framework, CLIENTS);
    let address = server.address.as_str();
    let mut wrong = Vec::new();
    for headers in GOOD {
        let send = || {
            let response = get(address, "/identity", headers);
            (response.status, response.text())
        };
        wrong.extend(check_good_key(address, send).map(|what| format!("{headers:?} {what}")));
    }
    for fields in GOOD_FIELDS {
        // A stream that is reset is rejected, too.
        let send = || get_http2(address, "/identity", fields).unwrap_or((400, String::new()));
        wrong.extend(check_good_key(address, send).map(|what| format!("{fields:?} over HTTP/2 {what}")));
    }
    spend(address, "X-API-Key: spent\r\n");
    spend(address, "");
    for headers in HEADERS {
        let response = get(address, "/identity", headers);
        if ![400, 429].contains(&response.status) {
            wrong.push(format!("{headers:?} is answered {} {}", response.status, response.text()));
        }
    }
    for fields in FIELDS {
        if let Some((200, body)) = get_http2(address, "/identity", fields) {
            wrong.push(format!("{fields:?} over HTTP/2 is answered {body}"));
        }
    }
    assert!(wrong.is_empty(), "{framework:?}: {wrong:#?}");
}

#[test]
fn express_identity_counted_is_the_identity_seen() {
    check(Framework::Express);
}

#[test]
fn fastapi_identity_counted_is_the_identity_seen() {
    check(Framework::FastApi);
}

#[test]
fn flask_identity_counted_is_the_identity_seen() {
    check(Framework::Flask);
}

#[test]
fn flask_user_of_a_trusted_proxy_is_the_user_seen() {
    let clients =
        "{ identify_by: [user, ip], user: { header: X-User-Id }, ip: { trusted_proxies: [127.0.0.1] } }";
    let (_app, _policy, server) = start(Framework::Flask, clients);
    let get_identity = |headers| get(&server.address, "/identity", headers);
    let user = |name, remaining| (json!({ "key": null, "user": name }), remaining);
    assert_eq!(seen(&get_identity("X-User-Id: one\r\n")), user("one", LIMIT - 1));
    assert_eq!(seen(&get_identity("X-User-Id: two\r\nX_User_Id: one\r\n")), user("two", LIMIT - 1));
    assert_eq!(get_identity("X-User-Id: three\r\nX-User-Id: one\r\n").status, 400);
    assert_eq!(seen(&get_identity("X-User-Id: one\r\n")), user("one", LIMIT - 2));
}

#[test]
fn flask_clients_without_a_keys_file_are_counted_by_address() {
    let (_app, _policy, server) = start(Framework::Flask, "{ tiers: { default: small } }");
    let statuses = (0..6).map(|n| {
        let response = get(&server.address, "/identity", &format!("X-API-Key: invented-{n}\r\n"));
        response.status.to_owned()
    });
    let statuses: Vec<_> = statuses.collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429, 429]);
}

#[test]
fn flask_invalid_key_is_handled_as_the_policy_says() {
    let clients = |mode| format!("{{ tiers: {{ file: keys.csv }}, on_invalid: {mode} }}");
    let (_app, policy, server) = start(Framework::Flask, &clients("remove"));
    let get_identity =
        |server: &Tidegate, key| get(&server.address, "/identity", &format!("X-API-Key: {key}\r\n"));
    assert_eq!(seen(&get_identity(&server, "invented")).0, json!({ "key": null, "user": null }));
    assert_eq!(seen(&get_identity(&server, "good")).0["key"], "good");
    drop(server);
    let removing = std::fs::read_to_string(policy.path()).unwrap();
    policy.write(&removing.replace("on_invalid: remove", "on_invalid: reject"));
    let server = crate::program::serve(&["--config", &policy.path()]);
    let rejected = get_identity(&server, "invented");
    assert_eq!((rejected.status, rejected.header("www-authenticate")), (401, Some("ApiKey")), "{rejected:?}");
    assert_eq!(rejected.json()["error"], "unauthorized");
    assert_eq!(seen(&get_identity(&server, "good")).0["key"], "good");
}
