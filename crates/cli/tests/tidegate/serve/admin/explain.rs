//! `explain` and the gateway give the same result for the same request.

use serde_json::{Value, json};
use tidegate_testkit::client::request;
use tidegate_testkit::process::PolicyFile;
use tidegate_testkit::server::echo;

use super::AdminGateway;
use crate::serve::log::lines;

const SECRET: &str = "a secret of more than sixteen bytes\n";

/// Tokens signed with [`SECRET`], unless their name says otherwise. `VALID` and `BANNED` expire in 2100.
const VALID: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJleHAiOjQxMDI0NDQ4MDB9.wLGWs0A0Zt3iCHZHMNqgvOSIyQItiHM_kDm5hAXgTX4";
const BANNED: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJtYWxsb3J5IiwiZXhwIjo0MTAyNDQ0ODAwfQ.kGFltv-rvOoMHSRimwOEbNGG10hLw08jP2jFTVTPYMg";
const EXPIRED: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJleHAiOjF9.1yYPrjVTze2tdLWB1AKc-jxzXaUqI-LmlPhqj8feq64";
const NO_EXPIRY: &str =
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4ifQ.e6DKsshciTsQeTEBx-EQsgYCQrefw7DpTVxue2PLJ8c";
const TOO_EARLY: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJleHAiOjQxMDI0NDQ4MDAsIm5iZiI6NDEwMjQ0NDc5MX0.hoz3t5QKQbxHXGhnrpgsvmyYiPs8hPRdCl7Tl-lmp6A";
const FORGED: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJleHAiOjQxMDI0NDQ4MDB9.JcnHgBBeNp-hxgg-vdaE2uM9J_EvF6zFe5zozMo7wJE";
const NO_KEY: &str = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbm4iLCJleHAiOjQxMDI0NDQ4MDB9.JBLJfCxb2px0tvTrOmbSmhOsYBhnDEVFtsIHUmm8uW0";
const NO_CLAIM: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJleHAiOjQxMDI0NDQ4MDB9.dn-AYZ9xxhwMUy7KYutJxWh8855rusO1SaN9TaEoYTo";

fn policy() -> String {
    const LIMIT: &str = "requests: 1000, window: 1h, algorithm: fixed_window";
    let upstream = echo();
    format!(
        "
upstreams: {{ api: {{ servers: ['http://{upstream}'] }} }}
admin: {{ listen: '127.0.0.1:0' }}
log: {{ access: all, to: access.log }}
routes:
  - {{ host: api.example.org, upstream: api }}
  - {{ host: '*.example.org', path: '/v1/**', upstream: api }}
  - {{ path: '/files/**', upstream: api, http: {{ encoded_slash: keep, path_case: sensitive }} }}
  - {{ path: '/decoded/**', upstream: api, http: {{ encoded_slash: decode }} }}
  - {{ path: /login, upstream: api }}
clients:
  identify_by: [api_key, user, ip]
  user: {{ jwt: {{ secret_file: jwt.secret }} }}
  tenant: {{ header: X-Tenant }}
  ip: {{ trusted_proxies: [127.0.0.0/8] }}
  tiers: {{ file: keys.csv }}
  exempt: {{ networks: [198.51.100.0/24], api_keys_file: friends.txt }}
bans: {{ networks: [203.0.113.0/24] }}
rate_limits:
  default: {{ {LIMIT} }}
  tenant: {{ {LIMIT} }}
  tiers: {{ free: {{ {LIMIT} }}, premium: unlimited }}
  endpoints:
    /login: {{ {LIMIT} }}
    POST /login: {{ {LIMIT} }}
    '/v1/orders/{{id}}': {{ {LIMIT} }}
    /files/Secret: {{ {LIMIT} }}
    /files/a/b: {{ {LIMIT} }}
    /decoded/a/b: {{ {LIMIT} }}
  rules:
    - {{ name: costly, match: {{ when: \"'x-cost' in request.headers\" }}, cost: {{ header: X-Cost }}, {LIMIT} }}
    - {{ name: host, match: {{ when: \"request.host == 'api.example.org'\" }}, per: everybody, {LIMIT} }}
    - {{ name: path, match: {{ when: \"request.path.startsWith('/v1/')\" }}, {LIMIT} }}
    - {{ name: writes, match: {{ method: [POST, PUT], path: '/v1/**' }}, per_each: [ip, user], {LIMIT} }}
    - {{ name: watched, match: {{ path: /login }}, mode: shadow, {LIMIT} }}
"
    )
}

/// A method, a request target, and a header.
type Line = (&'static str, &'static str, (&'static str, &'static str));

/// A request.
struct Case {
    method: &'static str,
    target: &'static str,
    headers: Vec<(&'static str, String)>,
}

const API: (&str, &str) = ("Host", "api.example.org");

/// Methods, hosts and paths.
const LINES: [Line; 58] = [
    ("GET", "/", API),
    ("HEAD", "/v1/orders/7", API),
    ("POST", "/v1/orders/7", API),
    ("PUT", "/v1/orders/7?a=b", API),
    ("DELETE", "/v1/orders/7/items", API),
    ("OPTIONS", "/v1/orders/7", API),
    ("BREW", "/v1", API),
    ("get", "/", API),
    ("Post", "/login", API),
    ("CONNECT", "/", API),
    ("OPTIONS", "*", API),
    ("GET", "*", API),
    ("GET", "/", ("Host", "API.example.org")),
    ("GET", "/", ("Host", "api.example.org.")),
    ("GET", "/", ("Host", "Api.Example.Org.:8080")),
    ("GET", "/", ("Host", "www.example.org")),
    ("GET", "/v1/x", ("Host", "www.example.org")),
    ("GET", "/v1/x", ("Host", "WWW.EXAMPLE.ORG.")),
    ("GET", "/v1/x", ("Host", "example.org")),
    ("GET", "/login", ("Host", "[::1]:80")),
    ("GET", "/login", ("Host", "[::1")),
    ("GET", "/login", ("Host", "a..b")),
    ("GET", "/login", ("Host", "u@a")),
    ("GET", "/login", ("Host", "")),
    ("GET", "http://api.example.org/login?x", ("Host", "other")),
    ("GET", "http://API.example.org", ("Host", "other")),
    ("GET", "http://u@api.example.org/", ("Host", "other")),
    ("POST", "/login", API),
    ("POST", "/login", ("Host", "other")),
    ("POST", "/LOGIN", API),
    ("GET", "/LOGIN", ("Host", "other")),
    ("GET", "//login", API),
    ("GET", "/x/../login", API),
    ("GET", "/%6cogin;v=1", API),
    ("GET", "/login/", ("Host", "other")),
    ("GET", "/login#top", ("Host", "other")),
    ("GET", "/nowhere", ("Host", "other")),
    ("GET", "/nowhere%2Felse", ("Host", "other")),
    ("GET", "/V1/orders/7", API),
    ("GET", "/a%2Fb", API),
    ("GET", "/a%5cb", API),
    ("GET", "/login%0A", API),
    ("GET", "/a%00", API),
    ("GET", "/%zz", API),
    ("GET", "/%c0%af", API),
    ("GET", "/..;/login", API),
    ("GET", "/a\\b", API),
    ("GET", "/<a>", API),
    ("GET", "login", API),
    ("GET", "/caf\u{e9}", API),
    ("GET", "/files/Secret", ("Host", "other")),
    ("GET", "/files/secret", ("Host", "other")),
    ("GET", "/files/a%2Fb", ("Host", "other")),
    ("GET", "/files/a%2fB%0a", ("Host", "other")),
    ("GET", "/decoded/a%2Fb", ("Host", "other")),
    ("GET", "/decoded/a%0Ab", ("Host", "other")),
    ("GET", "/decoded/..%2Flogin", ("Host", "other")),
    ("GET", "/decoded%2Fa", ("Host", "other")),
];

/// Keys, bans, exemptions, tokens and costs.
fn clients() -> Vec<Case> {
    let with = |headers: &[(&'static str, &str)]| {
        let headers = [API].iter().chain(headers).map(|(name, value)| (*name, (*value).to_owned()));
        Case { method: "GET", target: "/", headers: headers.collect() }
    };
    let mut cases: Vec<_> = [
        ("X-API-Key", "key_free"),
        ("X-API-Key", "key_premium"),
        ("X-API-Key", "key_unknown"),
        ("X-API-Key", "key_friend"),
        ("X-API-Key", ""),
        ("X-Forwarded-For", "192.0.2.7"),
        ("X-Forwarded-For", "203.0.113.9"),
        ("X-Forwarded-For", "198.51.100.1"),
        ("X-Forwarded-For", "192.0.2.1, 198.51.100.1"),
        ("X-Forwarded-For", "2001:db8::7"),
        ("X-Forwarded-For", "nonsense"),
        ("X-Tenant", "acme"),
        ("X-Cost", "7"),
        ("X-Cost", "0"),
        ("X-Cost", "100000"),
        ("Authorization", "hunter2"),
    ]
    .map(|header| with(&[header]))
    .into();
    for token in [VALID, BANNED, EXPIRED, NO_EXPIRY, TOO_EARLY, FORGED, NO_KEY, NO_CLAIM, "a.b.c"] {
        cases.push(with(&[("Authorization", &format!("Bearer {token}"))]));
    }
    let banned = ("X-Forwarded-For", "203.0.113.9");
    cases.push(with(&[banned, ("X-API-Key", "key_friend")]));
    cases.push(Case { target: "/%zz", ..with(&[banned]) });
    cases
}

/// The result of the gateway: status, the rules that can reject, and the body.
fn gateway_result(gateway: &AdminGateway, case: &Case) -> (u16, Vec<String>, String) {
    let lines = case.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
    let lines = lines.collect::<Vec<_>>().concat();
    let response = request(&gateway.server.address, case.method, case.target, &lines, "");
    let policy = response.header("ratelimit-policy");
    let mut rules: Vec<_> = policy
        .unwrap_or_default()
        .split(", ")
        .filter_map(|member| member.split('"').nth(1))
        .map(str::to_owned)
        .collect();
    rules.sort_unstable();
    rules.dedup();
    (response.status, rules, response.text())
}

/// The result of `explain`: status, the rules that can reject, and why a request is rejected.
fn explain_result(explanation: &Value) -> (u64, Vec<String>, &str) {
    let verdict = &explanation["verdict"];
    let status = match verdict["is"].as_str().unwrap_or_else(|| panic!("{explanation}")) {
        "admitted" | "exempt" => 200,
        "banned" => 403,
        "limit_exceeded" => 429,
        _ => verdict["status"].as_u64().unwrap(),
    };
    let rules = explanation["rules"].as_array().unwrap().iter().filter(|rule| rule["binding"] == true);
    let mut rules: Vec<_> = rules.map(|rule| rule["name"].as_str().unwrap().to_owned()).collect();
    rules.sort_unstable();
    rules.dedup();
    (status, rules, verdict["reason"].as_str().unwrap_or_default())
}

#[test]
fn explain_and_gateway_give_the_same_result() {
    let policy = PolicyFile::new(&policy());
    for (name, text) in [
        ("jwt.secret", SECRET),
        ("keys.csv", "key_free,free\nkey_premium,premium,acme\n"),
        ("friends.txt", "key_friend\n"),
    ] {
        std::fs::write(policy.beside(name), text).unwrap();
    }
    let log = policy.beside("access.log");
    let gateway = AdminGateway::serve(policy);
    assert_eq!(gateway.send("POST", "/v1/bans", r#"{"subject":"user:mallory"}"#).status, 201);
    let lines_alone = LINES.map(|(method, target, (name, value))| Case {
        method,
        target,
        headers: vec![(name, value.to_owned())],
    });
    let (mut differences, mut expected_clients) = (Vec::new(), Vec::new());
    for case in lines_alone.into_iter().chain(clients()) {
        let Case { method, target, headers } = &case;
        let body = json!({
            "method": method,
            "path": target,
            "headers": headers.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
        });
        let explanation = gateway.send("POST", "/v1/explain", &body.to_string()).json();
        if !explanation["verdict"].is_object() {
            differences.push(format!("{body}: {explanation}"));
            continue;
        }
        let (status, rules, reason) = explain_result(&explanation);
        let (actual, actual_rules, response_body) = gateway_result(&gateway, &case);
        if u64::from(actual) != status || actual_rules != rules {
            differences.push(format!("{body}: {actual} {actual_rules:?}, explained as {status} {rules:?}"));
        }
        // HTTP's parser rejects a target that is not a URI, and does not say why.
        let message: Value = serde_json::from_str(&response_body).unwrap_or_default();
        let message = message["message"]
            .as_str()
            .filter(|message| status == 400 && !message.contains("Invalid request line or header"));
        if message.is_some_and(|message| reason.is_empty() || !message.contains(reason)) {
            differences.push(format!("{body}: {response_body}, explained as {reason}"));
        }
        if matches!(explanation["verdict"]["is"].as_str(), Some("admitted" | "limit_exceeded")) {
            expected_clients.push(explanation["client"]["key"].as_str().unwrap().to_owned());
        }
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
    let mut count = expected_clients.len();
    let mut logged: Vec<_> = loop {
        let lines = lines(&log, count);
        let clients = lines.iter().filter_map(|line| Some(line["client"].as_str()?.to_owned()));
        let clients: Vec<_> = clients.collect();
        if clients.len() >= expected_clients.len() {
            break clients;
        }
        count = lines.len() + 1;
    };
    expected_clients.sort_unstable();
    logged.sort_unstable();
    assert_eq!(logged, expected_clients, "clients");
}

#[test]
fn explain_names_the_reason_for_a_rejected_token() {
    let policy = PolicyFile::new(&policy());
    for (name, text) in [("jwt.secret", SECRET), ("keys.csv", "k,free\n"), ("friends.txt", "f\n")] {
        std::fs::write(policy.beside(name), text).unwrap();
    }
    let gateway = AdminGateway::serve(policy);
    for (token, expected, kind) in [
        (EXPIRED, "expired", "user"),
        (NO_EXPIRY, "no `exp`", "user"),
        (TOO_EARLY, "not valid yet", "user"),
        (FORGED, "signature", "ip"),
        (NO_KEY, "no key", "ip"),
        (NO_CLAIM, "no claim `sub`", "ip"),
        ("hunter2", "not a valid signed JWT", "ip"),
    ] {
        let body = json!({ "path": "/", "headers": { "Authorization": format!("Bearer {token}") } });
        let explanation = gateway.send("POST", "/v1/explain", &body.to_string()).json();
        let how = explanation["client"]["how"].as_str().unwrap();
        assert!(how.contains(expected) && !how.contains(token), "{expected}: {how}");
        assert_eq!(explanation["client"]["kind"], kind, "{expected}");
    }
}
